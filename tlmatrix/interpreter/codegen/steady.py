"""Integers that stay the same while a block runs, computed once a block and not at every use.

A kernel over packed sequences reads its boundaries again and again: TileLang writes an
expression wherever its value is used. Where it reads only memory that the kernel never writes, at
indices of the block, it is computed at the start of the block. A guarded read is harmless there
even if the kernel would not do it; where nothing guards it, or someone watches, the expression is
remembered from its first use in the block instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .grids import GridMixin
from .sanitized import kernel_usage
from .values import Val, is_int

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["SteadyMixin"]

_OPERATIONS = frozenset({"Add", "Sub", "Mul", "Min", "Max"})
_DIVISIONS = frozenset({"FloorDiv", "FloorMod"})


class SteadyMixin(GridMixin):
    """Shares integer expressions of block indices, parameters and memory that is only read.

    Where something else runs blocks (threads with roles), or notes every read (a recorder), no
    block begins here and nothing is remembered.
    """

    def start_steady(self, func: Any) -> None:
        """Set up, before anything is generated."""
        self._memory_usage = kernel_usage(func)
        # Names by what they remember, and the codes that use them; those of wrapped values too.
        self._steady: dict[str, str] = {}
        self._uses: set[str] = set()
        self._wrapped_uses: set[str] = set()
        # The line where a block starts, and the variables that none changes.
        self._block_start: int | None = None
        self._fixed_vars: set[Any] = set()

    def on_block(self, indices: list[Any]) -> None:
        """A block starts: what stays the same is written here when all of it is known."""
        super().on_block(indices)
        self._block_start = len(self.w.lines)
        self._fixed_vars = set(self.vars)

    def _grid(self, node: Any) -> None:
        super()._grid(node)
        if self._block_start is None or self._grid_vars:
            return
        lines = [f"{name} = {code}" for code, name in self._steady.items()]
        if self.remembers and lines:
            lines = [f"{' = '.join(self._steady.values())} = None"]
        self.w.insert(self._block_start, [*lines, *self.block_lines()])
        self._steady, self._block_start = {}, None

    def block_lines(self) -> list[str]:
        """What else is written where a block starts, after what stays the same."""
        return []

    @property
    def remembers(self) -> bool:
        """Whether values are remembered from their first use, and not computed ahead."""
        return not self.guard

    @property
    def remembered_names(self) -> Collection[str]:
        """Names of integers that stay the same while a block runs."""
        return self._steady.values()

    @staticmethod
    def same(code: str) -> str:
        """What two codes have in common that read the same."""
        return code

    def expr(self, node: Any) -> Val:
        """The value of an expression; shared where it stays the same."""
        value = super().expr(node)
        if (
            self._block_start is not None
            and value.scalar
            and value.lit is None
            and not self.wide
            and is_int(value.dtype)
            and self._is_steady(node)
        ):
            return self._once(value)
        return value

    def wrap(self, value: Val, dtype: str) -> Val:
        """A value in two's complement; shared where the value is."""
        found = super().wrap(value, dtype)
        return self._once(found) if value.code in self._uses and found != value else found

    def is_wrapped(self, value: Val) -> bool:
        """Whether a value is one in two's complement, or a shared one."""
        return value.code in self._wrapped_uses or super().is_wrapped(value)

    def _once(self, value: Val) -> Val:
        if value.code in self._uses or value.code.isidentifier():
            return value
        key = self.same(value.code)
        name = self._steady.get(key)
        if name is None:
            name = self._steady[key] = self.temp("steady")
        code = f"({name} if {name} is not None else ({name} := {value.code}))"
        if not self.remembers:
            code = name
        self._uses.add(code)
        if self.is_wrapped(value):
            self._wrapped_uses.add(code)
        return replace(value, code=code)

    def _is_steady(self, node: Any) -> bool:
        """Whether an expression reads memory, only such as stays the same, and nothing else."""
        loads = 0

        def steady(node: Any) -> bool:
            nonlocal loads
            kind = type(node).__name__
            if kind in _OPERATIONS:
                return steady(node.a) and steady(node.b)
            if kind in _DIVISIONS:
                return steady(node.a) and bool(getattr(node.b, "value", 0))
            if kind == "BufferLoad":
                loads += 1
                return self._only_read(node) and all(map(steady, node.indices))
            return kind == "IntImm" or node in self._fixed_vars

        return steady(node) and loads > 0

    def _only_read(self, load: Any) -> bool:
        """Whether a load reads global memory that the kernel never writes."""
        if str(load.buffer.scope()) != "global" or load.predicate is not None:
            return False
        data = load.buffer.data
        usage = next((u for d, u in self._memory_usage.items() if d.same_as(data)), set())
        return usage == {"read"}
