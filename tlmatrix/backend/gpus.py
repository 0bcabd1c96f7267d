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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "ALL_GPUS",
    "GpuAssignment",
    "all_visible_gpus",
    "assignment_for",
    "confine_process",
    "count_gpus",
    "visible_gpus",
]

ALL_GPUS = "TLMATRIX_VISIBLE_GPUS"
"""Environment variable of a worker restricted to one GPU: all GPUs that the user left visible."""

_NVML = ("libnvidia-ml.so.1", "nvml.dll")


def count_gpus() -> int:
    """The number of GPUs according to NVML; 0 without a driver."""
    for name in _NVML:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        found = ctypes.c_uint(0)
        if library.nvmlInit_v2() != 0:
            return 0
        if library.nvmlDeviceGetCount_v2(ctypes.byref(found)) != 0:
            found.value = 0
        library.nvmlShutdown()
        return found.value
    return 0


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


def confine_process(gpu: str) -> None:
    """Restrict this process to one GPU ("" for all); no effect once CUDA is initialized.

    The processes of ranks, which this one starts, still get all GPUs.
    """
    torch = sys.modules.get("torch")
    if gpu and not (torch and torch.cuda.is_initialized()):
        os.environ.setdefault(ALL_GPUS, ",".join(visible_gpus(os.environ)))
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def assignment_for(backend: str) -> GpuAssignment:
    """An assignment of the visible GPUs to workers; of no GPUs if the backend uses none."""
    return GpuAssignment(visible_gpus(os.environ) if backend in ("auto", "cuda") else ())


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
