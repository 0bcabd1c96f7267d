"""What is computed once and shared: integers of a block, masks of a launch.

**Block invariants** are integers that stay the same while a block runs. A kernel over packed
sequences reads its boundaries again and again: TileLang writes an expression wherever its value is
used. Where it reads only memory that the kernel never writes, at indices of the block, it is
computed at the start of the block. A guarded read is harmless there even if the kernel would not do
it; where nothing guards it, or an instrument observes reads, the value is kept from its first use
in the block instead.

**Masks** are kept in variables. The mask of a last tile (`query + i < length and key + j < keys`)
costs more to make than to use, and comes again for every head, in other kernels and launches on the
same lengths. Where a mask is an expression of positions along parallel loops and of scalar
integers, and of nothing in memory, the generated source keeps it under its form and those integers;
see `runtime.masks.kept`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.usage import is_read_only
from tlmatrix.interpreter.ir import nodes as ir

from .numbers import consume
from .values import Code, Integer, Val, is_int, parts_of

if TYPE_CHECKING:
    from .emitter import Emitter

_LINEAR = (ir.Add, ir.Sub, ir.Mul, ir.Min, ir.Max)
_DIVISIONS = (ir.FloorDiv, ir.FloorMod)


class Invariants:
    """Shares integer expressions of block indices, parameters and memory that is only read.

    Args:
        from_first_use: whether values are kept from their first use in a block.
        by_mask: whether reads under different masks are different ones: those of a sanitizer,
            which reports the active iterations.
    """

    def __init__(self, *, from_first_use: bool, by_mask: bool) -> None:
        self.from_first_use = from_first_use
        self.by_mask = by_mask
        # Names and the code they hold, by the structure of the expression.
        self._shared: dict[Any, tuple[str, str]] = {}
        # The line where a block starts, and the variables that do not change in it.
        self._start: int | None = None
        self._known: set[Any] = set()
        self._structures: dict[Any, tuple[int, Any] | None] = {}

    def start_block(self, e: Emitter) -> None:
        """A block starts here: where shared integers are defined once all are known."""
        self._start = len(e.w.lines)
        self._known = set(e.vars)
        self._structures.clear()

    def end_grid(self, e: Emitter) -> None:
        """Write the definitions at the start of the block."""
        if self._start is None:
            return
        lines = [f"{name} = {code}" for name, code in self._shared.values()]
        if self.from_first_use and lines:
            lines = [f"{' = '.join(name for name, _ in self._shared.values())} = None"]
        e.w.insert(self._start, lines)
        self._shared, self._start = {}, None

    def shared(self, e: Emitter, node: Any, value: Val) -> Val:
        """The value of an expression; shared where it stays the same."""
        if (
            self._start is None
            or not value.scalar
            or value.lit is not None
            or e.host_integers
            or not is_int(value.dtype)
        ):
            return value
        found = self._structure(e, node)
        if found is None or not found[0]:
            return value
        return self._once(e, value, (found[1], e.wide_indices))

    def wrapped(self, e: Emitter, value: Val, wrapped: Val, *, tested: bool) -> Val:
        """A value in two's complement, `tested` by an instrument or not; shared if the value is."""
        key = value.code.key if isinstance(value.code, Code) else None
        return wrapped if key is None else self._once(e, wrapped, ("wrapped", tested, key))

    def _once(self, e: Emitter, value: Val, key: Any) -> Val:
        known = value.code if isinstance(value.code, Code) else None
        if value.code.isidentifier() or (known is not None and known.key is not None):
            return value
        if key not in self._shared:
            self._shared[key] = e.temp("steady"), value.code
        name, _ = self._shared[key]
        text = name
        if self.from_first_use:
            text = f"({name} if {name} is not None else ({name} := {value.code}))"
        wrapped = known is not None and known.wrapped
        return replace(value, code=Code(text, (Integer(text),), wrapped=wrapped, key=key))

    def _structure(self, e: Emitter, node: Any) -> tuple[int, Any] | None:
        """How many loads an expression has, and its structure; None if it changes in a block."""
        mask = e.mask_code if self.by_mask else ""
        if (node, mask) in self._structures:
            return self._structures[node, mask]
        found: tuple[int, Any] | None = None
        if isinstance(node, ir.IntImm):
            found = 0, (node.dtype, node.value)
        elif node in self._known:
            found = 0, node
        elif isinstance(node, _LINEAR) or (
            isinstance(node, _DIVISIONS) and getattr(node.b, "value", None)
        ):
            found = self._of_parts(e, (type(node), node.dtype), 0, (node.a, node.b))
        elif isinstance(node, ir.BufferLoad) and is_read_only(node, e.facts.usage):
            found = self._of_parts(e, (node.buffer, mask), 1, node.indices)
        self._structures[node, mask] = found
        return found

    def _of_parts(
        self, e: Emitter, kind: tuple[Any, ...], loads: int, below: tuple[Any, ...]
    ) -> tuple[int, Any] | None:
        parts = [self._structure(e, each) for each in below]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return loads + sum(count for count, _ in known), (*kind, *(part for _, part in known))


def keep_mask(e: Emitter, test: Val) -> Val:
    """A mask in a variable, for it is used several times."""
    name = e.temp("mask")
    consume(e, test)
    parts = parts_of(test.code)
    if parts is None:
        e.w.line(f"{name} = {test.code}")
        return Val(name, "bool", test.axes)
    inverse = e.temp("mask_not")
    key = ", ".join(_form(parts))
    e.w.line(f"{name}, {inverse} = KEPT.get(kept_at := ({key})) or kept(kept_at, {test.code})")
    return Val(name, "bool", test.axes, inverse=inverse)


def _form(parts: tuple[str | Integer, ...]) -> list[str]:
    """Code of a mask's expression with names for its integers, and of these."""
    names: dict[str, str] = {}
    text = "".join(
        part if isinstance(part, str) else names.setdefault(part.code, f"a{len(names)}")
        for part in parts
    )
    return [repr(text), *names]
