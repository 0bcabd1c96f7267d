"""A program that lanes execute: the generated source of one device function, and its facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlmatrix.interpreter.ir.nodes import Location


@dataclass(frozen=True, eq=False)  # that of a kernel is one object
class DeviceProgram:
    """The generated program of a device function.

    Attributes:
        name: of the function.
        source: a module with one function, `kernel`.
        sites: the user's line of each access, by number.
        threads: the extents of a block.
        axes: how many axes the grid has.
        barriers: how many mbarriers each buffer of them holds.
        unit: granularity in bytes at which accesses of shared memory are tracked.
        shared_bytes: of the shared memory that it allocates.
        suspends: whether parts of it wait for one another, so that `kernel` is a generator.
        cooperative: whether all blocks of a launch wait for one another.
        by_order: whether it uses what atomics find in memory, by the order of threads.
        in_turn: whether a loop does, so that blocks may wait for those before them.
        written: positions of the parameters that it writes to.
    """

    name: str
    source: str
    sites: tuple[Location | None, ...]
    threads: tuple[int, int, int]
    axes: int
    barriers: dict[str, int]
    unit: int
    shared_bytes: int
    suspends: bool
    cooperative: bool
    by_order: bool
    in_turn: bool
    written: frozenset[int]
