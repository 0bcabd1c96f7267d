"""Several simulated ranks in one process: their programs take turns where a kernel only spins.

Every rank's program runs in a thread of its own, one at a time. When a kernel of one rank can
only spin on a flag (or wait for what another rank writes), the next rank runs. If all ranks spin
through a whole round and nothing changes, that is a deadlock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from tlmatrix.interpreter.errors import DeadlockError, Unsupported

from . import context

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_ranks", "stuck"]

Result = TypeVar("Result")
# Rounds of all ranks spinning after which nothing can change any more.
_ROUNDS = 3


class _World:
    """The ranks that run, and whose turn it is."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.turn = 0
        self.condition = threading.Condition()
        self.finished: set[int] = set()
        self.failed: BaseException | None = None
        self.idle = 0

    def wait_turn(self, rank: int) -> None:
        self.condition.wait_for(lambda: self.turn == rank or self.failed is not None)
        if self.failed is not None:
            raise _Stopped

    def pass_on(self, rank: int) -> None:
        for step in range(1, self.size + 1):
            other = (rank + step) % self.size
            if other not in self.finished:
                self.turn = other
                break
        self.condition.notify_all()


class _Stopped(BaseException):  # no error of this rank, and not for it to catch
    """Another rank failed."""


class _Local(threading.local):
    world: _World | None = None
    rank: int = 0


_local = _Local()


def stuck(*, moving: bool) -> bool:
    """Let other ranks run; False if there is none that could change anything.

    Args:
        moving: whether this rank did something since its last turn.
    """
    world = _local.world
    if context.world() is not None:
        raise Unsupported(
            "a kernel spins on a flag that only another stream or rank can raise, with an atomic "
            "load; under simulate() the interpreter models waits by tlm_wait_* and tlm_load_* "
            "(kernels/distributed/signals.py), in kernels whose threads play no roles"
        )
    if world is None:
        return False
    with world.condition:
        world.idle = 0 if moving else world.idle + 1
        others = world.size - len(world.finished) - 1
        if others == 0 or world.idle > _ROUNDS * (others + 1):
            return False
        world.pass_on(_local.rank)
        world.wait_turn(_local.rank)
    return True


def run_ranks(size: int, program: Callable[[int], Result]) -> list[Result]:
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
    world = _World(size)
    results: list[Any] = [None] * size

    def body(rank: int) -> None:
        _local.world, _local.rank = world, rank
        try:
            with world.condition:
                world.wait_turn(rank)
            results[rank] = program(rank)
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            world.failed = world.failed or error
        finally:
            with world.condition:
                world.finished.add(rank)
                world.idle = 0
                world.pass_on(rank)

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if world.failed is not None:
        if isinstance(world.failed, DeadlockError):
            raise DeadlockError(str(world.failed)) from world.failed
        raise world.failed
    return results
