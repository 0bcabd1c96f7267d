"""Counts the GPUs of this machine without initializing CUDA, and assigns them to workers.

`CUDA_VISIBLE_DEVICES` has no effect once a process has initialized CUDA, and an unrestricted
process may create a context (half a gigabyte) on every GPU. So each worker gets its GPU in that
variable before it imports PyTorch.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ALL_GPUS = "TLMATRIX_VISIBLE_GPUS"
"""Environment variable of a worker restricted to one GPU: all GPUs that the user left visible."""

CONTEXT_BYTES = 600 * 2**20
"""Memory of a process on a GPU beside PyTorch's allocations."""

_NVML = ("libnvidia-ml.so.1", "nvml.dll")


@contextmanager
def _nvml() -> Iterator[ctypes.CDLL | None]:
    """NVIDIA's management library, initialized; None without a driver."""
    for name in _NVML:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if library.nvmlInit_v2() != 0:
            break
        try:
            yield library
        finally:
            library.nvmlShutdown()
        return
    yield None


def count_gpus() -> int:
    """The number of GPUs according to NVML; 0 without a driver."""
    found = ctypes.c_uint(0)
    with _nvml() as library:
        if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(found)) != 0:
            return 0
    return found.value


def compute_capability() -> tuple[int, int] | None:
    """The compute capability of the first visible GPU according to NVML; None without one."""
    gpus = all_visible_gpus()
    if not gpus:
        return None
    number = int(gpus[0]) if gpus[0].isdecimal() else 0
    device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    with _nvml() as library:
        if (
            library is None
            or library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)) != 0
            or library.nvmlDeviceGetCudaComputeCapability(
                device, ctypes.byref(major), ctypes.byref(minor)
            )
            != 0
        ):
            return None
    return major.value, minor.value


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that CUDA would enumerate, in the syntax of `CUDA_VISIBLE_DEVICES`.

    The user's entries (numbers, or names such as `GPU-8932f937` and `MIG-…`) are kept as they
    are, up to the first invalid one, where CUDA stops as well.
    """
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return tuple(map(str, range(count_gpus())))
    found: list[str] = []
    for word in (part.strip() for part in given.split(",")):
        if not word or word.startswith("-"):
            break
        found.append(word)
    return tuple(found)


def all_visible_gpus() -> tuple[str, ...]:
    """The GPUs that the user left visible, also in a worker restricted to one of them."""
    given = os.environ.get(ALL_GPUS)
    if given is not None:
        return tuple(filter(None, given.split(",")))
    return visible_gpus(os.environ)


def confine_process(gpu: str) -> bool:
    """Restrict this process to one GPU ("" for all); False once CUDA is initialized.

    The processes of ranks, which this one starts, still get all GPUs.
    """
    torch = sys.modules.get("torch")
    if not gpu or (torch and torch.cuda.is_initialized()):
        return False
    os.environ.setdefault(ALL_GPUS, ",".join(visible_gpus(os.environ)))
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    return True


def assignment_for(backend: str) -> GpuAssignment:
    """An assignment of the visible GPUs to workers; of no GPUs if the backend uses none."""
    return GpuAssignment(visible_gpus(os.environ) if backend in ("auto", "cuda") else ())


def memory_fraction(total: int, workers: int) -> float:
    """The part of a GPU's `total` bytes that each of `workers` processes may allocate.

    A process that has the GPU alone may allocate all of it. Others get equal parts, each less what
    a CUDA context and loaded kernels take, which PyTorch's limit does not count.
    """
    if workers <= 1:
        return 1.0
    return max(1 / workers - CONTEXT_BYTES / total, 0.2 / workers)


class GpuAssignment:
    """Assigns each worker the GPU with the fewest workers."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self.gpus = tuple(gpus)
        self._assigned: dict[str, str] = {}

    def assign(self, worker: str) -> str:
        """Assign a GPU to a worker; "" if there are fewer than two GPUs."""
        if len(self.gpus) < 2:
            return ""
        busy = Counter(self._assigned.values())
        self._assigned[worker] = min(self.gpus, key=lambda gpu: busy[gpu])
        return self._assigned[worker]

    def release(self, worker: str) -> None:
        """Release the GPU of a worker that ended."""
        self._assigned.pop(worker, None)

    def sharers(self, workers: int) -> int:
        """The most workers that share one GPU, of `workers`."""
        return max(1, -(-workers // max(1, len(self.gpus))))

    def summary(self, workers: int) -> str:
        """`8 workers on 4 GPUs, 2 each`; "" if there are fewer than two GPUs."""
        if len(self.gpus) < 2 or not workers:
            return ""
        count = f"{workers} worker{'s' * (workers != 1)}"
        least, more = divmod(workers, len(self.gpus))
        if not least:
            return f"{count} on {workers} of {len(self.gpus)} GPUs"
        each = f"{least} or {least + 1}" if more else f"{least}"
        return f"{count} on {len(self.gpus)} GPUs, {each} each"
