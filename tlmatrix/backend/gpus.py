"""Which GPUs this machine has, asked without touching CUDA, and which worker gets which of them.

A process that has begun to use CUDA can no longer be confined to one GPU, and one that is not
confined keeps a context, half a gigabyte of memory, on every GPU that anything in it names. So
each worker gets its GPU as `CUDA_VISIBLE_DEVICES`, before it imports PyTorch.
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
    "Spread",
    "all_visible_gpus",
    "confine_process",
    "count_gpus",
    "spread_for",
    "visible_gpus",
]

ALL_GPUS = "TLMATRIX_VISIBLE_GPUS"
"""Where a worker that is confined to one GPU finds those that the user left visible."""

_NVML = ("libnvidia-ml.so.1", "nvml.dll")


def count_gpus() -> int:
    """The GPUs of this machine, as its driver counts them; 0 where there is no driver."""
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
    """The GPUs that CUDA would show, each as one writes it in `CUDA_VISIBLE_DEVICES`.

    What the user set there (numbers, or names such as `GPU-8932f937` and `MIG-…`) is kept, up to
    the first that is no device, where CUDA stops as well.
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
    """The GPUs that the user left visible, for cases of several, wherever this worker may run."""
    given = os.environ.get(ALL_GPUS)
    if given is not None:
        return tuple(filter(None, given.split(",")))
    return visible_gpus(os.environ)


def confine_process(gpu: str) -> None:
    """Leave this process one GPU; "" for all. Once CUDA is in use it is too late.

    Cases of several ranks have processes of their own, and those all GPUs.
    """
    torch = sys.modules.get("torch")
    if gpu and not (torch and torch.cuda.is_initialized()):
        os.environ.setdefault(ALL_GPUS, ",".join(visible_gpus(os.environ)))
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def spread_for(backend: str) -> Spread:
    """The visible GPUs for the workers of a backend; none where kernels run elsewhere."""
    return Spread(visible_gpus(os.environ) if backend in ("auto", "cuda") else ())


class Spread:
    """Gives each worker the GPU that has the fewest, and takes it back when the worker ends."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self.gpus = tuple(gpus)
        self._of: dict[str, str] = {}

    def give(self, worker: str) -> str:
        """The GPU of a worker; "" where there are no two to choose from."""
        if len(self.gpus) < 2:
            return ""
        busy = Counter(self._of.values())
        self._of[worker] = min(self.gpus, key=lambda gpu: busy[gpu])
        return self._of[worker]

    def take_back(self, worker: str) -> None:
        """A worker is gone; another may have its place."""
        self._of.pop(worker, None)

    def words(self, workers: int) -> str:
        """`8 workers on 4 GPUs, 2 each`; "" where there is nothing to say."""
        if len(self.gpus) < 2 or not workers:
            return ""
        count = f"{workers} worker{'s' * (workers != 1)}"
        least, more = divmod(workers, len(self.gpus))
        if not least:
            return f"{count} on {workers} of {len(self.gpus)} GPUs"
        each = f"{least} or {least + 1}" if more else f"{least}"
        return f"{count} on {len(self.gpus)} GPUs, {each} each"
