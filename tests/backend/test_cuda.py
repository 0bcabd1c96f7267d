"""On a GPU: chosen by itself, and the checks that look at memory see what kernels really do."""

import os
import sys
from pathlib import Path

import pytest
import tilelang
import tilelang.language as T
import torch

import preloaded_python
import tlmatrix
from tlmatrix.backend import backend_named
from tlmatrix.run import read_records

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


def test_auto_selects_the_gpu():
    backend = backend_named("auto")
    assert backend.name == "cuda"
    assert backend.arch.startswith("sm_")


def test_a_correct_kernel_passes(tmp_path):
    result = judged("right", tmp_path)
    assert result.status is tlmatrix.Status.PASSED, result.findings
    assert result.backend == "cuda"


def test_guards_detect_a_store_past_the_end(tmp_path):
    result = judged("one_row_too_many", tmp_path)
    (finding,) = [each for each in result.findings if each.check == "guards"]
    assert "elements 0-63 past the end of y" in finding.where


def test_an_unwritten_row_is_a_finding(tmp_path):
    result = judged("one_row_short", tmp_path)
    assert any("row 99" in (each.where or "") for each in result.findings)
    assert any("never written" in f"{each.hint} {each.title}" for each in result.findings)


def test_the_interpreter_also_runs_on_a_machine_with_a_gpu():
    from tlmatrix_kernels.gemm import gemm

    a = torch.randn(65, 40).half()
    with tlmatrix.interpret():
        interpreted = gemm(a, a, transpose_b=True)
    compiled = gemm(a.cuda(), a.cuda(), transpose_b=True)
    assert interpreted.device.type == "cpu"
    torch.testing.assert_close(compiled.cpu(), interpreted, rtol=2e-3, atol=1e-3)


# Faults --------------------------------------------------------------------------------------

FAULTS = """\
name: faults
problem:
  inputs:
    x: {shape: [rows, 64], dtype: float32}
  outputs: [y]
  reference: test_cuda:reference
entry: test_cuda:doubled
axes:
  rows: [100, 200]
  how: [HOW, right]
tiers: {quick: product}
"""

SOURCES = """
__device__ float wild(float x) { return x + *reinterpret_cast<volatile float*>(16); }
"""
UNDECLARED = """
__device__ float wild(float x) { return x + undeclared; }
"""


def calling(source):
    """A kernel that doubles, and adds what the device function `wild` says."""

    @tilelang.jit
    def factory():
        rows = T.dynamic("rows")

        @T.prim_func
        def foreign(X: T.Tensor((rows, 64), "float32"), Y: T.Tensor((rows, 64), "float32")):
            with T.Kernel(rows, threads=64) as row:
                T.import_source(source)
                for j in T.Parallel(64):
                    Y[row, j] = T.call_extern("float32", "wild", X[row, j])

        return foreign

    return factory


@tilelang.jit
def greedy():
    """A kernel that asks for more shared memory than any GPU has."""

    @T.prim_func
    def oversized(X: T.Tensor((512, 256), "float32"), Y: T.Tensor((512, 256), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((512, 256), "float32")
            T.copy(X, tile)
            for i, j in T.Parallel(512, 256):
                Y[i, j] = tile[511 - i, 255 - j]

    return oversized


def doubled(x, how):
    y = torch.empty_like(x)
    if how == "uncompiled":
        calling(UNDECLARED)()(x, y)
    elif how == "wild":
        calling(SOURCES)()(x, y)
    elif how == "huge":
        torch.empty(2**44, dtype=torch.uint8, device=x.device)
    elif how == "greedy":
        room = torch.empty(2, 512, 256, device=x.device)
        greedy()(*room)
    else:
        right()(x, y)
        return y
    return y


@pytest.mark.parametrize(
    ("how", "check", "words"),
    [
        ("uncompiled", "compile", "foreign does not compile for sm_"),
        ("wild", "launch", "the CUDA context is lost"),
        ("huge", "memory", "asked for 16384.00 GiB"),
        ("greedy", "launch", "cannot be launched"),
    ],
)
def test_a_gpu_fault_is_a_finding_and_later_cases_are_judged(tmp_path, how, check, words):
    (tmp_path / "faults.yaml").write_text(FAULTS.replace("HOW", how))
    (tmp_path / "test_cuda.py").symlink_to(Path(__file__))
    command = ["pytest", "faults.yaml", "-q", "-n", "1", "--tlmatrix-results", "out.jsonl"]
    command += ["--tlmatrix-backend", "cuda", "-p", "no:cacheprovider"]
    # The linked module imports helpers of the tests.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = preloaded_python.run("-m", *command, cwd=tmp_path, env=env)
    results = read_records(tmp_path / "out.jsonl").results
    assert len(results) == 4, done.stdout
    for result in results:
        if result.values["how"] == "right":
            assert result.status is tlmatrix.Status.PASSED, done.stdout
        else:
            (finding,) = result.findings
            assert finding.check == check, done.stdout
            assert words in finding.title, finding.title


# Streams -------------------------------------------------------------------------------------

STREAMS = """\
name: streams
problem:
  inputs:
    x: {shape: [rows, 64], dtype: float32, grad: true}
  outputs: [y]
  reference: test_cuda:reference
entry: test_cuda:ENTRY
axes:
  rows: [100]
checks: [numeric, gradients, relations]
"""


class _OnDefaultStreamBackwards(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return 2 * x

    @staticmethod
    def backward(_ctx, dy):
        with torch.cuda.stream(torch.cuda.default_stream()):
            return 2 * dy


def on_default_stream_backwards(x):
    return _OnDefaultStreamBackwards.apply(x)


def on_current_stream(x):
    return 2 * x


def on_default_stream(x):
    with torch.cuda.stream(torch.cuda.default_stream()):
        return 2 * x


def on_another_stream(x):
    """On a stream that waits, and for which the current one waits."""
    current, another = torch.cuda.current_stream(), torch.cuda.Stream()
    another.wait_stream(current)
    with torch.cuda.stream(another):
        y = 2 * x
    current.wait_stream(another)
    return y


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ("on_current_stream", None),
        ("on_another_stream", None),
        ("on_default_stream", "side_stream: y"),
        ("on_default_stream_backwards", "side_stream: dx"),
    ],
)
def test_work_on_the_default_stream_that_does_not_wait_for_the_current_one(tmp_path, entry, wrong):
    path = tmp_path / "streams.yaml"
    path.write_text(STREAMS.replace("ENTRY", entry))
    (tmp_path / "test_cuda.py").symlink_to(Path(__file__))
    spec = tlmatrix.load(path)
    (case,) = tlmatrix.cases(spec)
    titles = [each.title for each in tlmatrix.run_case(spec, case, "cuda").findings]
    if wrong is None:
        assert titles == []
    else:
        assert titles
        assert titles[0].startswith(wrong)
