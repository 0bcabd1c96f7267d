"""Steps that a pool of rank processes runs, one per GPU, each with a time limit.

If a step fails on any rank or times out, the pool is killed and a new one continues with the next
step, so one hang costs one step.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tlmatrix.backend.errors import EntryError, wrapping_entry_errors
from tlmatrix.backend.gpus import all_visible_gpus
from tlmatrix.check.finding import FindingsError
from tlmatrix.distributed.pool import RankPool
from tlmatrix_kernels.distributed import create_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.backend import Backend

START_LIMIT = 180
"""Seconds for processes to start and join the process group."""


@dataclass(frozen=True)
class Step:
    """`call(context, *arguments)` on every rank; the result is that of rank 0.

    `call` is a function of a module: each process imports it by name.
    """

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    limit: float = 120
    """Seconds, including compilation."""


@dataclass(frozen=True)
class Outcome:
    """The result or the error of a step."""

    step: Step
    result: Any = None
    error: str | None = None
    seconds: float = 0.0


def run_steps(steps: Sequence[Step], world: int, kind: str = "cuda") -> Iterator[Outcome]:
    """Yield the outcome of every step; `world` processes of a `kind` of `RankPool` run them."""
    pool = RankPool(world, kind, all_visible_gpus()[:world] if kind == "cuda" else ())
    ready = False
    try:
        for step in steps:
            result, error = None, None
            begun = time.monotonic()
            try:
                if not ready:
                    _on_ranks(pool, None, (), START_LIMIT)
                result = _on_ranks(pool, step.call, step.arguments, step.limit)
            except EntryError as raised:
                error = "\n".join([str(raised), raised.trace, *raised.notes])
            except FindingsError as raised:
                error = "\n".join(f"{each.title}\n{each.detail}" for each in raised.findings)
            ready = error is None
            yield Outcome(step, result, error, time.monotonic() - begun)
    finally:
        pool.close()


def _on_ranks(
    pool: RankPool, call: Callable[..., Any] | None, arguments: tuple[Any, ...], seconds: float
) -> Any:
    """Call a function on all ranks; without one they only create their contexts."""
    name = ""
    if call is not None:
        module = call.__module__
        if module == "__main__":
            module = Path(str(sys.modules[module].__file__)).stem
        name = f"{module}:{call.__qualname__}"
    given = [(name, arguments)] * pool.world
    return pool.call(run_on_rank, given, seconds)[0]


_contexts: list[Any] = []


def run_on_rank(
    backend: Backend, rank: int, _world: int, name: str, arguments: tuple[Any, ...]
) -> Any:
    """Call a function `module:name` on this rank; its process keeps the context."""
    result = None
    with wrapping_entry_errors():
        if not _contexts:
            _contexts.append(create_context())
        if name:
            module, _, function = name.partition(":")
            result = getattr(import_module(module), function)(_contexts[0], *arguments)
        backend.synchronize()
        dist.all_reduce(torch.zeros(1))  # a barrier
    return result if rank == 0 else None


def slowest(seconds: float) -> float:
    """The maximum over ranks of a measured time."""
    value = torch.tensor(seconds, dtype=torch.float64, device="cuda")
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def efficiency(
    compute: Sequence[float], comm: Sequence[float], taken: Sequence[float]
) -> list[float]:
    """Overlap efficiency (T_compute + T_comm - T) / min(T_compute, T_comm) over rounds.

    1 if the shorter is completely hidden. Returns the lower quartile, median and upper quartile.
    """
    rounds = zip(compute, comm, taken, strict=True)
    rates = [(one + other - time) / min(one, other) for one, other, time in rounds]
    return statistics.quantiles(rates, n=4) if len(rates) > 1 else rates * 3
