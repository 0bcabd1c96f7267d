"""Dims of local buffers and parallel loops that must be trimmed together; see `liveness`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tlmatrix.interpreter.ir import nodes as ir


@dataclass
class RowGroup:
    """Dims, as (data, dim), and loop variables that must be trimmed together."""

    members: set[Any] = field(default_factory=set)
    limits: list[Any] = field(default_factory=list)
    gates: list[Any] = field(default_factory=list)
    whole: list[tuple[Any, ...]] = field(default_factory=list)
    """Conditions under which all rows are stored."""
    fixed: bool = False


class RowGroups:
    """Groups of nodes; a node is a dim of a buffer, as (data, dim), or the variable of a loop.

    Attributes:
        groups: by node.
        buffers: local buffers of the block, by their data.
        sizes: extents of nodes; None where not constant.
    """

    def __init__(self) -> None:
        self.groups: dict[Any, RowGroup] = {}
        self.buffers: dict[ir.Var, ir.Buffer] = {}
        self.sizes: dict[Any, int | None] = {}

    def group(self, node: Any) -> RowGroup:
        """The group of a node."""
        if node not in self.groups:
            self.groups[node] = RowGroup({node})
        return self.groups[node]

    def unite(self, one: Any, other: Any) -> None:
        """Two nodes are trimmed together."""
        mine, its = self.group(one), self.group(other)
        if mine is its:
            return
        mine.members |= its.members
        mine.limits += its.limits
        mine.gates += its.gates
        mine.whole += its.whole
        mine.fixed = mine.fixed or its.fixed
        for member in its.members:
            self.groups[member] = mine

    def fix(self, *nodes: Any) -> None:
        """Nodes are not trimmed."""
        for node in nodes:
            if node is not None:
                self.group(node).fixed = True

    def fix_buffer(self, buffer: ir.Buffer) -> None:
        """No dim of a buffer is trimmed."""
        known = self.buffers.get(buffer.data)
        self.fix(*((buffer.data, axis) for axis in range(len(known.shape) if known else 0)))
