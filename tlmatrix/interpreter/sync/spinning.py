"""Several ranks in one process that share tensors and spin on flags, without streams."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from tlmatrix.interpreter.errors import Unsupported

from . import context
from .barriers import Spin
from .world import Rank, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from .scheduler import Scheduler

_Result = TypeVar("_Result")


class _Local(threading.local):
    rank: Rank | None = None
    progress: tuple[Scheduler, int] | None = None


_local = _Local()


def other_ranks_run(launch: Scheduler, block: str) -> bool:
    """Let other ranks run while all of a launch spins; False if there are none.

    Raises:
        Unsupported: under `simulate`.
    """
    if context.world() is not None:
        raise Unsupported(
            "a kernel spins on a flag that only another stream or rank can raise, with an atomic "
            "load; under simulate() the interpreter models waits by tlm_wait_* and tlm_load_* "
            "(kernels/distributed/signals.py), in kernels whose threads play no roles"
        )
    rank = _local.rank
    if rank is None or len(rank.world.agents) == 1:
        return False
    progress = launch, launch.progress
    if _local.progress != progress:
        _local.progress = progress
        rank.world.progress += 1
    rank.call_site = launch.agents[0].place()
    rank.world.wait(rank, _LaunchSpins(block))
    launch.progress += 1
    _local.progress = launch, launch.progress
    return True


class _LaunchSpins(Spin):
    """A host waits while all of its kernel spins."""

    def __init__(self, block: str) -> None:
        self.block = block

    def describe(self) -> str:
        """The wait, as text."""
        return f"while {self.block} spins on memory that nothing changes any more"


def run_ranks(size: int, program: Callable[[int], _Result]) -> list[_Result]:
    """Run `program(rank)` for every rank; they share what they are given to share.

    Each rank's program runs alone until it ends or a kernel in it spins. Enter `interpret()`
    inside of the program (a context concerns only its own thread).

    Args:
        size: the number of ranks.
        program: what a rank does; gets its number.

    Returns:
        What each rank's program returned.

    Raises:
        DeadlockError: if every rank spins on what no rank will write.
        ValueError: for a size below one.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    world = World(size)
    results: list[Any] = [None] * size

    def body(rank: Rank) -> None:
        context.enter(None, None)
        _local.rank = rank
        results[rank.number] = program(rank.number)

    world.run(body)
    return results
