"""Which threads hold the elements of a fragment that a kernel accesses.

TileLang distributes a fragment over threads by the loops and tile operations that access it. Two
kinds of kernels it (0.1.15) compiles to wrong code without an error: a fragment that one loop
accesses in part may get a layout of this part alone, and the guard of a scalar statement outside
of `T.Parallel` may let through threads that hold other elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.fragments import is_thread_index
from tlmatrix.interpreter.ir.walk import children, walk

from .constants import number
from .evaluate import evaluate
from .intervals import FAR, interval
from .repeats import rows
from .thread_order import threads_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .intervals import Interval

_MOST = 1 << 22
"""Pairs of a thread and an iteration that are looked at."""


@dataclass(frozen=True)
class Fault:
    """A statement that TileLang compiles to wrong code, and what is wrong."""

    location: ir.Location | None
    buffer: str
    message: str


def may_be_misplaced(kernel: ir.Kernel) -> bool:
    """Whether a kernel accesses fragments in a way that TileLang may compile to wrong code."""
    return bool(scalar_accesses(kernel)) or any(
        0 < span[1] - span[0] + 1 < int(number(extent))
        for buffer, box, _ in _accesses(kernel.body, {})
        if buffer.scope == "local.fragment"
        for span, extent in zip(box, buffer.shape, strict=True)
        if number(extent) is not None and span[0] > -FAR and span[1] < FAR
    )


def scalar_accesses(kernel: ir.Kernel) -> list[ir.Stmt]:
    """Statements outside of parallel loops that access several elements of a fragment."""
    threads = {
        n.var for n in walk(kernel.body) if isinstance(n, ir.Bind) and is_thread_index(n.value)
    }
    found: list[ir.Stmt] = []
    for child in chain.from_iterable(rows(kernel.body)):
        parts: Any = child.condition if isinstance(child, ir.IfThenElse) else child
        if isinstance(child, (ir.BufferStore, ir.Bind, ir.IfThenElse)):
            nodes = list(walk(parts))
            if _fragments(nodes) and not any(n in threads for n in nodes if isinstance(n, ir.Var)):
                found.append(child)
    return found


def _fragments(nodes: Sequence[Any]) -> list[ir.BufferLoad | ir.BufferStore]:
    """Accesses of fragments of more than one element, at an index that is not constant."""
    return [
        n
        for n in nodes
        if isinstance(n, (ir.BufferLoad, ir.BufferStore))
        and n.buffer.scope == "local.fragment"
        and any(number(extent) != 1 for extent in n.buffer.shape)
        and any(number(index) is None for index in n.indices)
    ]


# A layout of a part ------------------------------------------------------------------------


def read_outside(inferred: ir.Kernel, threads: int) -> list[Fault]:
    """Reads of elements that the inferred layout of a fragment gives to none of the `threads`."""
    held = {data: _held(layout, threads) for data, layout in layouts_of(inferred).items()}
    faults = []
    for buffer, box, location in _accesses(inferred.body, {}, reads_only=True):
        layout = held.get(buffer.data)
        whole = [number(n) for n in buffer.shape]
        known = all(first > -FAR and last < FAR for first, last in box)
        if layout is None or None in whole or not known or layout.ndim != len(box):
            continue
        inside = [
            (max(first, 0), min(last + 1, int(n)))
            for (first, last), n in zip(box, whole, strict=True)
        ]
        covered = layout[tuple(slice(first, last) for first, last in inside)]
        if covered.size < np.prod([last - first for first, last in inside]) or not covered.all():
            mine = np.argwhere(layout)
            part = ", ".join(
                f"{first}:{last + 1}" for first, last in zip(mine.min(0), mine.max(0), strict=True)
            )
            message = (
                f"elements of {buffer.name} outside of {buffer.name}[{part}] belong to no thread: "
                "TileLang infers its layout from a loop over this part alone; loop over the whole "
                "fragment with a condition, or use one fragment for each part"
            )
            faults.append(Fault(location, buffer.name, message))
    return faults


def _held(layout: ir.Layout, threads: int) -> Any:
    """Which elements of a layout a thread of the block has; None where that is not known."""
    shape = [number(n) for n in layout.shape]
    if None in shape or layout.replicate * np.prod(shape) > _MOST:
        return None
    try:
        owners = threads_of(layout, [int(n) for n in shape])
    except Unsupported:
        return None
    held = ((owners >= 0) & (owners < threads)).any(0)
    return held if held.any() else None


def layouts_of(inferred: ir.Kernel) -> dict[ir.Var, ir.Layout]:
    """The inferred layouts of fragments, by data."""
    found: dict[ir.Var, ir.Layout] = {}
    for node in walk(inferred.body):
        if isinstance(node, ir.Block):
            for key, layout in node.annotations.get("layout_map", {}).items():
                if layout.thread is not None:
                    found[getattr(key, "data", key)] = layout
    return found


def _accesses(
    node: Any,
    ranges: Mapping[ir.Var, Interval],
    location: ir.Location | None = None,
    *,
    reads_only: bool = False,
) -> Iterator[tuple[ir.Buffer, list[Interval], ir.Location | None]]:
    """Accesses of fragments by parallel loops and tile operations that no condition excludes."""
    if isinstance(node, (ir.IfThenElse, ir.Select)):
        # A condition on the index of a loop may keep the access inside.
        if not any(n in ranges for n in walk(node.condition)):
            cases = (node.then_case, node.else_case) if isinstance(node, ir.IfThenElse) else ()
            for case in cases:
                yield from _accesses(case, ranges, location, reads_only=reads_only)
        return
    if isinstance(node, ir.Call) and node.op == "tirx.if_then_else":
        return
    location = getattr(node, "location", None) or location
    if isinstance(node, ir.For):
        first, extent = interval(node.min, ranges), interval(node.extent, ranges)
        ranges = {**ranges, node.loop_var: (first[0], first[1] + extent[1] - 1)}
    if isinstance(node, ir.Region) and node.buffer.scope == "local.fragment":
        if node.reads or not reads_only:
            box = [
                (interval(i, ranges)[0], interval(i, ranges)[1] + interval(n, ranges)[1] - 1)
                for i, n in zip(node.indices, node.extents, strict=True)
            ]
            yield node.buffer, box, location
        return
    stores = isinstance(node, ir.BufferStore) and not reads_only
    if (stores or isinstance(node, ir.BufferLoad)) and node.buffer.scope == "local.fragment":
        yield node.buffer, [interval(i, ranges) for i in node.indices], location
    for child in children(node):
        yield from _accesses(child, ranges, location, reads_only=reads_only)


# Guards of scalar statements ----------------------------------------------------------------


def misguarded(
    statement: ir.Stmt, lowered: ir.Kernel, inferred: ir.Kernel, threads: tuple[int, int, int]
) -> Fault | None:
    """What is wrong with a scalar statement in the lowered code; None where nothing is known to be.

    Args:
        statement: the statement in the traced kernel.
        lowered: the lowered kernel.
        inferred: the kernel with the layouts of its fragments.
        threads: the extents of a block.
    """
    parts: Any = statement.condition if isinstance(statement, ir.IfThenElse) else statement
    accesses = _fragments(list(walk(parts)))
    remedy = "use T.Parallel, or T.copy it to shared memory"
    if not isinstance(statement, ir.BufferStore) or statement.buffer.scope.startswith("local."):
        own = isinstance(statement, ir.BufferStore) and statement.buffer.scope == "local.fragment"
        layouts = {data.name: layout for data, layout in layouts_of(inferred).items()}
        for access in accesses if not own else ():
            name = access.buffer.name
            layout = layouts.get(access.buffer.data.name)
            if layout is not None and _is_distributed(layout):
                message = (
                    f"every thread executes this statement, and none has all elements of {name}, "
                    f"which is distributed over threads: {remedy}"
                )
                return Fault(statement.location, name, message)
        if not own:
            return None
    for access in accesses:
        name = access.buffer.name
        if _stores_of_others(access, statement, lowered, threads):
            message = (
                f"TileLang lowers this statement to threads that do not have the elements of "
                f"{name} which it accesses: {remedy}"
            )
            return Fault(statement.location, name, message)
    return None


def _is_distributed(layout: ir.Layout) -> bool:
    """Whether different threads hold the elements of a fragment."""
    shape = [number(n) for n in layout.shape]
    if None in shape or np.prod(shape) * layout.replicate > _MOST:
        return False
    try:
        owners = threads_of(layout, [int(n) for n in shape]).reshape(layout.replicate, -1)
    except Unsupported:
        return False
    return bool((owners != owners[:, :1]).any())


def _stores_of_others(
    access: ir.BufferLoad | ir.BufferStore,
    statement: ir.Stmt,
    lowered: ir.Kernel,
    threads: tuple[int, int, int],
) -> bool:
    """Whether a slot of a thread is accessed as two elements, or an iteration has no thread."""
    assert statement.location is not None
    for store, loops, conditions in _stores(lowered.body, (), ()):
        if store.location is None or store.location.line != statement.location.line:
            continue
        for node in walk(store):
            mine = (
                isinstance(node, type(access)) and node.buffer.data.name == access.buffer.data.name
            )
            if mine and _is_confused(access, node, loops, conditions, threads):
                return True
    return False


def _stores(
    node: Any, loops: tuple[ir.For, ...], conditions: tuple[Any, ...]
) -> Iterator[tuple[ir.BufferStore, tuple[ir.For, ...], tuple[Any, ...]]]:
    if isinstance(node, ir.BufferStore):
        yield node, loops, conditions
        return
    if isinstance(node, ir.For):
        loops = (*loops, node)
    if isinstance(node, ir.IfThenElse):
        yield from _stores(node.then_case, loops, (*conditions, *conjuncts(node.condition)))
        return
    for child in children(node):
        yield from _stores(child, loops, conditions)


def conjuncts(condition: Any) -> list[Any]:
    """The conditions of which all must hold."""
    if isinstance(condition, ir.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]


def _is_confused(
    access: Any, node: Any, loops: Sequence[ir.For], conditions: Sequence[Any], threads: Any
) -> bool:
    extents = [number(loop.extent) for loop in loops]
    count = int(np.prod(threads))
    if None in extents or not loops:
        return False
    # A part of the iterations of the outermost loop will do.
    inner = count * int(np.prod([int(n) for n in extents[1:]]))
    extents[0] = min(int(extents[0]), max(1, _MOST // inner))
    grid = np.indices((*extents, count), sparse=True)
    values: dict[Any, Any] = {
        loop.loop_var.name: i + int(number(loop.min) or 0)
        for loop, i in zip(loops, grid, strict=False)
    }
    x, y, _ = threads
    thread = grid[-1]
    values |= {"tx": thread % x, "ty": thread // x % y, "tz": thread // (x * y)}
    try:
        element = _flat(access.indices, access.buffer.shape, values)
        slot = _flat(node.indices, node.buffer.shape, values)
    except Unsupported:
        return False
    active: Any = np.ones((*extents, count), bool)
    for condition in conditions:
        try:
            active = active & (evaluate(condition, values) != 0)
        except Unsupported:
            if any(isinstance(n, ir.Var) and n.name in ("tx", "ty", "tz") for n in walk(condition)):
                return False
    if not active.any(-1).all():
        return True
    element, slot, thread = (
        np.broadcast_to(a, active.shape)[active] for a in (element, slot, thread)
    )
    pairs = np.unique(np.stack([thread, slot, element]), axis=1)
    return bool(np.unique(pairs[:2], axis=1).shape[1] < pairs.shape[1])


def _flat(indices: Sequence[Any], shape: Sequence[Any], values: Mapping[Any, Any]) -> Any:
    found: Any = 0
    for index, extent in zip(indices, shape, strict=True):
        found = found * int(number(extent) or 1) + evaluate(index, values)
    return found
