"""Statements of the IR as source: bindings, loops, branches, calls."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from .blocks import BlockMixin
from .elementwise import element_loops
from .expressions import op_name
from .firsts import sums_from_zero
from .lanes import spreads
from .values import Val

__all__ = ["JUMPS", "StatementMixin"]

# Hints to the compiler that do not change what a kernel computes.
_IGNORED_ATTRIBUTES = frozenset(
    {
        "threadblock_swizzle_pattern",
        "tl.assume",
        "tirx.assume",
        "tir.assume",
        "pragma_unroll",
        "tl.min_blocks_per_sm",
        "async_scope",  # TVM's: TileLang has no pass that looks at it
    }
)
_IGNORED_CALLS = frozenset(
    {
        "tirx.tvm_storage_sync",
        "tl.sync_warp",
        "tl.pdl_trigger",
        "tl.pdl_sync",
        "tl.no_set_max_nreg",
        "tl.set_max_nreg",
        "tl.annotate_producer_reg_dealloc",
        "tl.annotate_consumer_reg_alloc",
    }
)
JUMPS = {
    "tl.loop_break": "break",
    "tirx.break_loop": "break",
    "tirx.continue_loop": "continue",
}
# No grid and no loop that an interpreter could finish is longer.
_LONGEST = 1 << 24


class StatementMixin(BlockMixin):
    """Turns statements into lines."""

    def stmt(self, node: Any) -> None:
        """Write one statement."""
        span = self.span_of(node)
        if span is not None:
            self.w.location = span
        method = getattr(self, "_stmt_" + type(node).__name__, None)
        if method is None:
            raise self.refuse(f"the statement {type(node).__name__}")
        method(node)

    def _stmt_SeqStmt(self, node: Any) -> None:
        for child, following in pairwise([*node.seq, None]):
            if self.shortens and sums_from_zero(child, following):
                self.from_zero = (child.value, following.value)
            self.stmt(child)

    def _stmt_Bind(self, node: Any) -> None:
        value = node.value
        if type(value).__name__ == "Call" and op_name(value) == "tl.launch_thread_idx":
            self.vars[node.var] = "the thread index (threadIdx) used as data"  # refused at its use
            return
        undefined = self._undefined(value)
        if undefined:
            # Its loop comes later in the source: evaluated where it is used.
            self.deferred[node.var] = value
            self.vars.pop(node.var, None)
            return
        found = self.expr(value)
        self.vars[node.var] = self.keep(found, str(node.var.name))

    def _undefined(self, value: Any) -> bool:
        from tilelang import tvm

        missing = False

        def visit(node: Any) -> None:
            nonlocal missing
            if isinstance(node, tvm.tirx.Var) and str(node.dtype) != "handle":
                missing = missing or (node not in self.vars and node not in self.deferred)
                missing = missing or isinstance(self.vars.get(node), str)

        tvm.tirx.stmt_functor.post_order_visit(value, visit)
        return missing

    def _stmt_For(self, node: Any) -> None:
        kind = int(node.kind)
        if kind == 4:
            self._grid(node)
        elif spreads(node):
            self._parallel(node)
        else:
            self._serial(node)

    def _grid(self, node: Any) -> None:
        tag = str(node.thread_binding.thread_tag)
        if not tag.startswith("blockIdx."):
            raise self.refuse(f"a loop over {tag}")
        self._serial(node)

    def _serial(self, node: Any) -> None:
        step = getattr(node, "step", None)
        start = self.scalar(node.min, "a loop whose start")
        extent = self.expr(node.extent)
        name = self.w.fresh(str(node.loop_var.name))
        if not extent.scalar:
            self._serial_by_lane(node, name, start, extent)
            return
        width = 1
        if step is not None:
            stride = self.scalar(step, "a loop whose step")
            if stride.lit is None:
                raise self.refuse("a loop with a step that is not constant")
            width = int(stride.lit)
        longest = _LONGEST if extent.hi is None else min(extent.hi, _LONGEST)
        hi = None if start.hi is None else start.hi + max(0, (longest - 1) * width)
        below = extent.code if start.lit == 0 and width == 1 else None
        self.vars[node.loop_var] = Val(
            name, str(node.loop_var.dtype), lo=start.lo, hi=hi, below=below
        )
        stop = self._stop(start, extent, width)
        arguments = stop if start.lit == 0 and width == 1 else f"{start.code}, {stop}"
        if width != 1:
            arguments += f", {width}"
        self.on_loop(node, arguments)
        with self.w.block(f"for {name} in range({arguments})"):
            self.on_turn(node, name)
            self.stmt(node.body)
        self.on_loop_end(node)

    @staticmethod
    def _stop(start: Val, extent: Val, width: int) -> str:
        length = extent.code if width == 1 else f"{extent.code} * {width}"
        if start.lit == 0:
            return length
        if start.lit is not None and extent.lit is not None:
            return str(start.lit + extent.lit * width)
        return f"{start.code} + {length}"

    def _serial_by_lane(self, node: Any, name: str, start: Val, extent: Val) -> None:
        """A serial loop in a parallel one whose length differs between lanes."""
        limit = self.keep(extent, "extent")
        self.vars[node.loop_var] = Val(name, str(node.loop_var.dtype), lo=start.lo)
        longest = f"int({limit.code}.max(initial=0))"
        outer = self.mask
        arguments = f"{start.code}, {start.code} + {longest}"
        self.on_loop(node, arguments)
        with self.w.block(f"for {name} in range({arguments})"):
            self.on_turn(node, name)
            test = Val(f"({name} - {start.code} < {limit.code})", "bool", limit.axes)
            self.mask = self.keep_mask(self.both(outer, test))
            self.stmt(node.body)
        self.on_loop_end(node)
        self.mask = outer

    def _stmt_While(self, node: Any) -> None:
        self.on_loop(node, "")
        outer = self.mask
        with self.w.block("while True"):
            self.break_unless(node.condition, outer)
            self.on_turn(node, "")
            self.stmt(node.body)
        self.on_loop_end(node)
        self.mask = outer

    def break_unless(self, condition: Any, outer: Val | None) -> None:
        """Leave the loop where no lane goes on; those that do become the mask."""
        test = self.expr(condition)
        if test.scalar:
            with self.w.block(f"if not {test.code}"):
                self.w.line("break")
            return
        self.mask = self.keep_mask(self.both(outer, test))
        with self.w.block(f"if not {self.mask.code}.any()"):
            self.w.line("break")

    def _stmt_IfThenElse(self, node: Any) -> None:
        outer = self.mask
        tests = self.uniform(node.condition) if self.axes and outer is None else None
        test = self.on_guard("if", node.condition, self.expr(node.condition))
        if test.lit is not None:
            if test.lit:
                self.stmt(node.then_case)
            elif node.else_case is not None:
                self.stmt(node.else_case)
            return
        if test.scalar:
            with self.w.block(f"if {test.code}"):
                self.stmt(node.then_case)
            if node.else_case is not None:
                with self.w.block("else"):
                    self.stmt(node.else_case)
            return
        if tests is None:
            self._masked(node, test, outer)
            return
        every, none = tests
        with self.w.block(f"if {every}"):
            self.stmt(node.then_case)
        with self.w.block(f"elif not {none}"):
            # The condition is written again: this branch may not see temporaries of another.
            self._masked(node, self.expr(node.condition), outer)
        if node.else_case is not None:
            with self.w.block("else"):
                self.stmt(node.else_case)

    def _masked(self, node: Any, test: Val, outer: Val | None) -> None:
        """Both branches, each under its mask."""
        test = self.keep_mask(test)
        inverted = self.invert(test) if node.else_case is not None else None
        if inverted is not None and test.inverse is None:
            inverted = self.keep_mask(inverted)
        self.mask = test if outer is None else self.keep_mask(self.both(outer, test))
        self.stmt(node.then_case)
        if node.else_case is not None and inverted is not None:
            self.mask = inverted if outer is None else self.keep_mask(self.both(outer, inverted))
            self.stmt(node.else_case)
        self.mask = outer

    def _stmt_AttrStmt(self, node: Any) -> None:
        key = str(node.attr_key)
        if key not in _IGNORED_ATTRIBUTES and not key.startswith("pragma_"):
            raise self.refuse(f"the attribute {key}")
        self.stmt(node.body)

    def _stmt_AssertStmt(self, node: Any) -> None:
        test = self.scalar(node.condition, "an assertion")
        with self.w.block(f"if not {test.code}"):
            self.w.line("raise AssertionError")
        body = getattr(node, "body", None)
        if body is not None:
            self.stmt(body)

    def _stmt_Evaluate(self, node: Any) -> None:
        call = node.value
        kind = type(call).__name__
        if kind != "Call":
            # A value that nothing uses.
            return
        name = op_name(call)
        if name in _IGNORED_CALLS:
            return
        if name.startswith("tl.tileop."):
            self._tile_op(call, name.removeprefix("tl.tileop."))
            return
        if name in JUMPS:
            if self.mask is not None:
                raise self.refuse("a jump that only some lanes of a parallel loop take")
            self.w.line(JUMPS[name])
            return
        if name == "tl.atomic_store_elem_op":
            load = call.args[0].args[0]
            self._store(self.buffer(load.buffer), list(load.indices), call.args[1])
            return
        if name in ("tl.device_assert", "tl.device_assert_with_msg"):
            self._assert(call.args[0], "T.device_assert failed")
            return
        if name == "tirx.assume":
            # The compiler drops guards on the strength of it: false, anything may happen.
            self._assert(call.args[0], f"T.assume({call.args[0]}) does not hold")
            return
        if name == "tl.reducer_update":
            self.reducer_update(call)
            return
        self.expr(call)

    def _assert(self, condition: Any, message: str) -> None:
        """Raise unless the condition holds, in every lane that gets here."""
        test = self.expr(condition)
        if self.mask is not None:
            test = self.invert(self.both(self.mask, self.invert(test)))
        code = test.code if test.scalar else f"{test.code}.all()"
        with self.w.block(f"if not {code}"):
            self.w.line(f"raise AssertionError({message!r})")

    def _tile_op(self, call: Any, name: str) -> None:
        if self.axes:
            if name in ("fill", "copy") and self._of_lanes(call):
                self.stmt(element_loops(call, name, self.refuse))
                return
            raise self.refuse(f"the tile operation T.{name} inside T.Parallel")
        if name in ("copy", "async_copy"):
            annotations = dict(call.annotations.items()) if call.annotations is not None else {}
            for key in ("dst_block", "cluster_mask", "barrier", "is_gather4", "is_scatter4"):
                if key in annotations:
                    raise self.refuse(f"T.copy with {key}")
            self.tile_copy(call)
        elif name == "fill":
            self.tile_fill(call)
        elif name == "gemm":
            self.tile_gemm(call)
        elif name == "reduce":
            self.tile_reduce(call)
        elif name in ("cumsum", "cummax"):
            self.tile_scan(call, name)
        elif name == "transpose":
            self.tile_transpose(call)
        elif name in ("im2col", "c2d_im2col"):
            self.tile_im2col(call)
        elif name in ("atomicadd", "atomicmax", "atomicmin"):
            self.tile_atomic(call, name.removeprefix("atomic"))
        elif name == "reducer_init":
            self.reducer_init(call)
        elif name == "finalize_reducer_v2":
            self.tile_copy(call)
        elif name == "finalize_reducer":
            # The contributions of all lanes are already in one place.
            self.region(call.args[0])
        else:
            raise self.refuse(f"the tile operation T.{name}")

    def _of_lanes(self, call: Any) -> bool:
        """Whether a tile operation writes memory of which every lane has its own."""
        region = call.args[-1 if op_name(call).endswith("copy") else 0]
        return type(region).__name__ == "Call" and bool(
            self.buffer(region.args[0].buffer).lane_axes
        )

    def _stmt_BufferStore(self, node: Any) -> None:
        if node.predicate is not None:
            raise self.refuse(f"a predicated store to {node.buffer.name}")
        self._store(self.buffer(node.buffer), list(node.indices), node.value, ir=node)
