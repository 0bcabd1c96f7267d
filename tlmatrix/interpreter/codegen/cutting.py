"""Tiles without the rows that nobody will see; which these are, `rows` finds out.

A block begins with the number of rows that it needs, and all it does to a tile it does to so many
rows: arrays, and the views that are made of them, are made once for each number. Whatever watches
accesses is told of whole tiles, as the kernel has them.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .steady import SteadyMixin
from .values import Val

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .rows import Cut

__all__ = ["CuttingMixin"]

_READS = re.compile(r"\bitem\(\w+, (?:\w+|\(\w+ [+-] \d+\)), \w+\)")
_LEAST = 16
"""Rows that are always computed: a product of fewer takes another path, with other last bits."""


class CuttingMixin(SteadyMixin):
    """Computes rows of tiles as far as they are needed."""

    def start_cutting(self, cuts: Sequence[Cut]) -> None:
        """Set up, before anything is generated."""
        self._cuts: dict[str, Cut] = {}
        self._cut_of: dict[Any, str] = {}
        self._gates: dict[int, set[str]] = {}
        self._chosen_rows: set[str] = set()
        self._needed: dict[str, str] = {}
        for cut in cuts:
            code = self.w.fresh("rows_needed")
            self._cuts[code] = cut
            self.cut_names[code] = code
            self.cut_lines[code] = []
            self._cut_of |= dict.fromkeys((*cut.data, *cut.loops), code)
            for gate in cut.gates:
                self._gates.setdefault(hash(gate), set()).add(code)
        # Conditions are told apart by identity, as long as they are held here.
        self._held = tuple(cuts)

    def rows_of(self, key: Any) -> Val | None:
        """How many rows are needed of a buffer, by its data, or of a loop, by its variable."""
        code = self._cut_of.get(key)
        if code is None:
            return None
        return Val(code, "int32", lo=1, hi=self._cuts[code].rows)

    # -- where a block starts

    def on_block(self, indices: list[Any]) -> None:
        """A block starts: how many rows it needs is written there when all of it is known."""
        super().on_block(indices)
        start = self._block_start
        if self.remembers:
            self._block_start = None  # what is remembered is what the kernel reads
        with self.unwatched():
            for code, cut in self._cuts.items():
                limits = (self.settled(self.expr(limit)) for limit in cut.limits)
                self._needed[code] = ", ".join(limit.code for limit in limits)
        self._block_start = start

    def block_lines(self) -> list[str]:
        """The number of rows of a block, and what it goes on with."""
        lines = super().block_lines()
        for code, cut in self._cuts.items():
            defined = self.cut_lines[code]
            if not defined:
                continue
            known, made, make = (self.w.fresh(f"{code}_{what}") for what in ("known", "made", "of"))
            names = ", ".join(line.split(" = ", 1)[0] for line in defined)
            most = self._needed[code]
            for read in dict.fromkeys(_READS.findall(most)):
                name = self.temp("read")
                lines.append(f"{name} = {read}")
                most = most.replace(read, name)
            lines += [
                f"{code} = min({cut.rows}, max({_LEAST}, {most}))",
                f"{made} = {known}.get({code})",
                f"if {made} is None:",
                f"    {made} = {known}[{code}] = {make}({code})",
                f"({names},) = {made}",
            ]
            function = [f"def {make}({code}):", *(f"    {line}" for line in defined)]
            for line in (*function, f"    return ({names},)", f"{known} = {{}}"):
                self.prologue.line(line)
        return lines

    # -- what is watched

    def _stmt_IfThenElse(self, node: Any) -> None:
        outer = self.gated
        self.gated = outer | self._gates.get(hash(node.condition), set())
        super()._stmt_IfThenElse(node)
        self.gated = outer

    @contextmanager
    def choosing(self, condition: Any) -> Iterator[None]:
        """What is read inside is read where the condition holds."""
        outer = self._chosen_rows
        self._chosen_rows = outer | self._gates.get(hash(condition), set())
        yield
        self._chosen_rows = outer

    @contextmanager
    def of_whole_tiles(self, *, reads: bool = False) -> Iterator[None]:
        """Lines written inside speak of all rows, but where a condition leaves out the others."""
        start = len(self.w.lines)
        yield
        for code, cut in self._cuts.items():
            if code in self.gated or (reads and code in self._chosen_rows):
                continue
            positions = {axis.position for axis in self.axes if axis.extent.code == code}
            if self.mask is not None and positions & self.mask.axes:
                continue
            name = re.compile(rf"\b{code}\b")
            lines = self.w.lines[start:]
            self.w.lines[start:] = [name.sub(str(cut.rows), line) for line in lines]
