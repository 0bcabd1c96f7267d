"""Vectors as their elements, every float as float64, and factors of products as float32."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.errors import Unsupported, remedy
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls, same, transform, walk

# Vector loads and stores (`B[T.Ramp(i, 1, 8)] = ...`) become loops over their elements ------------
#
# A vector store is a vectorized loop whose iterations do not see each other's stores.

WRAPPED_INDEX = "tlmatrix.wrapped_index"
"""The operation (index, extent) of an index that counts from the end where it is negative."""
TOGETHER = "tlmatrix.together"
"""Annotates an atomic of one element with how many elements one operation takes."""
_SHUFFLE = "tirx.Shuffle"
_ATOMICS = ("tl.atomic_addx2_ret_elem_op", "tl.atomic_addx4_ret_elem_op")


def without_vectors(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel without vectors; a variable that holds a vector becomes local memory.

    A vector that nothing uses, such as a tile that is named before it is copied, is not loaded, as
    in compiled code.

    Raises:
        Unsupported: for a vector value that is not made element by element.
    """
    bindings = [
        node
        for node in walk(kernel.body)
        if isinstance(node, (ir.BufferStore, ir.Bind)) and lanes_of(node.value) > 1
    ]
    if not bindings and not calls(kernel.body, _SHUFFLE):
        return kernel
    used = {node for node in walk(kernel.body) if isinstance(node, ir.Var)}
    held = {
        node.var: _memory_of(node.var, node.value)
        for node in bindings
        if isinstance(node, ir.Bind) and node.var in used
    }

    def rewritten(node: Any) -> Any:
        if isinstance(node, ir.Block) and "tl.launch_threads" in node.annotations:
            return replace(node, alloc_buffers=(*node.alloc_buffers, *held.values()))
        if isinstance(node, ir.Call) and node.op == _SHUFFLE and lanes_of(node) == 1:
            return _shuffled(node, 0, held)
        if not isinstance(node, (ir.BufferStore, ir.Bind)) or lanes_of(node.value) == 1:
            return None
        if isinstance(node, ir.Bind):
            memory = held.get(node.var)
            return _loop(node, memory, None, held) if memory else ir.SeqStmt(node.location, ())
        return None if node.predicate is not None else _stored(node, held)

    return replace(kernel, body=transform(kernel.body, rewritten))


def _memory_of(var: ir.Var, value: ir.Expr) -> ir.Buffer:
    lanes = lanes_of(value)
    dtype = value.dtype.removesuffix(f"x{lanes}")
    shape = (ir.IntImm("int32", lanes),)
    return ir.Buffer(var.name, ir.Var("handle", var.name), dtype, shape, (), None, "local", None)


def _stored(store: ir.BufferStore, held: dict[ir.Var, ir.Buffer]) -> ir.For:
    buffer = store.buffer
    if re.search(r"x\d+$", buffer.dtype):
        raise _refused(store, f"memory of {buffer.dtype} elements ({buffer.name})")
    for node in walk(store.value):
        if (
            isinstance(node, ir.BufferLoad)
            and node.buffer.data is buffer.data
            and not same(node.indices, store.indices)
            and not _are_aligned(node.indices[-1], store.indices[-1])
        ):
            # The iterations of a loop would see each other's stores.
            raise _refused(store, f"a vector store to {buffer.name} that reads it shifted")
    return _loop(store, buffer, store.indices, held)


def _are_aligned(*indices: ir.Expr) -> bool:
    """Whether vectors of one length start at multiples of it: they are one, or share nothing."""
    for index in indices:
        if not isinstance(index, ir.Ramp) or getattr(index.stride, "value", 0) != 1:
            return False
        base = index.base.b if isinstance(index.base, ir.Mul) else index.base
        if not isinstance(base, ir.IntImm) or base.value % index.lanes:
            return False
    return len({lanes_of(index) for index in indices}) == 1


def _loop(
    node: ir.BufferStore | ir.Bind,
    buffer: ir.Buffer,
    indices: tuple[ir.Expr, ...] | None,
    held: dict[ir.Var, ir.Buffer],
) -> ir.For:
    """The loop over the elements of a vector that is stored."""
    element = ir.Var("int32", "v")
    at: tuple[Any, ...] = (element,)
    if indices is not None:
        at = _indices(buffer, indices, lambda i: _element(i, element, held, node))
    value = _element(node.value, element, held, node)
    store = ir.BufferStore(node.location, buffer, value, at)
    zero, extent = ir.IntImm("int32", 0), ir.IntImm("int32", lanes_of(node.value))
    return ir.For(node.location, element, zero, extent, ir.VECTORIZED, store, annotations={})


def _refused(node: ir.Stmt, what: str) -> Unsupported:
    where = f" ({node.location})" if node.location is not None else ""
    return Unsupported(f"the interpreter does not model {what}{where}{remedy(what)}")


def _element(node: Any, element: ir.Expr, held: dict[ir.Var, ir.Buffer], statement: ir.Stmt) -> Any:
    """Element number `element` of a vector expression; a scalar stays as it is."""

    def of(part: Any) -> Any:
        return _element(part, element, held, statement)

    lanes = lanes_of(node)
    if lanes == 1:
        return node
    single = node.dtype.removesuffix(f"x{lanes}")
    if isinstance(node, ir.Ramp):
        return ir.Add(single, node.base, ir.Mul(single, node.stride, element))
    if isinstance(node, ir.Broadcast):
        return node.value
    if isinstance(node, ir.Var) and node in held:
        return ir.BufferLoad(single, held[node], (element,))
    if isinstance(node, ir.BufferLoad) and node.predicate is None:
        return ir.BufferLoad(single, node.buffer, _indices(node.buffer, node.indices, of))
    if isinstance(node, ir.Cast):
        return ir.Cast(single, of(node.value))
    if isinstance(node, ir.Select):
        return ir.Select(single, of(node.condition), of(node.true_value), of(node.false_value))
    if isinstance(node, ir.Not):
        return ir.Not(single, of(node.a))
    if isinstance(node, ir.Binary):
        return replace(node, dtype=single, a=of(node.a), b=of(node.b))
    if (
        isinstance(node, ir.Call)
        and node.op == "tirx.reinterpret"
        and lanes_of(node.args[0]) != lanes
    ):
        return _reinterpreted(
            node, single, lambda k: _element(node.args[0], k, held, statement), element
        )
    if isinstance(node, ir.Call) and node.op == _SHUFFLE:
        found = _shuffled(node, lanes - 1, held)
        for k in reversed(range(lanes - 1)):
            chosen = ir.Compare("bool", element, ir.IntImm("int32", k), "==")
            found = ir.Select(single, chosen, _shuffled(node, k, held), found)
        return found
    if isinstance(node, ir.Call) and node.op in _ATOMICS:
        target, value = (element_at(pointer.args[0], element) for pointer in node.args[:2])
        pointer = replace(node.args[0], args=(target, *node.args[0].args[1:]))
        return ir.Call(single, "tl.atomic_add_ret_elem_op", (pointer, value), {TOGETHER: lanes})
    if isinstance(node, ir.Call) and all(
        lanes_of(a) == lanes or (lanes_of(a) == 1 and a.dtype != "handle") for a in node.args
    ):
        return replace(node, dtype=single, args=tuple(map(of, node.args)))
    name = node.op if isinstance(node, ir.Call) else f"the expression {type(node).__name__}"
    raise _refused(statement, f"{name} of vectors")


def _shuffled(node: ir.Call, number: int, held: dict[ir.Var, ir.Buffer]) -> Any:
    """An element of a shuffle: one of all elements of its vectors."""
    index = node.annotations["indices"][number]
    for vector in node.args:
        if index < lanes_of(vector):
            statement = ir.Stmt(None)
            return _element(vector, ir.IntImm("int32", index), held, statement)
        index -= lanes_of(vector)
    raise Unsupported(f"the interpreter does not model {node.op} of element {index}")


def _reinterpreted(
    node: ir.Call, single: str, source: Callable[[ir.Expr], ir.Expr], element: ir.Expr
) -> ir.Expr:
    """An element of a vector that is another vector's bits, of wider or narrower elements."""
    lanes = lanes_of(node.args[0])
    held = node.args[0].dtype.removesuffix(f"x{lanes}")
    bits, held_bits = bits_of_dtype(single), bits_of_dtype(held)
    if bits < held_bits:
        count = held_bits // bits
        word = _bits_as(source(_op("FloorDiv", element, count)), held)
        place = ir.Cast(word.dtype, _op("Mul", _op("FloorMod", element, count), bits))
        whole: ir.Expr = ir.Call(word.dtype, "tirx.shift_right", (word, place), {})
        return ir.Call(single, "tirx.reinterpret", (ir.Cast(f"uint{bits}", whole),), {})
    count = bits // held_bits
    whole = ir.IntImm(f"uint{bits}", 0)
    for k in range(count):
        part = _bits_as(source(_op("Add", _op("Mul", element, count), k)), held)
        shift = (ir.Cast(whole.dtype, part), ir.IntImm(whole.dtype, k * held_bits))
        moved = ir.Call(whole.dtype, "tirx.shift_left", shift, {})
        whole = ir.Call(whole.dtype, "tirx.bitwise_or", (whole, moved), {})
    return ir.Call(single, "tirx.reinterpret", (whole,), {})


def _op(kind: str, a: ir.Expr, b: int) -> ir.Expr:
    """An operation of an index and a number."""
    made: ir.Expr = getattr(ir, kind)("int32", a, ir.IntImm("int32", b))
    return made


def _bits_as(value: ir.Expr, dtype: str) -> ir.Expr:
    """The bits of a value, as an unsigned integer."""
    unsigned = f"uint{bits_of_dtype(dtype)}"
    return value if dtype == unsigned else ir.Call(unsigned, "tirx.reinterpret", (value,), {})


def bits_of_dtype(dtype: str) -> int:
    """How many bits a value of a dtype has; of float8_e4m3fn 8."""
    found = re.match(r"[a-z]+(\d+)", dtype)
    return int(found.group(1)) if found is not None else 8


def element_at(load: ir.BufferLoad, element: ir.Expr) -> ir.BufferLoad:
    """Element number `element` from the one that a pointer names."""
    last = load.indices[-1]
    base = last.base if isinstance(last, ir.Ramp) else last
    index = ir.Add(base.dtype, base, element)
    return ir.BufferLoad(load.buffer.dtype, load.buffer, (*load.indices[:-1], index))


def _indices(
    buffer: ir.Buffer, indices: tuple[ir.Expr, ...], of: Callable[[Any], Any]
) -> tuple[Any, ...]:
    """The indices of an element; of a vector, each that is negative counts from the end.

    TileLang guards a scalar index whose sign it cannot prove, and wraps the elements of a vector
    one (`LegalizeNegativeIndex`).
    """
    return tuple(
        ir.Call(i.dtype.partition("x")[0], WRAPPED_INDEX, (of(i), extent), {})
        if lanes_of(i) > 1
        else i
        for i, extent in zip(indices, buffer.shape, strict=True)
    )


def lanes_of(value: Any) -> int:
    """How many elements a vector has, or an element of a buffer of vectors; 1 for others."""
    _, _, lanes = str(getattr(value, "dtype", "")).partition("x")
    return int(lanes) if lanes.isdigit() else 1


# Memory whose elements are vectors (`float16x2`, `float4_e2m1fnx2`) -------------------------------
#
# It becomes memory of as many more elements along its last dimension, and an access of an element
# of it an access of a vector.


def without_vector_memory(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with memory of numbers alone; PyTorch has parameters of packed pairs alone."""
    flat: dict[ir.Buffer, ir.Buffer] = {}
    for buffer in kernel.buffer_map.values():
        if lanes_of(buffer) > 1 and TILE_DTYPES[_scalar_dtype(buffer)].packed_as:
            flat[buffer] = _flattened(buffer)
    for node in walk(kernel.body):
        if isinstance(node, ir.Block):
            found = (b for b in node.alloc_buffers if lanes_of(b) > 1)
            flat |= {b: _flattened(b) for b in found if _scalar_dtype(b) in TILE_DTYPES}
    if not flat:
        return kernel

    def rewritten(node: Any) -> Any:
        if isinstance(node, ir.Block):
            allocated = tuple(flat.get(b, b) for b in node.alloc_buffers)
            return replace(node, alloc_buffers=allocated)
        if not isinstance(node, (ir.BufferLoad, ir.BufferStore, ir.Region)):
            return None
        buffer = flat.get(node.buffer)
        if buffer is None:
            return None
        lanes = lanes_of(node.buffer)
        first = _times(node.indices[-1], lanes)
        if isinstance(node, ir.Region):
            extents = (*node.extents[:-1], _times(node.extents[-1], lanes))
            indices = (*node.indices[:-1], first)
            return replace(node, buffer=buffer, indices=indices, extents=extents)
        index = ir.Ramp(f"int32x{lanes}", first, ir.IntImm("int32", 1), lanes)
        return replace(node, buffer=buffer, indices=(*node.indices[:-1], index))

    buffer_map = {param: flat.get(b, b) for param, b in kernel.buffer_map.items()}
    return replace(kernel, buffer_map=buffer_map, body=transform(kernel.body, rewritten))


def _scalar_dtype(buffer: ir.Buffer) -> str:
    return buffer.dtype.removesuffix(f"x{lanes_of(buffer)}")


def _flattened(buffer: ir.Buffer) -> ir.Buffer:
    lanes = lanes_of(buffer)
    return replace(
        buffer,
        dtype=_scalar_dtype(buffer),
        shape=(*buffer.shape[:-1], _times(buffer.shape[-1], lanes)),
        strides=tuple(_times(n, lanes) for n in buffer.strides[:-1]) + buffer.strides[-1:],
        scope="local" if buffer.scope == "local.var" else buffer.scope,
    )


def _times(value: ir.Expr, lanes: int) -> ir.Expr:
    if isinstance(value, ir.IntImm):
        return ir.IntImm(value.dtype, value.value * lanes)
    return ir.Mul(value.dtype, value, ir.IntImm(value.dtype, lanes))


# The same kernel with float64 in place of every float dtype: its exact twin -----------------------


def widened(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with float64 in place of every float dtype.

    Raises:
        Unsupported: if it looks at the bits of a float.
    """
    kernel = without_vectors(kernel)  # a vector's dtype has another name
    for node in walk(kernel.body):
        if isinstance(node, ir.Call) and node.op.endswith("reinterpret") and _is_float(node.dtype):
            raise Unsupported(
                "float64 has no place for a float that is made of bits (T.reinterpret)"
            )
    buffers: dict[ir.Buffer, ir.Buffer] = {}
    variables: dict[ir.Var, ir.Var] = {}

    def buffer(old: ir.Buffer) -> ir.Buffer:
        if old not in buffers:
            buffers[old] = replace(old, dtype="float64") if _is_float(old.dtype) else old
        return buffers[old]

    def variable(old: ir.Var) -> ir.Var:
        if not _is_float(old.dtype):
            return old
        return variables.setdefault(old, ir.Var("float64", old.name))

    def wide(node: Any) -> Any:
        changes: dict[str, Any] = {}
        if isinstance(node, ir.Var):
            return variable(node)
        if isinstance(node, ir.Block):
            changes["alloc_buffers"] = tuple(map(buffer, node.alloc_buffers))
        if isinstance(node, (ir.BufferLoad, ir.BufferStore, ir.Region)):
            changes["buffer"] = buffer(node.buffer)
        if isinstance(node, (ir.Bind, ir.Let)):
            changes["var"] = variable(node.var)
        if isinstance(node, ir.Expr) and _is_float(node.dtype):
            changes["dtype"] = "float64"
        return replace(node, **changes) if changes else None

    return replace(
        kernel,
        params=tuple(map(variable, kernel.params)),
        buffer_map={variable(k): buffer(b) for k, b in kernel.buffer_map.items()},
        body=transform(kernel.body, wide),
    )


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


# The same kernel with factors of products that nothing rounded -----------------------------------
#
# Tensor cores take factors in 16 bits, so a kernel has to round what it computes for them.

_PRODUCTS = ("tl.tileop.gemm", "tl.tileop.wgmma_gemm", "tl.tileop.tcgen05_gemm")
_CHOICES = ("tirx.if_then_else", "tl.tvm_if_then_else")


def with_unrounded_factors(kernel: ir.Kernel, dtype: str) -> ir.Kernel:
    """The kernel whose products get factors of this dtype as they were before their rounding.

    A block keeps these tiles in float32; everything but a product reads them rounded, as before.
    Tiles that products write are kept as they are: a sum that is rounded is no factor's rounding.
    """
    kernel = without_vectors(kernel)
    nodes = list(walk(kernel.body))
    products = [n for n in nodes if isinstance(n, ir.Call) and n.op in _PRODUCTS]
    copies = [n.args[:2] for n in nodes if isinstance(n, ir.Call) and n.op == "tl.tileop.copy"]
    sums = {_buffer(call.args[2]) for call in products}
    tiles = {_buffer(factor) for call in products for factor in call.args[:2]}
    while more := {_buffer(src) for src, dst in copies if _buffer(dst) in tiles} - tiles:
        tiles |= more
    # Of memory with several views, all would have to change.
    views = Counter(each.data for each in {n.buffer for n in nodes if hasattr(n, "buffer")})
    kept = {
        old: replace(old, dtype="float32")
        for block in nodes
        if isinstance(block, ir.Block)
        for old in block.alloc_buffers
        if old.dtype == dtype and old in tiles - sums and views[old.data] == 1
    }

    def rewritten(node: Any) -> Any:
        if isinstance(node, ir.Block):
            made = tuple(kept.get(each, each) for each in node.alloc_buffers)
            return replace(node, alloc_buffers=made)
        buffer = kept.get(node.buffer) if hasattr(node, "buffer") else None
        if buffer is None:
            return None
        if isinstance(node, ir.BufferLoad):
            return ir.Cast(dtype, replace(node, buffer=buffer, dtype="float32"))
        if isinstance(node, ir.BufferStore):
            return replace(node, buffer=buffer, value=_unrounded(node.value))
        return replace(node, buffer=buffer)

    return replace(kernel, body=transform(kernel.body, rewritten)) if kept else kernel


def _buffer(region: Any) -> ir.Buffer | None:
    return region.buffer if isinstance(region, ir.Region) else None


def _unrounded(value: ir.Expr) -> ir.Expr:
    """A float in float32, without the conversion to fewer bits that it ends with."""
    if isinstance(value, ir.Cast) and _is_float(value.value.dtype):
        return ir.Cast("float32", value.value)
    if isinstance(value, ir.Select):
        chosen = (_unrounded(value.true_value), _unrounded(value.false_value))
        return ir.Select("float32", value.condition, *chosen)
    if isinstance(value, ir.Call) and value.op in _CHOICES:
        chosen = (_unrounded(value.args[1]), _unrounded(value.args[2]))
        return replace(value, dtype="float32", args=(value.args[0], *chosen))
    return ir.Cast("float32", value)
