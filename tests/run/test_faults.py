"""No compilation, no launch and no memory are three findings, and a lost GPU judges no later case.

There is no GPU here: the exceptions are the real types with the real words, raised where the GPU
would raise them; what nvcc and TileLang refuse, they refuse here.
"""

import errno
import gc
import re
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
import torch

import tlmatrix
from tlmatrix.backend import DiskError
from tlmatrix.backend.assembly.toolkit import AssemblerError, Toolkit, find_toolkit
from tlmatrix.backend.backends import CudaBackend
from tlmatrix.run import SkipReason, Status, read_records

pytestmark = pytest.mark.usefixtures("preloaded")

_CPU = torch.device("cpu")
_NO_MEMORY = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of "
    "which 5.31 GiB is free. Including non-PyTorch memory, this process has 134.49 GiB memory in "
    "use. Of the allocated memory 133.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved."
)
_ILLEGAL = (
    "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in "
    "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information."
)
_TVM = (
    "CUDALaunch Error: CUDA_ERROR_INVALID_VALUE\n grid=(2,1,1),  block=(128,1,1)\n"
    "// func_name=double_kernel\n// CUDA Source\n// -----------\n"
)
_EMPTY = (
    "Check failed: (wl.grid_dim(0) > 0) is false: CUDALaunch Error: grid dimension must be "
    "positive, but got grid=(0,3,1) in kernel double_kernel. A zero grid dimension is often caused "
    "by a dynamic shape (e.g. num_tokens) being 0 at runtime."
)
_NO_DESCRIPTOR = (
    "Invalid TMA descriptor arguments for __tvm_tensormap_create_tiled:\n"
    "  [1] globalAddress must be non-null\n  [2] globalDim[1] must be non-zero\n"
    "TMA Desc Addr:   0x7ffd9b20 (mod64=0)\nformat         6 (CU_TENSOR_MAP_DATA_TYPE_FLOAT16)\n"
    "dim            2\ngmem_address   0 (mod16=0, mod32=0)\nglobalDim      [64, 0]\n"
)
_ODD_DESCRIPTOR = (
    "Invalid TMA descriptor arguments for __tvm_tensormap_create_tiled:\n"
    "  [1] globalAddress must be 16-byte aligned, but mod16=2\n"
    "TMA Desc Addr:   0x7ffd9b20 (mod64=0)\nglobalDim      [64, 3]\n"
)
_NVCC_FULL = (
    "#include <gemm.h>\nCompilation error:\n<built-in>: fatal error: when writing "
    "output to /tmp/tmpxft_7_kernel.cpp1.ii: No space left on device\ncompilation terminated.\n"
    "Command: nvcc -cubin"
)
_KERNEL = """
import torch


class Held:
    '''A tensor that an exception keeps alive.'''

    living = 0
    references = 0

    def __init__(self):
        Held.living += 1

    def __del__(self):
        Held.living -= 1


def reference(x):
    Held.references += 1
    if Held.references > 1 and len(x) == 7:
        raise torch.OutOfMemoryError({no_memory!r})
    return 2 * x


def double(x, how="right"):
    held = Held()
    held.me = held
    errors = {{
        "memory": torch.OutOfMemoryError({no_memory!r}),
        "illegal": torch.AcceleratorError({illegal!r}),
        "launch": RuntimeError({tvm!r}),
        "empty": RuntimeError({empty!r}),
        "tma": RuntimeError({no_descriptor!r}),
        "odd": RuntimeError({odd_descriptor!r}),
        "own": RuntimeError("the kernel gave up"),
        "full": OSError({full_disk}, "No space left on device", "/dev/null/kernel.cubin"),
        "nvcc_full": RuntimeError({nvcc_full!r}),
    }}
    if how == "cuda":
        return 2 * x + torch.zeros(1, device="cuda")
    if how in errors:
        raise errors[how]
    return 2 * x
"""
_SPEC = """\
name: double
problem:
  inputs: {{x: {{shape: [rows, 3], dtype: float32}}}}
  outputs: [y]
  reference: {module}:reference
entry: {module}:double
axes: {{rows: {rows}, how: {how}}}
tiers: {{quick: product}}
checks: [numeric]
"""


@dataclass(frozen=True)
class FaultyGpu(CudaBackend):
    """A GPU as the runner sees one; `illegal` says that its first case costs the context."""

    device: torch.device = _CPU
    arch: str = "sm_90"
    illegal: bool = False
    released: list[int] = field(default_factory=list, compare=False)

    def active(self, _run_index=0):
        return nullcontext()

    def synchronize(self):
        pass

    def broken(self):
        return self.illegal

    def release(self):
        gc.collect()
        self.released.append(1)


def _written(project, how, rows="[5]"):
    code = _KERNEL.format(
        no_memory=_NO_MEMORY,
        illegal=_ILLEGAL,
        tvm=_TVM,
        empty=_EMPTY,
        no_descriptor=_NO_DESCRIPTOR,
        odd_descriptor=_ODD_DESCRIPTOR,
        full_disk=errno.ENOSPC,
        nvcc_full=_NVCC_FULL,
    )
    (project.folder / f"{project.module}.py").write_text(code)
    path = project.folder / "double.yaml"
    path.write_text(_SPEC.format(module=project.module, how=how, rows=rows))
    return tlmatrix.load(path)


def _results(project, how, gpu=None, rows="[5]"):
    spec = _written(project, how, rows)
    return list(tlmatrix.run_specs(spec, backend=gpu or FaultyGpu()))


def test_out_of_memory_in_the_kernel_reports_requested_and_free_memory(project):
    gpu = FaultyGpu()
    faulty, right = _results(project, "[memory, right]", gpu)
    (finding,) = faulty.findings
    assert (finding.check, faulty.status) == ("memory", Status.ERROR)
    assert finding.title == (
        "out of memory in the code under test: asked for 20.00 GiB with 5.31 GiB free of 139.81 GiB"
    )
    assert "in double" in (finding.detail or "")
    assert right.status is Status.PASSED
    assert len(gpu.released) == 1


def test_memory_is_released_after_an_out_of_memory_case(project):
    _results(project, "[memory]")
    assert sys.modules[project.module].Held.living == 0


def test_out_of_memory_in_the_reference_is_not_a_fault_of_the_kernel(project):
    (result,) = _results(project, "[right]", rows="[7]")
    (finding,) = result.findings
    assert finding.check == "memory"
    assert "judging the case" in finding.title
    assert "fewer workers" in (finding.hint or "")


def test_a_failed_launch_names_the_kernel_and_later_cases_run(project):
    faulty, right = _results(project, "[launch, right]")
    (finding,) = faulty.findings
    assert finding.check == "launch"
    assert finding.title == "double cannot be launched: CUDA_ERROR_INVALID_VALUE"
    assert finding.where == "grid=(2,1,1), block=(128,1,1)"
    assert right.status is Status.PASSED


def test_an_empty_launch_is_a_launch_finding(project):
    faulty, right = _results(project, "[empty, right]")
    (finding,) = faulty.findings
    assert finding.check == "launch"
    assert finding.title == "double cannot be launched: grid dimension must be positive"
    assert finding.where == "grid=(0,3,1)"
    assert "where an input is empty return before the call" in (finding.hint or "")
    assert right.status is Status.PASSED


def test_an_invalid_tma_descriptor_is_a_launch_finding(project):
    empty, odd = (result.findings[0] for result in _results(project, "[tma, odd]"))
    assert (empty.check, odd.check) == ("launch", "launch")
    assert empty.title == "a kernel cannot be launched: a TMA descriptor of an empty tensor"
    assert empty.where == "globalDim [64, 0]"
    assert "where an input is empty return before the call" in (empty.hint or "")
    assert odd.title.endswith("invalid TMA descriptor: globalAddress must be 16-byte aligned")
    assert odd.where == "globalDim [64, 3]"
    assert "multiples of 16 bytes" in (odd.hint or "")


def test_cases_after_an_illegal_access_in_the_process_are_skipped(project):
    faulty, later = _results(project, "[illegal, right]", FaultyGpu(illegal=True))
    (finding,) = faulty.findings
    assert finding.check == "launch"
    assert "an illegal memory access was encountered; the CUDA context is lost" in finding.title
    assert (later.status, later.reason) == (Status.SKIPPED, SkipReason.DEVICE)
    assert "double.yaml::how=illegal-rows=5" in later.message


def test_an_error_of_the_entry_is_an_entry_finding(project):
    (result,) = _results(project, "[own]")
    assert [finding.check for finding in result.findings] == ["entry"]


def test_a_full_disk_is_no_fault_of_the_kernel(project):
    full, nvcc = _results(project, "[full, nvcc_full]")
    for result, place in ((full, "/dev/null/kernel.cubin"), (nvcc, tempfile.gettempdir())):
        (finding,) = result.findings
        assert (finding.check, result.status) == ("disk", Status.ERROR)
        assert finding.title.startswith(f"no space left on device: {place} (")
        assert "free now)" in finding.title
        assert "set TMPDIR" in (finding.hint or "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is the GPU that is asked for")
def test_an_entry_that_needs_a_gpu_gets_a_hint_for_the_cpu(project):
    (result,) = _results(project, "[cuda]")
    (finding,) = result.findings
    assert finding.check == "entry"
    assert "device=x.device" in (finding.hint or "")
    assert "tlmatrix exec" in (finding.hint or "")


# Compilers -----------------------------------------------------------------------------------

_COMPILED = '''
import tilelang
import tilelang.language as T

TARGET = {"kind": "cuda", "arch": "sm_90a"}
UNDECLARED = """
__device__ int wrong() { return undeclared; }
"""


@tilelang.jit(target=TARGET)
def refused_by_nvcc():
    @T.prim_func
    def undeclaring(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            T.import_source(UNDECLARED)
            for i in T.Parallel(64):
                Y[i] = X[i]

    return undeclaring


@tilelang.jit(target=TARGET)
def refused_by_tilelang():
    @T.prim_func
    def unlowered(X: T.Tensor((64,), "float16"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=96):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_fragment((64, 64), "float32")
            T.copy(X, a[0, 0:64])
            T.gemm(a, a, b)
            T.copy(b[0, 0:64], Y)

    return unlowered


def reference(x):
    return x


def compiled(x, how):
    globals()[f"refused_by_{how}"]()
    return x
'''


def _compiled(project, how):
    (project.folder / f"{project.module}.py").write_text(_COMPILED)
    path = project.folder / "compiled.yaml"
    text = _SPEC.format(module=project.module, how=f"[{how}]", rows="[5]")
    path.write_text(text.replace(":double", ":compiled"))
    (result,) = tlmatrix.run_specs(path, backend=FaultyGpu())
    return result


def test_an_nvcc_without_space_does_not_reject_the_kernel(tmp_path, monkeypatch):
    """Whether it prints so, or something else: its folder of temporary files is tried."""

    def compiled(message):
        script = tmp_path / "nvcc"
        script.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
        script.chmod(0o700)
        Toolkit(script, "13.0", frozenset()).ptx("", "sm_90a", ())

    with pytest.raises(AssemblerError, match="undefined"):
        compiled("identifier is undefined")
    with pytest.raises(DiskError, match="No space left on device"):
        compiled("fatal error: when writing output to /x.ii: No space left on device")
    monkeypatch.setenv("TMPDIR", "/dev/null/full")
    with pytest.raises(DiskError, match="/dev/null/full"):
        compiled("nvcc fatal   : Failed to preprocess host compiler properties.")


@pytest.mark.skipif(find_toolkit() is None, reason="no nvcc here")
def test_an_nvcc_error_is_a_finding_with_its_message(project):
    result = _compiled(project, "nvcc")
    (finding,) = result.findings
    assert finding.check == "compile"
    assert finding.title.startswith("undeclaring does not compile for sm_90: ")
    assert 'identifier "undeclared" is undefined' in finding.title
    assert "/tmp/" not in finding.title
    assert "1 error detected" in (finding.detail or "")


def test_a_lowering_error_is_a_finding_with_the_kernels_name(project):
    result = _compiled(project, "tilelang")
    (finding,) = result.findings
    assert finding.check == "compile"
    assert finding.title.startswith("unlowered does not compile for sm_90: ")


# Workers -------------------------------------------------------------------------------------

_CONFTEST = """
from tlmatrix.backend.backends import InterpreterBackend

lost = []


def broken(self):
    return bool(lost)


InterpreterBackend.broken = broken
"""


def test_a_worker_that_lost_its_gpu_is_replaced_and_every_case_is_judged(project):
    _written(project, "[illegal, right]", rows="[1]")
    code = project.folder / f"{project.module}.py"
    told = code.read_text().replace(
        "    if how in errors:",
        "    if how == 'illegal':\n        LOST.append(1)\n    if how in errors:",
    )
    code.write_text(told + "\nfrom conftest import lost as LOST\n")
    (project.folder / "conftest.py").write_text(_CONFTEST)
    process = project.start("pytest", ".", "-q", "-n", "1", "--tlmatrix-results", "out.jsonl")
    out, _ = process.communicate(timeout=120)
    results = {item.case: item for item in read_records(project.folder / "out.jsonl").results}
    assert {case: item.status for case, item in results.items()} == {
        "how=illegal-rows=1": Status.ERROR,
        "how=right-rows=1": Status.PASSED,
    }, out
    assert "1 failed, 1 passed" in out
    assert "the CUDA context is lost" in re.sub(r"\s+", " ", out)
