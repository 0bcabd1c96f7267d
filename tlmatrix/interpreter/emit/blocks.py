"""Blocks: their buffers, fresh for every block of the grid, and their annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.runtime.memory import poison

from .buffers import Buf
from .casts import cast
from .values import LOW_PRECISION, is_float, is_value, literal, memory_name, numpy_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from .emitter import Emitter

_SCOPES = frozenset(
    {"global", "shared", "shared.dyn", "shared.tmem"}
    | {"local", "local.fragment", "local.var", "local.reducer"}
)


def emit_block(
    e: Emitter, node: ir.Block, allocate: Callable[[Emitter, ir.Buffer], None] | None = None
) -> None:
    """A block: its annotations, its buffers, its body."""
    outer = [(buf, buf.safe) for buf in e.buffers.values()]
    _annotate(e, node)
    for buffer in node.alloc_buffers:
        (allocate or allocate_buffer)(e, buffer)
    e.stmt(node.body)
    for buf, safe in outer:
        buf.safe = safe  # an annotation holds in its block


def _annotate(e: Emitter, node: ir.Block) -> None:
    """Take note of reducers, safe values and layouts."""
    allocated = {buffer.data: buffer for buffer in node.alloc_buffers}
    for key in ("reducer_info", "reducer_info_v2"):
        for data, info in node.annotations.get(key, {}).items():
            if data in allocated:
                e.reducers[allocated[data].name] = str(_plain(info["op"]))
    for data, value in node.annotations.get("safe_value_map", {}).items():
        for buffer, buf in e.buffers.items():
            if buffer.data is data:
                buf.safe = _safe_value(e, value, buf.dtype)
        if data in allocated:
            e.safe_values[allocated[data].name] = value
    for data, layout in node.annotations.get("layout_map", {}).items():
        if data not in allocated:
            e.layouts[_global_name(e, data)] = layout


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _safe_value(e: Emitter, value: Any, dtype: str) -> str:
    if isinstance(value, (bool, int, float)):
        return literal(value, dtype).code
    return cast(e, e.scalar(value, "a safe value"), dtype).code


def _global_name(e: Emitter, data: Any) -> str:
    for buffer, buf in e.buffers.items():
        if buffer.data is data:
            return buf.name
    raise e.refuse(f"a layout of {data.name}, which is not a buffer of the kernel")


def allocate_buffer(e: Emitter, buffer: ir.Buffer) -> None:
    """Make a buffer, poisoned anew for every block that might read what it did not write."""
    e.w.location = buffer.location or e.w.location
    scope, dtype, name = buffer.scope, buffer.dtype, buffer.name
    if scope not in _SCOPES:
        raise e.refuse(f"memory of scope {scope} ({name})")
    if not is_value(dtype):
        raise e.refuse(f"a buffer of dtype {dtype} ({name})")
    shape = tuple(e.scalar(n, "a buffer shape") for n in buffer.shape)
    code = e.w.fresh(name)
    low = LOW_PRECISION.get(dtype)
    packed = buffer.data in e.facts.mixed_views and low is not None
    np_dtype = memory_name(dtype) if packed else numpy_name(dtype)
    variable = scope == "local.var" and buffer not in e.facts.addressed and not packed
    buf = Buf(
        name,
        code,
        dtype,
        shape,
        scope,
        codec=low if packed else None,
        rounding=None if packed else low,
        variable=variable,
    )
    if name in e.safe_values:
        buf.safe = _safe_value(e, e.safe_values[name], dtype)
    e.buffers[buffer] = buf
    extents = "(" + ", ".join(n.code for n in shape) + ",)"
    # TileLang defines a variable with the value 0 where the user gives it none.
    blank = "0" if scope == "local.var" else poison_code(np_dtype, packed=packed)
    if variable:
        e.w.line(f"{code} = {f'np.{np_dtype}({blank})' if is_float(dtype) else blank}")
    elif scope == "global":
        # A workspace of the whole launch, which every block sees.
        e.launch_prologue.line(f"{code} = allocate({extents}, {np_dtype!r})")
    elif buf.static_shape is not None:
        e.fixed.add(code)
        e.prologue.line(f"{code} = np.empty({extents}, {np_dtype!r})")
        if not (e.may_shorten and buffer.data in e.facts.initialized):
            e.w.line(f"{code}.fill({blank})")
    else:
        e.w.line(f"{code} = allocate({extents}, {np_dtype!r})")
    for instrument in e.instruments:
        instrument.allocated(e, buf)


def private_buffer(e: Emitter, buffer: ir.Buffer, threads: str) -> None:
    """Make memory of which each of `threads` threads has a copy, along axis 0."""
    dtype, name = buffer.dtype, buffer.name
    shape = tuple(e.scalar(n, "a buffer shape") for n in buffer.shape)
    code = e.w.fresh(name)
    extents = ", ".join([*(n.code for n in shape), threads])
    e.w.line(f"{code} = allocate(({extents},), {numpy_name(dtype)!r})")
    buf = e.buffers[buffer] = Buf(
        name,
        code,
        dtype,
        shape,
        buffer.scope,
        rounding=LOW_PRECISION.get(dtype),
        private_axes=(0,),
        per_thread=True,
    )
    for instrument in e.instruments:
        instrument.allocated(e, buf)


def poison_code(np_dtype: str, *, packed: bool = False) -> str:
    """Code of what uninitialized memory holds (`runtime.memory.poison`)."""
    if packed and np_dtype in ("int16", "uint8"):
        # All bits set is NaN in every low-precision dtype that lies as integers.
        return "-1" if np_dtype == "int16" else "255"
    value = poison(np_dtype)
    return "NAN" if is_float(np_dtype) else repr(value.item() if hasattr(value, "item") else value)


RULES: dict[type, Callable[[Emitter, Any], None]] = {ir.Block: emit_block}
