"""How roles are scheduled and checked, in the thread that set it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SCHEDULES = ("eager", "lazy", "random", "adversarial")


@dataclass(frozen=True)
class Settings:
    """How the roles of a block run.

    Attributes:
        schedule: one of SCHEDULES; see `scheduler`.
        seed: of the random choices of a schedule.
        races: whether accesses that nothing orders are errors; None where the sanitizers of the
            `interpret()` in force decide.
    """

    schedule: str = "eager"
    seed: int = 0
    races: bool | None = None


class _Local(threading.local):
    def __init__(self) -> None:
        self.stack: list[Settings] = [Settings()]
        self.in_order = 0


_local = _Local()


def current() -> Settings:
    """The settings in force."""
    return _local.stack[-1]


def inherited() -> list[Settings]:
    """The settings of this thread, for another to `inherit`."""
    return list(_local.stack)


def inherit(stack: list[Settings]) -> None:
    """Take the settings of another thread."""
    _local.stack = list(stack)


def block_seed() -> int:
    """The seed of the order in which blocks run."""
    return 0 if _local.in_order else current().seed


@contextmanager
def blocks_in_order() -> Iterator[None]:
    """Run blocks in ascending order inside, whatever the schedule: equal calls give equal bits."""
    _local.in_order += 1
    try:
        yield
    finally:
        _local.in_order -= 1


@contextmanager
def scheduled(
    schedule: str = "eager", *, seed: int = 0, races: bool | None = True
) -> Iterator[None]:
    """Run the roles of interpreted kernels called inside under a schedule.

    Blocks that add floating-point numbers by atomics run in an order of the seed, and those with
    warp roles start in descending order with an odd one.

    Args:
        schedule: "eager", "lazy", "random" or "adversarial".
        seed: of the random choices of a schedule.
        races: whether accesses that nothing orders are errors; None leaves it to the sanitizers
            of the `interpret()` in force.

    Raises:
        ValueError: for a schedule that does not exist.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    _local.stack.append(Settings(schedule, seed, races))
    try:
        yield
    finally:
        _local.stack.pop()
