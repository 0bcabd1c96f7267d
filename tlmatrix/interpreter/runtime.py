"""What generated kernels call: memory with TileLang's bounds rules, tile operations, mathematics.

Everything here works on numpy arrays; torch is used where it is faster (rounding to low
precision, exp2, matrix products, reductions). A `block` is an access whose index in every
dimension is a number or a range; its dims are given as `int` or `(start, extent, step)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .errors import InterpreterError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CODECS", "Array", "Codec", "environment"]

Array = np.ndarray[Any, Any]
Dim = int | tuple[int, int, int]
F32 = np.float32


@dataclass(frozen=True)
class Codec:
    """How a low-precision dtype lies in global memory and how values are rounded to it.

    Attributes:
        name: the dtype's name.
        dtype: torch's dtype.
        bits: torch's integer dtype of the same width, where numpy has no such float.
        limit: largest finite value when conversion saturates (CUDA's float8), else None.
    """

    name: str
    dtype: torch.dtype
    bits: torch.dtype | None
    limit: float | None = None

    def view(self, tensor: torch.Tensor) -> Array:
        """The tensor's memory as a numpy array; `widen` and `narrow` translate its elements."""
        if self.bits is not None:
            tensor = tensor.view(self.bits)
        return tensor.numpy()

    def _torch(self, array: Array) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor.view(self.dtype) if self.bits is not None else tensor

    def widen(self, array: Array) -> Array:
        """The elements of a memory view as a new float32 array."""
        out: Array = self._torch(array).float().numpy()
        return out

    def widen_into(self, out: Array, array: Array) -> None:
        """Like `widen`, into `out`."""
        torch.from_numpy(out).copy_(self._torch(array))

    def _saturated(self, values: Any) -> Any:
        return values if self.limit is None else np.clip(values, -self.limit, self.limit)

    def narrow(self, out: Array, values: Any, where: Any = None) -> None:
        """Round float32 `values` into the memory view `out`, where `where` holds."""
        values = self._saturated(np.asarray(values, np.float32))
        if where is None:
            tensor = torch.from_numpy(values) if values.ndim else torch.tensor(float(values))
            self._torch(out).copy_(tensor)
            return
        raw = np.empty(np.broadcast_shapes(out.shape, values.shape), out.dtype)
        self._torch(raw).copy_(torch.from_numpy(np.ascontiguousarray(values)))
        np.copyto(out, raw, where=where)

    def pack(self, values: Any) -> Array:
        """Round float32 `values` into a new array of the memory's own element type."""
        values = self._saturated(np.array(values, np.float32, ndmin=1))
        tensor = torch.from_numpy(values).to(self.dtype)
        packed: Array = (tensor if self.bits is None else tensor.view(self.bits)).numpy()
        return packed

    def round(self, values: Any) -> Any:
        """`values` rounded to this precision, as a new float32 array or scalar."""
        if not isinstance(values, np.ndarray):
            saturated = self._saturated(F32(values))
            return F32(torch.tensor(float(saturated)).to(self.dtype).float().item())
        values = self._saturated(values)
        return torch.from_numpy(values).to(self.dtype).float().numpy()

    def round_into(self, out: Array, values: Any) -> None:
        """Round `values` into the float32 array `out` (which may be `values`)."""
        if not isinstance(values, np.ndarray):
            out.fill(self.round(values))
            return
        values = self._saturated(values)
        torch.from_numpy(out).copy_(torch.from_numpy(values).to(self.dtype))


CODECS = {
    "f16": Codec("float16", torch.float16, None),
    "bf16": Codec("bfloat16", torch.bfloat16, torch.int16),
    "e4m3": Codec("float8_e4m3fn", torch.float8_e4m3fn, torch.uint8, 448.0),
    "e5m2": Codec("float8_e5m2", torch.float8_e5m2, torch.uint8, 57344.0),
}


# ---------------------------------------------------------------------------------------
# Buffers


def poison(dtype: str) -> Any:
    """What memory holds before its first write: NaN, or an integer no index can be."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return kind.type(np.nan)
    if kind.kind == "b":
        return np.True_
    return np.iinfo(kind).max - 3


def allocate(shape: tuple[int, ...], dtype: str) -> Array:
    """A new poisoned buffer."""
    return np.full(shape, poison(dtype), dtype)


def iota(extent: int, axis: int, rank: int) -> Array:
    """`0 .. extent-1` along `axis` of a rank-`rank` array (int32)."""
    shape = [1] * rank
    shape[axis] = extent
    return np.arange(extent, dtype=np.int32).reshape(shape)


def outside(name: str, indices: Sequence[Any], shape: Sequence[int]) -> None:
    """Report an access outside a buffer that nothing guards.

    Raises:
        InterpreterError: always.
    """
    spelled = ", ".join(
        f"{d[0]}:{d[0] + (d[1] - 1) * d[2] + 1}" if isinstance(d, tuple) else str(int(d))
        for d in indices
    )
    raise InterpreterError(
        f"index out of bounds: {name}[{spelled}], but {name} has shape {tuple(shape)}"
    )


def require(name: str, axis: int, index: int, shape: Sequence[int]) -> None:
    """Check a constant index, which TileLang never guards."""
    if not 0 <= index < shape[axis]:
        raise InterpreterError(
            f"index out of bounds: {name} has shape {tuple(shape)}, "
            f"and dimension {axis} is read at the constant index {index}"
        )


def at(
    array: Array, codec: Codec | None, index: tuple[int, ...], safe: Any, name: str, guard: bool
) -> Any:
    """One element: a Python int or bool, or a float of the buffer's precision."""
    for i, n in zip(index, array.shape, strict=True):
        if not 0 <= i < n:
            if guard:
                return safe
            outside(name, index, array.shape)
    if codec is not None:
        return codec.widen(array[(*index, None)])[0]
    value = array[index]
    return value if array.dtype.kind == "f" else value.item()


def put(
    array: Array, codec: Codec | None, index: tuple[int, ...], value: Any, name: str, guard: bool
) -> None:
    """Store one element."""
    for i, n in zip(index, array.shape, strict=True):
        if not 0 <= i < n:
            if guard:
                return
            outside(name, index, array.shape)
    if codec is not None:
        codec.narrow(array[(*index, None)], value)
    else:
        array[index] = value


def _clip(
    dims: Sequence[Dim], shape: Sequence[int]
) -> tuple[bool, tuple[int | slice, ...], tuple[slice, ...], bool]:
    """Split a block into the part that lies inside.

    Returns:
        Whether anything is inside, the index of that part in the buffer and in the block, and
        whether the whole block is inside.
    """
    memory: list[int | slice] = []
    tile: list[slice] = []
    some = whole = True
    for dim, n in zip(dims, shape, strict=True):
        if isinstance(dim, tuple):
            start, extent, step = dim
            first = 0 if start >= 0 else -(start // step)
            last = min(extent, (n - 1 - start) // step + 1)
            if first > 0 or last < extent:
                whole = False
                if last <= first:
                    some = False
                    last = first
            memory.append(slice(start + first * step, start + last * step, step))
            tile.append(slice(first, last))
        else:
            if not 0 <= dim < n:
                some = whole = False
            memory.append(dim)
    return some, tuple(memory), tuple(tile), whole


def load_block(
    array: Array, codec: Codec | None, dims: Sequence[Dim], safe: Any, name: str, guard: bool
) -> Array:
    """A block of a buffer; where it is outside, `safe` (or an error where nothing guards)."""
    some, memory, tile, whole = _clip(dims, array.shape)
    if not whole and not guard:
        outside(name, dims, array.shape)
    if whole:
        return codec.widen(array[memory]) if codec is not None else array[memory]
    extents = tuple(dim[1] for dim in dims if isinstance(dim, tuple))
    out = np.full(extents, safe, np.float32 if codec is not None else array.dtype)
    if some:
        part = array[memory]
        out[tile] = codec.widen(part) if codec is not None else part
    return out


def store_block(
    array: Array,
    codec: Codec | None,
    dims: Sequence[Dim],
    value: Any,
    where: Any,
    name: str,
    guard: bool,
) -> None:
    """Store a block; elements outside are skipped (or an error where nothing guards)."""
    some, memory, tile, whole = _clip(dims, array.shape)
    if not whole:
        if not guard:
            outside(name, dims, array.shape)
        if not some:
            return
        extents = tuple(dim[1] for dim in dims if isinstance(dim, tuple))
        if isinstance(value, np.ndarray):
            value = np.broadcast_to(value, extents)[tile]
        if where is not None:
            where = np.broadcast_to(where, extents)[tile]
    view = array[memory]
    if codec is not None:
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            value = value.copy()
        codec.narrow(view, value, where)
    elif where is None:
        np.copyto(view, value, casting="unsafe")
    else:
        np.copyto(view, value, where=where, casting="unsafe")


def _inside(
    array: Array, index: tuple[Any, ...], mask: Any, name: str, guard: bool
) -> tuple[tuple[Any, ...], Any]:
    """The index with outside lanes moved to 0, and which lanes are inside (None: all)."""
    ok: Any = None
    for i, n in zip(index, array.shape, strict=True):
        inside = (np.asarray(i) >= 0) & (np.asarray(i) < n)
        if not inside.all():
            ok = inside if ok is None else ok & inside
    if ok is None:
        return index, None
    if not guard:
        bad = ~ok if mask is None else ~ok & mask
        if bad.any():
            lane = tuple(np.argwhere(bad)[0])
            where = [np.broadcast_to(i, bad.shape)[lane] for i in index]
            outside(name, where, array.shape)
    return tuple(np.where(ok, i, 0) for i in index), ok


def gather(
    array: Array,
    codec: Codec | None,
    index: tuple[Any, ...],
    mask: Any,
    safe: Any,
    name: str,
    guard: bool,
) -> Any:
    """Elements at arbitrary indices, one a lane."""
    index, ok = _inside(array, index, mask, name, guard)
    if 0 in array.shape:
        shape = np.broadcast_shapes(*(np.shape(i) for i in index))
        return np.full(shape, safe, np.float32 if codec is not None else array.dtype)
    out = array[index]
    if codec is not None:
        out = codec.widen(out)
    return out if ok is None else np.where(ok, out, out.dtype.type(safe))


def scatter(
    array: Array,
    codec: Codec | None,
    index: tuple[Any, ...],
    value: Any,
    mask: Any,
    name: str,
    guard: bool,
) -> None:
    """Store one element a lane; of lanes that write the same element the last wins."""
    index, ok = _inside(array, index, mask, name, guard)
    keep = mask if ok is None else ok if mask is None else ok & mask
    if 0 in array.shape:
        return
    if keep is not None:
        shape = np.broadcast_shapes(np.shape(keep), np.shape(value), *(np.shape(i) for i in index))
        keep = np.broadcast_to(keep, shape)
        index = tuple(np.broadcast_to(i, shape)[keep] for i in index)
        value = np.broadcast_to(value, shape)[keep]
    if codec is not None:
        value = codec.pack(value)
    array[index] = value


def lanes(value: Any, shape: tuple[int, ...]) -> Array:
    """A local buffer with one copy a lane: shape `[*buffer, *lanes]`."""
    base = np.asarray(value)
    spread = base.reshape(base.shape + (1,) * len(shape))
    return np.broadcast_to(spread, base.shape + shape).copy()


def collapse(expanded: Array, rank: int) -> Array:
    """After a parallel loop: what every lane of a local buffer agrees on; the rest is poison."""
    flat = expanded.reshape((*expanded.shape[:rank], -1))
    blank = poison(str(expanded.dtype))
    if flat.shape[-1] == 0:
        return np.full(flat.shape[:-1], blank, expanded.dtype)
    first = flat[..., :1]
    same = ((flat == first) | ((flat != flat) & (first != first))).all(-1)  # noqa: PLR0124
    return np.where(same, first[..., 0], expanded.dtype.type(blank))


def agreed(expanded: Array) -> Any:
    """`collapse` of a variable: a scalar."""
    value = collapse(expanded, 1)[0]
    return value if expanded.dtype.kind == "f" else value.item()


# ---------------------------------------------------------------------------------------
# Tile operations


def copy_block(
    dst: Array,
    dst_codec: Codec | None,
    dst_dims: Sequence[Dim],
    src: Array,
    src_codec: Codec | None,
    src_dims: Sequence[Dim],
    *,
    rounding: Codec | None,
    safe: Any,
    src_name: str,
    dst_name: str,
    src_units: bool,
    dst_units: bool,
) -> None:
    """`T.copy` with its predicates: outside the source reads `safe`, outside the destination skips.

    Ranges are predicated on both sides whatever the memory; a single index (an extent of one)
    is guarded only in global memory (`src_units`, `dst_units`).
    """
    for dims, shape, name, units in (
        (src_dims, src.shape, src_name, src_units),
        (dst_dims, dst.shape, dst_name, dst_units),
    ):
        if not units:
            for dim, n in zip(dims, shape, strict=True):
                if not isinstance(dim, tuple) and not 0 <= dim < n:
                    outside(name, dims, shape)
    value = load_block(src, src_codec, src_dims, safe, src_name, guard=True)
    if dst_codec is None:
        value = convert(value, dst.dtype, rounding)
    shape = tuple(d[1] for d in dst_dims if isinstance(d, tuple))
    store_block(dst, dst_codec, dst_dims, value.reshape(shape), None, dst_name, guard=True)


def convert(value: Array, dtype: Any, rounding: Codec | None) -> Array:
    """`value` as an array of `dtype`, as a cast in C++ on the GPU would make it."""
    if value.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
        return to_int(value, np.dtype(dtype).name)  # type: ignore[no-any-return]
    if value.dtype != dtype:
        value = value.astype(dtype)
    if rounding is not None:
        value = rounding.round(value)
    return value


def gemm(
    a: Array, b: Array, c: Array, transpose_a: bool, transpose_b: bool, clear: Any, rounding: Any
) -> None:
    """`c = a @ b` or `c += a @ b`, accumulated in the precision of `c` (float32 at least)."""
    if transpose_a:
        a = a.T
    if transpose_b:
        b = b.T
    if c.dtype.kind in "iu":
        # Exact below 2^53: products of 8-bit integers never come near it.
        product = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
        total = product if clear else c.astype(np.int64) + product
        np.copyto(c, total.astype(c.dtype))
        return
    if a.dtype != c.dtype:
        a = a.astype(c.dtype)
    if b.dtype != c.dtype:
        b = b.astype(c.dtype)
    target = torch.from_numpy(c)
    left, right = torch.from_numpy(a), torch.from_numpy(b)
    if clear:
        torch.mm(left, right, out=target)
    else:
        target.addmm_(left, right)
    if rounding is not None:
        rounding.round_into(c, c)


def _float_extreme(values: Array, axis: int, largest: bool) -> Array:
    tensor = torch.from_numpy(values)
    found: Array = (torch.amax(tensor, axis) if largest else torch.amin(tensor, axis)).numpy()
    if np.isnan(found).any():
        # CUDA's fmaxf and fminf ignore NaN beside a number.
        return (np.fmax if largest else np.fmin).reduce(values, axis)
    return found


_COMBINE: dict[str, Any] = {
    "sum": np.add,
    "abssum": np.add,
    "max": np.fmax,
    "absmax": np.fmax,
    "min": np.fmin,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
}


def reduce(
    kind: str, src: Array, axis: int, dst: Array, clear: Any, rounding: Codec | None
) -> None:
    """`T.reduce_*` over `axis` of `src` into `dst`; without `clear` combined with what it holds."""
    if kind in ("abssum", "absmax"):
        src = np.abs(src)
    if src.shape[axis] == 0:
        raise Unsupported(f"T.reduce_{kind} over an empty dimension")
    value: Any
    if src.dtype.kind == "f":
        if kind in ("sum", "abssum"):
            value = torch.sum(torch.from_numpy(src), axis).numpy()
        else:
            value = _float_extreme(src, axis, kind != "min")
    elif kind in ("sum", "abssum"):
        value = np.add.reduce(src, axis, dtype=dst.dtype)
    else:
        value = _COMBINE[kind].reduce(src, axis)
    value = value.reshape(dst.shape)
    if not clear:
        value = _COMBINE[kind](dst, value)
    if rounding is not None:
        rounding.round_into(dst, np.ascontiguousarray(value, np.float32))
    else:
        np.copyto(dst, value, casting="unsafe")


def scan(
    kind: str, src: Array, axis: int, reverse: bool, dst: Array, rounding: Codec | None
) -> None:
    """`T.cumsum` and `T.cummax` along `axis`."""
    source = np.flip(src, axis) if reverse else src
    if kind == "cumsum":
        value = np.cumsum(source, axis, dtype=src.dtype)
    else:
        value = np.maximum.accumulate(source, axis)
    if reverse:
        value = np.flip(value, axis)
    if rounding is not None:
        value = rounding.round(np.ascontiguousarray(value))
    np.copyto(dst, value.reshape(dst.shape))


_ATOMIC: dict[str, Any] = {
    "add": np.add,
    "max": np.fmax,
    "min": np.fmin,
    "or": np.bitwise_or,
}


def atomic_block(
    kind: str,
    array: Array,
    codec: Codec | None,
    dims: Sequence[Dim],
    value: Any,
    where: Any,
    name: str,
    guard: bool,
) -> None:
    """An atomic on each element of a block, each touched once; elements outside are skipped."""
    some, memory, tile, whole = _clip(dims, array.shape)
    if not whole:
        if not guard:
            outside(name, dims, array.shape)
        if not some:
            return
        extents = tuple(dim[1] for dim in dims if isinstance(dim, tuple))
        if isinstance(value, np.ndarray):
            value = np.broadcast_to(value, extents)[tile]
        if where is not None:
            where = np.broadcast_to(where, extents)[tile]
    view = array[memory]
    old = codec.widen(view) if codec is not None else view
    new = _ATOMIC[kind](old, value)
    if codec is not None:
        codec.narrow(view, new, where)
    elif where is None:
        np.copyto(view, new, casting="unsafe")
    else:
        np.copyto(view, new, where=where, casting="unsafe")


def atomic_lanes(
    kind: str,
    array: Array,
    codec: Codec | None,
    index: tuple[Any, ...],
    value: Any,
    mask: Any,
    shape: tuple[int, ...],
    name: str,
    guard: bool,
    previous: bool,
) -> Any:
    """One atomic a lane, in the order of the lanes; with `previous` what each found there."""
    index, ok = _inside(array, index, mask, name, guard)
    keep = mask if ok is None else ok if mask is None else ok & mask
    active = None if keep is None else np.broadcast_to(keep, shape)
    at_lane = tuple(
        np.broadcast_to(i, shape).ravel() if active is None else np.broadcast_to(i, shape)[active]
        for i in index
    )
    spread = np.broadcast_to(value, shape)
    values = spread.ravel() if active is None else spread[active]
    if not previous and codec is None:
        _ATOMIC[kind].at(array, at_lane, values)
        return None
    found = np.zeros(len(values), np.float32 if codec is not None else array.dtype)
    for lane, operand in enumerate(values):
        place = tuple(int(i[lane]) for i in at_lane)
        old = codec.widen(array[(*place, None)])[0] if codec is not None else array[place]
        found[lane] = old
        new = _ATOMIC[kind](old, operand)
        if codec is not None:
            codec.narrow(array[(*place, None)], new)
        else:
            array[place] = new
    if not previous:
        return None
    if active is None:
        return found.reshape(shape)
    out = np.zeros(shape, found.dtype)
    out[active] = found
    return out


# ---------------------------------------------------------------------------------------
# Mathematics

# Below this many elements numpy's smaller call overhead wins.
_TORCH_FROM = 512


def _mixed(in_torch: Callable[..., Any], in_numpy: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, out: Array | None = None) -> Any:
        if isinstance(x, np.ndarray) and x.size >= _TORCH_FROM:
            if out is None:
                return in_torch(torch.from_numpy(x)).numpy()
            in_torch(torch.from_numpy(x), out=torch.from_numpy(out))
            return out
        if out is None:
            return in_numpy(x)
        np.copyto(out, in_numpy(x))
        return out

    return call


def _np_sigmoid(x: Any) -> Any:
    one = np.asarray(x).dtype.type(1)
    return one / (one + np.exp(-x))


def _np_rsqrt(x: Any) -> Any:
    return np.asarray(x).dtype.type(1) / np.sqrt(x)


def _np_erf(x: Any) -> Any:
    return torch.erf(torch.as_tensor(x)).numpy()[()]


exp2 = _mixed(torch.exp2, np.exp2)
log = _mixed(torch.log, np.log)
log2 = _mixed(torch.log2, np.log2)
tanh = _mixed(torch.tanh, np.tanh)
sigmoid = _mixed(torch.sigmoid, _np_sigmoid)
rsqrt = _mixed(torch.rsqrt, _np_rsqrt)
erf = _mixed(torch.erf, _np_erf)


def round_away(x: Any, out: Any = None) -> Any:
    """Round half away from zero, as C's `round`."""
    return np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x, out)


def exp10(x: Any, out: Any = None) -> Any:
    """Ten to the power `x`."""
    return np.power(x.dtype.type(10), x, out)


def to_int(x: Any, dtype: str) -> Any:
    """Float to integer: towards zero, saturating, NaN to 0, as CUDA converts."""
    info = np.iinfo(dtype)
    if not isinstance(x, np.ndarray):
        number = float(x)
        if math.isnan(number):
            return 0
        return int(min(max(number, info.min), info.max))
    with np.errstate(invalid="ignore"):
        out = x.astype(dtype)
    odd = ~(np.abs(x) < float(info.max))
    if odd.any():
        out[x >= float(info.max)] = info.max
        out[x <= float(info.min)] = info.min
        out[np.isnan(x)] = 0
    return out


def wrap(x: int, bits: int, signed: bool) -> int:
    """A Python integer in two's complement of `bits`."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if signed and x >> (bits - 1) else x


def div(a: Any, b: Any) -> Any:
    """Integer division that rounds down."""
    if not isinstance(b, np.ndarray) and b == 0:
        raise InterpreterError("integer division by zero")
    return a // b


def mod(a: Any, b: Any) -> Any:
    """The remainder of `div`; has the sign of `b`."""
    if not isinstance(b, np.ndarray) and b == 0:
        raise InterpreterError("integer modulo by zero")
    return a % b


def trunc_div(a: Any, b: Any) -> Any:
    """Integer division towards zero, as C's `/`."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        quotient = np.floor_divide(a, b)
        return quotient + ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)
    if b == 0:
        raise InterpreterError("integer division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def trunc_mod(a: Any, b: Any) -> Any:
    """The remainder of `trunc_div`; has the sign of `a`."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.fmod(a, b)
    return a - b * trunc_div(a, b)


def fmax(a: Any, b: Any) -> Any:
    """Scalar maximum; a NaN beside a number is ignored."""
    return np.fmax(a, b)


def select(condition: Any, a: Any, b: Any, dtype: Any) -> Array:
    """`a` where `condition` holds, else `b`, as a new array of `dtype`."""
    if not isinstance(a, np.ndarray) or a.dtype != dtype:
        a = np.asarray(a, dtype)
    if not isinstance(b, np.ndarray) or b.dtype != dtype:
        b = np.asarray(b, dtype)
    return np.where(condition, a, b)


def bits(value: Any, source: str, target: str) -> Any:
    """`T.reinterpret`: the same bits as another dtype of the same width."""
    array = np.asarray(value).astype(source).view(target)
    if isinstance(value, np.ndarray):
        return array
    return array[()] if array.dtype.kind == "f" else array.item()


def popcount(x: Any) -> Any:
    """How many bits are set."""
    if isinstance(x, np.ndarray):
        unsigned = x.view(x.dtype.str.replace("i", "u"))
        return np.bitwise_count(unsigned).astype(x.dtype)
    return (x & 0xFFFFFFFFFFFFFFFF).bit_count()


def environment() -> dict[str, Any]:
    """The names that generated source may use."""
    here = globals()
    names = (
        "F32 poison allocate iota outside require at put load_block store_block gather scatter "
        "lanes collapse agreed copy_block convert gemm reduce scan atomic_block atomic_lanes "
        "exp2 log log2 tanh sigmoid rsqrt erf round_away exp10 to_int wrap div mod trunc_div "
        "trunc_mod select bits popcount"
    ).split()
    found = {name: here[name] for name in names}
    found.update(CODECS)
    found.update(np=np, torch=torch, INF=math.inf, NAN=math.nan)
    return found
