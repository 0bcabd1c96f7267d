"""Dims of local buffers and parallel loops that must be cut together; see `rows`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Class", "Classes", "Where"]


@dataclass(frozen=True)
class Where:
    """What holds at a place: the lanes in force, conditions on them, and those on the block."""

    lanes: tuple[Any, ...] = ()
    masks: tuple[Any, ...] = ()
    uniform: tuple[Any, ...] = ()
    loose: frozenset[Any] = frozenset()
    """Lanes that something chosen by a condition of another kind depends on."""
    inside_grid: bool = False


@dataclass
class Class:
    """What must be cut together, and by what: nodes, limits on rows, conditions that set them."""

    members: set[Any] = field(default_factory=set)
    limits: list[Any] = field(default_factory=list)
    gates: list[Any] = field(default_factory=list)
    whole: list[tuple[Any, ...]] = field(default_factory=list)
    """Conditions under which all rows are stored."""
    fixed: bool = False


class Classes:
    """One analysis; a node is a dim of a buffer, (data, dim), or a variable of a loop."""

    def __init__(self, func: Any, usage: dict[Any, set[str]]) -> None:
        from tilelang import tvm

        self.tirx = tvm.tirx
        self.ir = tvm.ir
        self.usage = usage
        self.grids = 0
        self.buffers: dict[Any, Any] = {}
        self.values: dict[Any, Any] = {}
        self.known: set[Any] = set(func.params)
        self.classes: dict[Any, Class] = {}
        self.sizes: dict[Any, int | None] = {}
        self.arith = tvm.arith.Analyzer()
        for buffer in func.buffer_map.values():
            for extent in (*buffer.shape, *buffer.strides):
                self.known |= self.variables(extent)

    # -- classes

    def class_of(self, node: Any) -> Class:
        """The class of a node."""
        found = self.classes.get(node)
        if found is None:
            found = self.classes[node] = Class({node})
        return found

    def unite(self, one: Any, other: Any) -> None:
        """Two nodes are cut together."""
        mine, its = self.class_of(one), self.class_of(other)
        if mine is its:
            return
        mine.members |= its.members
        mine.limits += its.limits
        mine.gates += its.gates
        mine.whole += its.whole
        mine.fixed = mine.fixed or its.fixed
        for member in its.members:
            self.classes[member] = mine

    def fix(self, *nodes: Any) -> None:
        """Nodes are not cut."""
        for node in nodes:
            self.class_of(node).fixed = True

    def fix_buffer(self, buffer: Any) -> None:
        """No dim of a buffer is cut."""
        mine = self.buffers.get(buffer.data)
        for axis in range(len(mine.shape) if mine is not None else 0):
            self.fix((buffer.data, axis))

    def fix_all(self, node: Any) -> None:
        """Everything that an expression names, for nothing is known of what it does."""

        def visit(child: Any) -> None:
            if isinstance(child, self.tirx.BufferLoad):
                self.fix_buffer(child.buffer)
            elif isinstance(child, self.tirx.Var):
                if child in self.sizes:
                    self.fix(child)
                if child in self.buffers:
                    self.fix_buffer(self.buffers[child])

        self.tirx.stmt_functor.post_order_visit(self.inlined(node), visit)

    def variables(self, node: Any) -> set[Any]:
        """The variables of an expression."""
        found: set[Any] = set()

        def visit(child: Any) -> None:
            if isinstance(child, self.tirx.Var):
                found.add(child)

        self.tirx.stmt_functor.post_order_visit(node, visit)
        return found

    def lanes_in(self, node: Any, where: Where) -> list[Any]:
        """The lanes in force that an expression depends on."""
        named = self.variables(node) if where.lanes else set()
        return [lane for lane in where.lanes if lane in named]

    def inlined(self, node: Any) -> Any:
        """An expression with the values of what is bound in it."""
        return self.tirx.stmt_functor.substitute(node, self.values) if self.values else node
