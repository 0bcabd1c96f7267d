"""`tlmatrix new`: what it writes for operators and factories, and what comes of running that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outside_project import project
from tlmatrix.exit_codes import ExitCode
from tlmatrix.spec import load_spec

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
    assert spec.entry == target
    assert axes <= set(spec.axes)
    assert project.tlmatrix("new", target, "-o", f"{name}.yaml").code == ExitCode.USAGE


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
    assert spec.compile == {name: name for name in ("batch", "heads", "dim", "in_dtype", "fast")}
    assert spec.call == ("x", "s", "ends", "out")
    assert spec.returns == ("out",)
    assert set(spec.axes) == {*spec.compile, "total", "s", "values"}
    assert "def reference(x, ends):" in (project.folder / "scaled.yaml").read_text()


def test_dimensions_that_count_tiles_are_written_so_that_yaml_reads_them(project: Project) -> None:
    (project.folder / f"{project.module}.py").write_text(_FACTORIES)
    project.tlmatrix("new", f"{project.module}:per_tile", "-o", "tiles.yaml")
    outcome = project.tlmatrix("check", "tiles.yaml")
    assert outcome.code == ExitCode.OK, outcome.out
    sizes = load_spec(project.folder / "tiles.yaml").problem.inputs["S"].shape
    assert [str(size) for size in sizes] == ["M", "ceildiv(N, 128)"]


def test_a_spec_that_new_wrote_runs_once_there_is_a_reference(project: Project) -> None:
    (project.folder / f"{project.module}.py").write_text(_FACTORIES)
    project.tlmatrix("new", f"{project.module}:softmax", "-o", "softmax.yaml")
    spec = load_spec(project.folder / "softmax.yaml")
    assert spec.axes["N"] == (1, 7, 8, 9, 17)
    assert spec.compile == {
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
    compiled = load_spec(project.folder / "odd.yaml").compile
    assert compiled == {"shape": "rows", "dtype": "dtype", "block_M": 64}


def test_new_takes_no_name_that_is_not_there(project: Project) -> None:
    outcome = project.tlmatrix("new", "tlmatrix_kernels.norm.kernel:no_such_factory")
    assert outcome.code == ExitCode.USAGE
    assert "no_such_factory" in outcome.out
