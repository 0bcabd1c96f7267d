"""`tlmatrix new`: specs of operators and factories, and their first run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outside_project import project
from tlmatrix.draft.calls import Call, Seen, write_call
from tlmatrix.exit_codes import ExitCode
from tlmatrix.spec import load_spec
from tlmatrix.spec.schema import SCHEMA_PATH

if TYPE_CHECKING:
    from outside_project import Project

__all__ = ["project"]

_TARGETS = '''
def attention(q, k, v, *, causal=False, window=None, fast=True):
    """Plain attention: "quoted"."""

def packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, *, causal=False):
    pass

def product(a, b, transpose_a=False, block=64):
    pass

def norm(x, w, eps=1e-6, mode="fast"):
    pass
'''


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("attention", {"causal", "window", "fast", "seqlen_q", "head_dim"}),
        ("packed", {"causal", "seqlens", "head_dim"}),
        ("product", {"m", "n", "k", "transpose_a", "block"}),
        ("norm", {"rows", "cols", "mode"}),
    ],
)
def test_new_writes_a_spec_that_check_accepts(project: Project, name: str, axes: set[str]) -> None:
    (project.folder / f"{project.module}.py").write_text(_TARGETS)
    target = f"{project.module}:{name}"
    outcome = project.tlmatrix("new", target, "-o", f"{name}.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    outcome = project.tlmatrix("check", f"{name}.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    spec = load_spec(project.folder / f"{name}.yaml")
    assert str(SCHEMA_PATH.parent) not in (project.folder / f"{name}.yaml").read_text()
    assert spec.entry == target
    assert axes <= set(spec.axes)
    assert project.tlmatrix("new", target, "-o", f"{name}.yaml").code == ExitCode.USAGE


_ROWS = """
import tilelang
import tilelang.language as T
import torch

@tilelang.jit
def doubled(dtype="float32"):
    total, dim, bounds = T.dynamic("total, dim, bounds")

    @T.prim_func
    def double_rows(
        X: T.Tensor((total, dim), dtype),
        Offsets: T.Tensor((bounds,), "int32"),
        Y: T.Tensor((total, dim), dtype),
    ):
        with T.Kernel(bounds - 1, T.ceildiv(dim, 8), threads=128) as (b, part):
            for tile in T.serial(T.ceildiv(Offsets[b + 1] - Offsets[b], 16)):
                for i, d in T.Parallel(16, 8):
                    row = Offsets[b] + tile * 16 + i
                    if row < Offsets[b + 1] and part * 8 + d < dim:
                        Y[row, part * 8 + d] = X[row, part * 8 + d] * 2

    return double_rows


def double(x, offsets):
    y = torch.empty_like(x)
    if x.numel():
        doubled()(x, offsets, y)
    return y


def reference(x, offsets):
    return x * 2
"""


def test_a_new_spec_demands_what_is_proven_of_its_kernels(project: Project) -> None:
    (project.folder / f"{project.module}.py").write_text(_ROWS)
    call = "f(torch.randn(24, 40), torch.tensor([0, 5, 24]).int())"
    outcome = project.tlmatrix("new", f"{project.module}:double", "--call", call, "-o", "s.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    assert "proven for all sizes: races, own sequence, coverage, bounds, overflow" in outcome.out
    spec = load_spec(project.folder / "s.yaml")
    assert {"races", "own sequence", "coverage"} <= set(spec.prove.properties)
    assert project.tlmatrix("prove", "s.yaml").code == ExitCode.OK


_FACTORIES = """
import tilelang
import tilelang.language as T
import torch

@tilelang.jit(out_idx=[1])
def softmax(M, N, block_M: int = 8, threads=128, dtype="float16"):
    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, N), "float32")
            top = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.copy(X[bx * block_M, 0], x)
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = T.exp(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[bx * block_M, 0])
    return main

@tilelang.jit
def scaled(batch: int, heads: int, dim: int, in_dtype, fast: bool):
    total = T.dynamic("total")
    @T.prim_func
    def main(x: T.Tensor((total, heads * dim), in_dtype), s: T.float32,
             ends: T.Tensor((batch + 1,), "int32"), out: T.Tensor((total, heads * dim), in_dtype)):
        with T.Kernel(total, threads=128) as b:
            for i in T.Parallel(heads * dim):
                out[b, i] = x[b, i] * s
            out[b, 0] += T.cast(ends[batch] * 0, in_dtype)
    return main

@tilelang.jit
def typed(M, N, dtype=T.float16, block_N=128):
    assert M % 64 == 0, "M must be a multiple"
    torch.cuda.get_device_properties(0)
    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, T.ceildiv(N, block_N), threads=128) as (row, tile):
            for i in T.Parallel(block_N):
                Y[row, tile * block_N + i] = X[row, tile * block_N + i] * 2
    return main

@tilelang.jit
def per_tile(M, N, block_N=128):
    @T.prim_func
    def main(X: T.Tensor((M, N), "float16"), S: T.Tensor((M, T.ceildiv(N, block_N)), "float32"),
             Y: T.Tensor((M, N), "float16")):
        with T.Kernel(M, T.ceildiv(N, block_N), threads=128) as (row, tile):
            for i in T.Parallel(block_N):
                Y[row, tile * block_N + i] = X[row, tile * block_N + i] * S[row, tile]
    return main

@tilelang.jit
def odd(shape, dtype: str, block_M: int):
    rows, cols = shape

def softmax_reference(X):
    return torch.softmax(X, -1)
"""


def test_new_writes_a_spec_of_the_parameters_that_tracing_finds(project: Project) -> None:
    (project.folder / f"{project.module}.py").write_text(_FACTORIES)
    outcome = project.tlmatrix("new", f"{project.module}:scaled", "-o", "scaled.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    outcome = project.tlmatrix("check", "scaled.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    spec = load_spec(project.folder / "scaled.yaml")
    inputs, outputs = spec.problem.inputs, spec.problem.outputs
    assert {name: [str(size) for size in item.shape] for name, item in inputs.items()} == {
        "x": ["total", "heads * dim"],
        "ends": ["batch + 1"],
    }
    assert [item.dtype for item in inputs.values()] == ["$in_dtype", "int32"]
    assert {name: item.dtype for name, item in outputs.items()} == {"out": "$in_dtype"}
    assert spec.factory_args == {
        name: name for name in ("batch", "heads", "dim", "in_dtype", "fast")
    }
    assert spec.call == ("x", "s", "ends", "out")
    assert spec.returns == ("out",)
    assert set(spec.axes) == {*spec.factory_args, "total", "s", "values"}
    assert "def reference(x, ends):" in (project.folder / "scaled.yaml").read_text()


def test_defaults_of_tilelangs_dtypes_are_written_by_name(project: Project) -> None:
    (project.folder / f"{project.module}.py").write_text(_FACTORIES)
    project.tlmatrix("new", f"{project.module}:typed", "-o", "typed.yaml")
    assert "Tracing" not in (project.folder / "typed.yaml").read_text()
    assert load_spec(project.folder / "typed.yaml").axes["dtype"][0] == "float16"


def test_expressions_of_dimensions_are_quoted_for_yaml(project: Project) -> None:
    (project.folder / f"{project.module}.py").write_text(_FACTORIES)
    project.tlmatrix("new", f"{project.module}:per_tile", "-o", "tiles.yaml")
    outcome = project.tlmatrix("check", "tiles.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    sizes = load_spec(project.folder / "tiles.yaml").problem.inputs["S"].shape
    assert [str(size) for size in sizes] == ["M", "ceildiv(N, 128)"]


def test_a_new_spec_runs_after_a_reference_is_added(project: Project) -> None:
    (project.folder / f"{project.module}.py").write_text(_FACTORIES)
    project.tlmatrix("new", f"{project.module}:softmax", "-o", "softmax.yaml")
    spec = load_spec(project.folder / "softmax.yaml")
    assert spec.axes["N"] == (1, 7, 8, 9, 17)
    assert spec.factory_args == {
        "M": "M", "N": "N", "block_M": 8, "threads": 128, "dtype": "dtype"
    }  # fmt: skip
    assert spec.call == ("X",)
    assert spec.returns == ("Y",)
    outcome = project.tlmatrix("run", "softmax.yaml", "-n", "0", "-k", "M=9 and not N=1")
    assert outcome.code == ExitCode.OK, outcome.out


def test_a_product_of_two_matrices_gets_the_gemm_problem(project: Project) -> None:
    target = "tlmatrix_kernels.gemm.kernel:gemm_kernel"
    outcome = project.tlmatrix("new", target, "-o", "gemm.yaml")
    assert outcome.code == ExitCode.OK
    assert "passed" in outcome.out
    assert "failed" not in outcome.out
    spec = load_spec(project.folder / "gemm.yaml")
    assert spec.problem == "gemm"
    assert spec.returns == ("c",)


def test_new_says_why_a_factory_could_not_be_traced(project: Project) -> None:
    (project.folder / f"{project.module}.py").write_text(_FACTORIES)
    outcome = project.tlmatrix("new", f"{project.module}:odd", "-o", "odd.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    assert project.tlmatrix("check", "odd.yaml").code == ExitCode.OK
    text = (project.folder / "odd.yaml").read_text()
    assert "# TypeError: cannot unpack" in text
    compiled = load_spec(project.folder / "odd.yaml").factory_args
    assert compiled == {"shape": "shape", "dtype": "dtype", "block_M": 64}


def test_a_factory_that_crashes_while_it_is_traced_ends_no_command(project: Project) -> None:
    text = (
        f"{_FACTORIES}\n@tilelang.jit\ndef crash(n):\n    import os\n    os.kill(os.getpid(), 9)\n"
    )
    (project.folder / f"{project.module}.py").write_text(text)
    outcome = project.tlmatrix("new", f"{project.module}:crash", "-o", "crash.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    assert "it was ended by SIGKILL" in " ".join(outcome.out.split())
    assert load_spec(project.folder / "crash.yaml").factory_args == {"n": "n"}


def test_new_rejects_an_unknown_name(project: Project) -> None:
    outcome = project.tlmatrix("new", "tlmatrix_kernels.norm.kernel:no_such_factory")
    assert outcome.code == ExitCode.USAGE
    assert "no_such_factory" in outcome.out
    outcome = project.tlmatrix("new", f"./{project.module}.py:scale")
    assert outcome.code == ExitCode.USAGE
    assert f"a module is named without its suffix: {project.module}" in outcome.out


# An operator by one call ---------------------------------------------------------------------

_OPERATORS = '''
import torch

class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, factor):
        rows, cols = x.shape
        if cols % 4:
            raise ValueError(f"cols must be a multiple of 4, got {cols}")
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return x * weight * factor

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return dy * weight * ctx.factor, (dy * x * ctx.factor).sum(0), None

def scale(x, weight, factor=2.0, block=64):
    """Columns times weights."""
    return _Scale.apply(x, weight, factor)

def scale_reference(x, w, factor):
    return x * w * factor

def pick(table, target):
    out = table.new_empty(len(target), table.shape[1])
    for row, index in enumerate(target.tolist()):
        out[row] = table[index]
    return {"picked": out, "more": {"least": table.amin(-1)}}

def pick_torch(table, target):
    return table.amin(-1), table[target]

def fill_(x, value):
    x.fill_(value)
'''


def _operators(project: Project) -> str:
    (project.folder / f"{project.module}.py").write_text(_OPERATORS)
    return project.module


def test_new_writes_the_spec_of_an_operator_from_one_call_and_runs_it(project: Project) -> None:
    module = _operators(project)
    call = "scale(torch.randn(5, 8), torch.randn(8))"
    outcome = project.tlmatrix("new", f"{module}:scale", "--call", call, "-o", "scale.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    spec = load_spec(project.folder / "scale.yaml")
    inputs = spec.problem.inputs
    assert {name: [str(size) for size in item.shape] for name, item in inputs.items()} == {
        "x": ["rows", "cols"],
        "weight": ["cols"],
    }
    assert all(item.grad for item in inputs.values())
    assert spec.axes["dtype"] == ("float32", "float16")
    assert spec.axes["factor"] == (2.0,)
    assert "called by its own names: w gets weight" in outcome.out
    assert "#" not in (project.folder / "scale.yaml").read_text().partition("\n")[2]
    assert project.tlmatrix("run", "scale.yaml", "-n", "0").code == ExitCode.OK


def test_sizes_that_the_operator_rejects_are_left_out(project: Project) -> None:
    module = _operators(project)
    path = project.folder / "scale.yaml"
    call = "scale(torch.randn(5, 8), torch.randn(8))"
    outcome = project.tlmatrix("new", f"{module}:scale", "--call", call, "-o", "scale.yaml")
    refusal = "raises ValueError: cols must be a multiple of 4, got 1"
    assert f"only cols % 4 == 0: {refusal}" in outcome.out
    spec = load_spec(path)
    assert spec.axes["cols"] == (8, 16, 24)
    assert [(str(each.expression), each.because) for each in spec.constraints] == [
        ("cols % 4 == 0", refusal)
    ]


def test_a_script_that_calls_the_operator_is_an_example(project: Project) -> None:
    module = _operators(project)
    (project.folder / "example.py").write_text(
        f"import torch\nfrom {module} import pick\n"
        "table = torch.randn(7, 12, device='cuda')\n"
        "print(pick(table, torch.tensor([3, 0, 6], device='cuda')))\n"
    )
    words = ("--script", "example.py", "-o", "p.yaml")
    outcome = project.tlmatrix("new", f"{module}:pick", *words)
    assert re.search(r"quick tier: \d+ passed\n", outcome.out), outcome.out
    spec = load_spec(project.folder / "p.yaml")
    assert list(spec.problem.outputs) == ["least", "picked"], "in the order of the reference"
    assert "between: [0, rows - 1]" in (project.folder / "p.yaml").read_text()


def test_a_module_that_raises_is_an_error_of_one_line_with_the_place(project: Project) -> None:
    """`tilelang.jit` prints the whole kernel if it gets one, and not a function that makes it."""
    (project.folder / f"{project.module}.py").write_text(
        "import tilelang\nimport tilelang.language as T\n\n"
        "@tilelang.jit(out_idx=[-1])\n@T.prim_func\n"
        'def one(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):\n'
        "    with T.Kernel(1, threads=64) as _:\n"
        "        T.copy(X, Y)\n"
    )
    outcome = project.tlmatrix("new", f"{project.module}:one", "-o", "s.yaml")
    assert outcome.code == ExitCode.USAGE
    assert f"({project.module}.py:4 in <module>: @tilelang.jit(out_idx=[-1]))" in outcome.out
    assert len(outcome.out.splitlines()) == 1


def test_a_failing_example_is_an_error_with_the_reason(project: Project) -> None:
    module = _operators(project)
    for options, words in (
        (["--call", "scale(1)"], "missing 1 required positional argument: 'weight'"),
        (["--call", "torch.ones(3)"], "does not call scale"),
        (["--script", "nowhere.py"], "no such script: nowhere.py"),
    ):
        outcome = project.tlmatrix("new", f"{module}:scale", *options)
        assert outcome.code == ExitCode.USAGE
        assert words in outcome.out


def test_a_written_tensor_that_the_reference_takes_is_input_and_output(project: Project) -> None:
    module = _operators(project)
    path = project.folder / f"{module}.py"
    path.write_text(path.read_text() + "\ndef fill_torch(x, value):\n    return x * 0 + value\n")
    call = "fill_(torch.randn(5, 8), 3.0)"
    outcome = project.tlmatrix("new", f"{module}:fill_", "--call", call, "-o", "f.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    assert "x: {inout: x, output: x_out}" in (project.folder / "f.yaml").read_text()
    assert "passed" in outcome.out
    assert "failed" not in outcome.out
    assert "error" not in outcome.out


_RETURNED = """

def normed_(x, w):
    x.copy_(x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6))
    return x, -x * w

def normed__torch(x, w):
    y = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    return y, -y * w
"""


def test_an_argument_that_is_updated_and_returned_is_one_output(project: Project) -> None:
    module = _operators(project)
    path = project.folder / f"{module}.py"
    path.write_text(path.read_text() + _RETURNED)
    call = "normed_(torch.randn(5, 8), torch.randn(8))"
    outcome = project.tlmatrix("new", f"{module}:normed_", "--call", call, "-o", "n.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    text = (project.folder / "n.yaml").read_text()
    assert "x: {inout: x, output: x_out}" in text
    assert "returns: [_, out]" in text
    assert "grad" not in text, "that of the returned leaf is no gradient of the operator"
    assert "passed" in outcome.out
    assert "failed" not in outcome.out


_ROW_SUM = """
import tilelang
import tilelang.language as T

@tilelang.jit
def row_sum(dtype, block=64):
    rows, cols = T.dynamic("rows, cols")

    @T.prim_func
    def main(X: T.Tensor((rows, cols), dtype), Y: T.Tensor((rows,), dtype)):
        with T.Kernel(rows, threads=64) as row:
            x = T.alloc_fragment([1, block], "float32")
            total = T.alloc_fragment([1], "float32")
            T.clear(total)
            for tile in T.serial(T.ceildiv(cols, block)):
                T.copy(X[row, tile * block], x)
                T.reduce_sum(x, total, dim=1, clear=False)
            Y[row] = total[0]

    return main

def reference(X):
    return X.sum(-1)
"""


def test_the_spec_of_a_row_sum_passes_and_finds_an_unguarded_store(project: Project) -> None:
    path = project.folder / f"{project.module}.py"
    path.write_text(_ROW_SUM)
    outcome = project.tlmatrix("new", f"{project.module}:row_sum", "-o", "row_sum.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    assert "failed" not in outcome.out
    assert project.tlmatrix("run", "row_sum.yaml", "-n", "0").code == ExitCode.OK
    text = path.read_text().replace("T.Kernel(rows,", "T.Kernel(rows + 1,")
    unguarded = "@tilelang.jit(pass_configs={'tl.disable_safe_memory_legalize': True})"
    path.write_text(text.replace("@tilelang.jit", unguarded))
    # Another process: this one has the module as it was.
    with project.start("tlmatrix", "run", "row_sum.yaml", "-n", "0") as process:
        out, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.FINDINGS, out
    assert "guards" in out or "out of bounds" in out or "outside" in out


_ATTENTION = """
from tlmatrix_kernels.attention import varlen_attention

def attend(q, k, v, cu, longest, causal=False):
    return varlen_attention(q, k, v, cu, cu, longest, longest, causal=causal)
"""


def test_attention_over_packed_sequences_gets_the_attention_problem(project: Project) -> None:
    (project.folder / f"{project.module}.py").write_text(_ATTENTION)
    q, k = ("torch.randn(24, 4, 32).half()", "torch.randn(24, 2, 32).half()")
    call = f"attend({q}, {k}, {k}, torch.tensor([0, 5, 24]).int(), 19)"
    outcome = project.tlmatrix(
        "new", f"{project.module}:attend", "--call", call, "-o", "a.yaml", "--no-run"
    )
    assert outcome.code == ExitCode.OK, outcome.out
    spec = load_spec(project.folder / "a.yaml")
    assert spec.problem == "attention"
    assert spec.axes["head_dim"] == (32,)
    assert spec.axes["groups"] == (1, 2)
    assert all(value["k"] == "same" for value in spec.axes["seqlens"])
    assert "cu: cu_seqlens, longest: max_seqlen_q" in (project.folder / "a.yaml").read_text()
    outcome = project.tlmatrix("run", "a.yaml", "-n", "0", "-k", "kv_heads=1")
    assert outcome.code == ExitCode.OK, outcome.out


def test_a_factory_of_packed_attention_gets_a_complete_spec(project: Project) -> None:
    code = Path(__file__).with_name("traced_strangers.py")
    shutil.copy(code, project.folder / f"{project.module}.py")
    outcome = project.tlmatrix("new", f"{project.module}:attend", "-o", "attend.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    assert re.search(r"cases of its quick tier: \d+ passed\n", outcome.out), outcome.out
    spec = load_spec(project.folder / "attend.yaml")
    assert spec.problem == "attention"
    assert {name: str(value) for name, value in spec.factory_args.items()} == {
        "batch": "len(seqlens)",
        "rows": "sum(seqlens.q)",
        "keys": "sum(seqlens.k)",
        "heads": "kv_heads * groups",
        "groups": "groups",
        "dim": "head_dim",
        "is_causal": "causal",
        "block": "32",
    }
    assert spec.axes["causal"] == (False, True)
    assert spec.axes["groups"] == (1, 2)


_UNDECORATED = """
import tilelang
import tilelang.language as T

def doubled(rows, cols, dtype="float16", block=32):
    @T.prim_func
    def main(X: T.Tensor((rows, cols), dtype), Y: T.Tensor((rows, cols), dtype)):
        with T.Kernel(T.ceildiv(rows, block), T.ceildiv(cols, block), threads=128) as (bx, by):
            for i, j in T.Parallel(block, block):
                Y[bx * block + i, by * block + j] = X[bx * block + i, by * block + j] * 2
    return main

def compiled(rows, cols, dtype="float16"):
    return tilelang.compile(doubled(rows, cols, dtype), out_idx=[1])

def build(rows, cols):
    kernel = compiled(rows, cols)
    return kernel

def reference(X):
    return X * 2
"""


@pytest.mark.parametrize(
    ("name", "passed"), [("doubled", "[X, Y]"), ("compiled", "[X]"), ("build", "[X]")]
)
def test_a_function_that_makes_kernels_is_a_factory(
    project: Project, name: str, passed: str
) -> None:
    (project.folder / f"{project.module}.py").write_text(_UNDECORATED)
    outcome = project.tlmatrix("new", f"{project.module}:{name}", "-o", "a.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    assert re.search(r"cases of its quick tier: \d+ passed\n", outcome.out), outcome.out
    written = (project.folder / "a.yaml").read_text()
    assert f"factory: {project.module}:{name}" in written
    assert f"call: {passed}" in written
    assert "[rows, cols]" in written


def test_the_quotient_of_two_arguments_is_a_dimension(project: Project) -> None:
    code = """
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[1])
def sums(heads, groups, dim):
    @T.prim_func
    def main(X: T.Tensor((heads, dim), "float32"), Y: T.Tensor((heads // groups, dim), "float32")):
        with T.Kernel(heads // groups, threads=32) as head:
            y = T.alloc_fragment((dim,), "float32")
            T.clear(y)
            for group, j in T.Parallel(1, dim):
                for g in T.serial(groups):
                    y[j] += X[head * groups + g, j]
            T.copy(y, Y[head, :])
    return main
"""
    (project.folder / f"{project.module}.py").write_text(code)
    outcome = project.tlmatrix("new", f"{project.module}:sums", "-o", "sums.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    spec = load_spec(project.folder / "sums.yaml")
    assert [str(size) for size in spec.problem.outputs["Y"].shape] == ["heads // groups", "dim"]
    assert [str(rule.expression) for rule in spec.constraints] == ["heads % groups == 0"]
    assert 6 in spec.axes["heads"]


_STATE = """
import tilelang
import tilelang.language as T

@tilelang.jit
def kernel(n):
    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), S: T.Tensor((n,), "float32"),
             Y: T.Tensor((n,), "float32")):
        with T.Kernel(n, threads=32) as b:
            S[b] = 0.9 * S[b] + 0.1 * X[b]
            Y[b] = X[b] * 2.0
    return main

def update(x, running):
    y = x.new_empty(x.shape)
    kernel(x.shape[0])(x, running, y)
    return y

def updated(x, running):
    kernel(x.shape[0])(x, running, x.new_empty(x.shape))
    return running
"""


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("update", ["--call", "f(torch.randn(40), torch.randn(40))"]),
        ("updated", ["--call", "f(torch.randn(40), torch.randn(40))"]),
        ("kernel", []),
    ],
)
def test_state_that_is_read_and_written_is_input_and_output(
    project: Project, target: str, options: list[str]
) -> None:
    (project.folder / f"{project.module}.py").write_text(_STATE)
    outcome = project.tlmatrix("new", f"{project.module}:{target}", *options)
    assert re.search(r"\{inout: (running|S), output: (running|S)_out\}", outcome.out), outcome.out
    assert "grad: true" not in outcome.out
    assert "no reference found" not in outcome.out or "reference(" in outcome.out


_NEIGHBOURS = """
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[1])
def kernel(cols, last, dtype="float32"):
    rows = T.dynamic("rows")

    @T.prim_func
    def main(X: T.Tensor((rows, cols), dtype), Y: T.Tensor((rows, cols), dtype)):
        with T.Kernel(rows, threads=64) as row:
            shared = T.alloc_shared([cols + 1], dtype)
            if last:
                T.clear(shared)
            for j in T.Parallel(cols):
                shared[j] = X[row, j]
            for j in T.Parallel(cols):
                Y[row, j] = shared[j] + shared[j + 1]
    return main

def sums(x):
    return kernel(x.shape[1], True)(x)

def broken(x):
    return kernel(x.shape[1], False)(x)
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [("sums", "passed"), ("broken", "sanitizers: uninitialised: shared[")],
)
def test_without_a_reference_all_but_values_are_checked(
    project: Project, name: str, words: str
) -> None:
    (project.folder / f"{project.module}.py").write_text(_NEIGHBOURS)
    (project.folder / "use.py").write_text(
        f"import torch\nfrom {project.module} import {name}\n"
        "for rows, cols in ((3, 40), (2, 64)):\n    " + name + "(torch.randn(rows, cols))\n"
    )
    target = f"{project.module}:{name}"
    outcome = project.tlmatrix("new", target, "--script", "use.py", "-o", "new.yaml")
    assert f"no reference found for {target}: no value is compared" in outcome.out
    assert words in outcome.out
    outcome = project.tlmatrix("run", "new.yaml", "-n", "0")
    assert f"{name}: no value is compared, as there is no reference" in outcome.out
    assert outcome.code == (ExitCode.OK if words == "passed" else ExitCode.FINDINGS), outcome.out


_TORCH = """
import tilelang
import tilelang.language as T
import torch
import torch.nn.functional as F

@tilelang.jit
def scale_kernel(rows, cols, out="float32"):
    @T.prim_func
    def main(X: T.Tensor((rows, cols), "float32"), M: T.Tensor((cols,), "float32"),
             R: T.Tensor((cols,), "float32"), Y: T.Tensor((rows, cols), out)):
        with T.Kernel(rows, threads=32) as b:
            for i in T.Parallel(cols):
                Y[b, i] = (X[b, i] - M[i]) * R[i]
    return main

def batch_norm(x, running_mean, running_var, momentum: float = 0.1):
    var, mean = torch.var_mean(x, 0)
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(var, momentum)
    y = torch.empty_like(x)
    scale = torch.rsqrt(var * (len(x) - 1) / len(x) + 1e-5)
    scale_kernel(*x.shape)(x, mean, scale, y)
    return y

def batch_norm_reference(x, running_mean, running_var, momentum: float = 0.1):
    return F.batch_norm(x, running_mean, running_var, training=True, momentum=momentum)

def scaled(x, by, dtype=torch.float32):
    y = torch.empty_like(x, dtype=dtype)
    scale_kernel(*x.shape, str(dtype)[6:])(x, torch.zeros_like(by), by, y)
    return y

def scaled_reference(x, by, dtype=torch.float32):
    return (x * by).to(dtype)
"""


@pytest.mark.parametrize(
    ("name", "call", "written"),
    [
        (
            "batch_norm",
            "f(torch.randn(33, 40), torch.zeros(40), torch.ones(40))",
            ["running_var: {inout: running_var, output: running_var_out}"] * 2,
        ),
        (
            "scaled",
            "f(torch.randn(3, 40), torch.ones(40), dtype=torch.float16)",
            ["dtype: $input_dtype}", "y: {dtype: $dtype}", "  dtype: [float16]"],
        ),
    ],
)
def test_state_and_dtypes_that_pytorch_makes_are_those_of_the_reference(
    project: Project, name: str, call: str, written: list[str]
) -> None:
    (project.folder / f"{project.module}.py").write_text(_TORCH)
    target = f"{project.module}:{name}"
    outcome = project.tlmatrix("new", target, "--call", call, "-o", "s.yaml")
    assert re.search(r"cases of its quick tier: \d+ passed\n", outcome.out), outcome.out
    text = (project.folder / "s.yaml").read_text()
    assert all(text.count(each) >= written.count(each) for each in written), text


_SCALES = """
import tilelang
import tilelang.language as T
import torch

@tilelang.jit
def scales_kernel(rows, cols):
    @T.prim_func
    def main(X: T.Tensor((rows, cols), "float32"), S: T.Tensor((rows,), "float8_e8m0fnu")):
        with T.Kernel(rows, threads=32) as i:
            x = T.alloc_fragment((1, cols), "float32")
            largest = T.alloc_fragment((1,), "float32")
            T.copy(X[i, 0], x)
            T.reduce_absmax(x, largest, dim=1)
            scale = T.exp2(T.ceil(T.log2(T.max(largest[0], 0.001))))
            S[i] = T.Cast("float8_e8m0fnu", scale)
    return main

def scales(x):
    found = torch.empty(x.shape[0], dtype=torch.float8_e8m0fnu)
    scales_kernel(*x.shape)(x, found)
    return found

def scales_reference(x):
    largest = x.abs().amax(-1).clamp(min=0.001)
    return torch.exp2(torch.ceil(torch.log2(largest))).to(torch.float8_e8m0fnu)
"""


def test_scales_that_are_exponents_alone_have_a_dtype_of_specs(project: Project) -> None:
    (project.folder / f"{project.module}.py").write_text(_SCALES)
    arguments = (f"{project.module}:scales", "--call", "f(torch.randn(5, 40))", "-o", "s.yaml")
    outcome = project.tlmatrix("new", *arguments)
    assert re.search(r"cases of its quick tier: \d+ passed\n", outcome.out), outcome.out
    assert "dtype: float8_e8m0fnu" in (project.folder / "s.yaml").read_text()


_SIZES = """
import tilelang
import tilelang.language as T
import torch

@tilelang.jit(out_idx=[-1])
def mix_kernel(b, n, c):
    @T.prim_func
    def main(X: T.Tensor((b, c), "float32"), W: T.Tensor((b, n), "float32"),
             R: T.Tensor((b, n * c), "float32"), Y: T.Tensor((b, n * c), "float32")):
        with T.Kernel(b, threads=64) as i:
            for s, j in T.Parallel(n, c):
                Y[i, s * c + j] = W[i, s] * X[i, j] + R[i, s * c + j]
    return main

def mix(x, w, residual):
    return mix_kernel(x.shape[0], w.shape[1], x.shape[1])(x, w, residual)

def mix_reference(x, w, residual):
    return (w[:, :, None] * x[:, None, :]).flatten(1) + residual

@tilelang.jit(out_idx=[-1])
def gather_kernel(rows, heads, dim, m):
    @T.prim_func
    def main(X: T.Tensor((1, rows, heads, dim), "float32"), I: T.Tensor((1, m), "int32"),
             Y: T.Tensor((1, m, heads, dim), "float32")):
        with T.Kernel(m, heads, threads=32) as (i, h):
            for j in T.Parallel(dim):
                Y[0, i, h, j] = X[0, I[0, i], h, j]
    return main

def gather(x, index):
    return gather_kernel(*x.shape, index.shape[0])(x[None], index[None])[0]

def gather_reference(x, index):
    return x[index.long()]

@tilelang.jit(out_idx=[-1])
def sums_kernel(groups, total, cols):
    @T.prim_func
    def main(X: T.Tensor((total, cols), "float32"), sizes: T.Tensor((groups,), "int32"),
             Y: T.Tensor((groups, cols), "float32")):
        with T.Kernel(groups, threads=64) as g:
            acc = T.alloc_fragment((cols,), "float32")
            first = T.alloc_var("int32")
            T.clear(acc)
            first = 0
            for i in T.serial(g):
                first = first + sizes[i]
            for r in T.serial(sizes[g]):
                for j in T.Parallel(cols):
                    acc[j] += X[first + r, j]
            for j in T.Parallel(cols):
                Y[g, j] = acc[j]
    return main

def sums(x, sizes):
    return sums_kernel(sizes.shape[0], *x.shape)(x, sizes)

def sums_reference(x, sizes):
    return torch.stack([part.sum(0) for part in x.split(sizes.tolist())])

@tilelang.jit(out_idx=[-1])
def repeat_kernel(H, G, D):
    per = H // G

    @T.prim_func
    def main(X: T.Tensor((H, D), "float32"), W: T.Tensor((G, D), "float32"),
             Y: T.Tensor((H, D), "float32")):
        with T.Kernel(H, threads=64) as h:
            for j in T.Parallel(D):
                Y[h, j] = X[h, j] * W[h // per, j]
    return main

def repeat(x, w):
    return repeat_kernel(x.shape[0], w.shape[0], x.shape[1])(x, w)

def repeat_reference(x, w):
    return x * w.repeat_interleave(x.shape[0] // w.shape[0], 0)

@tilelang.jit(out_idx=[-1])
def heads_kernel(B, H, D):
    @T.prim_func
    def main(X: T.Tensor((B, H, D), "float32"), W: T.Tensor((H,), "float32"),
             Y: T.Tensor((B, H, D), "float32")):
        with T.Kernel(B, H, threads=64) as (b, h):
            for j in T.Parallel(D):
                Y[b, h, j] = X[b, h, j] * W[h]
    return main

def scaled_heads(x, w):
    return heads_kernel(*x.shape)(x, w)

def scaled_heads_reference(x, w):
    return x * w[:, None]
"""


@pytest.mark.parametrize(
    ("name", "call", "written"),
    [
        (
            "mix",
            "f(torch.randn(3, 40), torch.randn(3, 4), torch.randn(3, 160))",
            "residual: {shape: [b, c * n]",
        ),
        (
            "gather",
            "f(torch.randn(33, 3, 40), torch.randint(0, 33, (7,)).int())",
            "between: [0, rows - 1]",
        ),
        (
            "sums",
            "f(torch.randn(12, 40), torch.tensor([3, 5, 4]).int())",
            "sizes: {lengths_of: seqlens}",
        ),
        ("repeat", "f(torch.randn(4, 40), torch.randn(2, 40))", "require: H % G == 0"),
        # Equal in the call, and two arguments of the factory.
        ("scaled_heads", "f(torch.randn(3, 3, 40), torch.randn(3))", "x: {shape: [B, H, D]"),
    ],
)
def test_sizes_and_ranges_are_tried_until_no_case_fails(
    project: Project, name: str, call: str, written: str
) -> None:
    (project.folder / f"{project.module}.py").write_text(_SIZES)
    target = f"{project.module}:{name}"
    outcome = project.tlmatrix("new", target, "--call", call, "-o", "s.yaml")
    assert re.search(r"cases of its quick tier: \d+ passed\n", outcome.out), outcome.out
    assert written in (project.folder / "s.yaml").read_text()
    assert len(outcome.out) < 1500, "no log of a compiler"


_PRODUCT = """
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[-1])
def matmul(M, N, K, dtype="float16", bm=32, bn=32, bk=32):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=128) as (x, y):
            a = T.alloc_shared((bm, bk), dtype)
            b = T.alloc_shared((bk, bn), dtype)
            c = T.alloc_fragment((bm, bn), "float32")
            T.clear(c)
            for k in T.serial(T.min(T.ceildiv(K, bk), 2)):
                T.copy(A[y * bm, k * bk], a)
                T.copy(B[k * bk, x * bn], b)
                T.gemm(a, b, c)
            T.copy(c, C[y * bm, x * bn])
    return main
"""


def test_every_loop_of_a_product_runs_a_third_time(project: Project) -> None:
    (project.folder / f"{project.module}.py").write_text(_PRODUCT)
    outcome = project.tlmatrix("new", f"{project.module}:matmul", "-o", "m.yaml")
    assert re.search(r"\d+ failed", outcome.out), outcome.out
    spec = load_spec(project.folder / "m.yaml")
    assert all(max(spec.axes[name]) > 2 * 32 for name in "mnk")
    assert spec.fuzz is not None


def test_an_argument_of_the_factory_is_no_number_in_a_shape(project: Project) -> None:
    code = """
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[-1])
def kernel(heads, dim):
    tokens = T.dynamic("tokens")

    @T.prim_func
    def main(X: T.Tensor((tokens * heads, dim), "float32"),
             Y: T.Tensor((tokens * heads, dim), "float32")):
        with T.Kernel(tokens * heads, threads=64) as r:
            for j in T.Parallel(dim):
                Y[r, j] = X[r, j] * (r % heads + 1)
    return main
"""
    (project.folder / f"{project.module}.py").write_text(code)
    outcome = project.tlmatrix("new", f"{project.module}:kernel")
    assert "X: {shape: [heads * tokens, dim]" in outcome.out


def test_a_result_is_named_by_its_own_function_alone(project: Project) -> None:
    code = "def helper(x):\n    bits = x * 2\n    return bits\n\ndef double(x):\n"
    (project.folder / f"{project.module}.py").write_text(f"{code}    return helper(x) + 0\n")
    call = "f(torch.randn(3, 40))"
    outcome = project.tlmatrix("new", f"{project.module}:double", "--call", call)
    assert "bits" not in outcome.out
    assert "out: {" in outcome.out or "outputs: [out]" in outcome.out


def test_if_all_cases_are_refused_those_near_the_call_tell_why(project: Project) -> None:
    code = """
import torch

def scale(x, w, v):
    for name, size in (("rows", x.shape[0]), ("cols", x.shape[1]), ("n", len(w)), ("m", len(v))):
        if size % 16:
            raise ValueError(f"{name} must be a multiple of 16")
    return x * w.sum() * v.sum()

def scale_reference(x, w, v):
    return x * w.sum() * v.sum()
"""
    (project.folder / f"{project.module}.py").write_text(code)
    call = "f(torch.ones(16, 48), torch.ones(80), torch.ones(112))"
    outcome = project.tlmatrix("new", f"{project.module}:scale", "--call", call, "-o", "s.yaml")
    assert re.search(r"quick tier: \d+ passed\n", outcome.out), outcome.out
    assert re.search(r"only cols % 16 == 0: raises ValueError: cols must be a multip", outcome.out)
    assert (48, 96, 144) in load_spec(project.folder / "s.yaml").axes.values()


_EAGER = """
import tilelang
import tilelang.language as T

@tilelang.jit
def scaled(A, B, cols: int, blk_m, factor: float, dtype=T.float16):
    M = T.const("M")
    N = cols
    other = T.float32
    A: T.Tensor((M, N), dtype)
    B: T.Tensor[[N], other]
    C = T.empty((M, N), other)
    with T.Kernel(T.ceildiv(M, blk_m), threads=128) as bx:
        for i, j in T.Parallel(blk_m, N):
            if bx * blk_m + i < M:
                C[bx * blk_m + i, j] = A[bx * blk_m + i, j] * B[j] * factor
    return C

def ref_program(a, b, factor):
    return a * b * factor
"""


def test_an_eager_kernel_is_called_with_guesses(project: Project) -> None:
    (project.folder / f"{project.module}.py").write_text(_EAGER)
    outcome = project.tlmatrix("new", f"{project.module}:scaled", "-o", "s.yaml")
    assert re.search(r"quick tier: \d+ passed\n", outcome.out), outcome.out
    text = (project.folder / "s.yaml").read_text()
    assert "A: {shape: [M, cols], dtype: $dtype}" in text
    assert "B: {shape: [cols], dtype: float32}" in text
    assert "blk_m: 64" in text
    assert f"{project.module}:ref_program" in text


def test_arguments_of_one_dtype_and_sums_in_any_order(project: Project) -> None:
    code = """
import tilelang
import tilelang.language as T

@tilelang.jit
def column_sums(X, top_k, in_dtype, out_dtype):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), in_dtype)
    Y = T.empty((N, top_k), out_dtype)
    with T.Kernel(N, threads=32) as j:
        total = T.alloc_shared((1,), "float32")
        T.clear(total)
        for i in T.Parallel(M):
            T.atomic_add(total[0], T.cast(X[i, j], "float32"))
        for k in T.Parallel(top_k):
            Y[j, k] = total[0]
    return Y

def ref_program(x, topk):
    return x.sum(0)[:, None].expand(-1, topk)
"""
    (project.folder / f"{project.module}.py").write_text(code)
    outcome = project.tlmatrix("new", f"{project.module}:column_sums", "-o", "s.yaml")
    assert re.search(r"quick tier: \d+ passed\n", outcome.out), outcome.out
    assert "  determinism: bounded, as atomics: two threads" in outcome.out
    text = (project.folder / "s.yaml").read_text()
    assert "out_dtype: in_dtype" in text
    assert "\ndeterminism: bounded\n" in text


def test_a_list_of_the_constructor_is_passed_to_the_reference(project: Project) -> None:
    code = """
import torch

class AvgPool2d:
    def __init__(self, kernel_size, stride):
        self.kernel_size, self.stride = kernel_size, stride

    def __call__(self, input):
        return torch.nn.functional.avg_pool2d(input, self.kernel_size, self.stride)
"""
    (project.folder / f"{project.module}.py").write_text(code)
    call = "f([3, 2], stride=[2, 1])(torch.randn(3, 4, 10, 12))"
    outcome = project.tlmatrix("new", f"{project.module}:AvgPool2d", "--call", call)
    assert "function: torch.nn.functional:avg_pool2d" in outcome.out, outcome.out
    assert '{input: input, kernel_size: "[3, 2]", stride: "[2, 1]"' in outcome.out
    call = f"[{call}, f(3, stride=2)(torch.randn(3, 4, 10, 12))]"  # one number stands for two
    outcome = project.tlmatrix("new", f"{project.module}:AvgPool2d", "--call", call)
    assert '{input: input, kernel_size: "[3, 2]", stride: "[2, 1]"' in outcome.out, outcome.out


def test_options_with_names_of_functions_of_expressions_are_constants(project: Project) -> None:
    """The reference gets them, but not an option that is its own default."""
    code = """
import torch

class Clamp:
    def __init__(self, min, max, out=None):
        self.min, self.max = min, max

    def __call__(self, x):
        return torch.clamp(x, self.min, self.max)

class Mean:
    def __init__(self, dim=None, keepdim=False):
        assert dim is None and not keepdim

    def __call__(self, x):
        return torch.mean(x)
"""
    (project.folder / f"{project.module}.py").write_text(code)
    for name, call, expected in (
        ("Clamp", "f(-0.5, 1.5)", "call: {input: x, min: -0.5, max: 1.5}"),
        ("Mean", "f()", "call: {input: x}"),
    ):
        words = (f"{project.module}:{name}", "--call", f"{call}(torch.randn(7, 9))")
        outcome = project.tlmatrix("new", *words, "-o", f"{name}.yaml")
        assert "passed" in outcome.out, outcome.out
        assert "failed" not in outcome.out, outcome.out
        assert expected in (project.folder / f"{name}.yaml").read_text()


def test_the_dtype_of_a_product_follows_that_of_its_operands(project: Project) -> None:
    code = """
import tilelang
import tilelang.language as T

@tilelang.jit
def gemm(A, B, block_M, block_N, block_K, in_dtype, out_dtype, accum_dtype):
    M, N, K = T.const("M, N, K")
    A: T.Tensor[[M, K], in_dtype]
    B: T.Tensor[[K, N], in_dtype]
    C = T.empty((M, N), out_dtype)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
        a = T.alloc_shared((block_M, block_K), in_dtype)
        b = T.alloc_shared((block_K, block_N), in_dtype)
        c = T.alloc_fragment((block_M, block_N), accum_dtype)
        T.clear(c)
        for k in T.serial(T.ceildiv(K, block_K)):
            T.copy(A[by * block_M, k * block_K], a)
            T.copy(B[k * block_K, bx * block_N], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * block_M, bx * block_N])
    return C
"""
    (project.folder / f"{project.module}.py").write_text(code)
    outcome = project.tlmatrix("new", f"{project.module}:gemm", "-o", "gemm.yaml")
    assert re.search(r"quick tier: \d+ passed\n", outcome.out), outcome.out
    spec = load_spec(project.folder / "gemm.yaml")
    assert spec.factory_args["out_dtype"] == spec.factory_args["in_dtype"] == "dtype"
    assert spec.axes["dtype"] == ("float16", "bfloat16")


def test_results_that_the_reference_does_not_return_are_not_judged(project: Project) -> None:
    code = """
def stats(x):
    return x.amax(-1), x * 2, x.amin(-1)

def stats_reference(x):
    return x + x
"""
    (project.folder / f"{project.module}.py").write_text(code)
    call = "f(torch.randn(3, 40))"
    outcome = project.tlmatrix("new", f"{project.module}:stats", "--call", call, "-o", "s.yaml")
    assert re.search(r"quick tier: \d+ passed\n", outcome.out), outcome.out
    spec = load_spec(project.folder / "s.yaml")
    assert list(spec.problem.outputs) == ["out1"]
    assert spec.returns == ("_", "out1", "_")


def test_results_of_the_reference_that_are_none_of_the_code_are_not_compared(
    project: Project,
) -> None:
    code = """
def largest(x):
    return x.amax(-1)

def largest_reference(x):
    return x.argmax(-1), x.amax(-1)
"""
    (project.folder / f"{project.module}.py").write_text(code)
    call = "f(torch.randn(3, 40))"
    outcome = project.tlmatrix("new", f"{project.module}:largest", "--call", call, "-o", "s.yaml")
    assert re.search(r"quick tier: \d+ passed\n", outcome.out), outcome.out
    assert load_spec(project.folder / "s.yaml").problem.reference.returns == ("_", "out")


def test_gradients_that_need_more_than_the_call_are_left_out(project: Project) -> None:
    code = """
import torch

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        x.untyped_storage().grad_of_another_operator.add_(dy * 2)

def doubled(x):
    return Doubled.apply(x)

def doubled_reference(x):
    return x * 2
"""
    (project.folder / f"{project.module}.py").write_text(code)
    calls = (
        Call(
            f"{project.module}:doubled",
            {"x": Seen((n, 40), "float32", grad=True)},
            {"0": Seen((n, 40), "float32")},
            grads=frozenset("x"),
        )
        for n in (3, 5)
    )
    with (project.folder / "calls.jsonl").open("w") as file:
        for call in calls:
            write_call(file, call)
    words = ("--calls", "calls.jsonl", "-o", "s.yaml")
    outcome = project.tlmatrix("new", f"{project.module}:doubled", *words)
    assert "  without gradients: raises AttributeError" in outcome.out
    assert re.search(r"quick tier: \d+ passed\n", outcome.out), outcome.out
    assert "grad" not in (project.folder / "s.yaml").read_text()


def test_integers_of_which_nothing_else_is_known_are_in_the_range_of_the_calls(
    project: Project,
) -> None:
    code = """
def hashed(x, primes):
    assert (primes > 0).all()
    return x.long()[:, None] % primes

def hashed_reference(x, primes):
    return x.long()[:, None].remainder(primes)
"""
    (project.folder / f"{project.module}.py").write_text(code)
    call = "f(torch.tensor([900, 77, 5000]).int(), torch.tensor([101, 103, 107, 109]).int())"
    outcome = project.tlmatrix("new", f"{project.module}:hashed", "--call", call, "-o", "s.yaml")
    assert re.search(r"quick tier: \d+ passed\n", outcome.out), outcome.out
    text = (project.folder / "s.yaml").read_text()
    assert "between: [77, 5000]}  # the range of the recorded calls" in text
    assert "between: [101, 109]" in text
