"""Entries and factories: arguments by name, results by name, and errors a user can act on."""

import itertools
import os
import sys

import pytest
import torch

from tlmatrix.backend import ArchitectureError, BindingError, EntryError, backend_named
from tlmatrix.backend.axes import refuse_unknown_axes
from tlmatrix.backend.backends import CudaBackend, InterpreterBackend
from tlmatrix.backend.binding import bind, execute
from tlmatrix.problem import family_for
from tlmatrix.spec import SpecError, load_spec
from tlmatrix.tracebacks import user_traceback

_CODE = """
import torch
import tilelang
import tilelang.language as T


def reference(x, w):
    return x * w, x.sum(0)


def by_keyword(w, x, *, rows, scale=None, unheard_of=5):
    assert rows == x.shape[0] and unheard_of == 5
    return x * w, x.sum(0)


def first_only(x, w):
    return x * w


def make_context(heat, *, room=1):
    return heat, room


def any_keyword(x, w, **others):
    assert others == {"flag": True}, others
    return first_only(x, w)


def detached(x, w):
    return (x * w).detach(), x.sum(0).detach()


def without_w(x, w):
    return x * torch.ones_like(w), x.sum(0)


def asks_for_more(x, w, colums):
    return x * w


def gives_text(x, w):
    return "text"


def gives_nothing(x, w):
    pass


def gives_three(x, w):
    return x, x, x


def raises(x, w):
    return deeper(x)


def deeper(x):
    raise RuntimeError("deep inside")


def backward_raises(x, w):
    return _Broken.apply(x * w), x.sum(0)


class _Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("no way back")


not_callable = 5


def prim_func(rows, cols, dtype="float32", fill=0.0):
    @T.prim_func
    def main(x: T.Tensor((rows, cols), dtype), y: T.Tensor((rows, cols), dtype)):
        with T.Kernel(rows, threads=32) as row:
            for col in T.Parallel(cols):
                y[row, col] = x[row, col] * 2.0 + fill

    return main


@tilelang.jit(out_idx=[1])
def lazy(rows, cols, dtype="float32"):
    @T.prim_func
    def main(x: T.Tensor((rows, cols), dtype), y: T.Tensor((rows, cols), dtype)):
        with T.Kernel(rows, threads=32) as row:
            for col in T.Parallel(cols):
                y[row, col] = x[row, col] * 2.0

    return main


@tilelang.jit
def forgets_a_row(rows, cols, dtype="float32"):
    @T.prim_func
    def main(x: T.Tensor((rows, cols), dtype), y: T.Tensor((rows, cols), dtype)):
        with T.Kernel(rows - 1, threads=32) as row:
            for col in T.Parallel(cols):
                y[row, col] = x[row, col] * 2.0

    return main


def gives_no_kernel(rows):
    return {"rows": rows}


def double(x):
    return 2 * x
"""

_SPEC = """\
name: product
problem:
  inputs:
    x: {{shape: [rows, cols], dtype: float32, grad: true}}
    w: {{shape: [cols], dtype: float32, grad: true}}
  outputs: [y, s]
  reference: {module}:reference
{binding}
axes: {{rows: [4], cols: [3]{axes}}}
checks: [{checks}]
{more}
"""

_numbers = itertools.count()


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = f"bound_code_{os.getpid()}_{next(_numbers)}"
    (tmp_path / f"{module}.py").write_text(_CODE)

    def make_spec(entry="", *, binding="", axes="", checks="numeric, gradients", more=""):
        path = tmp_path / "product.yaml"
        text = binding.format(module=module) or f"entry: {module}:{entry}"
        path.write_text(
            _SPEC.format(module=module, binding=text, axes=axes, checks=checks, more=more)
        )
        return load_spec(path)

    yield make_spec
    sys.modules.pop(module, None)


@pytest.fixture
def backend():
    return backend_named("interpreter")


def _run(spec, backend):
    values = {name: axis[0] for name, axis in spec.axes.items()}
    problem = family_for(spec).problem(spec, values, seed=1, device=backend.device)
    return execute(bind(spec, backend), problem), dict(problem.reference())


def _close(found, wanted):
    return all(torch.allclose(found[name].double(), wanted[name], rtol=1e-4) for name in found)


# Entries --------------------------------------------------------------------------------------


def test_arguments_are_matched_by_name_and_results_by_order(make, backend):
    found, wanted = _run(make("by_keyword", checks="numeric"), backend)
    assert set(found) == {"y", "s"}
    assert _close(found, wanted)


def test_gradients_are_those_of_the_outputs(make, backend):
    found, wanted = _run(make("by_keyword"), backend)
    assert set(found) == {"y", "s", "dx", "dw"}
    assert _close(found, wanted)


def test_an_entry_may_return_fewer_outputs(make, backend):
    found, wanted = _run(make("first_only", checks="numeric"), backend)
    assert set(found) == {"y"}
    assert _close(found, wanted)


def test_an_entry_that_takes_any_keyword_gets_the_other_axes(make, backend):
    spec = make("any_keyword", axes=", flag: [true]", checks="numeric")
    with pytest.raises(EntryError, match="rows"):
        _run(spec, backend)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("asks_for_more", "no value for its parameter 'colums'; did you mean 'cols'?"),
        ("gives_text", "'y' is not a tensor but of type str"),
        ("gives_nothing", "returned None"),
        ("gives_three", "returned 3 results, expected 2: y, s"),
    ],
)
def test_a_mismatch_is_an_error_at_the_entry_of_the_spec(make, backend, entry, words):
    spec = make(entry)
    with pytest.raises(BindingError) as caught:
        _run(spec, backend)
    (issue,) = caught.value.issues
    assert words in issue.message
    assert (issue.path, issue.line) == (spec.path, 8)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("by_keywrod", "did you mean 'by_keyword'?"),
        ("not_callable", "not callable: its type is int"),
    ],
)
def test_an_entry_that_does_not_exist(make, backend, entry, words):
    with pytest.raises(SpecError, match=words.replace("?", r"\?")):
        bind(make(entry), backend)


def test_a_missing_module_names_the_nearest_file_beside_the_spec(make, backend):
    spec = make(binding="entry: {module}x:double")
    with pytest.raises(SpecError, match="did you mean 'bound_code_"):
        bind(spec, backend)


def test_a_module_that_breaks_on_import_shows_where(make, backend, tmp_path):
    (tmp_path / "breaks_on_import.py").write_text("\nlen(5)\n")
    spec = make(binding="entry: breaks_on_import:double")
    with pytest.raises(SpecError, match="TypeError") as caught:
        bind(spec, backend)
    assert "breaks_on_import.py:2" in str(caught.value)


def test_two_modules_of_one_name_are_kept_apart(make, backend, tmp_path):
    first = make("first_only")
    bind(first, backend)
    other = tmp_path / "other"
    other.mkdir()
    (other / f"{first.entry.split(':')[0]}.py").write_text(_CODE)
    (other / "product.yaml").write_text(first.path.read_text())
    with pytest.raises(SpecError, match="already loaded from"):
        bind(load_spec(other / "product.yaml"), backend)


def test_an_error_of_the_entry_shows_only_frames_of_the_user(make, backend):
    with pytest.raises(EntryError, match="RuntimeError: deep inside") as caught:
        _run(make("raises"), backend)
    lines = user_traceback(caught.value.error).splitlines()
    assert [line.split(" in ")[1] for line in lines] == [
        "raises: return deeper(x)",
        'deeper: raise RuntimeError("deep inside")',
    ]


def test_an_error_in_the_backward_is_an_entry_error(make, backend):
    with pytest.raises(EntryError, match="no way back"):
        _run(make("backward_raises"), backend)


def test_inputs_are_not_copied(make, backend):
    spec = make("by_keyword")
    values = {"rows": 4, "cols": 3}
    problem = family_for(spec).problem(spec, values, seed=1, device=backend.device)
    before = {name: tensor.clone() for name, tensor in problem.inputs.items()}
    execute(bind(spec, backend), problem)
    assert all(not tensor.requires_grad for tensor in problem.inputs.values())
    assert all(torch.equal(before[name], problem.inputs[name]) for name in before)


def test_an_unread_axis_is_an_error_at_its_key(make, backend):
    spec = make("by_keyword", axes=", scael: [1]")
    with pytest.raises(BindingError) as caught:
        refuse_unknown_axes(bind(spec, backend), family_for(spec))
    (issue,) = caught.value.issues
    assert "takes the axis 'scael'; did you mean 'scale'?" in issue.message
    assert (issue.line, issue.column) == (9, 30)
    spec = make("by_keyword", axes=", scale: [1]")
    refuse_unknown_axes(bind(spec, backend), family_for(spec))


def test_an_axis_may_be_read_by_the_context_only(make, backend):
    binding = "entry: {module}:by_keyword\ncontext: {module}:make_context"
    spec = make(binding=binding, axes=", world: [1], heat: [1], room: [2]")
    refuse_unknown_axes(bind(spec, backend), family_for(spec))
    spec = make(binding=binding, axes=", world: [1], heat: [1], rooms: [2]")
    with pytest.raises(BindingError, match="takes the axis 'rooms'; did you mean 'room'"):
        refuse_unknown_axes(bind(spec, backend), family_for(spec))


# Factories ------------------------------------------------------------------------------------

_FACTORY = """\
factory: {{module}}:{name}
factory_args: {{{{rows: rows, cols: "cols"{more}}}}}
call: [{call}]
returns: [y]"""


def _factory(name, *, call="x", more=""):
    return _FACTORY.format(name=name, call=call, more=more)


@pytest.mark.parametrize(
    "binding",
    [_factory("lazy"), _factory("prim_func"), _factory("prim_func", call="x, y")],
    ids=["lazy jit", "PrimFunc, result returned", "PrimFunc, buffer written"],
)
def test_factories_of_every_kind(make, backend, binding):
    spec = make(binding=binding, checks="numeric")
    values = {"rows": 4, "cols": 3}
    problem = family_for(spec).problem(spec, values, seed=1, device=backend.device)
    found = execute(bind(spec, backend), problem)
    assert torch.equal(found["y"], 2 * problem.inputs["x"])


def test_compile_arguments_may_be_numbers_and_kernels_are_cached(make, backend, monkeypatch):
    spec = make(binding=_factory("prim_func", more=", fill: 1.5"), checks="numeric")
    binding = bind(spec, backend)
    problem = family_for(spec).problem(spec, {"rows": 4, "cols": 3}, seed=1, device=backend.device)
    first = execute(binding, problem)
    assert torch.equal(first["y"], 2 * problem.inputs["x"] + 1.5)
    import tilelang

    monkeypatch.setattr(tilelang, "compile", None)
    assert torch.equal(execute(binding, problem)["y"], first["y"])


def test_an_unwritten_output_buffer_holds_nan(make, backend):
    spec = make(binding=_factory("forgets_a_row", call="x, y"), checks="numeric")
    found, _ = _run(spec, backend)
    assert found["y"][-1].isnan().all()
    assert not found["y"][:-1].isnan().any()


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        (_factory("lazy", more=", colls: 3"), "has no parameter 'colls'; did you mean 'cols'?"),
        (_factory("lazy", call="x, ww"), "the problem has no 'ww'; did you mean 'w'?"),
        (
            _factory("lazy").replace('factory_args: {{rows: rows, cols: "cols"}}\n', ""),
            "takes the axes rows, cols; add them: factory_args: {rows: rows, cols: cols}",
        ),
        (_factory("gives_no_kernel").replace(', cols: "cols"', ""), "not a kernel"),
    ],
)
def test_a_mismatch_with_a_factory_is_an_error(make, backend, binding, words):
    with pytest.raises(BindingError) as caught:
        _run(make(binding=binding, checks="numeric"), backend)
    assert words in str(caught.value)


# Backends -------------------------------------------------------------------------------------


def test_backends_by_name():
    assert backend_named("interpreter").device.type == "cpu"
    wanted = "cuda" if torch.cuda.is_available() else "interpreter"
    assert backend_named("auto").name == wanted
    with pytest.raises(ValueError, match="unknown backend 'interpretr'; did you mean"):
        backend_named("interpretr")


@pytest.mark.parametrize(
    ("written", "traced"), [("", "sm_90a"), ("architectures: [sm_100a, sm_80]", "sm_100a")]
)
def test_the_interpreter_traces_for_the_first_architecture(make, backend, written, traced):
    spec = make("by_keyword", more=written)
    bound = bind(spec, backend).backend
    assert bound == InterpreterBackend(target=traced)
    with bound.active() as session:
        assert session.arch == traced


@pytest.mark.parametrize(
    ("written", "runs"),
    [((), True), (("sm_80", "sm_90a"), True), (("sm_90",), True), (("sm_100a", "sm_80"), False)],
)
def test_a_gpu_supports_kernels_of_its_architecture(written, runs):
    gpu = CudaBackend(device=torch.device("cuda", 0), arch="sm_90")
    if runs:
        assert gpu.targeting(written) is gpu
    else:
        words = "its kernels are for sm_100a and sm_80, and this GPU is sm_90"
        with pytest.raises(ArchitectureError, match=words):
            gpu.targeting(written)
