"""Programs of blocks whose threads do different things: a generator function for each role.

The body of a block is generated once a role, with every condition on the thread index decided
for the role's threads. A role whose threads differ in what they compute has a lane axis, like the
axis of a parallel loop; tile operations leave it. Statements that several roles do together are
done by the last that comes to them. Waits are yields; asynchronous operations become closures
that the scheduler calls when they complete.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.codegen.context import Axis, Buf
from tlmatrix.interpreter.codegen.expressions import op_name
from tlmatrix.interpreter.codegen.launching import write_grid_check
from tlmatrix.interpreter.codegen.source import Writer
from tlmatrix.interpreter.codegen.values import Val, is_float, literal, numpy_name

from .jumps import JumpMixin, jumps
from .sharing import Uses, conflict
from .threads import ThreadIndex, _reads_flags

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RoleMixin"]

_LOCAL = frozenset({"local", "local.var"})
_SHUFFLES = {
    "tl.shfl_xor_sync": "xor",
    "tl.shfl_down_sync": "down",
    "tl.shfl_up_sync": "up",
    "tl.shfl_sync": "idx",
    "tirx.tvm_warp_shuffle": "idx",
    "tirx.tvm_warp_shuffle_up": "up",
    "tirx.tvm_warp_shuffle_down": "down",
}
_VOTES = {
    "tl.any_sync": ("any", 1, False),
    "tl.all_sync": ("all", 1, False),
    "tl.syncthreads_count": ("count", 0, True),
    "tl.syncthreads_and": ("all", 0, True),
    "tl.syncthreads_or": ("any", 0, True),
}
_THREAD_CALLS = frozenset(
    {"tl.get_lane_idx", "tl.get_warp_idx", "tl.get_warp_idx_sync", "tl.get_warp_group_idx"}
)
_FOLDED = frozenset(
    {"Var", "Add", "Sub", "Mul", "FloorDiv", "FloorMod", "Div", "Mod", "Min", "Max", "Call"}
    | {"EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or", "Not", "Cast"}
)


# What TileLang launches where a kernel does not say.
_THREADS = (128, 1, 1)


class _NeedsLanes(Exception):  # noqa: N818  # caught where the role is generated again
    """The threads of a role compute different things."""


class RoleMixin(JumpMixin):
    """Overrides what depends on the thread."""

    # More arguments of `launch`.
    watching = ""

    def start_roles(self) -> None:
        """Set up, before anything is generated."""
        self.shortens = False  # statements of roles have no one order
        self.threads: ThreadIndex | None = None
        self.role = 0
        self.group: tuple[int, ...] = ()
        self.intervals: list[tuple[int, int]] = []
        self.lanes: Axis | None = None
        self.needs_lanes = False
        self.common: set[Any] = set()
        self.barrier_counts: list[tuple[Any, list[int]]] = []
        self.arrivals: dict[str, list[tuple[int, str]]] = {}
        # Shared buffers used before the first and after the last barrier of a sequence.
        self._tail = (Uses(), Uses())
        # Which threads do together what is being generated; None for all.
        self._left: Val | None = None
        # Variables of which every thread has its own value.
        self._of_threads: set[Any] = set()
        self._case_groups: list[tuple[Any, tuple[int, ...]]] = []
        self._keys: dict[Any, int] = {}
        self._of_launch = self.prologue
        self.start_asynchronous()
        self.start_jumps()
        self.w.reserve("cta", "me", "launch", "LOCATIONS")

    # -- the grid

    def _grid(self, node: Any) -> None:
        names, extents = [], []
        write_grid_check(self, node)
        while type(node).__name__ == "For" and int(node.kind) == 4:
            extent = self.scalar(node.extent, "a grid")
            name = self.w.fresh(str(node.loop_var.name))
            hi = None if extent.hi is None else extent.hi - 1
            self.vars[node.loop_var] = Val(
                name, str(node.loop_var.dtype), lo=0, hi=hi, below=extent.code
            )
            names.append(name)
            extents.append(extent.code)
            node = node.body
        self._prepare(node)
        outer_prologue, outer = self.prologue, self.w
        self._of_launch = outer_prologue
        self.prologue = Writer(_names=outer._names)  # noqa: SLF001  # one pool of names
        self._iotas.clear()
        roles = []
        for k in range(len(self.intervals)):
            self.role = k
            roles.append(self._role(node))
        self.w = outer
        block = outer.fresh("block")
        functions = []
        with outer.block(f"def {block}({', '.join(['cta', *names])})"):
            _extend(outer, self.prologue)
            for k, writer in enumerate(roles):
                functions.append(outer.fresh(f"role_{k}"))
                with outer.block(f"def {functions[-1]}(me)"):
                    _extend(outer, writer)
                    # At least one yield makes it a generator.
                    outer.line("yield")
            outer.line(f"return ({', '.join(functions)},)")
        cuts = (self.intervals[0][0], *(high for _, high in self.intervals))
        outer.line(
            f"launch({block}, ({', '.join(extents)},), {cuts}, {self.kernel!r}, "
            f"LOCATIONS, {self.arrivals!r}, "
            f"{self.renamed!r}{self.watching})"
        )
        self.prologue = outer_prologue

    def _prepare(self, body: Any) -> None:
        """Find the roles of a block, and the fragments that several of them work on together."""
        from tilelang import tvm

        extents = [1, 1, 1]
        conditions: list[Any] = []

        def visit(node: Any) -> None:
            kind = type(node).__name__
            if kind == "SBlock" and node.annotations is not None:
                found = dict(node.annotations.items()).get("tl.launch_threads", _THREADS)
                if found is not None:
                    extents[:] = [int(n) for n in found]

        tvm.tirx.stmt_functor.post_order_visit(body, visit)
        threads = self.threads = ThreadIndex((extents[0], extents[1], extents[2]))

        def bind(node: Any) -> None:
            if type(node).__name__ == "Bind":
                threads.define(node.var, node.value)

        tvm.tirx.stmt_functor.post_order_visit(body, bind)

        def choose(node: Any) -> None:
            if type(node).__name__ == "IfThenElse" and threads.mentions(node.condition):
                cases = [node.then_case, node.else_case]
                if any(case is not None and self.is_collective(case) for case in cases):
                    conditions.append(node.condition)

        tvm.tirx.stmt_functor.post_order_visit(body, choose)
        cuts = [0, *threads.cuts(conditions), threads.count]
        self.intervals = list(pairwise(cuts))
        self.group = tuple(range(len(self.intervals)))
        self.prepare_tracking(body, len(self.intervals))
        self.common = set()
        self._find_common(body, self.group)

    def _find_common(self, node: Any, group: tuple[int, ...]) -> None:
        from tilelang import tvm

        kind = type(node).__name__
        if kind == "SeqStmt":
            for child in node.seq:
                self._find_common(child, group)
        elif kind == "IfThenElse":
            self._find_common(node.then_case, self._where(node.condition, group, True))
            if node.else_case is not None:
                self._find_common(node.else_case, self._where(node.condition, group, False))
        elif kind in ("AttrStmt", "SBlock", "While"):
            self._find_common(node.body, group)
        elif kind == "SBlockRealize":
            self._find_common(node.block, group)
        elif kind == "For" and int(node.kind) != 1:
            self._find_common(node.body, group)
        elif len(group) > 1:

            def visit(child: Any) -> None:
                if isinstance(child, (tvm.tirx.BufferLoad, tvm.tirx.BufferStore)):
                    self.common.add(child.buffer)

            tvm.tirx.stmt_functor.post_order_visit(node, visit)

    def _where(self, condition: Any, group: tuple[int, ...], holds: bool) -> tuple[int, ...]:
        """The roles of a group in which a condition may be `holds`."""
        assert self.threads is not None
        threads = self.threads
        return tuple(
            r for r in group if threads.decide(condition, *self.intervals[r]) is not (not holds)
        )

    def _role(self, body: Any) -> Writer:
        """The body of one role; with a lane axis if it turns out to need one."""
        saved = self._snapshot()
        for with_lanes in (False, True):
            self.w = Writer(_names=self.prologue._names)  # noqa: SLF001
            self.axes, self.rank, self.mask, self.lanes = [], 0, None, None
            self.group = tuple(range(len(self.intervals)))
            self.start_role()
            self.start_jumps()
            try:
                if with_lanes:
                    low, high = self.intervals[self.role]
                    self.rank = 1
                    self.lanes = self.push_axis(literal(high - low, "int32"))
                self.stmt(body)
                self.finish_role()
            except _NeedsLanes:
                self._restore(saved)
                continue
            break
        self.axes, self.rank, self.mask, self.lanes = [], 0, None, None
        # What is private to this role is not known to the next.
        self.buffers = {
            key: buf for key, buf in self.buffers.items() if key in saved[0] or key in self.made
        }
        return self.w

    def _snapshot(self) -> Any:
        self.made: set[Any] = set()
        views = [(buf, dict(buf.views)) for buf in self.buffers.values()]
        return (
            dict(self.buffers),
            dict(self.vars),
            dict(self.deferred),
            set(self.fixed),
            dict(self._tensors),
            dict(self._iotas),
            len(self.prologue.lines),
            views,
            {name: list(found) for name, found in self.arrivals.items()},
        )

    def _restore(self, saved: Any) -> None:
        self.buffers, self.vars, self.deferred = dict(saved[0]), dict(saved[1]), dict(saved[2])
        self.fixed, self._tensors, self._iotas = set(saved[3]), dict(saved[4]), dict(saved[5])
        del self.prologue.lines[saved[6] :], self.prologue.locations[saved[6] :]
        for buf, views in saved[7]:
            buf.views = dict(views)
        self.arrivals = {name: list(found) for name, found in saved[8].items()}
        self.made = set()

    # -- memory

    def _annotate(self, node: Any, annotations: dict[str, Any]) -> None:
        for var, counts in dict(annotations.get("barrier_init", {})).items():
            self.barrier_counts.append((var, [int(n) for n in counts]))
        super()._annotate(node, annotations)

    def allocate(self, buffer: Any) -> None:
        """Make a buffer: once a block, or for each role what threads keep to themselves."""
        scope = str(buffer.scope())
        if self.threads is None:
            super().allocate(buffer)
            return
        private = scope in _LOCAL or (scope != "shared.barrier" and self._is_private(buffer, scope))
        if not private:
            if buffer in self.buffers:
                return
            self.made.add(buffer)
            role_writer, of_block = self.w, self.prologue
            if scope == "global":
                # A workspace of the whole launch, which every block sees.
                self.prologue = self._of_launch
            self.w = self.prologue
            if scope == "shared.barrier":
                self._allocate_barriers(buffer)
            else:
                super().allocate(buffer)
            self.w, self.prologue = role_writer, of_block
            return
        if self.lanes is not None and scope in _LOCAL:
            self._allocate_lanes(buffer, scope)
            return
        super().allocate(buffer)

    def _is_private(self, buffer: Any, scope: str) -> bool:
        return scope in ("local.fragment", "local.reducer") and buffer not in self.common

    def _allocate_barriers(self, buffer: Any) -> None:
        name = str(buffer.name)
        counts = next((n for var, n in self.barrier_counts if var.same_as(buffer.data)), None)
        if counts is None:
            raise self.refuse(f"the barriers {name}, which nothing initialises")
        code = self.w.fresh(name)
        self.w.line(f"{code} = cta.mbarriers({name!r}, {', '.join(map(str, counts))})")
        shape = (literal(len(counts), "int32"),)
        self.buffers[buffer] = Buf(name, code, "uint64", shape, "shared.barrier")

    def _allocate_lanes(self, buffer: Any, scope: str) -> None:
        """Memory of a thread: one copy a lane."""
        assert self.lanes is not None
        dtype = str(buffer.dtype)
        shape = tuple(self.scalar(n, "a buffer shape") for n in buffer.shape)
        code = self.w.fresh(str(buffer.name))
        extents = ", ".join(n.code for n in (*shape, self.lanes.extent))
        self.w.line(f"{code} = allocate(({extents},), {numpy_name(dtype)!r})")
        self.buffers[buffer] = Buf(
            str(buffer.name),
            code,
            dtype,
            shape,
            scope,
            rounding=self.rounding_of(dtype),
            lane_axes=(0,),
            of_threads=True,
        )

    # -- statements

    def stmt(self, node: Any) -> None:
        """Write one statement; one that several roles do together is done by the last to come."""
        for case, group in self._case_groups:
            if node.same_as(case):
                with self._in_group(group):
                    self._stmt(node)
                return
        self._stmt(node)

    def _stmt(self, node: Any) -> None:
        if self.tracking and node in self.fenced:
            self.w.line("me.fence()")
        if len(self.group) < 2 or not self._is_joint(node):
            super().stmt(node)
            return
        key = self._keys.setdefault(node, len(self._keys))
        span = self.span_of(node)
        if span is not None:
            self.w.location = span
        mine = self.temp("mine")
        self.w.line(f"{mine} = yield me.meet({key}, {self.group})")
        with self.w.block(f"if {mine}"):
            with self._in_group((self.role,)):
                super().stmt(node)
            self.w.line(f"me.part({key})")

    def _is_joint(self, node: Any) -> bool:
        assert self.threads is not None
        kind = type(node).__name__
        if kind == "For":
            joint = int(node.kind) == 1
        elif kind == "BufferStore":
            joint = str(node.buffer.scope()) not in _LOCAL
        elif kind == "Evaluate" and type(node.value).__name__ == "Call":
            name = op_name(node.value)
            joint = name.startswith(("tl.tileop.", "tl.atomic"))
        else:
            joint = False
        return joint and not self.threads.mentions(node)

    def _stmt_SeqStmt(self, node: Any) -> None:
        if self.threads is None or len(self.group) < 2:
            super()._stmt_SeqStmt(node)
            return
        if self.in_lanes and jumps(node):
            raise self.refuse("a jump of some threads in code that several roles share")
        head: Uses | None = None
        since = Uses()
        for child in node.seq:
            uses = self.shared_uses(child)
            if conflict(since, uses):
                head = since if head is None else head
                since = Uses()
                self.w.line(f"yield me.sync_group({self.group})")
            since.include(uses)
            self.stmt(child)
        self._tail = (since if head is None else head, since)

    def _serial(self, node: Any) -> None:
        if self.threads is None or len(self.group) < 2 or int(node.kind) == 4:
            super()._serial(node)
            return
        uses = self.shared_uses(node.body)
        self._tail = (uses, uses)
        body_lines = len(self.w.lines)
        super()._serial(node)
        head, tail = self._tail
        if len(self.w.lines) > body_lines and conflict(tail, head):
            # What one turn leaves unordered with the next.
            self.w.line(f"    yield me.sync_group({self.group})")
        self._tail = (uses, uses)

    @contextmanager
    def _in_group(self, group: tuple[int, ...]) -> Iterator[None]:
        outer, self.group = self.group, group
        cases, self._case_groups = self._case_groups, []
        yield
        self.group, self._case_groups = outer, cases

    def _stmt_Bind(self, node: Any) -> None:
        if self.threads is not None and self.threads.define(node.var, node.value):
            if self.threads.is_axis(node.var):
                self.vars[node.var] = Val("the thread index", "int32")
            else:
                self.deferred[node.var] = node.value
            return
        super()._stmt_Bind(node)
        bound = self.vars.get(node.var)
        if self.in_lanes and isinstance(bound, Val) and bound.axes:
            self._of_threads.add(node.var)

    def _stmt_IfThenElse(self, node: Any) -> None:
        if self.threads is None:
            super()._stmt_IfThenElse(node)
            return
        then = self._where(node.condition, self.group, True)
        other = self._where(node.condition, self.group, False)
        decided = self.threads.decide(node.condition, *self.intervals[self.role])
        if decided is not None:
            case = node.then_case if decided else node.else_case
            if case is not None:
                with self._in_group(then if decided else other):
                    self._stmt(case)
            return
        outer = self._case_groups
        self._case_groups = [(node.then_case, then)]
        if node.else_case is not None:
            self._case_groups.append((node.else_case, other))
        super()._stmt_IfThenElse(node)
        self._case_groups = outer

    def _stmt_AttrStmt(self, node: Any) -> None:
        if str(node.attr_key) == "warp_specialize":
            # T.ws: the condition around it says which threads.
            self.stmt(node.body)
            return
        super()._stmt_AttrStmt(node)

    def _stmt_While(self, node: Any) -> None:
        if not _reads_flags(node):
            super()._stmt_While(node)
            return
        outer = self.mask
        with self.w.block("while True"):
            if outer is not None:
                with self.w.block(f"if not {outer.code}.any()"):
                    self.w.line("break")
            self.break_unless(node.condition, outer)
            self.stmt(node.body)
            self.w.line("yield me.spin()")
        self.mask = outer

    @property
    def in_lanes(self) -> bool:
        """Whether statements are run for every thread of the role."""
        return any(axis is self.lanes for axis in self.axes)

    def _parallel(self, node: Any) -> None:
        if not self.in_lanes:
            super()._parallel(node)
        elif int(node.kind) == 2:
            # A vectorized loop of a thread: its iterations follow each other.
            self._serial(node)
        else:
            with self.without_lanes():
                super()._parallel(node)

    @contextmanager
    def without_lanes(self) -> Iterator[None]:
        """Leave the lane axis for something that all threads of the role do together."""
        if not self.in_lanes:
            yield
            return
        saved, outer = (self.axes, self.rank, self.mask), self._left
        self.axes, self.rank, self.mask = [], 0, None
        mask = self._left = saved[2]
        if mask is None:
            yield
        else:
            test = mask.code if mask.scalar else f"{mask.code}.any()"
            with self.w.block(f"if {test}"):
                yield
        (self.axes, self.rank, self.mask), self._left = saved, outer

    @contextmanager
    def _with_lanes_again(self) -> Iterator[None]:
        saved = self.axes, self.rank, self.mask
        assert self.lanes is not None
        self.axes, self.rank, self.mask = [self.lanes], 1, self._left
        yield
        self.axes, self.rank, self.mask = saved

    # -- expressions

    def expr(self, node: Any) -> Val:
        """The value of an expression; what is the same in all threads of the role is a constant."""
        if self.threads is not None and type(node).__name__ in _FOLDED:
            is_call = type(node).__name__ == "Call"
            if self.threads.mentions(node) or (is_call and op_name(node) == "tl.tl_shuffle_elect"):
                values = self.threads.evaluate(node, *self.intervals[self.role])
                if values is not None and len(values) and (values == values[0]).all():
                    return literal(values[0], str(node.dtype))
        return super().expr(node)

    def scalar(self, node: Any, what: str) -> Val:
        """The value of an expression that must be the same in every lane."""
        value = self.expr(node)
        if value.scalar:
            return value
        if not self.in_lanes:
            raise self.refuse(f"{what} that differs between lanes of a parallel loop")
        return self._uniform(value, what)

    def _uniform(self, value: Val, what: str) -> Val:
        mask = self.mask.code if self.mask is not None else "None"
        name = self.temp("same")
        self.w.line(f"{name} = uniform({value.code}, {mask}, {what!r})")
        return Val(name, value.dtype, lo=value.lo, hi=value.hi)

    def load(self, buf: Buf, nodes: list[Any]) -> Val:
        """The value at indices of a buffer."""
        if buf.scope == "shared.barrier":
            raise self.refuse(f"reading the barrier {buf.name}")
        if buf.of_threads and self.lanes is not None and not self.in_lanes:
            with self._with_lanes_again():
                return self._uniform(super().load(buf, nodes), f"{buf.name}")
        return super().load(buf, nodes)

    def _expr_Var(self, node: Any) -> Val:
        if self.threads is not None and self.threads.is_axis(node):
            return self._thread(self.threads.axis_of(node))
        value = super()._expr_Var(node)
        if node in self._of_threads and self.lanes is not None and not self.in_lanes:
            # What threads do together may only use what is the same for all of them.
            with self._with_lanes_again():
                return self._uniform(value, str(node.name))
        return value

    _expr_SizeVar = _expr_Var

    def lane_axis(self, what: str) -> Axis:
        """The lane axis; the role is generated again with one if it has none."""
        if self.lanes is None:
            raise _NeedsLanes
        if not self.in_lanes:
            raise self.refuse(f"{what} inside T.Parallel or a tile operation")
        return self.lanes

    def _linear(self) -> Val:
        """The thread's number in the block."""
        axis = self.lane_axis("the thread index (threadIdx)")
        low, high = self.intervals[self.role]
        iota = axis.iota
        if low == 0:
            return iota
        start = literal(low, "int32")
        affine = self._affine("+", start, iota)
        code = f"({low} + {iota.code})"
        return Val(code, "int32", iota.axes, affine=affine, lo=low, hi=high - 1)

    def _thread(self, number: int) -> Val:
        assert self.threads is not None
        x, y, z = self.threads.extents
        linear = self._linear()
        if y == z == 1:
            return linear if number == 0 else literal(0, "int32")
        code = (
            f"({linear.code} % {x})",
            f"({linear.code} // {x} % {y})",
            f"({linear.code} // {x * y})",
        )[number]
        return Val(code, "int32", linear.axes, lo=0, hi=(x, y, z)[number] - 1)

    def _expr_Call(self, node: Any) -> Val:
        name = op_name(node)
        if name in _THREAD_CALLS:
            return self._thread_call(node, name)
        if name in _SHUFFLES or name in _VOTES or name.startswith("tl.warp_reduce_"):
            return self._together(node, name)
        if name in ("tl.ballot", "tl.ballot_sync", "tl.activemask", "tirx.tvm_warp_activemask"):
            return self._ballot(node, name)
        if name in ("tl.match_any_sync", "tl.match_all_sync"):
            value = self.expr(node.args[1])
            kind = "any" if "any" in name else "all"
            return self._lane_result(f"match_lanes({kind!r}, {value.code}, {{}})", "uint32")
        if name == "tl.tl_shuffle_elect":
            assert self.threads is not None
            size = int(node.args[0].value) or self.threads.count
            axis = self.lane_axis("T.shuffle_elect")
            low = self.intervals[self.role][0]
            return self.named(f"elect({size}, {low}, {axis.extent.code})", "bool", (axis.iota,))
        if name == "tl.atomic_load_elem_op":
            with self.untracked():
                return super()._expr_Call(node)
        return super()._expr_Call(node)

    def _thread_call(self, node: Any, name: str) -> Val:
        linear = self._linear()
        sizes = [int(a.value) for a in node.args]
        size = sizes[0] if sizes else 32
        if name == "tl.get_warp_group_idx":
            size *= sizes[1] if sizes[1:] else 4
        symbol = "%" if name == "tl.get_lane_idx" else "//"
        hi = size - 1 if symbol == "%" else None
        return Val(f"({linear.code} {symbol} {size})", "int32", linear.axes, lo=0, hi=hi)

    def _lane_result(self, code: str, dtype: str) -> Val:
        """A value of each lane, made by a runtime function of the mask and number of threads."""
        axis = self.lane_axis("an operation of a warp")
        mask = self.mask.code if self.mask is not None else "None"
        name = self.temp("lanes")
        self.w.line(f"{name} = {code.format(f'{mask}, {axis.extent.code}')}")
        return Val(name, dtype, axis.iota.axes, owned=True)

    def _together(self, node: Any, name: str) -> Val:
        if name in _SHUFFLES:
            self.lane_axis(name)
            delta = self.expr(node.args[2])
            width = self.scalar(node.args[3], "the width of a shuffle").code
            read = None
            if _SHUFFLES[name] == "idx" and delta.scalar:
                lane = self.lane_axis(name).iota
                code = f"({lane.code} % {width} == {delta.code} % {width})"
                read = Val(code, "bool", lane.axes)
            with self.mattering(read):
                value = self.expr(node.args[1])
            code = (
                f"shuffle({_SHUFFLES[name]!r}, {self._array(value)}, {delta.code}, {width}, {{}})"
            )
            return self._lane_result(code, value.dtype)
        if name in _VOTES:
            kind, position, whole = _VOTES[name]
            axis = self.lane_axis(name)
            if whole and len(self.intervals) > 1:
                raise self.refuse(f"{name} in a block of several roles")
            value = self.expr(node.args[position])
            mask = self.mask.code if self.mask is not None else "None"
            code = f"vote({kind!r}, {value.code}, {mask}, {axis.extent.code}, {whole})"
            return self.named(code, "int32", (axis.iota,))
        self.lane_axis(name)
        value = self.expr(node.args[0])
        kind = name.removeprefix("tl.warp_reduce_")
        result = self._lane_result(
            f"warp_reduce({kind!r}, {self._array(value)}, {{}})", value.dtype
        )
        return self.rounded(replace(result, exact=False))

    def _array(self, value: Val) -> str:
        if value.scalar:
            code = self.as_scalar(value) if is_float(value.dtype) else value.code
            return f"np.asarray({code}, np.{numpy_name(value.dtype)})"
        return value.code

    def _ballot(self, node: Any, name: str) -> Val:
        self.lane_axis(name)
        if name.endswith("activemask"):
            return self._lane_result("ballot(True, {})", str(node.dtype))
        value = self.expr(node.args[-1])
        return self._lane_result(f"ballot({value.code}, {{}})", "uint64")


def _extend(writer: Writer, lines: Writer) -> None:
    """Write the lines of another writer at the current depth."""
    for text, location in zip(lines.lines, lines.locations, strict=True):
        writer.location = location
        writer.line(text)
