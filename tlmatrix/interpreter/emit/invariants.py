"""Block invariants: integers that stay the same while a block runs, computed once a block.

A kernel over packed sequences reads its boundaries again and again: TileLang writes an expression
wherever its value is used. Where it reads only memory that the kernel never writes, at indices of
the block, it is computed at the start of the block. A guarded read is harmless there even if the
kernel would not do it; where nothing guards it, or an instrument observes reads, the value is kept
from its first use in the block instead.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.usage import is_read_only
from tlmatrix.interpreter.ir import nodes as ir

from .values import WRAPPED, Val, is_int

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from .emitter import Emitter

# The site of a read or of arithmetic that an instrument notes: the first in a block stands for all.
_SITE = re.compile(r"\b(\w+_seen\.one|watch\.one|watch\.left)\(\d+, ")
_LINEAR = (ir.Add, ir.Sub, ir.Mul, ir.Min, ir.Max)
_DIVISIONS = (ir.FloorDiv, ir.FloorMod)


class Invariants:
    """Shares integer expressions of block indices, parameters and memory that is only read."""

    def __init__(self, *, from_first_use: bool) -> None:
        self.from_first_use = from_first_use
        # Names by the code they hold, and the codes that use them; those of wrapped values too.
        self._shared: dict[str, str] = {}
        self._uses: set[str] = set()
        self._wrapped_uses: set[str] = set()
        # The line where a block starts, and the variables that do not change in it.
        self._start: int | None = None
        self._known: set[Any] = set()
        self._known_loads: dict[Any, int] = {}

    @property
    def names(self) -> Collection[str]:
        """Names of the shared integers."""
        return self._shared.values()

    def start_block(self, e: Emitter) -> None:
        """A block starts here: where shared integers are defined once all are known."""
        self._start = len(e.w.lines)
        self._known = set(e.vars)
        self._known_loads.clear()

    def end_grid(self, e: Emitter) -> None:
        """Write the definitions at the start of the block."""
        if self._start is None:
            return
        lines = [f"{name} = {code}" for code, name in self._shared.items()]
        if self.from_first_use and lines:
            lines = [f"{' = '.join(self._shared.values())} = None"]
        e.w.insert(self._start, lines)
        self._shared, self._start = {}, None

    def shared(self, e: Emitter, node: Any, value: Val) -> Val:
        """The value of an expression; shared where it stays the same."""
        if (
            self._start is not None
            and value.scalar
            and value.lit is None
            and not e.host_integers
            and is_int(value.dtype)
            and self._is_invariant(e, node)
        ):
            return self._once(e, value)
        return value

    def wrapped(self, e: Emitter, value: Val, wrapped: Val) -> Val:
        """A value in two's complement; shared where the value is."""
        return self._once(e, wrapped) if value.code in self._uses else wrapped

    def is_wrapped(self, value: Val) -> bool:
        """Whether a value is a shared one in two's complement."""
        return value.code in self._wrapped_uses

    def _once(self, e: Emitter, value: Val) -> Val:
        if value.code in self._uses or value.code.isidentifier():
            return value
        key = _SITE.sub(r"\1(", value.code)
        name = self._shared.get(key)
        if name is None:
            name = self._shared[key] = e.temp("steady")
        code = name
        if self.from_first_use:
            code = f"({name} if {name} is not None else ({name} := {value.code}))"
        self._uses.add(code)
        if value.code.startswith(WRAPPED) or self.is_wrapped(value):
            self._wrapped_uses.add(code)
        return replace(value, code=code)

    def _is_invariant(self, e: Emitter, node: Any) -> bool:
        """Whether an expression reads memory, only such as stays the same, and nothing else."""
        return self._loads(e, node) > 0

    def _loads(self, e: Emitter, node: Any) -> int:
        """How many loads an expression has; less than 0 if it is not the same in all of a block."""
        found = self._known_loads.get(node)
        if found is None:
            below: Sequence[Any] = ()
            loads = 0
            if isinstance(node, _LINEAR):
                below = node.a, node.b
            elif isinstance(node, _DIVISIONS) and getattr(node.b, "value", None):
                below = (node.a,)
            elif isinstance(node, ir.BufferLoad) and is_read_only(node, e.facts.usage):
                below, loads = node.indices, 1
            elif not (isinstance(node, ir.IntImm) or node in self._known):
                loads = -1
            each = [loads, *(self._loads(e, child) for child in below)]
            found = self._known_loads[node] = -1 if min(each) < 0 else sum(each)
        return found
