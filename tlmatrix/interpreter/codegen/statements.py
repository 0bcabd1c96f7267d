"""Statements of the IR as source: blocks of the grid, loops, branches, stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .context import Buf, Dest
from .expressions import op_name
from .tileops import TileOpMixin
from .bounds import Access, constant_index
from .source import buffer_location
from .values import LOW_PRECISION, Val, is_float, is_int, literal, numpy_name

__all__ = ["StatementMixin"]

# Hints to the compiler that do not change what a kernel computes.
_IGNORED_ATTRIBUTES = frozenset(
    {"threadblock_swizzle_pattern", "tl.assume", "tirx.assume", "tir.assume", "pragma_unroll"}
)
_IGNORED_CALLS = frozenset(
    {
        "tirx.tvm_storage_sync",
        "tl.sync_warp",
        "tl.pdl_trigger",
        "tl.pdl_sync",
        "tirx.assume",
        "tl.no_set_max_nreg",
        "tl.set_max_nreg",
        "tl.annotate_producer_reg_dealloc",
        "tl.annotate_consumer_reg_alloc",
    }
)
_ATOMICS = {
    "tl.atomic_add_elem_op": ("add", False, 1),
    "tl.atomic_add_ret_elem_op": ("add", True, 1),
    "tl.atomic_addx2_elem_op": ("add", False, 2),
    "tl.atomic_addx4_elem_op": ("add", False, 4),
    "tl.atomic_max_elem_op": ("max", False, 1),
    "tl.atomic_max_ret_elem_op": ("max", True, 1),
    "tl.atomic_min_elem_op": ("min", False, 1),
    "tl.atomic_min_ret_elem_op": ("min", True, 1),
    "tl.atomic_or_elem_op": ("or", False, 1),
}
_JUMPS = {
    "tl.loop_break": "break",
    "tirx.break_loop": "break",
    "tirx.continue_loop": "continue",
}
# No grid and no loop that an interpreter could finish is longer.
_LONGEST = 1 << 24
_SCOPES = frozenset({"global", "shared", "shared.dyn", "local", "local.fragment", "local.var"})


class StatementMixin(TileOpMixin):
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
        for child in node.seq:
            self.stmt(child)

    def _stmt_SBlockRealize(self, node: Any) -> None:
        self.stmt(node.block)

    def _stmt_SBlock(self, node: Any) -> None:
        annotations = dict(node.annotations.items()) if node.annotations is not None else {}
        self._annotate(node, annotations)
        for buffer in node.alloc_buffers:
            self.allocate(buffer)
        self.stmt(node.body)

    def _annotate(self, node: Any, annotations: dict[str, Any]) -> None:
        """Take note of safe values; refuse annotations that change what a kernel means."""
        for var, value in dict(annotations.get("safe_value_map", {})).items():
            for buf in self.buffers.items():
                if buf[0].data.same_as(var):
                    buf[1].safe = self._safe_value(value, buf[1].dtype)
            for buffer in node.alloc_buffers:
                if buffer.data.same_as(var):
                    self.safe_later[buffer.name] = value
        allocated = [buffer.data for buffer in node.alloc_buffers]
        for var in dict(annotations.get("layout_map", {})):
            if not any(data.same_as(var) for data in allocated):
                self.layouts[self._global_of(var)] = annotations["layout_map"][var]

    def _safe_value(self, value: Any, dtype: str) -> str:
        if isinstance(value, (bool, int, float)):
            return literal(value, dtype).code
        return self.cast(self.scalar(value, "a safe value"), dtype).code

    def _global_of(self, var: Any) -> str:
        for buffer, buf in self.buffers.items():
            if buffer.data.same_as(var):
                return buf.name
        raise self.refuse(f"a layout of {var}, which is not a buffer of the kernel")

    layouts: dict[str, Any]
    safe_later: dict[str, Any]

    def allocate(self, buffer: Any) -> None:
        """Make a buffer, poisoned anew for every block."""
        self.w.location = buffer_location(buffer) or self.w.location
        scope = str(buffer.scope())
        if scope not in _SCOPES:
            raise self.refuse(f"memory of scope {scope} ({buffer.name})")
        dtype = str(buffer.dtype)
        if "x" in dtype or not (is_float(dtype) or is_int(dtype) or dtype == "bool"):
            raise self.refuse(f"a buffer of dtype {dtype} ({buffer.name})")
        shape = tuple(self.scalar(n, "a buffer shape") for n in buffer.shape)
        name = str(buffer.name)
        code = self.w.fresh(name)
        np_dtype = numpy_name(dtype)
        variable = scope == "local.var" and buffer not in self.addressed
        buf = Buf(
            name,
            code,
            dtype,
            shape,
            scope,
            rounding=LOW_PRECISION.get(dtype),
            variable=variable,
        )
        if name in self.safe_later:
            buf.safe = self._safe_value(self.safe_later[name], dtype)
        self.buffers[buffer] = buf
        blank = _poison(np_dtype)
        if variable:
            self.w.line(f"{code} = {f'np.{np_dtype}({blank})' if is_float(dtype) else blank}")
            return
        shape_code = "(" + ", ".join(n.code for n in shape) + ",)"
        static = buf.static_shape is not None
        if scope == "global":
            # A workspace of the whole launch, which every block sees.
            self.prologue.line(f"{code} = allocate({shape_code}, {np_dtype!r})")
        elif static:
            self.prologue.line(f"{code} = allocate({shape_code}, {np_dtype!r})")
            self.w.line(f"{code}.fill({blank})")
        else:
            self.w.line(f"{code} = allocate({shape_code}, {np_dtype!r})")

    addressed: set[Any]

    # -- bindings

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
        if found.scalar and found.lit is None and not found.code.isidentifier():
            name = self.w.fresh(str(node.var.name))
            self.w.line(f"{name} = {self.as_scalar(found)}")
            self.vars[node.var] = replace(found, code=name)
        else:
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

    # -- loops

    def _stmt_For(self, node: Any) -> None:
        kind = int(node.kind)
        if kind == 4:
            self._grid(node)
        elif kind in (1, 2):
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
        with self.w.block(f"for {name} in range({arguments})"):
            self.stmt(node.body)

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
        with self.w.block(f"for {name} in range({start.code}, {start.code} + {longest})"):
            test = Val(f"({name} - {start.code} < {limit.code})", "bool", limit.axes)
            self.mask = self.keep_mask(self.both(outer, test))
            self.stmt(node.body)
        self.mask = outer

    def _stmt_While(self, node: Any) -> None:
        if not self.axes:
            with self.w.block("while True"):
                test = self.expr(node.condition)
                with self.w.block(f"if not {test.code}"):
                    self.w.line("break")
                self.stmt(node.body)
            return
        outer = self.mask
        with self.w.block("while True"):
            test = self.expr(node.condition)
            if test.scalar:
                with self.w.block(f"if not {test.code}"):
                    self.w.line("break")
            else:
                self.mask = self.keep_mask(self.both(outer, test))
                with self.w.block(f"if not {self.mask.code}.any()"):
                    self.w.line("break")
            self.stmt(node.body)
        self.mask = outer

    def _parallel(self, node: Any) -> None:
        start = self.scalar(node.min, "a parallel loop whose start")
        extent = self.scalar(node.extent, "a parallel loop whose extent")
        if self.axes:
            self._lane_loop(node, start, extent)
            return
        self.rank = _depth(node)
        restore = self._expand_locals(node)
        self._lane_loop(node, start, extent, restore)
        self.rank = 0

    def _lane_loop(
        self, node: Any, start: Val, extent: Val, expanded: dict[Any, tuple[int, ...]] | None = None
    ) -> None:
        axis = self.push_axis(extent)
        shifted = axis.iota
        if start.lit != 0:
            affine = self._affine("+", start, axis.iota)
            shifted = Val(
                f"({start.code} + {axis.iota.code})", "int32", axis.iota.axes, affine=affine
            )
        dtype = str(node.loop_var.dtype)
        self.vars[node.loop_var] = replace(shifted, dtype=dtype)
        if expanded:
            self._with_lanes(node, expanded)
        else:
            self.stmt(node.body)
        self.axes.pop()

    def _expand_locals(self, node: Any) -> dict[Any, tuple[int, ...]]:
        """Which local buffers a parallel loop writes, and over which axes they then vary."""
        from tilelang import tvm

        written: dict[Any, set[int]] = {}

        def visit(child: Any, depth: int) -> None:
            if isinstance(child, tvm.tirx.For):
                inner = depth + 1 if int(child.kind) in (1, 2) else depth
                visit(child.body, inner)
            elif isinstance(child, tvm.tirx.BufferStore):
                if str(child.buffer.scope()) in ("local", "local.var"):
                    written.setdefault(child.buffer, set()).update(range(depth))
            elif isinstance(child, tvm.tirx.SeqStmt):
                for part in child.seq:
                    visit(part, depth)
            elif isinstance(child, tvm.tirx.IfThenElse):
                visit(child.then_case, depth)
                if child.else_case is not None:
                    visit(child.else_case, depth)
            elif isinstance(child, (tvm.tirx.While, tvm.tirx.AttrStmt)):
                visit(child.body, depth)

        visit(node, 0)
        return {buffer: tuple(sorted(axes)) for buffer, axes in written.items()}

    def _with_lanes(self, node: Any, expanded: dict[Any, tuple[int, ...]]) -> None:
        """Run a parallel body with one copy of each written local buffer a lane.

        The copies are made along the axes that are known when the outermost loop is entered;
        the extents of inner axes are read ahead.
        """
        extents = self._inner_extents(node)
        saved: dict[Any, Buf] = {}
        for buffer, axes in expanded.items():
            buf = self.buffer(buffer)
            saved[buffer] = buf
            shape = ", ".join(extents[p] for p in axes)
            code = self.temp(f"{buf.code}_lanes")
            np_dtype = numpy_name(buf.dtype)
            source = f"np.array([{buf.code}], {np_dtype!r})" if buf.variable else buf.code
            self.w.line(f"{code} = lanes({source}, ({shape},))")
            self.buffers[buffer] = replace(buf, code=code, variable=False, lane_axes=axes, views={})
        self.stmt(node.body)
        for buffer, buf in saved.items():
            code = self.buffers[buffer].code
            if buf.variable:
                self.w.line(f"{buf.code} = agreed({code})")
            else:
                self.w.line(f"{buf.code}[...] = collapse({code}, {len(buf.shape)})")
            self.buffers[buffer] = buf

    def _inner_extents(self, node: Any) -> list[str]:
        from tilelang import tvm

        extents: dict[int, str] = {}

        def visit(child: Any, depth: int) -> None:
            if isinstance(child, tvm.tirx.For):
                parallel = int(child.kind) in (1, 2)
                if parallel:
                    code = self.scalar(child.extent, "a parallel loop whose extent").code
                    if extents.setdefault(depth, code) != code:
                        raise self.refuse(
                            "local variables written in parallel loops of different extents"
                        )
                visit(child.body, depth + 1 if parallel else depth)
            elif isinstance(child, tvm.tirx.SeqStmt):
                for part in child.seq:
                    visit(part, depth)
            elif isinstance(child, tvm.tirx.IfThenElse):
                visit(child.then_case, depth)
                if child.else_case is not None:
                    visit(child.else_case, depth)
            elif isinstance(child, (tvm.tirx.While, tvm.tirx.AttrStmt)):
                visit(child.body, depth)

        visit(node, 0)
        return [extents[k] for k in range(len(extents))]

    # -- branches

    def _stmt_IfThenElse(self, node: Any) -> None:
        outer = self.mask
        tests = self.uniform(node.condition) if self.axes and outer is None else None
        test = self.expr(node.condition)
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
        test = replace(self.keep_mask(test), inverse=None)
        inverted = self.keep_mask(self.invert(test)) if node.else_case is not None else None
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

    # -- calls

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
        if name in _JUMPS:
            if self.mask is not None:
                raise self.refuse("a jump that only some lanes of a parallel loop take")
            self.w.line(_JUMPS[name])
            return
        if name == "tl.atomic_store_elem_op":
            load = call.args[0].args[0]
            self._store(self.buffer(load.buffer), list(load.indices), call.args[1])
            return
        if name == "tl.device_assert" or name == "tl.device_assert_with_msg":
            test = self.expr(call.args[0])
            code = test.code if test.scalar else f"{test.code}.all()"
            with self.w.block(f"if not {code}"):
                self.w.line("raise AssertionError('T.device_assert failed')")
            return
        self.expr(call)

    def _tile_op(self, call: Any, name: str) -> None:
        if self.axes:
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
        elif name in ("atomicadd", "atomicmax", "atomicmin"):
            self.tile_atomic(call, name.removeprefix("atomic"))
        else:
            raise self.refuse(f"the tile operation T.{name}")

    def _expr_Call(self, node: Any) -> Val:
        name = op_name(node)
        if name in _ATOMICS:
            kind, previous, width = _ATOMICS[name]
            return self.element_atomic(node, kind, previous=previous, width=width)
        if name == "tl.atomic_load_elem_op":
            return self.expr(node.args[0].args[0])
        if name in ("tl.any_of", "tl.all_of"):
            return self._any_of(node, name)
        return super()._expr_Call(node)

    def _any_of(self, node: Any, name: str) -> Val:
        load = node.args[0].args[0]
        buf = self.buffer(load.buffer)
        extent = self.scalar(node.args[1], "an extent")
        dims = [self.scalar(i, "an index") for i in load.indices]
        strides = ", ".join(d.code for d in dims)
        offset = f"int(np.ravel_multi_index(({strides},), {buf.code}.shape))"
        start = self.temp("offset")
        self.w.line(f"{start} = {offset}")
        function = "np.any" if name == "tl.any_of" else "np.all"
        return Val(
            f"bool({function}({buf.code}.reshape(-1)[{start}:{start} + {extent.code}]))", "bool"
        )

    # -- stores

    def _stmt_BufferStore(self, node: Any) -> None:
        if node.predicate is not None:
            raise self.refuse(f"a predicated store to {node.buffer.name}")
        self._store(self.buffer(node.buffer), list(node.indices), node.value, ir=node)

    def _store(self, buf: Buf, nodes: list[Any], value: Any, ir: Any = None) -> None:
        kind = type(value).__name__
        if kind in ("Ramp", "Broadcast") or any(type(i).__name__ == "Ramp" for i in nodes):
            raise self.refuse(f"a vector store to {buf.name}")
        if buf.variable:
            self._store_variable(buf, self.expr(value))
            return
        choice = self._root_choice(value)
        if choice is not None and self.mask is None and self.axes:
            tests = self.uniform(choice[0])
            if tests is not None and not self.expr(choice[0]).scalar:
                every, none = tests
                with self.w.block(f"if {every}"):
                    self._store_value(buf, nodes, choice[1], ir)
                with self.w.block(f"elif {none}"):
                    self._store_value(buf, nodes, choice[2], ir)
                with self.w.block("else"):
                    self._store_value(buf, nodes, value, ir)
                return
        self._store_value(buf, nodes, value, ir)

    @staticmethod
    def _root_choice(value: Any) -> tuple[Any, Any, Any] | None:
        kind = type(value).__name__
        if kind == "Call" and op_name(value) == "tirx.if_then_else":
            return value.args[0], value.args[1], value.args[2]
        if kind == "Select":
            return value.condition, value.true_value, value.false_value
        return None

    def _store_variable(self, buf: Buf, value: Val) -> None:
        if not value.scalar:
            raise self.refuse(f"the variable {buf.name} set from a parallel loop")
        value = self.rounded(self.cast(value, buf.dtype))
        code = self.as_scalar(value)
        if is_int(buf.dtype) and value.lit is None and not self._fits(value, buf.dtype):
            code = self._wrap(value, buf.dtype).code
        self.w.line(f"{buf.code} = {code}")

    def _store_value(self, buf: Buf, nodes: list[Any], value: Any, ir: Any) -> None:
        indices = [self.expr(i) for i in nodes]
        access = self.access(buf, indices, constant=[constant_index(i) for i in nodes])
        self.check_constants(access)
        self.dest = self._destination(buf, nodes, access, value, ir)
        dest = self.dest
        result = self.cast(self.expr(value), buf.dtype)
        self.dest = None
        if not access.axes and result.scalar and (self.mask is None or self.mask.scalar):
            self._store_scalar(access, result)
            return
        extra = result.axes | (self.mask.axes if self.mask is not None else frozenset[int]())
        if dest is not None and result.code == dest.view:
            if buf.rounding and not result.exact:
                self.w.line(f"{buf.rounding}.round_into({dest.view}, {dest.view})")
            return
        if access.block and not extra - access.axes:
            self._store_block(access, result)
            return
        result = self.rounded(result)
        mask = self.mask.code if self.mask is not None else "None"
        self.w.line(
            f"scatter({buf.code}, {buf.codec}, {access.index_code}, {result.code}, {mask}, "
            f"{buf.name!r}, {self.guarded(buf)})"
        )

    def _destination(
        self, buf: Buf, nodes: list[Any], access: Access, value: Any, ir: Any
    ) -> Dest | None:
        """The stored-to view as scratch memory for the value, where nothing else reads it."""
        from tilelang import tvm

        if (
            ir is None
            or self.mask is not None
            or not access.block
            or not access.axes
            or access.conditions
            or buf.codec
        ):
            return None
        reads = 0
        clean = True

        def visit(child: Any) -> None:
            nonlocal reads, clean
            if isinstance(child, tvm.tirx.BufferLoad) and self.buffers.get(child.buffer) is buf:
                same = all(
                    tvm.ir.structural_equal(x, y) for x, y in zip(child.indices, nodes, strict=True)
                )
                reads += same
                clean = clean and same
            elif isinstance(child, tvm.tirx.Call) and op_name(child) in _ATOMICS:
                clean = False

        tvm.tirx.stmt_functor.post_order_visit(value, visit)
        if not clean:
            return None
        return Dest(self.view(access), buf.code, numpy_name(buf.dtype), access.axes, reads)

    def _store_scalar(self, access: Access, value: Val) -> None:
        buf = access.buf
        value = self.rounded(value) if not buf.codec else value
        code = value.code
        if is_int(buf.dtype) and value.lit is None and not self._fits(value, buf.dtype):
            code = self._wrap(value, buf.dtype).code
        index = ", ".join(d.base.code for d in access.dims)
        if not access.conditions and buf.codec is None:
            self.w.line(f"{buf.code}[{index}] = {code}")
        else:
            self.w.line(
                f"put({buf.code}, {buf.codec}, ({index},), {code}, "
                f"{buf.name!r}, {self.guarded(buf)})"
            )

    def _store_block(self, access: Access, value: Val) -> None:
        buf = access.buf
        if access.conditions and self.mask is not None and not self.guarded(buf):
            # Only active lanes must be inside: element by element.
            value = self.rounded(value)
            self.w.line(
                f"scatter({buf.code}, {buf.codec}, {access.index_code}, {value.code}, "
                f"{self.mask.code}, {buf.name!r}, False)"
            )
            return
        if not access.conditions:
            self._store_inside(access, value)
            return
        value = self.rounded(value) if not buf.codec else value
        with self.w.block(f"if {access.inside}"):
            self._store_inside(access, value)
        with self.w.block("else"):
            where = self.to_dims(self.mask, access) if self.mask is not None else "None"
            self.w.line(
                f"store_block({buf.code}, {buf.codec}, {access.dims_code}, "
                f"{self.to_dims(value, access)}, {where}, {buf.name!r}, {self.guarded(buf)})"
            )

    def _store_inside(self, access: Access, value: Val) -> None:
        buf = access.buf
        view = self.view(access)
        if value.code == view:
            return
        where = f", where={self.mask.code}" if self.mask is not None else ""
        if buf.codec:
            self.w.line(f"{buf.codec}.narrow({view}, {value.code}{where})")
        elif buf.rounding and not value.exact and self.mask is None and not value.scalar:
            if value.axes == access.axes:
                self.w.line(f"{buf.rounding}.round_into({view}, {value.code})")
            else:
                self.w.line(f"np.copyto({view}, {buf.rounding}.round({value.code}))")
        elif value.scalar and self.mask is None and view == buf.code:
            self.w.line(f"{view}.fill({self.rounded(value).code})")
        else:
            self.w.line(f"np.copyto({view}, {self.rounded(value).code}{where})")


def _poison(np_dtype: str) -> str:
    """Code of what unwritten memory holds (`runtime.poison`)."""
    from tlmatrix.interpreter.runtime import poison

    value = poison(np_dtype)
    return "NAN" if is_float(np_dtype) else repr(value.item() if hasattr(value, "item") else value)


def _depth(node: Any) -> int:
    """How many parallel loops are nested at most in a statement."""
    from tilelang import tvm

    if isinstance(node, tvm.tirx.For):
        return _depth(node.body) + (1 if int(node.kind) in (1, 2) else 0)
    if isinstance(node, tvm.tirx.SeqStmt):
        return max((_depth(child) for child in node.seq), default=0)
    if isinstance(node, tvm.tirx.IfThenElse):
        cases = [node.then_case] + ([node.else_case] if node.else_case is not None else [])
        return max(_depth(case) for case in cases)
    if isinstance(node, (tvm.tirx.While, tvm.tirx.AttrStmt)):
        return _depth(node.body)
    return 0
