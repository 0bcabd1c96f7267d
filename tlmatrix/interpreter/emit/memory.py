"""Loads and stores, and the NumPy views that those of a block share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import same, walk

from .access import Access, access_at, check_constants, is_guarded, is_unchanging, skips_outside
from .emitter import Dest, Stored
from .expressions import both, root_choice, uniform
from .instrument import Instrument
from .numbers import add, as_scalar, cast, consume, fitted_code, round_into, rounded
from .values import (
    LOW_PRECISION,
    Val,
    expression,
    integer_code,
    is_float,
    is_int,
    literal,
    memory_name,
    numpy_name,
    numpy_type,
)

if TYPE_CHECKING:
    from .access import Buf
    from .emitter import Emitter


# Loads, and the NumPy views that loads and stores of a block share --------------------------------


def buffer(e: Emitter, node: ir.Buffer) -> Buf:
    """The record of a buffer of the IR."""
    found = e.buffers.get(node)
    return found if found is not None else _view_of(e, node)


def _view_of(e: Emitter, node: ir.Buffer) -> Buf:
    """A `T.reshape` or `T.view` of a buffer: another shape or dtype of the same memory."""
    whole = next((b for k, b in e.buffers.items() if k.data is node.data), None)
    if whole is None:
        raise e.refuse(f"the buffer {node.name}, which is not allocated where it is used")
    dtype = node.dtype
    offset = e.scalar(node.offset, "an offset") if node.offset is not None else None
    private = bool(whole.private_axes)
    recast = private and dtype != whole.dtype
    if whole.variable or recast or (offset is not None and offset.lit != 0):
        raise e.refuse(f"a view of {whole.name} ({node.name})")
    low = dtype in LOW_PRECISION or whole.dtype in LOW_PRECISION
    unpacked = low and not whole.is_global and node.data not in e.facts.mixed_views
    halves = TILE_DTYPES[dtype].packed_as or TILE_DTYPES[whole.dtype].packed_as
    if dtype != whole.dtype and (dtype == "bool" or unpacked or halves):
        raise e.refuse(f"a view of {whole.name} ({whole.dtype}) as {dtype}")
    shape = tuple(e.scalar(n, "a buffer shape") for n in node.shape)
    held = memory_name(dtype) if dtype in LOW_PRECISION else dtype
    cast = "" if dtype == whole.dtype else f".view(np.{held})"
    extents = ", ".join(n.code for n in shape)
    if private:
        # One copy for each thread or iteration, made where the buffer is: [*buffer, *copies].
        if any(instrument.argument for instrument in e.instruments):
            raise e.refuse(f"sanitizers of a view of {whole.name} ({node.name})")
        code = f"{whole.code}.reshape({extents}, *{whole.code}.shape[{len(whole.shape)}:])"
        found = e.buffers[node] = replace(whole, code=code, shape=shape, views={})
        return found
    code = e.prologue.fresh(whole.code + "_as")
    e.prologue.line(f"{code} = {whole.code}{cast}.reshape({extents})")
    if whole.code in e.fixed:
        e.fixed.add(code)
    found = replace(whole, code=code, dtype=dtype, shape=shape, views={})
    if dtype != whole.dtype:
        found = replace(found, codec=LOW_PRECISION.get(dtype), rounding=None, safe="0")
    e.buffers[node] = found
    e.notify(Instrument.viewed, whole, found)
    return found


def emit_load(e: Emitter, node: ir.BufferLoad) -> Val:
    """A `BufferLoad`."""
    buf = buffer(e, node.buffer)
    if node.predicate is not None:
        raise e.refuse(f"a predicated load of {buf.name}")
    return load(e, buf, node.indices)


def load(e: Emitter, buf: Buf, nodes: Sequence[Any]) -> Val:
    """The value at indices of a buffer."""
    if buf.variable:
        code = integer_code(buf.code) if is_int(buf.dtype) else buf.code
        for instrument in reversed(e.instruments):
            code = instrument.read_variable(e, buf, code)
        return Val(code, buf.dtype, mutable=True)
    return load_access(e, access_at(e, buf, nodes))


def load_access(e: Emitter, access: Access) -> Val:
    """The value of an access."""
    if not access.axes:
        return _load_scalar(e, access)
    e.notify(Instrument.read, access)
    if not access.block:
        consume(e, *(d.value for d in access.dims))
    check_constants(e, access)
    return _load_block(e, access) if access.block else gather(e, access)


def gather(e: Emitter, access: Access) -> Val:
    """The elements of an access, one for each active iteration."""
    buf = access.buf
    name = e.temp()
    e.w.line(
        f"{name} = gather({buf.code}, {buf.codec}, {access.index_code}, {e.mask_code}, "
        f"{buf.safe}, {buf.name!r}, {skips_outside(e, buf)})"
    )
    return Val(name, buf.dtype, access.axes, owned=True)


def _load_scalar(e: Emitter, access: Access) -> Val:
    buf = access.buf
    lo, hi = (0, 1) if buf.dtype == "bool" else (None, None)
    index = access.element
    skips = skips_outside(e, buf)
    if is_guarded(e, buf) and access.conditions and any(d.constant for d in access.dims):
        check_constants(e, access)
    if not access.conditions and buf.codec is None:
        code = f"{buf.code}[{index}]" if is_float(buf.dtype) else f"{buf.code}.item({index})"
    elif len(access.dims) == 1 and skips and is_int(buf.dtype):
        code = f"item({buf.code}, {index}, {buf.safe})"
    else:
        code = f"at({buf.code}, {buf.codec}, ({index},), {buf.safe}, {buf.name!r}, {skips})"
        if is_float(buf.dtype) and buf.codec is None and skips:
            code = f"np.{numpy_type(buf.dtype)}({code})"
    for instrument in reversed(e.instruments):
        code = instrument.read_scalar(e, access, code)
    return Val(code, buf.dtype, lo=lo, hi=hi)


def view(e: Emitter, access: Access) -> str:
    """Code of the NumPy view of a block that is inside, aligned to the axes in force."""
    buf = access.buf
    parts: list[str] = []
    whole = True
    for dim, n in zip(access.dims, access.shape, strict=True):
        if dim.extent is None:
            parts.append(dim.base.code)
            whole = False
        elif dim.base.lit == 0 and dim.step == 1 and dim.extent.code == n.code:
            parts.append(":")
        else:
            whole = False
            stop = add(dim.last, literal(1, "int32"))
            step = f":{dim.step}" if dim.step != 1 else ""
            parts.append(f"{dim.base.code}:{stop.code}{step}")
    axes = [d.axis for d in access.dims if d.axis is not None]
    if axes == sorted(axes):
        if whole and axes == list(range(e.rank)):
            return buf.code
        code = f"{buf.code}[{', '.join(_with_missing_axes(e, parts, access))}]"
    else:
        code = f"{buf.code}[{', '.join(parts)}]{_aligned(e, axes)}"
    fixed = is_unchanging(access.dims) and buf.static_shape is not None
    return e.hoisted(buf, code) if fixed else code


def _with_missing_axes(e: Emitter, parts: list[str], access: Access) -> list[str]:
    out: list[str] = []
    position = 0
    for text, dim in zip(parts, access.dims, strict=True):
        if dim.axis is not None:
            out += ["None"] * (dim.axis - position)
            position = dim.axis + 1
        out.append(text)
    return out + ["None"] * (e.rank - position)


def _aligned(e: Emitter, axes: list[int]) -> str:
    """Code that aligns an array of a block's own dims, along `axes`, to the axes in force."""
    order = sorted(axes)
    code = ""
    if axes != order:
        code += ".transpose(" + ", ".join(str(axes.index(a)) for a in order) + ")"
    if order != list(range(e.rank)):
        code += "[" + ", ".join(":" if p in order else "None" for p in range(e.rank)) + "]"
    return code


def to_dims(e: Emitter, value: Val, access: Access) -> str:
    """Code of a value in the order of a block's own dims."""
    if value.scalar:
        return value.code
    axes = [d.axis for d in access.dims if d.axis is not None]
    order = sorted(axes)
    code = value.code
    if order != list(range(e.rank)):
        code += "[" + ", ".join(":" if p in order else "0" for p in range(e.rank)) + "]"
    if axes != order:
        code += ".transpose(" + ", ".join(str(order.index(a)) for a in axes) + ")"
    return code


def _load_block(e: Emitter, access: Access) -> Val:
    buf = access.buf
    if not access.conditions:
        code = view(e, access)
        if not buf.codec:
            return _alias(e, code, access)
        name = e.temp()
        e.w.line(f"{name} = {buf.codec}.widen({code})")
        return Val(name, buf.dtype, access.axes, owned=True)
    if e.mask is not None and not skips_outside(e, buf):
        # Only active iterations must be inside: element by element.
        return gather(e, access)
    name = e.temp()
    with e.w.block(f"if {access.inside}"):
        code = view(e, access)
        e.w.line(f"{name} = {f'{buf.codec}.widen({code})' if buf.codec else code}")
    with e.w.block("else"):
        axes = [d.axis for d in access.dims if d.axis is not None]
        e.w.line(
            f"{name} = load_block({buf.code}, {buf.codec}, {access.dims_code}, "
            f"{buf.safe}, {buf.name!r}, {skips_outside(e, buf)}){_aligned(e, axes)}"
        )
    if buf.codec:
        return Val(name, buf.dtype, access.axes, owned=True)
    return _alias(e, name, access)


def _alias(e: Emitter, code: str, access: Access) -> Val:
    buf = access.buf
    dest = e.dest
    if dest is not None and dest.name == buf.code:
        dest.reads_left -= 1
        dest.live += 1
    return Val(code, buf.dtype, access.axes, alias=buf.code)


# Stores: in place where that is safe, guarded where TileLang guards, masked in branches -----------


def emit_store(e: Emitter, node: ir.BufferStore) -> None:
    """A `BufferStore`."""
    if node.predicate is not None:
        raise e.refuse(f"a predicated store to {node.buffer.name}")
    store(e, buffer(e, node.buffer), node.indices, node.value, in_place=True)


def store(
    e: Emitter, buf: Buf, nodes: Sequence[Any], value: Any, *, in_place: bool = False
) -> None:
    """Store the value of an expression at indices of a buffer.

    With `in_place` the value may be computed in the memory that it is stored to.
    """
    if buf.variable:
        _assign(e, buf, e.expr(value))
        return
    choice = root_choice(value)
    if choice is not None:
        e.notify(Instrument.choice, choice[0])
        if e.mask is None and e.axes:
            tests = uniform(e, choice[0])
            if tests is not None and not e.expr(choice[0]).scalar:
                with e.w.block(f"if {tests[0]}"):
                    _store_value(e, buf, nodes, choice[1], in_place)
                with e.w.block(f"elif {tests[1]}"):
                    _store_value(e, buf, nodes, choice[2], in_place)
                with e.w.block("else"):
                    _store_value(e, buf, nodes, value, in_place)
                return
    _store_value(e, buf, nodes, value, in_place)


def _assign(e: Emitter, buf: Buf, value: Val) -> None:
    """Set a variable."""
    if not value.scalar:
        raise e.refuse(f"the variable {buf.name} set from a parallel loop")
    value = rounded(e, cast(e, value, buf.dtype))
    code = fitted_code(e, value, buf.dtype)
    if code == value.code:
        code = as_scalar(value)
    e.notify(Instrument.before_assignment, buf, value)
    e.w.line(f"{buf.code} = {code}")
    e.notify(Instrument.after_assignment, buf)


def _store_value(e: Emitter, buf: Buf, nodes: Sequence[Any], value: Any, in_place: bool) -> None:
    access = access_at(e, buf, nodes)
    check_constants(e, access)
    dest = _destination(e, nodes, access, value) if in_place else None
    with e.inside(dest=dest, stored=_stored(e, access)):
        result = cast(e, e.expr(value), buf.dtype)
    e.notify(Instrument.before_write, access, result, value)
    _write(e, access, result, dest)
    e.notify(Instrument.after_write)


def _write(e: Emitter, access: Access, result: Val, dest: Dest | None) -> None:
    buf = access.buf
    if not access.axes and result.scalar and (e.mask is None or e.mask.scalar):
        _store_scalar(e, access, result)
    elif dest is not None and result.code == dest.view:
        if buf.rounding and not result.exact:
            round_into(e, buf.rounding, dest.view, dest.view)
    elif access.block and not (result.axes | e.mask_axes) - access.axes:
        _store_block(e, access, result)
    else:
        _scatter(e, access, result)


def _scatter(e: Emitter, access: Access, value: Val) -> None:
    buf = access.buf
    value = rounded(e, value)
    e.w.line(
        f"scatter({buf.code}, {buf.codec}, {access.index_code}, {value.code}, {e.mask_code}, "
        f"{buf.name!r}, {skips_outside(e, buf)})"
    )


def _stored(e: Emitter, access: Access) -> Stored | None:
    """The iterations whose store is not skipped; None if nothing guards it."""
    if not access.conditions or not e.axes or not is_guarded(e, access.buf):
        return None
    inside: Val | None = None
    for dim, extent in zip(access.dims, access.buf.shape, strict=False):
        index = dim.value
        if index.scalar or dim.is_fixed:
            continue
        code = expression("(({} >= 0) & ({} < {}))", index, index, extent)
        inside = both(e, inside, Val(code, "bool", index.axes))
    return None if inside is None else Stored(access.inside, inside)


def _destination(e: Emitter, nodes: Sequence[Any], access: Access, value: Any) -> Dest | None:
    """The stored-to view as scratch memory for the value, where nothing else reads it."""
    buf = access.buf
    plain = access.block and access.axes and not access.conditions and not buf.codec
    if not e.reuses_stores or e.mask is not None or not plain:
        return None
    reads = 0
    for node in walk(value):
        if isinstance(node, ir.BufferLoad) and e.buffers.get(node.buffer) is buf:
            if not same(node.indices, tuple(nodes)):
                return None
            reads += 1
        elif isinstance(node, ir.Call) and node.op.startswith("tl.atomic_"):
            return None
    return Dest(view(e, access), buf.code, numpy_name(buf.dtype), access.axes, reads)


def _store_scalar(e: Emitter, access: Access, value: Val) -> None:
    buf = access.buf
    value = value if buf.narrows else rounded(e, value)
    code = fitted_code(e, value, buf.dtype)
    index = access.element
    if not access.conditions and buf.codec is None:
        e.w.line(f"{buf.code}[{index}] = {code}")
    else:
        e.w.line(
            f"put({buf.code}, {buf.codec}, ({index},), {code}, {buf.name!r}, "
            f"{skips_outside(e, buf)})"
        )


def _store_block(e: Emitter, access: Access, value: Val) -> None:
    buf = access.buf
    if not access.conditions:
        _store_inside(e, access, value)
        return
    if e.mask is not None and not skips_outside(e, buf):
        # Only active iterations must be inside: element by element.
        _scatter(e, access, value)
        return
    value = value if buf.narrows else rounded(e, value)
    with e.w.block(f"if {access.inside}"):
        _store_inside(e, access, value)
    with e.w.block("else"):
        where = to_dims(e, e.mask, access) if e.mask is not None else "None"
        e.w.line(
            f"store_block({buf.code}, {buf.codec}, {access.dims_code}, "
            f"{to_dims(e, value, access)}, {where}, {buf.name!r}, {skips_outside(e, buf)})"
        )


def _store_inside(e: Emitter, access: Access, value: Val) -> None:
    buf = access.buf
    target = view(e, access)
    if value.code == target:
        return
    where = f", where={e.mask.code}" if e.mask is not None else ""
    if buf.codec:
        code = value.code if buf.narrows else rounded(e, value).code
        e.w.line(f"{buf.codec}.narrow({target}, {code}{where})")
    elif buf.rounding and not value.exact and e.mask is None and not value.scalar:
        if value.axes == access.axes:
            round_into(e, buf.rounding, target, value.code)
        else:
            e.w.line(f"np.copyto({target}, {buf.rounding}.round({value.code}))")
    elif value.scalar and e.mask is None:
        e.w.line(f"{target}.fill({rounded(e, value).code})")
    else:
        e.w.line(f"np.copyto({target}, {rounded(e, value).code}{where})")


EXPRESSIONS: dict[type, Callable[[Emitter, Any], Val]] = {ir.BufferLoad: emit_load}
STATEMENTS: dict[type, Callable[[Emitter, Any], None]] = {ir.BufferStore: emit_store}
