"""Registers of threads that `wgmma` reads or writes while the threads go on.

PTX ISA, "Asynchronous wgmma proxy": threads must not access the accumulators, nor write the factor
that is in registers, before the group of the instruction was waited for; and `wgmma.fence` must
stand between accesses of threads to registers and a `wgmma` that uses them, and before the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.gpu import WARP_GROUP

from . import findings

if TYPE_CHECKING:
    from tlmatrix.interpreter.runtime.codecs import Array

    from .machine import Machine


@dataclass
class _Array:
    """What is known of an array in registers, of each element in each warp group.

    Attributes:
        group: the group of `wgmma` that uses it, as the clock of its unit; 0 without any.
        writes: whether it is an accumulator there.
        accessed: whether threads accessed it after the last `wgmma.fence`.
    """

    group: Array
    writes: Array
    accessed: Array


class Registers:
    """The arrays in registers that `wgmma` uses, by their names."""

    def __init__(self, machine: Machine) -> None:
        """No `wgmma` has started."""
        self._machine = machine
        self._watched = machine.clocks is not None and not machine.threads % WARP_GROUP
        self._arrays: dict[str, _Array] = {}
        self._fenced: Any = False

    def _array(self, name: str, size: int) -> _Array:
        clocks = self._machine.noted
        if name not in self._arrays:
            shape = (size, clocks.blocks * clocks.groups)
            group, writes = np.zeros(shape, np.int32), np.zeros(shape, bool)
            accessed = np.broadcast_to(np.logical_not(self._fenced), shape).copy()
            self._arrays[name] = _Array(group, writes, accessed)
        return self._arrays[name]

    def _groups(self, mask: Any) -> Array:
        """The numbers of the warp groups that are switched on."""
        return np.flatnonzero(self._machine.noted.active(mask)[:, ::4])

    def _ended(self, groups: Array) -> Array:
        """The groups of `wgmma` that warp groups know to have ended."""
        clocks = self._machine.noted
        block, group = np.divmod(groups, clocks.groups)
        found: Array = clocks.known[block, group * 4, clocks.products + group]
        return found

    def started(
        self, name: str, part: tuple[int, int, int], writes: bool, mask: Any, site: int
    ) -> None:
        """A `wgmma` uses `part` of an array: first element, end, and elements of the array."""
        if not self._watched:
            return
        first, end, size = part
        array, groups = self._array(name, size), self._groups(mask)
        rows = slice(first, end)
        late = array.accessed[rows, groups]
        if late.any():
            other = "accesses of threads: there is no wgmma fence"
            findings.unordered_registers(
                self._machine, name, first, groups, late, site, "use by wgmma", other
            )
        array.group[rows, groups] = self._machine.units.now("products").ravel()[groups]
        array.writes[rows, groups] = writes

    def use(
        self, name: str, part: tuple[int, int, int], writes: bool, mask: Any, site: int
    ) -> None:
        """Threads access `part` of an array."""
        if not self._watched:
            return
        first, end, size = part
        array, groups = self._array(name, size), self._groups(mask)
        rows = slice(first, end)
        running = array.group[rows, groups] > self._ended(groups)
        if not writes:
            running &= array.writes[rows, groups]
        if running.any():
            other = "a wgmma: it has not been waited for"
            action = "write" if writes else "read"
            findings.unordered_registers(
                self._machine, name, first, groups, running, site, action, other
            )
        array.accessed[rows, groups] = True

    def fence(self, mask: Any) -> None:
        """`wgmma.fence`: accesses so far come before what `wgmma` does."""
        if self._watched:
            groups, clocks = self._groups(mask), self._machine.clocks
            if self._fenced is False and clocks is not None:
                self._fenced = np.zeros(clocks.blocks * clocks.groups, bool)
            self._fenced[groups] = True
            for array in self._arrays.values():
                array.accessed[:, groups] = False
