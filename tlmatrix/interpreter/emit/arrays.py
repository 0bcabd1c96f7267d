"""Operations on arrays, written into memory that is free."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.runtime.mathematics import fills_vectors

from .values import Val, is_float, numpy_name

if TYPE_CHECKING:
    from .emitter import Emitter

# Functions that torch computes faster than NumPy on the memory of a tile.
_TORCH = frozenset({"exp", "exp2", "log2", "log", "tanh", "rsqrt"})
_TORCH_SPREADS = {"np.add": "add", "np.subtract": "sub", "np.multiply": "mul", "np.divide": "div"}
"""What torch computes faster where one operand is the same along each row."""


def axes_of(values: tuple[Val, ...]) -> frozenset[int]:
    """The axes over which some of the values vary."""
    return frozenset[int]().union(*(v.axes for v in values))


def consume(e: Emitter, *values: Val) -> None:
    """Note that views of the destination were used up."""
    if e.dest is not None:
        for value in values:
            if value.alias == e.dest.name:
                e.dest.live -= 1


def free_dest(e: Emitter, axes: frozenset[int], np_dtype: str) -> str | None:
    """The destination's view, where a result of this kind may be written to it now."""
    dest = e.dest
    if (
        dest is not None
        and dest.axes == axes
        and dest.np_dtype == np_dtype
        and dest.reads_left == 0
        and dest.live == 0
    ):
        return dest.view
    return None


def is_last_use(e: Emitter, value: Val) -> bool:
    """Whether a value is the last user of the destination's memory."""
    dest = e.dest
    return dest is not None and value.code == dest.view and dest.live == 1 and dest.reads_left == 0


def result(e: Emitter, code: str, dtype: str, axes: frozenset[int], *, exact: bool) -> Val:
    """A value that an operation has just written to `code`."""
    dest = e.dest
    if dest is not None and code == dest.view:
        dest.live += 1
        return Val(code, dtype, axes, exact=exact, owned=True, alias=dest.name)
    return Val(code, dtype, axes, exact=exact, owned=True)


def apply(
    e: Emitter, function: str, args: tuple[Val, ...], dtype: str, *, exact: bool = True
) -> Val:
    """Write `function(*args)` into a place that is free: the destination or a temporary."""
    axes = axes_of(args)
    in_numpy = function.startswith("np.")
    operands = [
        e.constant(a) if in_numpy and a.lit is not None and is_float(a.dtype) else a.code
        for a in args
    ]
    codes = ", ".join(operands)
    consume(e, *args)
    np_dtype = numpy_name(dtype)
    out = free_dest(e, axes, np_dtype)
    if out is None:
        for a in args:
            same = a.axes == axes and numpy_name(a.dtype) == np_dtype
            if a.owned and same and a.alias is None:
                out = a.code
                break
    in_torch = function if function in _TORCH else _spread(e, function, args, axes, np_dtype)
    if function == "exp2" and not (_fills_vectors(e, out) and _fills_vectors(e, args[0].code)):
        in_torch = None
    if out is not None and in_torch and out in e.fixed and args[0].code in e.fixed:
        operand, *others, target = (e.tensor(code) for code in (*(a.code for a in args), out))
        if operand == target:
            e.w.line(f"{target}.{in_torch}_({', '.join(others)})")
        else:
            e.w.line(f"torch.{in_torch}({', '.join([operand, *others])}, out={target})")
    elif out is not None:
        e.w.line(f"{function}({codes}, out={out})")
    else:
        out = e.temp()
        e.w.line(f"{out} = {function}({codes})")
    return result(e, out, dtype, axes, exact=exact)


def _fills_vectors(e: Emitter, code: str | None) -> bool:
    """Whether `code` is a whole buffer, and `exp2` computes all of it in vectors."""
    shapes = (buf.static_shape for buf in e.buffers.values() if buf.code == code)
    shape = next(shapes, None)
    return shape is not None and fills_vectors(math.prod(shape))


def _spread(
    e: Emitter, function: str, args: tuple[Val, ...], axes: frozenset[int], np_dtype: str
) -> str | None:
    """Torch's name of a float operation of a tile and a column; None of others."""
    in_torch = _TORCH_SPREADS.get(function)
    if in_torch is None or np_dtype != "float32" or args[0].axes != axes:
        return None
    column = args[1]
    # NumPy copies an operand that is a part of the target; torch refuses it.
    in_target = e.dest is not None and column.alias == e.dest.name
    if column.scalar or max(axes) in column.axes or in_target:
        return None
    return in_torch if all(numpy_name(a.dtype) == np_dtype for a in args) else None


def named(e: Emitter, code: str, dtype: str, args: tuple[Val, ...], *, exact: bool = True) -> Val:
    """Evaluate `code` now, so that later stores do not change what it reads."""
    consume(e, *args)
    name = e.temp()
    e.w.line(f"{name} = {code}")
    return Val(name, dtype, axes_of(args), exact=exact, owned=True)


def pure(e: Emitter, code: str, dtype: str, args: tuple[Val, ...], **known: Any) -> Val:
    """An integer or boolean expression: left inline unless it reads memory."""
    axes = axes_of(args)
    if axes and any(a.alias is not None for a in args):
        return named(e, code, dtype, args)
    return Val(code, dtype, axes, **known)
