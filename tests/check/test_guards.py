"""Guards find out-of-bounds writes, changed inputs and uninitialized memory."""

import ctypes
import subprocess
from dataclasses import replace

import pytest
import torch
from packed_attention import DTYPES, attention, flash, run

import preloaded_python
from tlmatrix.check.guards import ALIGNMENT, guarded
from tlmatrix.check.memory import poison_mask
from tlmatrix.problem.model import Dim, Problem, TensorInfo

ALL_FLOATS = (*DTYPES, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)
NAMES = {"ids": lambda value: str(value).removeprefix("torch.")}


def beyond(tensor, elements, *, before=False):
    """The elements past the end of a tensor, or before its start: by address, as a kernel does."""
    start = tensor.data_ptr() + (-elements if before else tensor.numel()) * tensor.element_size()
    memory = (ctypes.c_char * (elements * tensor.element_size())).from_address(start)
    return torch.frombuffer(memory, dtype=tensor.dtype)


def doubled(dtype, count=100):
    """A problem that asks for twice its input."""
    x = torch.arange(count).to(dtype)
    info = TensorInfo("y", (Dim("row", count),), dtype, 2.0**-11)
    return Problem(
        values={},
        names={"x": x, "n": count},
        inputs={"x": x},
        outputs={"y": info},
        returns=("y",),
        reference=lambda: {"y": 2 * x.double()},
    )


def kernel(edit=lambda x, y: None):
    def execute(problem):
        x = problem.names["x"]
        y = torch.empty_like(x)
        y.copy_(2 * x.float())
        edit(x, y)
        return {"y": y}

    return execute


def findings(problem, execute):
    with guarded(problem) as (inside, guards):
        results = execute(inside)
    return guards.findings(results)


# Guards ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL_FLOATS, **NAMES)
def test_no_finding_for_a_correct_entry(dtype):
    assert findings(doubled(dtype), kernel()) == []


@pytest.mark.parametrize("dtype", DTYPES, **NAMES)
@pytest.mark.parametrize("count", [1, 99, 100])
@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
def test_a_single_element_written_outside(dtype, count, before):
    def edit(_, y):
        beyond(y, 1, before=before).fill_(1)

    (finding,) = findings(doubled(dtype, count), kernel(edit))
    assert (finding.check, finding.tensor, finding.wrong) == ("guards", "y", 1)
    assert finding.pattern == ("before the start" if before else "past the end")
    assert finding.where == (
        "elements 1-1 before y" if before else "elements 0-0 past the end of y"
    )
    assert "test_guards.py" in finding.detail


@pytest.mark.parametrize("count", [3, 4])
def test_one_byte_past_the_end(count):
    def execute(_):
        flags = torch.zeros(count, dtype=torch.uint8)
        beyond(flags, 1).fill_(0)
        return {"y": flags}

    (finding,) = findings(doubled(torch.float32), execute)
    assert finding.where == "elements 0-0 past the end of y"


def test_a_write_past_the_end_of_an_input():
    (finding,) = findings(doubled(torch.float16), kernel(lambda x, _: beyond(x, 2).fill_(3)))
    assert finding.title.startswith("out-of-bounds write: elements 0-1 past the end")


@pytest.mark.parametrize(
    "allocate",
    [
        lambda x: torch.empty(x.shape),
        torch.empty_like,
        lambda x: x.new_empty(x.shape),
        lambda x: torch.empty_strided(x.shape, x.stride()),
        lambda x: x.new_empty_strided(x.shape, x.stride()),
        lambda x: torch.zeros(x.shape),
        torch.zeros_like,
        lambda x: x.new_zeros(x.shape),
        lambda x: torch.ones(x.shape),
        lambda x: torch.full(x.shape, 7.0),
        lambda x: torch.full_like(x, 7.0),
    ],
)
def test_every_allocation_function_is_guarded(allocate):
    def execute(problem):
        x = problem.names["x"]
        workspace = allocate(x)
        assert workspace.shape == x.shape
        beyond(workspace, 3).fill_(0)
        return {"y": 2 * x}

    (finding,) = findings(doubled(torch.float32), execute)
    assert finding.where.startswith("elements 0-2 past the end of the float32 buffer [100]")


def test_allocations_in_a_backward_pass_are_guarded():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return 2 * x

        @staticmethod
        def backward(_, dy):
            dx = torch.empty_like(dy)
            assert poison_mask(dx) is not None
            dx.copy_(2 * dy)
            beyond(dx, 1).fill_(0)
            return dx

    def execute(problem):
        x = problem.names["x"].detach().requires_grad_()
        y = Twice.apply(x)
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        return {"y": y.detach(), "dx": dx}

    (finding,) = findings(doubled(torch.float32), execute)
    assert finding.tensor == "dx"


def test_initialized_allocations_keep_their_values():
    def execute(problem):
        x = problem.names["x"]
        assert torch.equal(torch.full((3,), 5), torch.tensor([5, 5, 5]))
        return {"y": 2 * x + torch.zeros_like(x) + (torch.ones(1) - 1)}

    assert findings(doubled(torch.float32), execute) == []


def test_buffers_are_aligned_and_keep_sizes_strides_and_bits():
    x = torch.randn(6, 5).T
    wide = torch.randn(4, 1).expand(4, 3)
    problem = replace(doubled(torch.float32), inputs={"x": x, "wide": wide}, names={"x": x})
    with guarded(problem) as (inside, guards):
        assert inside.names["x"] is inside.inputs["x"]
        for before, after in ((x, inside.inputs["x"]), (wide, inside.inputs["wide"])):
            assert after.data_ptr() % ALIGNMENT == 0
            assert after.stride() == before.stride()
            assert torch.equal(after, before)
        assert torch.empty(7).data_ptr() % ALIGNMENT == 0
    assert guards.findings({}) == []


def test_output_assigned_slice_by_slice():
    def execute(problem):
        x = problem.names["x"].clone().requires_grad_()
        y = torch.empty_like(x)
        y = y.clone()
        y[:60] = 2 * x[:60]
        y[60:] = 2 * x[60:]
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        assert torch.equal(dx, torch.full_like(x, 2))
        return {"y": y.detach()}

    assert findings(doubled(torch.float32), execute) == []


def test_fresh_memory_has_no_storage_offset():
    with guarded(doubled(torch.float16)) as (inside, _):
        for tensor in (torch.empty(5), inside.inputs["x"], torch.zeros(3, dtype=torch.bool)):
            assert tensor.storage_offset() == 0
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_empty_allocations_may_be_resized():
    def execute(problem):
        y = torch.empty(0)
        torch.mul(problem.names["x"].float(), 2, out=y)
        return {"y": y}

    assert findings(doubled(torch.float32), execute) == []


def test_empty_tensors():
    problem = replace(doubled(torch.float32, 0), names={"x": torch.zeros(0)})

    def execute(_):
        return {"y": torch.empty(0), "z": torch.zeros(3, 0, 2)}

    assert findings(problem, execute) == []


def test_cotangents_and_names_are_moved_together():
    problem = attention()
    with guarded(problem) as (inside, _):
        assert inside.names["q"] is inside.inputs["q"]
        assert inside.inputs["q"] is not problem.inputs["q"]
        assert inside.cotangents["out"] is not problem.cotangents["out"]


@pytest.mark.parametrize("dtype", DTYPES, **NAMES)
def test_an_input_changed_in_place(dtype):
    def edit(x, _):
        x[17] += 1

    problem = doubled(dtype)
    (finding,) = run(problem, kernel(edit), "guards", "numeric", "determinism")
    assert (finding.check, finding.tensor, finding.pattern) == ("guards", "x", "input changed")
    assert (finding.expected, finding.got) == (17, 18)
    assert problem.inputs["x"][17] == 17


def test_an_input_changed_from_zero_to_minus_zero():
    (finding,) = findings(doubled(torch.float32), kernel(lambda x, _: x[:1].neg_()))
    assert finding.tensor == "x"


# Poison ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL_FLOATS, **NAMES)
def test_fresh_memory_holds_poison(dtype):
    with guarded(doubled(torch.float32)):
        fresh = torch.empty(5, 3, dtype=dtype)
    assert fresh.float().isnan().all()
    assert poison_mask(fresh).all()
    assert poison_mask(torch.zeros(3, dtype=dtype)) is None


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_fresh_integers_are_large_and_odd(dtype):
    with guarded(doubled(torch.float32)):
        fresh = torch.empty(3, dtype=dtype)
    assert (fresh % 2 == 1).all()
    assert (fresh > torch.iinfo(dtype).max // 4).all()


@pytest.mark.parametrize("dtype", DTYPES[:2], **NAMES)
def test_computed_nan_is_not_poison(dtype):
    computed = torch.zeros(2, dtype=dtype) / 0
    assert computed.isnan().all()
    assert poison_mask(computed) is None


@pytest.mark.parametrize("dtype", DTYPES, **NAMES)
def test_rows_that_were_never_written(dtype):
    def execute(problem):
        results = flash(problem)
        out = torch.empty_like(results["out"])
        out[:40] = results["out"][:40]
        return {**results, "out": out}

    (finding,) = run(attention((17, 40), dtype=dtype), execute, "numeric", "poison", "determinism")
    assert (finding.check, finding.tensor) == ("poison", "out")
    assert finding.title.startswith("out: 816 of 2736 elements were never written (last rows)")
    assert finding.where == "rows 23-39 of sequence 1, in tile 1-2"
    assert "never written: 816 elements" in finding.hint


@pytest.mark.parametrize("dtype", DTYPES, **NAMES)
def test_a_workspace_assumed_zero(dtype):
    def execute(problem):
        results = flash(problem)
        workspace = torch.empty(results["dq"].shape)
        workspace += results["dq"].float()
        return {**results, "dq": workspace.to(dtype)}

    (finding,) = run(attention(dtype=dtype), execute, "gradients", "poison")
    assert (finding.check, finding.tensor) == ("poison", "dq")
    assert "memory" in finding.hint


def test_nan_not_from_memory_is_no_poison_finding():
    def execute(problem):
        results = flash(problem)
        results["out"][0] = torch.nan
        return results

    (finding,) = run(attention(), execute, "numeric", "poison")
    assert finding.check == "numeric"


def test_read_past_the_end_of_an_input():
    def execute(problem):
        x = problem.names["x"]
        return {"y": 2 * beyond(x.narrow(0, 0, 1), x.numel()).clone()}

    (finding,) = run(doubled(torch.float32), execute, "numeric", "poison", "guards")
    assert finding.index == {"row": 99}


# Beside torch.compile ----------------------------------------------------------------------------


def test_compiled_entry_is_guarded():
    def body(x):
        y = torch.empty_like(x)
        y[1:] = 2 * x[1:]
        return y

    compiled = torch.compile(body, backend="eager")

    def execute(problem):
        return {"y": compiled(problem.names["x"])}

    (found,) = run(doubled(torch.float32), execute, "numeric", "poison")
    assert found.check == "poison"
    assert found.where == "row 0"


def test_guards_and_ranks_do_not_import_torch_compile():
    script = (
        "import sys, torch, tlmatrix; from tlmatrix.check.guards import allocations_guarded\n"
        "with allocations_guarded():\n"
        "    torch.empty(3).zero_()\n"
        "tlmatrix.simulate(lambda rank: torch.ones(2).sum(), world=2)\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([preloaded_python.python(), "-c", script], check=True)
