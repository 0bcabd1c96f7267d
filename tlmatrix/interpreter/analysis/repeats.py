"""Statements that every thread of a block executes, and that read memory which they then write.

`S[b] = S[b] + x` outside of `T.Parallel` is code of each thread: TileLang emits neither a guard
nor a barrier, so that a warp that comes later reads what an earlier one has written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import inner_statements, walk

from .usage import JUMPS, is_parallel

_OWN = ("local", "local.var", "local.fragment")
_PLAIN = (ir.Bind, ir.BufferStore, ir.For, ir.IfThenElse, ir.SeqStmt)
_IMPURE = ("tl.atomic_", "tl.tileop.", "tirx.call_", "tl.rng", *JUMPS)


@dataclass(frozen=True)
class Repeat:
    """Statements in a row that read memory and write it at their end.

    Attributes:
        statements: from the one that reads to the one that writes.
        data: of the memory.
        live: what they set that later statements of the row use: variables and buffers.
    """

    statements: tuple[ir.Stmt, ...]
    data: ir.Var
    live: frozenset[ir.Var]

    @property
    def own(self) -> list[ir.Buffer]:
        """Memory of single threads that the statements write."""
        stores = (n for s in self.statements for n in walk(s) if isinstance(n, ir.BufferStore))
        return list(dict.fromkeys(n.buffer for n in stores if n.buffer.scope in _OWN))


def repeats(kernel: ir.Kernel) -> dict[ir.Stmt, list[Repeat]]:
    """By its last statement, what threads may not repeat one after the other."""
    found: dict[ir.Stmt, list[Repeat]] = {}
    for row in rows(kernel.body):
        for end, last in enumerate(row):
            if is_plain(last):
                mine = [_repeat(row, end, data) for data in _written(last)]
                found.setdefault(last, []).extend(r for r in mine if r is not None)
    return {last: mine for last, mine in found.items() if mine}


def rows(node: ir.Stmt) -> Iterator[Sequence[ir.Stmt]]:
    """The statements that follow each other outside of parallel loops."""
    row = node.seq if isinstance(node, ir.SeqStmt) else (node,)
    yield row
    for child in row:
        if not (isinstance(child, ir.For) and is_parallel(child)):
            for inner in inner_statements(child):
                yield from rows(inner)


def _repeat(row: Sequence[ir.Stmt], end: int, data: ir.Var) -> Repeat | None:
    first = None
    for start in range(end, -1, -1):
        child = row[start]
        if start < end and (not _passes(child) or data in _written(child)):
            break
        # A loop or branch that reads what it writes has the statements that do inside.
        inside = start == end and isinstance(child, (ir.For, ir.SeqStmt))
        reads = child.condition if start == end and isinstance(child, ir.IfThenElse) else child
        if is_plain(child) and not inside and data in _read(reads):
            first = start
    if first is None:
        return None
    statements = tuple(row[first : end + 1])
    return Repeat(statements, data, _live(statements, row[end + 1 :]))


def is_plain(node: ir.Stmt) -> bool:
    """Whether a statement is scalar code of each thread, and does nothing but read and write."""
    return isinstance(node, _PLAIN) and all(
        not child.op.startswith(_IMPURE)
        if isinstance(child, ir.Call)
        else isinstance(child, _PLAIN) or not isinstance(child, ir.Stmt)
        if not isinstance(child, ir.For)
        else not is_parallel(child) and not child.thread_tag
        for child in walk(node)
    )


def _passes(node: ir.Stmt) -> bool:
    """Whether a statement may stand between a read and a write that nothing orders."""
    return is_plain(node) or (isinstance(node, ir.For) and is_parallel(node)) or (
        isinstance(node, ir.Evaluate)
        and isinstance(node.value, ir.Call)
        and node.value.op.startswith("tl.tileop.")
    )  # fmt: skip


def _written(node: Any) -> dict[ir.Var, None]:
    """Data of global and shared memory that a statement stores to."""
    stores = (n.buffer for n in walk(node) if isinstance(n, ir.BufferStore))
    regions = (n.buffer for n in walk(node) if isinstance(n, ir.Region) and n.writes)
    return {b.data: None for b in (*stores, *regions) if is_common(b.scope)}


def is_common(scope: str) -> bool:
    """Whether threads share memory of a scope."""
    return scope in ("global", "shared", "shared.dyn")


def _read(node: Any) -> set[ir.Var]:
    return {n.buffer.data for n in walk(node) if isinstance(n, ir.BufferLoad)}


def _live(statements: Sequence[ir.Stmt], rest: Sequence[ir.Stmt]) -> frozenset[ir.Var]:
    """What statements set and the `rest` uses before it sets it anew."""
    pending = {n.var for n in statements if isinstance(n, ir.Bind)}
    for node in walk(*statements):
        if isinstance(node, ir.BufferStore) and node.buffer.scope in _OWN:
            pending.add(node.buffer.data)
    live: set[ir.Var] = set()
    for child in rest:
        used = {n for n in walk(child) if isinstance(n, ir.Var)} | _read(child)
        live |= pending & used
        if isinstance(child, ir.BufferStore) and child.buffer.scope == "local.var":
            pending.discard(child.buffer.data)
    return frozenset(live)


# In lowered code --------------------------------------------------------------------------


def unguarded(kernel: ir.Kernel, data: str, line: int, warps: Callable[[Any], int | None]) -> bool:
    """Whether lowered code has a store that several warps do, after a read and no barrier.

    Args:
        kernel: the lowered kernel.
        data: the name of the memory.
        line: of the store in the user's source.
        warps: in how many warps a condition holds for a thread; None if that is not known.
    """
    return _Lowered(data, line, warps).visit(kernel.body, guarded=False)


class _Lowered:
    """Looks for an unguarded store in the order of the code."""

    def __init__(self, data: str, line: int, warps: Callable[[Any], int | None]) -> None:
        self._data = data
        self._line = line
        self._warps = warps
        self._read = False
        """Whether the memory was read since the last barrier."""

    def visit(self, node: Any, *, guarded: bool) -> bool:
        """Whether the store is in a statement."""
        if isinstance(node, ir.IfThenElse):
            self._note(node.condition)
            found = self._warps(node.condition)
            single = guarded or found is None or found < 2
            cases = (node.then_case, node.else_case)
            return any(c is not None and self.visit(c, guarded=single) for c in cases)
        inner = inner_statements(node)
        if inner:
            return any(self.visit(child, guarded=guarded) for child in inner)
        if any(isinstance(n, ir.Call) and "sync" in n.op for n in walk(node)):
            self._read = False
            return False
        self._note(node.value if isinstance(node, (ir.BufferStore, ir.Bind)) else node)
        return (
            isinstance(node, ir.BufferStore)
            and node.buffer.data.name == self._data
            and node.location is not None
            and node.location.line == self._line
            and self._read
            and not guarded
        )

    def _note(self, node: Any) -> None:
        loads = (n for n in walk(node) if isinstance(n, ir.BufferLoad))
        self._read |= any(n.buffer.data.name == self._data for n in loads)
