"""Tensor memory that a block without warp roles frees while other warps may still use it.

TileLang lets the first warp free tensor memory at the end of a block, with no barrier before it.
In a block without roles all warps copy the results out, so the first one must not end before the
others have done so. TileLang's own barriers suffice if the results pass through shared memory;
which barriers it inserts only its passes know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import inner_statements, walk

from .ownership import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TENSOR_MEMORY = "shared.tmem"
_COPY = "tl.tileop.copy"
_LOWERED_COPIES = ("tl.tcgen05_ld", "tl.tcgen05_st")
_FREE = ("tl.ptx_deallocate_tensor_memory", "tl.deallocate_tmem")
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
