"""Seeded delays at the synchronization points of CUDA kernels: `--perturb SEED`.

`source` inserts the delays into the CUDA source that TileLang generates, `seed` holds the seed in
GPU memory, from which kernels read it. So all seeds share one compiled kernel.

The environment variable `SEED` requests delays of this process and of those that it starts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.perturb.seed import ADDRESS, SeedMemory
from tlmatrix.backend.perturb.source import VERSION, perturbed

if TYPE_CHECKING:
    import torch

__all__ = ["SEED", "cache_key", "install", "request", "requested", "set_seed"]

SEED = "TLMATRIX_PERTURB"
"""Environment variable: the seed; 0 for kernels with delays that are all 0."""

_memories: dict[int, SeedMemory] = {}
"""By the index of the GPU."""


def request(seed: int) -> None:
    """Perturb the kernels of this process, and of those that it starts, by this seed."""
    os.environ[SEED] = str(seed)


def requested() -> int | None:
    """The seed; None if kernels have no delays."""
    seed = os.environ.get(SEED)
    return None if seed is None else int(seed)


def install() -> None:
    """Insert delays into all kernels that this process compiles from now on."""
    from tilelang.engine.callback import register_cuda_postproc

    def with_delays(code: str, target: Any) -> str:  # noqa: ANN401, ARG001 - TileLang's
        return perturbed(code, _address())

    register_cuda_postproc(with_delays)


def cache_key() -> dict[str, Any]:
    """What tells perturbed kernels from others, and from each other, in TileLang's cache."""
    return {} if requested() is None else {"perturb": VERSION, "seed_at": _address()}


def set_seed(device: torch.device) -> None:
    """Let the kernels launched next on a GPU read the requested seed."""
    index = device.index or 0
    if index not in _memories:
        _memories[index] = SeedMemory.on(index)
    _memories[index].set(requested() or 0)


def _address() -> int:
    """Where kernels read the seed; a process without a GPU assumes the usual address."""
    return next((memory.address for memory in _memories.values()), ADDRESS)
