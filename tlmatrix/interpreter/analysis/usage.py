"""What a kernel does with its loops and its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls, children, inner_statements, walk

from .expressions import add_terms, covers, equal_extents, is_zero, number

if TYPE_CHECKING:
    from .accesses import Accesses


# Loops: which are parallel, how deep they nest, what they write to local memory, what they end ----

JUMPS = {
    "tl.loop_break": "break",
    "tirx.break_loop": "break",
    "tirx.continue_loop": "continue",
}
_LOCAL = ("local", "local.var")
_WRITTEN = {"tl.tileop.fill": 0, "tl.tileop.copy": 1}


def is_grid(node: Any) -> bool:
    """Whether a statement is a loop over a thread binding, such as the blocks of a grid."""
    return isinstance(node, ir.For) and node.kind == ir.THREAD_BINDING


def cluster_dims(launch: Any) -> tuple[int, ...]:
    """How many blocks a cluster of a launch has along x, y and z."""
    for node in walk(launch):
        if isinstance(node, ir.Block) and "cluster_dims" in node.annotations:
            dims = [int(getattr(n, "value", n)) for n in node.annotations["cluster_dims"]]
            return (*dims, *[1] * (3 - len(dims)))
    return (1, 1, 1)


def is_parallel(loop: ir.For) -> bool:
    """Whether the iterations of a loop run together.

    Those of a vectorized loop belong to one thread: where it writes memory of its own, or all
    store one element, which TileLang does not vectorize, they follow each other.
    """
    if loop.kind != ir.VECTORIZED:
        return loop.kind == ir.PARALLEL
    return not any(
        node.buffer.scope in _LOCAL or loop.loop_var not in walk(*node.indices)
        for node in walk(loop.body)
        if isinstance(node, ir.BufferStore)
    )


def nested_statements(node: ir.Stmt, depth: int = 0) -> Iterator[tuple[ir.Stmt, int]]:
    """The statements inside one, itself first, each with the number of parallel loops around it."""
    yield node, depth
    depth += isinstance(node, ir.For) and is_parallel(node)
    for child in inner_statements(node):
        yield from nested_statements(child, depth)


def parallel_depth(node: ir.Stmt) -> int:
    """How many parallel loops are nested at most in a statement."""
    return max(depth for _, depth in nested_statements(node))


def used_after_loop(body: ir.Stmt) -> tuple[ir.Var, ir.Location | None] | None:
    """A variable of a loop that a statement after the loop uses, and where; None if there is none.

    A kernel has such if Python rebinds a name in a loop: after `acc = 0.0` and `acc += X[i]` in a
    loop, `acc` is the expression of one iteration.
    """
    ended: set[ir.Var] = set()

    def uses(statement: ir.Stmt) -> tuple[ir.Var, ir.Location | None] | None:
        for each in children(statement):
            if isinstance(each, ir.Expr):
                found = next((n for n in walk(each) if n in ended), None) if ended else None
                if found is not None:
                    return found, statement.location
        if isinstance(statement, ir.Bind):
            ended.discard(statement.var)
        if isinstance(statement, ir.For):
            ended.discard(statement.loop_var)
        for each in inner_statements(statement):
            if (found := uses(each)) is not None:
                return found
        if isinstance(statement, ir.For):
            ended.update(n.var for n in walk(statement.body) if isinstance(n, ir.Bind))
            ended.add(statement.loop_var)
        return None

    return uses(body)


def local_writes(node: ir.Stmt) -> dict[ir.Buffer, tuple[int, ...]]:
    """Local buffers that a parallel nest writes, and the axes along which they then differ."""
    written: dict[ir.Buffer, set[int]] = {}
    for child, depth in nested_statements(node):
        buffer = None
        if isinstance(child, ir.BufferStore):
            buffer = child.buffer
        elif isinstance(child, ir.Evaluate) and isinstance(child.value, ir.Call):
            position = _WRITTEN.get(child.value.op)
            buffer = None if position is None else child.value.args[position].buffer
        if buffer is not None and buffer.scope in _LOCAL:
            written.setdefault(buffer, set()).update(range(depth))
    return {buffer: tuple(sorted(axes)) for buffer, axes in written.items()}


def has_jumps(node: ir.Stmt) -> bool:
    """Whether a statement may leave a loop, so that what follows need not run with it."""
    return calls(node, *JUMPS)


# What a kernel does with each memory --------------------------------------------------------------

Usage = dict[ir.Var, frozenset[str]]
"""By the data of a buffer: "read", "write", "atomic", and "ordered" where an access may order
blocks (an atomic load or store, an atomic whose old value is used, an address passed on)."""

_ORDERING = ("tl.atomic_load_elem_op", "tl.atomic_store_elem_op")


def kernel_usage(kernel: ir.Kernel) -> Usage:
    """What a kernel does with each memory."""
    found: dict[ir.Var, set[str]] = {}
    addressed: set[Any] = set()

    def note(load: Any, *actions: str) -> None:
        found.setdefault(load.buffer.data, set()).update(actions)

    for node in walk(kernel.body):
        if isinstance(node, ir.Call):
            atomic = "atomic" in node.op
            for k, argument in enumerate(node.args):
                if isinstance(argument, ir.Region):
                    addressed.add(argument)
                    if atomic and k == 1:
                        note(argument, "atomic")
                        continue
                    note(argument, *["read"] * argument.reads, *["write"] * argument.writes)
                elif atomic and k == 0 and _is_pointer(argument):
                    addressed.add(argument.args[0])
                    note(argument.args[0], "atomic", *["ordered"] * ("_ret_" in node.op))
            if node.op in _ORDERING:
                note(node.args[0].args[0], "ordered", "atomic")
            elif node.op == "tirx.address_of" and isinstance(node.args[0], ir.BufferLoad):
                addressed.add(node.args[0])
                note(node.args[0], "ordered")
        elif isinstance(node, ir.BufferStore):
            note(node, "write")
        elif isinstance(node, ir.BufferLoad) and node not in addressed:
            note(node, "read")
    return {data: frozenset(actions) for data, actions in found.items()}


def _is_pointer(node: Any) -> bool:
    return isinstance(node, ir.Call) and node.op == "tl.access_ptr"


def adds_in_any_order(kernel: ir.Kernel, usage: Mapping[ir.Var, frozenset[str]]) -> bool:
    """Whether blocks change floating-point numbers by atomics, and nothing may order the blocks."""
    if any("ordered" in actions for actions in usage.values()):
        return False
    return any(
        "atomic" in usage.get(buffer.data, ()) and "float" in buffer.dtype
        for buffer in kernel.buffer_map.values()
    )


def is_read_only(load: ir.BufferLoad, usage: Mapping[ir.Var, frozenset[str]]) -> bool:
    """Whether a load reads global memory that the kernel never writes."""
    return (
        load.buffer.scope == "global"
        and load.predicate is None
        and usage.get(load.buffer.data) == frozenset({"read"})
    )


def addressed_buffers(kernel: ir.Kernel) -> frozenset[ir.Buffer]:
    """Buffers that a tile operation or a pointer refers to."""
    found = set()
    for node in walk(kernel.body):
        if isinstance(node, ir.Region):
            found.add(node.buffer)
        elif _is_pointer(node) and isinstance(node.args[0], ir.BufferLoad):
            found.add(node.args[0].buffer)
    return frozenset(found)


def mixed_views(kernel: ir.Kernel, low_precision: Mapping[str, object]) -> frozenset[ir.Var]:
    """The data of memory that is accessed under several dtypes, one of them a low-precision one."""
    found: dict[ir.Var, set[str]] = {}
    for node in walk(kernel.body):
        buffers: tuple[ir.Buffer, ...] = ()
        if isinstance(node, ir.Block):
            buffers = node.alloc_buffers
        elif isinstance(node, (ir.BufferLoad, ir.BufferStore, ir.Region)):
            buffers = (node.buffer,)
        for buffer in buffers:
            found.setdefault(buffer.data, set()).add(buffer.dtype)
    return frozenset(
        data
        for data, dtypes in found.items()
        if len(dtypes) > 1 and any(dtype in low_precision for dtype in dtypes)
    )


# Definite initialization: buffers of a block that are written whole before anything reads them ----
#
# They need no poison. Where that is not plain from the order of the statements, a buffer starts as
# NaN for every block.

_SCOPES = ("shared", "shared.dyn", "local.fragment")


def definitely_initialized(
    kernel: ir.Kernel, overwritten: Callable[[ir.Call], ir.Region | None]
) -> frozenset[ir.Var]:
    """The data of buffers that are written whole before they are read, on every path.

    Args:
        kernel: the kernel.
        overwritten: the region that a tile operation writes whole whatever was in it, if any.
    """
    order = _Order(overwritten)
    order.visit(kernel.body, [])
    return frozenset(order.allocated) - order.read_first


class _Order:
    """Follows statements in their order; `written` are buffers that are surely written whole."""

    def __init__(self, overwritten: Callable[[ir.Call], ir.Region | None]) -> None:
        self.allocated: dict[ir.Var, ir.Buffer] = {}
        self.read_first: set[ir.Var] = set()
        self.written: set[ir.Var] = set()
        self._overwritten = overwritten

    def visit(self, node: Any, loops: list[ir.For]) -> None:
        """One statement, inside parallel `loops`."""
        if isinstance(node, ir.SeqStmt):
            for child in node.seq:
                self.visit(child, loops)
        elif isinstance(node, ir.Block):
            for buffer in node.alloc_buffers:
                if buffer.scope in _SCOPES and not loops:
                    self.allocated[buffer.data] = buffer
                self.written.discard(buffer.data)
            self.visit(node.body, loops)
        elif isinstance(node, ir.For):
            self._read(node.min, node.extent)
            if is_parallel(node):
                self.visit(node.body, [*loops, node])
            else:
                before = set(self.written)
                self.visit(node.body, loops)
                self.written = before  # it may have no iteration
        elif isinstance(node, ir.IfThenElse):
            self._branch(node, loops)
        elif isinstance(node, ir.BufferStore):
            self._store(node, loops)
        elif isinstance(node, ir.AttrStmt):
            self.visit(node.body, loops)
        elif isinstance(node, ir.Evaluate) and isinstance(node.value, ir.Call):
            self._call(node.value)
        else:
            self._read(node)

    def _branch(self, node: ir.IfThenElse, loops: list[ir.For]) -> None:
        self._read(node.condition)
        before = set(self.written)
        self.visit(node.then_case, loops)
        after, self.written = self.written, before
        if node.else_case is not None:
            self.visit(node.else_case, loops)
        self.written = self.written & after

    def _store(self, node: ir.BufferStore, loops: list[ir.For]) -> None:
        self._read(node.value, *node.indices)
        data, buffer = node.buffer.data, node.buffer
        if node.predicate is not None or self.allocated.get(data) is not buffer:
            self._may_read(data)
            return
        over = [loop for i in node.indices for loop in loops if loop.loop_var is i]
        each_once = len(over) == len(node.indices) == len(loops) == len(set(over))
        if (
            each_once
            and all(is_zero(loop.min) for loop in over)
            and equal_extents([loop.extent for loop in over], buffer.shape)
        ):
            self.written.add(data)

    def _call(self, call: ir.Call) -> None:
        target = self._overwritten(call)
        self._read(*(arg for arg in call.args if arg is not target))
        if target is None:
            return
        self._read(*target.indices)
        data = target.buffer.data
        if self.allocated.get(data) is not target.buffer:
            self._may_read(data)
        elif covers(target, target.buffer):
            self.written.add(data)

    def _read(self, *nodes: Any) -> None:
        """All memory that nodes name may be read."""
        for child in walk(*nodes):
            if isinstance(child, (ir.BufferLoad, ir.BufferStore, ir.Region)):
                self._may_read(child.buffer.data)
            elif isinstance(child, ir.Var) and child in self.allocated:
                self._may_read(child)  # a pointer

    def _may_read(self, data: ir.Var) -> None:
        if data not in self.written:
            self.read_first.add(data)


def sums_from_zero(first: ir.Stmt, second: ir.Stmt | None) -> bool:
    """Whether the first of two statements fills with zeros what the second adds a product to."""
    fill, gemm = (getattr(node, "value", None) for node in (first, second))
    if getattr(fill, "op", "") != "tl.tileop.fill" or getattr(gemm, "op", "") != "tl.tileop.gemm":
        return False
    assert isinstance(fill, ir.Call)
    assert isinstance(gemm, ir.Call)
    filled, added = fill.args[0], gemm.args[2]
    if not (is_zero(fill.args[1]) and is_zero(gemm.args[9])):
        return False
    buffer = filled.buffer
    factors = [arg.buffer.data for arg in gemm.args[:2]]
    return (
        buffer.dtype == "float32"
        and buffer is added.buffer
        and covers(filled, buffer)
        and covers(added, buffer)
        and buffer.data not in factors
    )


# Numbers at which a kernel changes what it does: tile sizes, offsets and limits of sizes ----------

_LEAST, _MOST = 8, 1 << 16
"""Nearly every size is near a multiple of a smaller number; larger ones stand for "no limit"."""
_DIVISIONS = (ir.FloorDiv, ir.FloorMod, ir.Div, ir.Mod)


def edges(accesses: Accesses) -> tuple[int, ...]:
    """The numbers that a kernel combines sizes with in loops, comparisons and tiles, ascending.

    Sizes are symbolic dims, scalar parameters and elements of integer tensors. Of two numbers that
    follow each other, such as those of `n + 63` and `// 64`, only the second is one.
    """
    found = {n for n in _edges(accesses) if isinstance(n, int) and _LEAST <= n <= _MOST}
    return tuple(sorted(n for n in found if n + 1 not in found))


def _edges(accesses: Accesses) -> Iterator[Any]:
    variables = accesses.variables

    def has_size(node: Any) -> bool:
        return any(
            isinstance(each, ir.BufferLoad) or (isinstance(each, ir.Var) and each not in variables)
            for each in walk(node)
        )

    bounds = [r.extent for r in variables.values() if r.extent is not None]
    compared = [ir.Sub("int32", node.a, node.b) for node in accesses.comparisons]
    for sized in filter(has_size, (*bounds, *compared)):
        for node in walk(sized):
            if isinstance(node, _DIVISIONS) and has_size(node.a):
                yield number(node.b)
        terms: dict[Any, int] = {}
        yield abs(add_terms(sized, 1, terms))
        for atom, factor in terms.items():
            if atom in variables:
                yield from (abs(factor), number(variables[atom].extent))
    parameters = set(accesses.kernel.buffer_map.values())
    for index in (i for a in accesses.found if a.buffer in parameters for i in a.index):
        # A step of a block or of a loop, over which another variable goes one by one.
        terms = {}
        add_terms(index, 1, terms)
        extents = [number(variables[atom].extent) for atom in terms if atom in variables]
        yield from (factor for atom, factor in terms.items() if factor in extents)
