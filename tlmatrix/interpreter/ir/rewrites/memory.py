"""Memory as elements: views of packed ones, pointers, words by address, copies with options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls, transform, walk

from .vectors import bits_of_dtype

# Bytes of memory of four-bit floats (`T.view(x, dtype="uint8")`): each byte is two elements -------
#
# The first is its low half. Loads and stores of bytes become those of elements, and copies of bytes
# become parallel loops.

_COPY = "tl.tileop.copy"


def without_packed_views(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel without views of four-bit floats as bytes; other views stay as they are."""
    held = {buffer.data: buffer for buffer in kernel.buffer_map.values()}
    used: dict[ir.Buffer, None] = {}
    for node in walk(kernel.body):
        if isinstance(node, ir.Block):
            held |= {buffer.data: buffer for buffer in node.alloc_buffers}
        elif isinstance(node, (ir.BufferLoad, ir.BufferStore, ir.Region)):
            used[node.buffer] = None
    views = {b: held[b.data] for b in used if b.data in held and _is_view(b, held[b.data])}
    if not views:
        return kernel

    def rewritten(node: Any) -> Any:
        if isinstance(node, ir.BufferLoad) and node.buffer in views:
            return _byte(node, views[node.buffer])
        if isinstance(node, ir.BufferStore) and node.buffer in views:
            return _halves(node, views[node.buffer])
        if isinstance(node, ir.Evaluate) and getattr(node.value, "op", "") == _COPY:
            src, dst = node.value.args[:2]
            if src.buffer in views or dst.buffer in views:
                loops = _loops(node, src, dst)
                return None if loops is None else transform(loops, rewritten)
        return None

    return replace(kernel, body=transform(kernel.body, rewritten))


def _is_view(view: ir.Buffer, whole: ir.Buffer) -> bool:
    """Whether a buffer is all of another's elements, two in each byte."""
    dtype = TILE_DTYPES.get(whole.dtype)
    if view.dtype not in ("uint8", "int8") or dtype is None or not dtype.packed_as:
        return False
    sizes = [[getattr(n, "value", None) for n in b.shape] for b in (view, whole)]
    if len(sizes[0]) != len(sizes[1]) or None in (*sizes[0], *sizes[1]):
        return False
    return sizes[0][:-1] == sizes[1][:-1] and 2 * int(sizes[0][-1] or 0) == sizes[1][-1]


def _places(indices: tuple[ir.Expr, ...]) -> list[tuple[ir.Expr, ...]]:
    """The indices of the two elements of a byte."""
    *outer, last = indices
    first = ir.Mul(last.dtype, last, ir.IntImm(last.dtype, 2))
    return [(*outer, first), (*outer, ir.Add(last.dtype, first, ir.IntImm(last.dtype, 1)))]


def _byte(load: ir.BufferLoad, whole: ir.Buffer) -> ir.Expr:
    low, high = (
        ir.Call("uint8", "tirx.reinterpret", (ir.BufferLoad(whole.dtype, whole, at),), {})
        for at in _places(load.indices)
    )
    byte: ir.Expr = ir.Add("uint8", low, ir.Mul("uint8", high, ir.IntImm("uint8", 16)))
    return byte if load.dtype == "uint8" else ir.Call(load.dtype, "tirx.reinterpret", (byte,), {})


def _halves(store: ir.BufferStore, whole: ir.Buffer) -> ir.Stmt:
    byte = store.value
    if byte.dtype != "uint8":
        byte = ir.Call("uint8", "tirx.reinterpret", (byte,), {})
    codes = (
        ir.Call("uint8", "tirx.bitwise_and", (byte, ir.IntImm("uint8", 15)), {}),
        ir.Call("uint8", "tirx.shift_right", (byte, ir.IntImm("uint8", 4)), {}),
    )
    stores = [
        ir.BufferStore(
            store.location, whole, ir.Call(whole.dtype, "tirx.reinterpret", (code,), {}), at
        )
        for code, at in zip(codes, _places(store.indices), strict=True)
    ]
    return ir.SeqStmt(store.location, tuple(stores))


def _loops(node: ir.Evaluate, src: ir.Region, dst: ir.Region) -> ir.Stmt | None:
    """A copy as a parallel loop over its elements; None if the sides have different extents."""
    extents = [[n for n in side.extents if getattr(n, "value", 0) != 1] for side in (src, dst)]
    sizes = [[getattr(n, "value", n) for n in side] for side in extents]
    if sizes[0] != sizes[1]:
        return None
    loops = [ir.Var("int32", f"i{k}") for k in range(len(extents[0]))]

    def indices(side: ir.Region) -> tuple[ir.Expr, ...]:
        over = iter(loops)
        return tuple(
            base if getattr(n, "value", 0) == 1 else ir.Add(base.dtype, base, next(over))
            for base, n in zip(side.indices, side.extents, strict=True)
        )

    value: ir.Expr = ir.BufferLoad(src.buffer.dtype, src.buffer, indices(src))
    if src.buffer.dtype != dst.buffer.dtype:
        value = ir.Cast(dst.buffer.dtype, value)
    body: ir.Stmt = ir.BufferStore(node.location, dst.buffer, value, indices(dst))
    zero = ir.IntImm("int32", 0)
    for loop, extent in zip(reversed(loops), reversed(extents[0]), strict=True):
        body = ir.For(node.location, loop, zero, extent, ir.PARALLEL, body, annotations={})
    return body


# Pointers to elements by number (`buffer.access_ptr`) as operands ---------------------------------
#
# They become regions of shared memory; those of `T.ptx_cp_async` become pointers to an element by
# its indices (`T.access_ptr`).

_ELEMENTS = {
    "tl.ptx_tcgen05_cp_warpx4": 128,
    "tl.ptx_tcgen05_sf_warp_transpose": 128,
    **dict.fromkeys(("tl.clc_try_cancel", "tl.clc_try_cancel_multicast"), 4),
    **dict.fromkeys(("tl.clc_is_canceled", *(f"tl.clc_get_first_ctaid_{x}" for x in "xyz")), 4),
}
"""By operation how many elements its first argument points to."""
_POINTER = "tirx.tvm_access_ptr"
_CP_ASYNC = "tl.ptx_cp_async"


def without_pointers(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with regions in place of pointers that operations take.

    Raises:
        Unsupported: for elements that are no row of a buffer, or part of one.
    """
    if not calls(kernel.body, _CP_ASYNC, *_ELEMENTS):
        return kernel
    buffers = {buffer.data: buffer for buffer in kernel.buffer_map.values()}
    pointers: dict[Any, ir.Call] = {}
    for node in walk(kernel.body):
        if isinstance(node, ir.Block):
            buffers |= {buffer.data: buffer for buffer in node.alloc_buffers}
        elif isinstance(node, ir.Bind) and getattr(node.value, "op", "") == _POINTER:
            assert isinstance(node.value, ir.Call)
            pointers[node.var] = node.value

    def rewritten(node: Any) -> Any:
        if isinstance(node, ir.Bind) and node.var in pointers:
            return ir.SeqStmt(node.location, ())
        if isinstance(node, ir.Call) and node.op == _CP_ASYNC:
            ends = (_end(buffers, pointers.get(a, a), node.args[2]) for a in node.args[:2])
            return replace(node, args=(*ends, *node.args[2:]))
        if not isinstance(node, ir.Call) or node.op not in _ELEMENTS:
            return None
        pointer = pointers.get(node.args[0], node.args[0])
        if getattr(pointer, "op", "") != _POINTER or pointer.args[1] not in buffers:
            raise Unsupported(f"the interpreter does not model {node.op} through a pointer")
        found = _region(buffers[pointer.args[1]], pointer, _ELEMENTS[node.op], node.op)
        return replace(node, args=(found, *node.args[1:]))

    return replace(kernel, body=transform(kernel.body, rewritten))


def _end(buffers: dict[ir.Var, ir.Buffer], pointer: Any, count: Any) -> Any:
    """The source or destination of a copy of `count` elements, by its indices."""
    if getattr(pointer, "op", "") != _POINTER or pointer.args[1] not in buffers:
        return pointer
    buffer = buffers[pointer.args[1]]
    indices = _indices(buffer, pointer.args[2], getattr(count, "value", 0), "T.ptx_cp_async")
    load = ir.BufferLoad(buffer.dtype, buffer, indices, None)
    return ir.Call("handle", "tl.access_ptr", (load, count, pointer.args[4]), {})


def _region(buffer: ir.Buffer, pointer: ir.Call, count: int, op: str) -> ir.Region:
    """The region of `count` elements in a row of a buffer, from a pointer on."""
    access = pointer.args[4].value
    indices = _indices(buffer, pointer.args[2], count, op)
    extents = [ir.IntImm("int32", 1)] * (len(indices) - 1) + [ir.IntImm("int32", count)]
    return ir.Region("handle", buffer, indices, tuple(extents), bool(access & 1), bool(access & 2))


def _indices(buffer: ir.Buffer, offset: ir.Expr, count: int, op: str) -> tuple[ir.Expr, ...]:
    """The indices of an element by its number, from which `count` elements lie in a row.

    Raises:
        Unsupported: they may not lie in one row, or rows are not one after another.
    """
    rows = [n.value for n in buffer.shape[1:] if isinstance(n, ir.IntImm)]
    fits = len(buffer.shape) == 1 or (rows and count and rows[-1] % count == 0)
    if len(rows) + 1 < len(buffer.shape) or not _is_contiguous(buffer) or not fits:
        raise Unsupported(f"the interpreter does not model {op} of {buffer.name} in such a shape")
    found: list[ir.Expr] = []
    step = 1
    for extent in reversed(rows):
        found.insert(0, _folded(ir.FloorMod, _folded(ir.FloorDiv, offset, step), extent))
        step *= extent
    return _folded(ir.FloorDiv, offset, step), *found


def _is_contiguous(buffer: ir.Buffer) -> bool:
    """Whether the elements of a buffer of known rows follow each other."""
    step = 1
    for extent, stride in zip(reversed(buffer.shape), reversed(buffer.strides), strict=False):
        if getattr(stride, "value", None) != step:
            return False
        step *= getattr(extent, "value", 0)
    return True


def _folded(kind: type[ir.Binary], value: ir.Expr, number: int) -> ir.Expr:
    if isinstance(value, ir.IntImm):
        divided, left = divmod(value.value, number)
        return ir.IntImm("int32", divided if kind is ir.FloorDiv else left)
    if number == 1:
        return value if kind is ir.FloorDiv else ir.IntImm("int32", 0)
    return kind(value.dtype, value, ir.IntImm("int32", number))


# Loads and stores of 32 to 256 bits by address (`T.ldg64`, `T.sts128`) ----------------------------
#
# They become vector loads and stores of the same memory seen as words of 32 bits.

CHECKED_INDEX = "tlmatrix.checked_index"
"""The operation (index, extent, name) of an index that nothing guards, checked when it is used."""

_LOADS = {f"tl.ld{kind}{32 * n}": n for kind in "gs" for n in (1, 2, 4, 8)}
_STORES = {f"tl.st{kind}{32 * n}": n for kind in "gs" for n in (1, 2, 4, 8)}
_WORD = "uint32"


def without_words(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel without loads and stores of words by address.

    Raises:
        Unsupported: for memory with strides, or elements that do not fill words.
    """
    if not any(
        isinstance(n, ir.Call) and (n.op in _LOADS or n.op in _STORES) for n in walk(kernel.body)
    ):
        return kernel
    buffers = {buffer.data: buffer for buffer in kernel.buffer_map.values()}
    for node in walk(kernel.body):
        if isinstance(node, ir.Block):
            buffers |= {buffer.data: buffer for buffer in node.alloc_buffers}
    views: dict[ir.Var, ir.Buffer] = {}

    def words(call: ir.Call, lanes: int) -> tuple[ir.Buffer, ir.Expr]:
        """The memory as words, and the index of the first one."""
        _, data, offset, *_ = call.args[0].args
        buffer = buffers[data]
        bits = bits_of_dtype(buffer.dtype)
        if 32 % bits or not _is_compact(buffer):
            raise Unsupported(f"the interpreter does not model {call.op} of {buffer.name}")
        per_word = 32 // bits
        if data not in views:
            shape = (_floor(_product(buffer.shape), per_word),)
            views[data] = ir.Buffer(
                buffer.name, data, _WORD, shape, (), None, buffer.scope, buffer.location
            )
        first = _floor(offset, per_word)
        index = ir.Ramp(f"int32x{lanes}", first, _int(1), lanes) if lanes > 1 else first
        name = ir.StringImm("string", buffer.name)
        return views[data], ir.Call(
            index.dtype, CHECKED_INDEX, (index, views[data].shape[0], name), {}
        )

    def rewritten(node: Any) -> Any:
        if isinstance(node, ir.Call) and node.op in _LOADS:
            return load(node, _LOADS[node.op])
        if isinstance(node, ir.Evaluate) and isinstance(node.value, ir.Call):
            lanes = _STORES.get(node.value.op)
            return None if lanes is None else store(node, node.value, lanes)
        return None

    def load(call: ir.Call, lanes: int) -> ir.Expr:
        buffer, index = words(call, lanes)
        dtype = _WORD if lanes == 1 else f"{_WORD}x{lanes}"
        value: ir.Expr = ir.BufferLoad(dtype, buffer, (index,))
        if len(call.args) == 1:
            return value
        zero: ir.Expr = ir.IntImm(_WORD, 0)
        if lanes > 1:
            zero = ir.Broadcast(dtype, zero, lanes)
        return ir.Call(dtype, "tirx.if_then_else", (call.args[1], value, zero), {})

    def store(node: ir.Evaluate, call: ir.Call, lanes: int) -> ir.Stmt:
        buffer, index = words(call, lanes)
        stored = ir.BufferStore(node.location, buffer, call.args[1], (index,))
        if len(call.args) == 2:
            return stored
        return ir.IfThenElse(node.location, call.args[2], stored, None)

    return replace(kernel, body=transform(kernel.body, rewritten))


def _int(value: int) -> ir.IntImm:
    return ir.IntImm("int32", value)


def _product(factors: tuple[ir.Expr, ...]) -> ir.Expr:
    found: ir.Expr = _int(1)
    for factor in factors:
        if isinstance(found, ir.IntImm) and isinstance(factor, ir.IntImm):
            found = _int(found.value * factor.value)
        else:
            found = ir.Mul("int32", found, factor)
    return found


def _floor(value: ir.Expr, divisor: int) -> ir.Expr:
    if isinstance(value, ir.IntImm):
        return _int(value.value // divisor)
    return value if divisor == 1 else ir.FloorDiv("int32", value, _int(divisor))


def _is_compact(buffer: ir.Buffer) -> bool:
    """Whether the elements of a buffer lie without gaps."""
    for k, stride in enumerate(buffer.strides):
        compact = _product(buffer.shape[k + 1 :])
        if not (isinstance(stride, ir.IntImm) and isinstance(compact, ir.IntImm)):
            continue
        if stride.value != compact.value:
            return False
    return True


# Copies that are no plain ones become operations of their own, with their options as operands -----

MULTICAST = "tl.tileop.copy_multicast"
"""(src, dst, mask of blocks): `T.copy_cluster(cluster_mask=)`."""
TMA_MULTICAST = "tl.tileop.tma_multicast"
"""(src, dst, mask of blocks, barrier): `T.tma_copy(cluster_mask=)`."""
TO_BLOCK = "tl.tileop.copy_to_block"
"""(src, dst, block[, barrier]): `T.copy_cluster(dst_block=)`."""
ROWS_LOAD, ROWS_STORE = "tl.tileop.tma_gather4", "tl.tileop.tma_scatter4"
"""(row of src, row of dst, and so on[, barrier])."""


def with_named_copies(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with copies of clusters and of chosen rows by names of their own."""

    def rewritten(node: Any) -> Any:
        if not isinstance(node, ir.Call):
            return None
        if node.op not in ("tl.tileop.copy", "tl.tileop.tma_copy"):
            return None
        options = node.annotations
        barrier = (options["barrier"],) if "barrier" in options else ()
        if "is_gather4" in options:
            return replace(node, op=ROWS_LOAD, args=(*_rows(node, moved=0), *barrier))
        if "is_scatter4" in options:
            return replace(node, op=ROWS_STORE, args=_rows(node, moved=1))
        if "cluster_mask" in options:
            op = MULTICAST if node.op == "tl.tileop.copy" else TMA_MULTICAST
            return replace(node, op=op, args=(*node.args, options["cluster_mask"], *barrier))
        if "dst_block" in options:
            return replace(node, op=TO_BLOCK, args=(*node.args, options["dst_block"], *barrier))
        return None

    return replace(kernel, body=transform(kernel.body, rewritten))


def _rows(call: ir.Call, *, moved: int) -> tuple[ir.Region, ...]:
    """The rows of both operands; those of operand `moved` are the ones that the call lists."""
    regions: list[ir.Region] = []
    one = ir.IntImm("int32", 1)
    for k, row in enumerate(call.annotations["gather4_rows"]):
        for side in (0, 1):
            box = call.args[side]
            index = _number(row) if side == moved else ir.IntImm("int32", k)
            column = _number(call.annotations["gather4_col"]) if side == moved else box.indices[1]
            regions.append(replace(box, indices=(index, column), extents=(one, box.extents[1])))
    return tuple(regions)


def _number(value: Any) -> ir.Expr:
    return value if isinstance(value, ir.Expr) else ir.IntImm("int32", int(value))
