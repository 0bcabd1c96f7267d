"""Stores: in place where that is safe, guarded where TileLang guards, masked in branches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import same, walk

from .access import Access, access_at, check_constants, is_guarded, skips_outside
from .casts import cast, fitted_code
from .choices import root_choice
from .emitter import Dest
from .floats import as_scalar, round_into, rounded
from .logic import both, uniform
from .memory import buffer, to_dims, view
from .values import Val, numpy_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .buffers import Buf
    from .emitter import Emitter


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
        for instrument in e.instruments:
            instrument.choice(e, choice[0])
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
    for instrument in e.instruments:
        instrument.before_assignment(e, buf, value)
    e.w.line(f"{buf.code} = {code}")
    for instrument in e.instruments:
        instrument.after_assignment(e, buf)


def _store_value(e: Emitter, buf: Buf, nodes: Sequence[Any], value: Any, in_place: bool) -> None:
    access = access_at(e, buf, nodes)
    check_constants(e, access)
    dest = e.dest = _destination(e, nodes, access, value) if in_place else None
    outer, e.stored = e.stored, _stored(e, access)
    result = cast(e, e.expr(value), buf.dtype)
    e.stored = outer
    e.dest = None
    for instrument in e.instruments:
        instrument.before_write(e, access, result, value)
    _write(e, access, result, dest)
    for instrument in e.instruments:
        instrument.after_write(e)


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


def _stored(e: Emitter, access: Access) -> tuple[str, Val] | None:
    """Whether no part of a store is skipped, and which is not; None if nothing guards it."""
    if not access.conditions or not e.axes or not is_guarded(e, access.buf):
        return None
    inside: Val | None = None
    for dim, extent in zip(access.dims, access.buf.shape, strict=False):
        index = dim.value
        if index.scalar or dim.is_fixed:
            continue
        test = Val(f"({index.code} >= 0) & ({index.code} < {extent.code})", "bool", index.axes)
        inside = both(e, inside, replace(test, code=f"({test.code})"))
    return None if inside is None else (access.inside, inside)


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


RULES: dict[type, Callable[[Emitter, Any], None]] = {ir.BufferStore: emit_store}
