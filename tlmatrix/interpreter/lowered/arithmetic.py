"""Operations of numbers, and what lanes have for themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.analysis.usage import JUMPS
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ops.elementwise import BINARY, FLOAT, ROUNDING, TESTS
from tlmatrix.interpreter.runtime.codecs import CODECS
from tlmatrix.interpreter.runtime.mathematics import bits, to_int

from . import findings
from .expressions import choose
from .values import Val, is_float, split

if TYPE_CHECKING:
    from collections.abc import Callable

    from tlmatrix.interpreter.runtime.codecs import Array

    from .emit import Emitter
    from .machine import Machine

_BITWISE = {
    "tirx.bitwise_and": "&",
    "tirx.bitwise_or": "|",
    "tirx.bitwise_xor": "^",
    "tirx.shift_left": "<<",
    "tirx.shift_right": ">>",
}
NOTHING = Val("0", "int32", uniform=True, fixed=True)
"""What an operation for its effect gives."""


def statement(template: str) -> Callable[[Emitter, ir.Call], Val]:
    """What writes an operation as a line: a template of `mask` and `count`, its argument."""

    def write(e: Emitter, call: ir.Call) -> Val:
        if template:
            count = int(call.args[0].value) if "{count}" in template else 0
            e.line(template.format(mask=e.mask, count=count))
        return NOTHING

    return write


def _bitwise(e: Emitter, call: ir.Call) -> Val:
    dtype, width = split(call.dtype)
    a, b = (e.expr(each) for each in call.args)
    found = e.apply(f"({{}} {_BITWISE[call.op]} {{}})", dtype, a, b)
    if call.op == "tirx.shift_left":
        found = replace(found, code=f"narrowed({found.code}, {dtype!r})")
    return replace(found, width=width)


def _bitwise_not(e: Emitter, call: ir.Call) -> Val:
    dtype, width = split(call.dtype)
    found = e.apply("(~{})", dtype, e.expr(call.args[0]))
    return replace(found, code=f"narrowed({found.code}, {dtype!r})", width=width)


def _float(e: Emitter, call: ir.Call) -> Val:
    dtype, width = split(call.dtype)
    count = 2 if call.op in BINARY else 1
    args = [e.expr(each) for each in call.args[:count]]
    function = FLOAT.get(call.op) or ROUNDING[call.op]
    if not is_float(dtype):
        return replace(e.apply("abs({})", dtype, *args), width=width)
    template = f"{function}({', '.join(['dense({})'] * count)})"
    return replace(e.apply(template, dtype, *args), width=width)


def _test(e: Emitter, call: ir.Call) -> Val:
    return e.apply(f"{TESTS[call.op]}({{}})", "bool", e.expr(call.args[0]))


def _choice(e: Emitter, call: ir.Call) -> Val:
    condition, true, false = call.args
    return choose(e, condition, true, false, call.dtype)


def _infinity(e: Emitter, call: ir.Call) -> Val:
    del e
    return Val("F32('inf')", split(call.dtype)[0], uniform=True, fixed=True)


def _first(e: Emitter, call: ir.Call) -> Val:
    return e.expr(call.args[0])


def _fused(e: Emitter, call: ir.Call) -> Val:
    dtype, width = split(call.dtype)
    return replace(e.apply("({} * {} + {})", dtype, *map(e.expr, call.args[:3])), width=width)


def _clamp(e: Emitter, call: ir.Call) -> Val:
    value, low, high = call.args
    return e.expr(ir.Min(call.dtype, ir.Max(call.dtype, value, low), high))


def _reinterpret(e: Emitter, call: ir.Call) -> Val:
    value = e.expr(call.args[0])
    dtype, width = split(call.dtype)
    if TILE_DTYPES[dtype].bits != TILE_DTYPES[value.dtype].bits or width != value.width:
        raise e.refuse(f"{call.op} of {value.dtype} as {call.dtype}")
    return e.apply(f"bits({{}}, {value.dtype!r}, {dtype!r})", dtype, value)


def _shuffle(e: Emitter, call: ir.Call) -> Val:
    """Elements of vectors with the numbers `indices`."""
    vectors = [e.expr(each) for each in call.args]
    parts = [f"spread(m, {v.code}, {v.width})[{k}]" for v in vectors for k in range(v.width)]
    chosen = [parts[k] for k in call.annotations["indices"]]
    dtype, width = split(call.dtype)
    code = chosen[0] if width == 1 else f"np.stack([{', '.join(chosen)}])"
    return Val(code, dtype, width)


def _pack(e: Emitter, call: ir.Call) -> Val:
    """`pack_b16(low, high)`: two elements of 16 bits in 32."""
    low, high = (e.let(e.expr(each)) for each in call.args)
    return Val(f"pack16({low.code}, {high.code}, {low.dtype!r})", "uint32")


def _jump(e: Emitter, call: ir.Call) -> Val:
    e.jump(call.op)
    return NOTHING


def _assert(e: Emitter, call: ir.Call) -> Val:
    """`device_assert(condition)`, `device_assert_with_msg(condition, message)`."""
    condition, message = e.expr(call.args[0]), "".join(str(a.value) for a in call.args[1:])
    e.line(f"asserted(m, {condition.code}, {message!r}, {e.mask}, {e.site()})")
    return NOTHING


OPERATIONS: dict[str, Any] = {
    **dict.fromkeys(JUMPS, _jump),
    **dict.fromkeys(("tl.device_assert", "tl.device_assert_with_msg"), _assert),
    **dict.fromkeys(_BITWISE, _bitwise),
    "tirx.bitwise_not": _bitwise_not,
    **dict.fromkeys((*FLOAT, *ROUNDING), _float),
    **dict.fromkeys(TESTS, _test),
    "tirx.if_then_else": _choice,
    "tl.infinity": _infinity,
    "tirx.infinity": _infinity,
    "tirx.likely": _first,
    "tirx.fma": _fused,
    "tl.ieee_fmaf": _fused,
    "tl.fma2": _fused,
    "tl.clamp": _clamp,
    "tirx.reinterpret": _reinterpret,
    "tirx.Shuffle": _shuffle,
    "tl.pack_b16": _pack,
}


# What generated source calls ----------------------------------------------------------------------


def narrowed(value: Any, dtype: str) -> Any:
    """An integer, or an array of them, as another integer dtype has it."""
    kind = TILE_DTYPES[dtype]
    size = kind.bits
    if size >= 64:
        return value
    value = value & ((1 << size) - 1)
    if kind.kind == "int":
        return (value ^ (1 << (size - 1))) - (1 << (size - 1))
    return value


def converted(value: Any, source: str, target: str) -> Any:
    """Numbers converted to another dtype, where one of the two is no integer."""
    ours, theirs = TILE_DTYPES[target], TILE_DTYPES[source]
    if ours.kind == "bool":
        return value != 0
    if not ours.floating:
        if theirs.floating:
            found = to_int(value, target)
            return found.astype(np.int64) if isinstance(found, np.ndarray) else int(found)
        return np.asarray(value, np.int64) if isinstance(value, np.ndarray) else int(value)
    wide = np.float64 if target == "float64" else np.float32
    found = value.astype(wide) if isinstance(value, np.ndarray) else wide(value)
    codec = CODECS.get(ours.codec or "")
    return codec.round(dense(found)) if codec is not None else found


def dense(value: Any) -> Any:
    """An array without gaps, which PyTorch and vector instructions take."""
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value


def divide(a: Any, b: Any) -> Any:
    """The quotient of floating-point numbers, without an exception."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a / b
    return np.float32(np.divide(a, b))


def spread(m: Machine, value: Any, width: int) -> Array:
    """A vector in all its elements: [width, lanes]."""
    return np.broadcast_to(np.asarray(value), (width, m.count))


def pack16(low: Any, high: Any, dtype: str) -> Any:
    """Two elements of 16 bits as one integer of 32."""
    parts = [np.asarray(bits(np.atleast_1d(x), dtype, "uint16"), np.int64) for x in (low, high)]
    return parts[0] & 0xFFFF | (parts[1] & 0xFFFF) << 16


def within(mask: Any, condition: Any) -> Any:
    """The mask of those lanes of a mask of which a condition holds; None if these are all lanes."""
    found = np.array(condition) if mask is None else mask & condition
    return None if found.all() else found


def some(mask: Any) -> bool:
    """Whether a mask switches any lane on."""
    return mask is None or bool(np.any(mask))


def without(m: Machine, mask: Any, gone: Any) -> Array:
    """The lanes of a mask that are not in another one."""
    on = np.ones(m.count, bool) if mask is None else mask
    found: Array = on & (False if gone is None else ~gone)
    return found


def asserted(m: Machine, condition: Any, message: str, mask: Any, site: int) -> None:
    """Raise AssertionError for lanes of which a condition does not hold."""
    failed = np.logical_not(np.broadcast_to(condition, (m.count,)))
    if mask is not None:
        failed = failed & mask
    if failed.any():
        by = findings.thread_name(m, int(np.flatnonzero(failed)[0]))
        text = f": {message}" if message else ""
        raise AssertionError(f"T.device_assert failed for {by}, at {m.site(site)}{text}")


def put(target: Array, value: Any, mask: Any) -> None:
    """Store to elements of the lanes themselves."""
    np.copyto(target, value, where=True if mask is None else mask, casting="unsafe")


def get_local(m: Machine, memory: Array, index: Any) -> Array:
    """Elements that lanes index in memory of their own."""
    index = np.clip(np.asarray(index), 0, len(memory) - 1)
    found: Array = memory[index, m.lanes]
    return found


def part(m: Machine, memory: Array, first: int, width: int, name: str, site: int) -> Array:
    """Elements in a row of what lanes have for themselves; past its end of no defined content."""
    found = memory[first : first + width]
    if len(found) < width:
        findings.outside_local(m, name, first, width, len(memory), site)
        found = np.concatenate([found, np.zeros((width - len(found), m.count), memory.dtype)])
    return found


def put_local(m: Machine, memory: Array, index: Any, value: Any, mask: Any) -> None:
    """Store to elements that lanes index in memory of their own."""
    index = np.broadcast_to(np.asarray(index), np.broadcast_shapes(np.shape(index), (m.count,)))
    value = np.broadcast_to(np.asarray(value), index.shape)
    lanes = np.broadcast_to(m.lanes, index.shape)
    on = (index >= 0) & (index < len(memory))
    if mask is not None:
        on = on & mask
    memory[index[on], lanes[on]] = value[on]


FUNCTIONS = (
    narrowed,
    converted,
    dense,
    divide,
    spread,
    pack16,
    within,
    some,
    without,
    asserted,
    put,
    get_local,
    part,
    put_local,
)
