"""Memory that threads do not have: elements of fragments, and tensor memory that is freed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.threads import is_thread_index
from tlmatrix.interpreter.ir.walk import children, inner_statements, walk

from .expressions import FAR, evaluate, interval, number
from .repeats import rows
from .threads import threads_of

if TYPE_CHECKING:
    from .expressions import Interval


# Which threads hold the elements of a fragment that a kernel accesses -----------------------------
#
# TileLang distributes a fragment over threads by the loops and tile operations that access it. Two
# kinds of kernels it (0.1.15) compiles to wrong code without an error: a fragment that one loop
# accesses in part may get a layout of this part alone, and the guard of a scalar statement outside
# of `T.Parallel` may let through threads that hold other elements.

_MOST = 1 << 22
"""Pairs of a thread and an iteration that are looked at."""


@dataclass(frozen=True)
class Fault:
    """A statement that TileLang compiles to wrong code, what is wrong, and the remedy."""

    location: ir.Location | None
    buffer: str
    message: str
    hint: str


def may_be_misplaced(kernel: ir.Kernel) -> bool:
    """Whether a kernel accesses fragments in a way that TileLang may compile to wrong code."""
    return bool(scalar_accesses(kernel)) or any(
        0 < span[1] - span[0] + 1 < int(number(extent) or 0)
        for access in _accesses(kernel.body, {})
        for span, extent in zip(access.box, access.buffer.shape, strict=True)
        if _is_known(span)
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


def without_a_thread(inferred: ir.Kernel, threads: int) -> list[Fault]:
    """Reads of written elements that the layout of a fragment gives to none of the `threads`.

    What is read and never written is left to the sanitizer `uninitialised`.
    """
    layouts = layouts_of(inferred)
    accesses = [a for a in _accesses(inferred.body, {}) if a.buffer.data in layouts]
    held = {a.buffer: _held(layouts[a.buffer.data], a.buffer, threads) for a in accesses}
    written = {buffer: np.zeros(np.shape(each), bool) for buffer, each in held.items()}
    accesses = [a for a in accesses if held[a.buffer] is not None]
    for access in accesses:
        if access.writes:
            written[access.buffer][access.inside()] = True
    faults = []
    for access in accesses:
        buffer = access.buffer
        read = (written[buffer] & ~held[buffer])[access.inside()]
        # Along a dimension of which not all is read, an element of every position has to be lost.
        known = tuple(d for d, span in enumerate(access.box) if _is_known(span))
        if not access.writes and read.size and read.any(known).all():
            mine = np.argwhere(held[buffer])
            part = ", ".join(
                f"{first}:{last + 1}" for first, last in zip(mine.min(0), mine.max(0), strict=True)
            )
            message = (
                f"elements of {buffer.name} outside of {buffer.name}[{part}] belong to no thread: "
                "TileLang infers its layout from a loop over this part alone"
            )
            hint = "loop over the whole fragment with a condition, or use a fragment for each part"
            faults.append(Fault(access.location, buffer.name, message, hint))
    return faults


def _held(layout: ir.Layout, buffer: ir.Buffer, threads: int) -> Any:
    """Which elements of a buffer a thread of the block has; None where that is not known."""
    whole, shape = ([number(n) for n in each.shape] for each in (buffer, layout))
    if None in whole + shape or len(whole) != len(shape):
        return None
    if layout.replicate * np.prod(shape) > _MOST:
        return None
    try:
        owners = threads_of(layout, [int(n) for n in shape])
    except Unsupported:
        return None
    mine = ((owners >= 0) & (owners < threads)).any(0)
    # A layout of a part has the part's shape.
    held = np.zeros([int(n) for n in whole], bool)
    part = tuple(slice(min(n, m)) for n, m in zip(held.shape, mine.shape, strict=True))
    held[part] = mine[part]
    return held if held.any() else None


def layouts_of(inferred: ir.Kernel) -> dict[ir.Var, ir.Layout]:
    """The inferred layouts of fragments, by data."""
    found: dict[ir.Var, ir.Layout] = {}
    for node in walk(inferred.body):
        if isinstance(node, ir.Block):
            for key, layout in node.annotations.get("layout_map", {}).items():
                if layout is not None and layout.thread is not None:  # a reducer has none
                    found[getattr(key, "data", key)] = layout
    return found


@dataclass(frozen=True)
class _Access:
    """A read or a write of a box of a fragment: the first and last index of each dimension."""

    buffer: ir.Buffer
    box: tuple[Interval, ...]
    writes: bool
    location: ir.Location | None

    def inside(self) -> tuple[slice, ...]:
        """The part of the box that may be in the fragment."""
        return tuple(slice(max(first, 0), max(last + 1, 0)) for first, last in self.box)


def _is_known(span: Interval) -> bool:
    return span[0] > -FAR and span[1] < FAR


def _accesses(
    node: Any, ranges: Mapping[ir.Var, Interval], location: ir.Location | None = None
) -> Iterator[_Access]:
    """Accesses of fragments by parallel loops and tile operations.

    Of a loop whose index a condition restrains, or a store that is skipped outside of its buffer,
    the iterations are not known.
    """
    location = getattr(node, "location", None) or location
    restraints: list[Any] = []
    if isinstance(node, (ir.IfThenElse, ir.Select)):
        restraints = [node.condition]
    elif isinstance(node, ir.Call) and node.op == "tirx.if_then_else":
        restraints = [node.args[0]]
    elif isinstance(node, ir.BufferStore):
        restraints = [
            index
            for index, extent in zip(node.indices, node.buffer.shape, strict=True)
            if not _is_within(interval(index, ranges), extent)
        ]
    restrained = {n for n in walk(*restraints) if n in ranges}
    ranges = {var: (-FAR, FAR) if var in restrained else ranges[var] for var in ranges}
    if isinstance(node, ir.For):
        first, extent = interval(node.min, ranges), interval(node.extent, ranges)
        ranges = {**ranges, node.loop_var: (first[0], first[1] + extent[1] - 1)}
    if isinstance(node, ir.Region) and node.buffer.scope == "local.fragment":
        box = tuple(
            (interval(i, ranges)[0], interval(i, ranges)[1] + interval(n, ranges)[1] - 1)
            for i, n in zip(node.indices, node.extents, strict=True)
        )
        if node.reads:
            yield _Access(node.buffer, box, False, location)
        if node.writes:
            yield _Access(node.buffer, box, True, location)
        return
    if isinstance(node, (ir.BufferLoad, ir.BufferStore)) and node.buffer.scope == "local.fragment":
        box = tuple(interval(i, ranges) for i in node.indices)
        yield _Access(node.buffer, box, isinstance(node, ir.BufferStore), location)
    for child in children(node):
        yield from _accesses(child, ranges, location)


def _is_within(span: Interval, extent: Any) -> bool:
    size = number(extent)
    return size is not None and span[0] >= 0 and span[1] < size


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
    hint = "use T.Parallel, or T.copy the fragment to shared memory first"
    if not isinstance(statement, ir.BufferStore) or statement.buffer.scope.startswith("local."):
        own = isinstance(statement, ir.BufferStore) and statement.buffer.scope == "local.fragment"
        layouts = {data.name: layout for data, layout in layouts_of(inferred).items()}
        for access in accesses if not own else ():
            name = access.buffer.name
            layout = layouts.get(access.buffer.data.name)
            if layout is not None and _is_distributed(layout):
                message = (
                    f"every thread executes this statement, and none has all elements of {name}, "
                    "which is distributed over threads"
                )
                return Fault(statement.location, name, message, hint)
        if not own:
            return None
    for access in accesses:
        name = access.buffer.name
        if _stores_of_others(access, statement, lowered, threads):
            message = (
                f"TileLang lowers this statement to threads that do not have the elements of "
                f"{name} which it accesses"
            )
            return Fault(statement.location, name, message, hint)
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


# Tensor memory that a block without warp roles frees while other warps may still use it -----------
#
# TileLang lets the first warp free tensor memory at the end of a block, with no barrier before it.
# In a block without roles all warps copy the results out, so the first one must not end before the
# others have done so. TileLang's own barriers suffice if the results pass through shared memory;
# which barriers it inserts only its passes know.

_TENSOR_MEMORY = "shared.tmem"
_COPY = "tl.tileop.copy"
_LOWERED_COPIES = ("tl.tcgen05_ld", "tl.tcgen05_st")
_FREE = ("tl.ptx_deallocate_tensor_memory", "tl.deallocate_tmem")
_SETS = ("_ret_elem_op", "atomic_store_elem_op")
"""Operations on flags: those whose old value is used, and stores."""
_RELEASES = (3, 4, 5)
"""TileLang's numbers of the orders release, acq_rel and seq_cst."""
_ORDERS_NOTHING = (
    "tl.tcgen05_before_thread_sync",
    "tl.tcgen05_after_thread_sync",
    "tl.tcgen05_mma_arrive",
    "tl.tma_store_arrive",
)
_ORDERING = ("sync", "barrier", "arrive", "allreduce")


def last_copy(kernel: ir.Kernel) -> tuple[ir.Stmt, ir.Buffer] | None:
    """The last copy from or to tensor memory, if no barrier is known to follow it.

    None for a kernel that frees its tensor memory by hand, or in which a later statement is a
    barrier or reads shared memory that one before it, and after the copy, has written.
    """
    blocks = (node for node in walk(kernel.body) if isinstance(node, ir.Block))
    if not any(b.scope == _TENSOR_MEMORY for block in blocks for b in block.alloc_buffers):
        return None
    found: tuple[ir.Stmt, ir.Buffer] | None = None
    written: set[ir.Buffer] = set()
    for node in _simple_statements(kernel.body):
        calls = [each for each in walk(node) if isinstance(each, ir.Call)]
        if any(call.op in _FREE for call in calls):
            return None
        buffers = [n.buffer for call in calls for n in call.args if isinstance(n, ir.Region)]
        copied = [b for b in buffers if b.scope == _TENSOR_MEMORY]
        if copied and any(call.op == _COPY for call in calls):
            found, written = (node, copied[0]), set()
        elif found is not None and _is_barrier(node, written, calls):
            found = None
    return found


def is_freed_early(lowered: ir.Kernel, on_thread: Callable[[Any], bool]) -> bool:
    """Whether nothing orders the copies of all warps before the first one frees tensor memory.

    `on_thread` is whether a condition depends on the thread: copies under one are of a warp role,
    whose accesses the race detection of roles knows.
    """
    open_copy = freed = False
    for node in walk(lowered.body):
        if isinstance(node, ir.IfThenElse) and on_thread(node.condition):
            if any(isinstance(n, ir.Call) and n.op in _LOWERED_COPIES for n in walk(node)):
                return False
        elif isinstance(node, ir.Call):
            if node.op in _LOWERED_COPIES:
                open_copy = True
            elif node.op in _FREE:
                freed = freed or open_copy
            elif orders_threads(node):
                open_copy = False
    return freed


def early_free(statement: ir.Stmt, buffer: ir.Buffer) -> Fault:
    """The fault of a block whose last copy of tensor memory is `statement`."""
    return Fault(
        statement.location,
        buffer.name,
        f"{buffer.name} in tensor memory is freed by the first warp at the end of the block, and "
        "nothing orders that after this copy by the other warps",
        "end the block with T.sync_threads()",
    )


class SetEarly:
    """Looks in lowered code for flags that a warp sets before the stores of others are ordered.

    Attributes:
        faults: the stores, of memory that the kernel reads too, or before a release.
    """

    def __init__(self, lowered: ir.Kernel, warps: Callable[[Any], int | None]) -> None:
        """`warps`: in how many a condition holds for a thread; None if that is not known."""
        self.faults: list[Fault] = []
        self._warps = warps
        self._open: dict[str, ir.Location | None] = {}
        self._parameters = {p.name for p in lowered.params}
        loads = (n for n in walk(lowered.body) if isinstance(n, ir.BufferLoad))
        self._read = {n.buffer.data.name for n in loads} & self._parameters
        self._visit(lowered.body, alone=False)

    def _visit(self, node: Any, *, alone: bool) -> None:
        """Go through a statement, which one warp executes alone or not."""
        if isinstance(node, ir.IfThenElse):
            found = self._warps(node.condition)
            one = alone or (found is not None and found < 2)
            self._visit(node.then_case, alone=one)
            if node.else_case is not None:
                self._visit(node.else_case, alone=alone)
            return
        inner = inner_statements(node)
        for child in inner:
            self._visit(child, alone=alone)
        if inner:
            return
        calls = [each for each in walk(node) if isinstance(each, ir.Call)]
        if any(map(orders_threads, calls)):
            self._open.clear()
        elif alone and any(call.op.endswith(_SETS) for call in calls):
            releases = any(map(_releases, calls))
            self.faults += [
                set_early(name, where)
                for name, where in self._open.items()
                if releases or name in self._read
            ]
            self._open.clear()
        elif isinstance(node, ir.BufferStore) and not alone:
            name = node.buffer.data.name
            if name in self._parameters:
                self._open[name] = node.location


def _releases(call: ir.Call) -> bool:
    """Whether an atomic is a release by its memory order."""
    order = call.args[-1] if call.args else None
    return call.op.endswith(_SETS) and getattr(order, "value", None) in _RELEASES


def set_early(name: str, location: ir.Location | None) -> Fault:
    """The fault of stores that a flag does not cover."""
    return Fault(
        location,
        name,
        f"{name} is stored by several warps, and nothing orders that before the atomic by which "
        "one thread tells other blocks or streams",
        "put T.sync_threads() before the atomic",
    )


def orders_threads(call: ir.Call) -> bool:
    """Whether an operation may order the threads of a block, by its name."""
    names = [call.op, *(a.value for a in call.args if isinstance(a, ir.StringImm))]
    return call.op not in _ORDERS_NOTHING and any(
        word in name.lower() for name in names for word in _ORDERING
    )


def _is_barrier(node: ir.Stmt, written: set[ir.Buffer], calls: list[ir.Call]) -> bool:
    """Whether TileLang puts a barrier before a statement, or it is one; notes what it writes."""
    if any(orders_threads(call) for call in calls):
        return True
    reads: set[ir.Buffer] = set()
    writes: set[ir.Buffer] = set()
    for each in walk(node):
        if isinstance(each, (ir.BufferLoad, ir.BufferStore, ir.Region)):
            buffer = each.buffer
            if buffer.scope in ("shared", "shared.dyn"):
                stores = getattr(each, "writes", isinstance(each, ir.BufferStore))
                (writes if stores else reads).add(buffer)
    if reads & written:
        return True
    written |= writes
    return False


def _simple_statements(node: Any) -> Iterator[ir.Stmt]:
    """Statements without others in them, and parallel loops, in the order of the source."""
    if isinstance(node, ir.SeqStmt):
        for child in node.seq:
            yield from _simple_statements(child)
        return
    parallel = isinstance(node, ir.For) and node.kind == ir.PARALLEL
    inner = [] if parallel else list(inner_statements(node))
    if not inner:
        yield node
    for child in inner:
        yield from _simple_statements(child)
