"""On a GPU: chosen by itself, and the checks that look at memory see what kernels really do."""

from pathlib import Path

import pytest
import tilelang
import tilelang.language as T
import torch

import tlmatrix
from tlmatrix.backend import backend_named

pytestmark = pytest.mark.cuda

UNGUARDED = {tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True}

SPEC = """\
name: doubled
problem:
  inputs:
    x: {shape: [rows, 64], dtype: float32}
  outputs: [y]
  reference: test_cuda:reference
factory: test_cuda:FACTORY
call: [x, y]
returns: [y]
axes:
  rows: [100]
"""


def reference(x):
    return 2 * x


def doubling(pass_configs, last_row):
    """A kernel that doubles 64 rows a block; `last_row(rows)` bounds what it stores."""

    @tilelang.jit(pass_configs=pass_configs)
    def factory():
        rows = T.dynamic("rows")

        @T.prim_func
        def double(X: T.Tensor((rows, 64), "float32"), Y: T.Tensor((rows, 64), "float32")):
            with T.Kernel(T.ceildiv(rows, 64), threads=128) as block:
                for i, j in T.Parallel(64, 64):
                    if block * 64 + i < last_row(rows):
                        Y[block * 64 + i, j] = X[T.min(block * 64 + i, rows - 1), j] * 2

        return double

    return factory


right = doubling({}, lambda rows: rows)
one_row_too_many = doubling(UNGUARDED, lambda rows: rows + 1)
one_row_short = doubling({}, lambda rows: rows - 1)


def judged(factory, tmp_path):
    path = tmp_path / "doubled.yaml"
    path.write_text(SPEC.replace("FACTORY", factory))
    (tmp_path / "test_cuda.py").symlink_to(Path(__file__))
    spec = tlmatrix.load(path)
    (case,) = tlmatrix.cases(spec)
    return tlmatrix.run_case(spec, case, "cuda")


def test_auto_takes_the_gpu():
    backend = backend_named("auto")
    assert backend.name == "cuda"
    assert backend.arch.startswith("sm_")


def test_a_right_kernel_passes(tmp_path):
    result = judged("right", tmp_path)
    assert result.status is tlmatrix.Status.PASSED, result.findings
    assert result.backend == "cuda"


def test_a_store_past_the_end_is_found_by_the_guards(tmp_path):
    result = judged("one_row_too_many", tmp_path)
    (finding,) = [each for each in result.findings if each.check == "guards"]
    assert "elements 0-63 past the end of y" in finding.where


def test_a_row_that_is_never_written_is_found(tmp_path):
    result = judged("one_row_short", tmp_path)
    assert any("row 99" in (each.where or "") for each in result.findings)
    assert any("never written" in f"{each.hint} {each.title}" for each in result.findings)


def test_kernels_run_interpreted_too_where_there_is_a_gpu():
    from tlmatrix_kernels.gemm import gemm

    a = torch.randn(65, 40).half()
    with tlmatrix.interpret():
        interpreted = gemm(a, a, transpose_b=True)
    compiled = gemm(a.cuda(), a.cuda(), transpose_b=True)
    assert interpreted.device.type == "cpu"
    torch.testing.assert_close(compiled.cpu(), interpreted, rtol=2e-3, atol=1e-3)
