"""Tiles without their dead rows; `analysis.liveness` finds them.

A block begins with the number of rows that are live, and all that it does to a tile it does to so
many rows: arrays, and the views of them, are made once for each number. Instruments note whole
tiles, as the kernel has them.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .integers import settle
from .values import Val

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tlmatrix.interpreter.analysis.liveness import LiveRows

    from .emitter import Emitter

__all__ = ["Trimming"]

_READ = re.compile(r"\bitem\(\w+, (?:\w+|\(\w+ [+-] \d+\)), \w+\)")
_LEAST = 16
"""Rows that are always computed: a product of fewer takes another path, with other last bits."""


class Trimming:
    """Computes rows of tiles as far as they are live.

    Attributes:
        names: names that are made anew for a number of rows, by the name of that number.
    """

    def __init__(self, e: Emitter, groups: Sequence[LiveRows]) -> None:
        self.names: dict[str, str] = {}
        self._groups: dict[str, LiveRows] = {}
        self._codes: dict[Any, str] = {}
        self._lines: dict[str, list[str]] = {}
        self._gates: dict[Any, set[str]] = {}
        self._gated: set[str] = set()
        self._chosen: set[str] = set()
        self._needed: dict[str, str] = {}
        for group in groups:
            code = e.w.fresh("rows_needed")
            self._groups[code] = group
            self.names[code] = code
            self._lines[code] = []
            self._codes |= dict.fromkeys((*group.data, *group.loops), code)
            for gate in group.gates:
                self._gates.setdefault(gate, set()).add(code)

    def rows_of(self, key: Any) -> Val | None:
        """How many rows are live of a buffer, by its data, or of a loop, by its variable."""
        code = self._codes.get(key)
        return None if code is None else Val(code, "int32", lo=1, hi=self._groups[code].rows)

    def define(self, name: str, code: str, of: str) -> bool:
        """Define a name that depends on an array or number of live rows; False if `of` is none."""
        rows = self.names.get(of)
        if rows is None:
            return False
        self._lines[rows].append(f"{name} = {code}")
        self.names[name] = rows
        return True

    # -- where a block starts

    def start_block(self, e: Emitter) -> None:
        """A block starts; its number of live rows is written there when all of it is known."""
        outer, invariants = e.instruments, e.invariants
        e.instruments = ()  # the kernel does not read the limits here
        if invariants is not None and invariants.from_first_use:
            e.invariants = None
        for code, group in self._groups.items():
            limits = (settle(e, e.expr(limit)) for limit in group.limits)
            self._needed[code] = ", ".join(limit.code for limit in limits)
        e.instruments, e.invariants = outer, invariants

    def block_lines(self, e: Emitter) -> list[str]:
        """The number of live rows of a block, and the names that depend on it."""
        lines: list[str] = []
        for code, group in self._groups.items():
            defined = self._lines[code]
            if not defined:
                continue
            known, made, make = (e.w.fresh(f"{code}_{what}") for what in ("known", "made", "of"))
            names = ", ".join(line.split(" = ", 1)[0] for line in defined)
            most = self._needed[code]
            for read in dict.fromkeys(_READ.findall(most)):
                name = e.temp("read")
                lines.append(f"{name} = {read}")
                most = most.replace(read, name)
            lines += [
                f"{code} = min({group.rows}, max({_LEAST}, {most}))",
                f"{made} = {known}.get({code})",
                f"if {made} is None:",
                f"    {made} = {known}[{code}] = {make}({code})",
                f"({names},) = {made}",
            ]
            function = [f"def {make}({code}):", *(f"    {line}" for line in defined)]
            for line in (*function, f"    return ({names},)", f"{known} = {{}}"):
                e.prologue.line(line)
        return lines

    # -- instruments

    @contextmanager
    def under(self, condition: Any) -> Iterator[None]:
        """Inside, a condition holds for the rows that are accessed."""
        outer = self._gated
        self._gated = outer | self._gates.get(condition, set())
        yield
        self._gated = outer

    @contextmanager
    def choosing(self, condition: Any) -> Iterator[None]:
        """Inside, what is read is read where a condition holds."""
        outer = self._chosen
        self._chosen = outer | self._gates.get(condition, set())
        yield
        self._chosen = outer

    def note_whole(self, e: Emitter, start: int, *, reads: bool = False) -> None:
        """Let lines from `start` on name all rows, unless a condition leaves out the others."""
        for code, group in self._groups.items():
            if code in self._gated or (reads and code in self._chosen):
                continue
            positions = {axis.position for axis in e.axes if axis.extent.code == code}
            if positions & e.mask_axes:
                continue
            name = re.compile(rf"\b{code}\b")
            e.w.lines[start:] = [name.sub(str(group.rows), line) for line in e.w.lines[start:]]
