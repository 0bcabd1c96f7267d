"""Conditions, returns and loops of threads, and fragments that they index, in one form each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls, substitute, transform, walk

_CHOICE = "tirx.if_then_else"

# Numeric conditions (`if flags & 1:`) become comparisons with zero, as in C -----------------------


def with_boolean_conditions(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with a boolean in each condition of a branch or while loop."""
    if not any(
        isinstance(node, (ir.IfThenElse, ir.While)) and node.condition.dtype != "bool"
        for node in walk(kernel.body)
    ):
        return kernel

    def tested(node: Any) -> Any:
        if not isinstance(node, (ir.IfThenElse, ir.While)) or node.condition.dtype == "bool":
            return None
        zero = ir.IntImm(node.condition.dtype, 0)
        return replace(node, condition=ir.Compare("bool", node.condition, zero, "!="))

    return replace(kernel, body=transform(kernel.body, tested))


# A value that a choice alone uses is computed where it is chosen, as in compiled code -------------
#
# `a = X[i]` before `Y[i] = T.if_then_else(c, a, 0)` becomes `Y[i] = T.if_then_else(c, X[i], 0)`, so
# that X is not read where `c` is false.


def with_chosen_values(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel in which what only one value of a choice uses is a part of that value."""
    if not calls(kernel.body, _CHOICE):
        return kernel
    uses = Counter(node for node in walk(kernel.body) if isinstance(node, ir.Var))

    def rewritten(node: Any) -> Any:
        if not isinstance(node, ir.SeqStmt):
            return None
        left: list[ir.Stmt] = []
        for each in reversed(node.seq):
            user = _choosing(each, left) if isinstance(each, ir.Bind) else None
            if isinstance(each, ir.Bind) and user is not None and uses[each.var] == 1:
                left[user] = substitute(left[user], {each.var: each.value})
            else:
                left.append(each)
        return None if len(left) == len(node.seq) else replace(node, seq=(*reversed(left),))

    return replace(kernel, body=transform(kernel.body, rewritten))


def _choosing(bind: ir.Bind, after: Sequence[ir.Stmt]) -> int | None:
    """Which statement has the choice that uses a bound value: only bindings are before it.

    Args:
        bind: the binding.
        after: the statements after it, the last one first.
    """
    known = (ir.BufferLoad, ir.Var, ir.IntImm, ir.FloatImm, ir.Cast, ir.Compare, *ir.BINARY)
    pure = (isinstance(e, known) or getattr(e, "op", "") == _CHOICE for e in walk(bind.value))
    if bind.var.dtype != bind.value.dtype or not all(pure):
        return None
    for k in reversed(range(len(after))):
        user = after[k]
        if not isinstance(user, ir.Bind | ir.BufferStore):
            return None
        choices = (e for e in walk(user.value) if isinstance(e, ir.Call) and e.op == _CHOICE)
        if any(bind.var in walk(*choice.args[1:]) for choice in choices):
            return k
        if isinstance(user, ir.BufferStore):
            return None
    return None


# Threads that end early (`T.thread_return()`) become branches around what follows -----------------
#
# `if done: T.thread_return()` before some statements becomes `if not done:` around them.

_RETURN = "tirx.thread_return"


def without_returns(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with all threads reaching its end.

    Raises:
        Unsupported: for a return inside a loop.
    """
    if not calls(kernel.body, _RETURN):
        return kernel
    return replace(kernel, body=_followed(kernel.body, []), ends_early=True)


def _followed(node: ir.Stmt, rest: list[ir.Stmt]) -> ir.Stmt:
    """`node`, in which some thread may return, and then `rest` for those that have not."""
    if isinstance(node, ir.SeqStmt):
        for child in reversed(node.seq):
            rest = [_followed(child, rest)] if calls(child, _RETURN) else [child, *rest]
        return _sequence(rest)
    if isinstance(node, ir.Evaluate):
        return _sequence([])
    if isinstance(node, ir.IfThenElse):
        then = _branch(node.then_case, rest)
        assert then is not None
        return replace(node, then_case=then, else_case=_branch(node.else_case, rest))
    if isinstance(node, (ir.Block, ir.AttrStmt)):
        return replace(node, body=_followed(node.body, rest))
    if isinstance(node, ir.For) and node.kind == ir.THREAD_BINDING and not rest:
        return replace(node, body=_followed(node.body, []))
    where = f" ({node.location})" if node.location is not None else ""
    raise Unsupported(f"the interpreter does not model T.thread_return inside a loop{where}")


def _branch(node: ir.Stmt | None, rest: list[ir.Stmt]) -> ir.Stmt | None:
    if node is None:
        return _sequence(rest) if rest else None
    return _followed(node, rest) if calls(node, _RETURN) else _sequence([node, *rest])


def _sequence(statements: Sequence[ir.Stmt]) -> ir.Stmt:
    if not statements:
        return ir.Evaluate(None, ir.IntImm("int32", 0))
    return statements[0] if len(statements) == 1 else ir.SeqStmt(None, tuple(statements))


# Loops over all threads of a block (`T.thread_binding(0, n, thread="threadIdx.x")`) ---------------
#
# Such a loop names the thread index and repeats nothing. It becomes the binding that
# `T.get_thread_binding` makes.

_TAGS = {"threadIdx.x": 0, "threadIdx.y": 1, "threadIdx.z": 2}


def launched_threads(node: Any) -> tuple[int, int, int] | None:
    """The extents of a block that a kernel states; None if it states none."""
    found = None
    for block in walk(node):
        if isinstance(block, ir.Block):
            extents = block.annotations.get("tl.launch_threads")
            if extents is not None:
                x, y, z = (int(getattr(n, "value", n)) for n in extents)
                found = (x, y, z)
    return found


def without_thread_loops(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with bindings in place of loops over all threads of the block.

    In a kernel that states no number of threads the loops do. A loop over fewer threads than the
    block has stays as it is.
    """
    loops = [n for n in walk(kernel.body) if isinstance(n, ir.For) and n.thread_tag in _TAGS]
    if not loops:
        return kernel
    threads = launched_threads(kernel.body)
    if threads is None:
        threads = _threads_of(loops)
        kernel = replace(kernel, body=_with_threads(kernel.body, threads))

    def bound(loop: Any) -> Any:
        axis = _TAGS.get(loop.thread_tag) if isinstance(loop, ir.For) else None
        if axis is None or _number(loop.min) != 0 or _number(loop.extent) != threads[axis]:
            return None
        number = ir.IntImm("int32", axis)
        index = ir.Call(loop.loop_var.dtype, "tl.launch_thread_idx", (number,), {})
        return ir.SeqStmt(loop.location, (ir.Bind(loop.location, loop.loop_var, index), loop.body))

    return replace(kernel, body=transform(kernel.body, bound))


def _threads_of(loops: list[ir.For]) -> tuple[int, int, int]:
    """The extents of a block that loops over its threads state."""
    found = [1, 1, 1]
    for loop in loops:
        axis = _TAGS[loop.thread_tag]
        found[axis] = max(found[axis], _number(loop.extent))
    return found[0], found[1], found[2]


def _with_threads(node: Any, threads: tuple[int, int, int]) -> Any:
    """The grid with a block inside it that states the number of threads."""
    if _is_grid(node):
        return replace(node, body=_with_threads(node.body, threads))
    if isinstance(node, ir.Block) and _is_grid(node.body):
        return replace(node, body=_with_threads(node.body, threads))
    return ir.Block(node.location, (), {"tl.launch_threads": threads}, node)


def _is_grid(node: Any) -> bool:
    """Whether a statement is a loop over the blocks of a grid."""
    return isinstance(node, ir.For) and node.thread_tag.startswith("blockIdx.")


def _number(node: Any) -> int:
    return int(getattr(node, "value", -1))


# Fragments that threads index for themselves become arrays of registers of each thread ------------
#
# TileLang distributes a fragment over the threads of a block where a tile operation or `T.Parallel`
# gives it a layout. A fragment without one (`idx[stage, r] = table[tx * rows + r]`) is an array of
# registers that each thread has whole: memory of scope `local`.


def is_thread_index(node: Any) -> bool:
    """Whether an expression is a thread index itself (threadIdx.x, y or z)."""
    return isinstance(node, ir.Call) and node.op == "tl.launch_thread_idx"


def with_thread_fragments(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with the scope `local` for fragments without a layout.

    Raises:
        Unsupported: for a fragment that has a layout, and that threads also index by what
            depends on their thread index.
    """
    uses = _Uses()
    uses.visit(kernel.body, parallel=False)
    if not uses.by_thread:
        return kernel
    for data, location in uses.by_thread.items():
        if data in uses.laid_out:
            where = f" ({location})" if location is not None else ""
            raise Unsupported(
                f"the interpreter does not model the fragment {uses.names[data]}, which threads "
                f"index for themselves and tile operations share{where}"
            )
    replaced: dict[ir.Buffer, ir.Buffer] = {}

    def local(buffer: ir.Buffer) -> ir.Buffer:
        if buffer.data not in uses.by_thread:
            return buffer
        return replaced.setdefault(buffer, replace(buffer, scope="local"))

    def rewritten(node: Any) -> Any:
        if isinstance(node, ir.Block):
            return replace(node, alloc_buffers=tuple(map(local, node.alloc_buffers)))
        if isinstance(node, (ir.BufferLoad, ir.BufferStore)):
            return replace(node, buffer=local(node.buffer))
        return None

    return replace(kernel, body=transform(kernel.body, rewritten))


class _Uses:
    """How the fragments of a kernel are used, by their data."""

    def __init__(self) -> None:
        self.names: dict[ir.Var, str] = {}
        self.laid_out: set[ir.Var] = set()
        """Used by a tile operation, or in a parallel loop."""
        self.by_thread: dict[ir.Var, ir.Location | None] = {}
        """Accessed outside of these with a value or an index of the thread, and where."""
        self._dependent: set[ir.Var] = set()

    def visit(self, node: ir.Stmt, *, parallel: bool) -> None:
        if isinstance(node, ir.SeqStmt):
            for child in node.seq:
                self.visit(child, parallel=parallel)
        elif isinstance(node, ir.For):
            if self._depends(node.extent):
                self._dependent.add(node.loop_var)
            self.visit(node.body, parallel=parallel or node.kind == ir.PARALLEL)
        elif isinstance(node, (ir.IfThenElse, ir.While)):
            self._leaf(node, (node.condition,), parallel)
            cases = (node.body,) if isinstance(node, ir.While) else (node.then_case, node.else_case)
            for case in cases:
                if case is not None:
                    self.visit(case, parallel=parallel)
        elif isinstance(node, (ir.Block, ir.AttrStmt)):
            if isinstance(node, ir.Block):
                self.laid_out.update(node.annotations.get("layout_map", {}))
            self.visit(node.body, parallel=parallel)
        elif isinstance(node, ir.Bind):
            if is_thread_index(node.value) or self._depends(node.value):
                self._dependent.add(node.var)
            self._leaf(node, (node.value,), parallel)
        elif isinstance(node, ir.BufferStore):
            parts = (node.value, *node.indices)
            if _is_fragment(node.buffer):
                self._access(node, node.buffer, parts, parallel)
            self._leaf(node, parts, parallel)
        elif isinstance(node, ir.Evaluate):
            self._leaf(node, (node.value,), parallel)

    def _leaf(self, statement: ir.Stmt, expressions: tuple[Any, ...], parallel: bool) -> None:
        """The fragments that expressions of a statement read, or pass to a tile operation."""
        for expression in expressions:
            for node in walk(expression):
                if isinstance(node, (ir.BufferLoad, ir.Region)) and _is_fragment(node.buffer):
                    shared = parallel or isinstance(node, ir.Region)
                    self._access(statement, node.buffer, node.indices, shared)

    def _access(
        self, statement: ir.Stmt, buffer: ir.Buffer, parts: tuple[Any, ...], shared: bool
    ) -> None:
        self.names[buffer.data] = buffer.name
        if shared:
            self.laid_out.add(buffer.data)
        elif any(map(self._depends, parts)):
            self.by_thread.setdefault(buffer.data, statement.location)

    def _depends(self, expression: Any) -> bool:
        """Whether an expression depends on the thread index."""
        return any(
            node in self._dependent
            if isinstance(node, ir.Var)
            else node.buffer.data in self.by_thread
            if isinstance(node, ir.BufferLoad)
            else is_thread_index(node)
            for node in walk(expression)
        )


def _is_fragment(buffer: ir.Buffer) -> bool:
    return buffer.scope == "local.fragment"
