"""Tile operations on numpy arrays; torch where it is faster."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.errors import Unsupported

from .mathematics import to_int
from .memory import clip, load_block, outside, store_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .codecs import Array, Codec
    from .masks import Dim

__all__ = [
    "convert",
    "copy_block",
    "gemm",
    "gemm_float8",
    "gemm_int",
    "im2col",
    "reduce_float",
    "reduce_int",
    "scan",
]


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
    if not src_units:
        _check_units(src_dims, src.shape, src_name)
    if dst_codec is None and rounding is None and _is_whole(dst, dst_dims):
        extents = tuple([d[1] for d in src_dims if type(d) is tuple])
        if extents and dst.dtype == (np.float32 if src_codec is not None else src.dtype):
            tile = dst if extents == dst.shape else dst.reshape(extents)
            _read_into(tile, src, src_codec, src_dims, safe)
            return
    if not dst_units:
        _check_units(dst_dims, dst.shape, dst_name)
    value = load_block(src, src_codec, src_dims, safe, src_name, guard=True)
    if dst_codec is None:
        value = convert(value, dst.dtype, rounding)
    shape = tuple([d[1] for d in dst_dims if type(d) is tuple])
    store_block(dst, dst_codec, dst_dims, value.reshape(shape), None, dst_name, guard=True)


def _check_units(dims: Sequence[Dim], shape: tuple[int, ...], name: str) -> None:
    """Single indices into memory that nothing guards must be inside."""
    for dim, n in zip(dims, shape, strict=True):
        if type(dim) is not tuple and not 0 <= dim < n:  # type: ignore[operator]
            outside(name, dims, shape)


def _is_whole(array: Array, dims: Sequence[Dim]) -> bool:
    """Whether a block is all of an array that lies in one piece."""
    for dim, n in zip(dims, array.shape, strict=True):
        if dim != (0, n, 1):
            return False
    return array.flags.c_contiguous


def _read_into(
    tile: Array, src: Array, codec: Codec | None, dims: Sequence[Dim], safe: Any
) -> None:
    """Read a block of global memory into a tile of its extents; outside is `safe`."""
    some, memory, inside, whole = clip(dims, src.shape)
    if not whole:
        cut = [k for k, part in enumerate(inside) if part.stop - part.start < tile.shape[k]]
        if some and len(cut) == 1:
            before, part = (slice(None),) * cut[0], inside[cut[0]]
            if part.start:
                tile[(*before, slice(0, part.start))] = safe
            if part.stop < tile.shape[cut[0]]:
                tile[(*before, slice(part.stop, None))] = safe
        else:
            tile[...] = safe
    if some and codec is None:
        tile[inside] = src[memory]
    elif some and codec is not None:
        codec.widen_into(torch.from_numpy(tile[inside]), src[memory])


def convert(value: Array, dtype: Any, rounding: Codec | None) -> Array:
    """`value` as an array of `dtype`, as a cast in C++ on the GPU would make it."""
    if value.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
        return to_int(value, np.dtype(dtype).name)  # type: ignore[no-any-return]
    if value.dtype != dtype:
        value = value.astype(dtype)
    if rounding is not None:
        value = rounding.round(value)
    return value


# Whether float32 factors of a product are cut to TF32; per thread, set for a launch.
TF32: ContextVar[bool] = ContextVar("tlmatrix_tf32", default=False)


# Bits that the tensor cores keep of sums of float8 products; None for all. Set as TF32 is.
FLOAT8_BITS: ContextVar[int | None] = ContextVar("tlmatrix_float8_bits", default=None)
_FLOAT8_GROUP = 32
"""Products that the tensor cores add at once."""


def _tf32(factor: torch.Tensor) -> torch.Tensor:
    """Float32 without its last 13 bits, which the tensor cores do not read."""
    if factor.dtype != torch.float32:
        return factor
    return (factor.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    transpose_a: bool,
    transpose_b: bool,
    clear: Any,
) -> None:
    """`c = a @ b` or `c += a @ b` in the precision of `c`."""
    if transpose_a:
        a = a.t()
    if transpose_b:
        b = b.t()
    if TF32.get():
        # Other dtypes travel as float32 and have no more bits than TF32 keeps.
        a, b = _tf32(a), _tf32(b)
    if clear:
        torch.mm(a, b, out=c)
    else:
        c.addmm_(a, b)


def gemm_float8(
    a: Array, b: Array, c: Array, transpose_a: bool, transpose_b: bool, clear: Any
) -> None:
    """`gemm` of float8 factors as the tensor cores add their products.

    Those of Hopper align 32 products and the sum so far to the largest of them, cut off what lies
    below its 14th bit, and add what is left: measured on an H200 (docs/results, GEMM); that
    they keep about 14 bits is told in DeepSeek-V3, arXiv:2412.19437, section 3.3.2.
    """
    bits = FLOAT8_BITS.get()
    left, right = a.T if transpose_a else a, b.T if transpose_b else b
    total = np.zeros_like(c) if clear else c.copy()
    if bits is None:
        np.add(total, left @ right, out=c)
        return
    for start in range(0, left.shape[1], _FLOAT8_GROUP):
        group = slice(start, start + _FLOAT8_GROUP)
        products = left[:, group, None] * right[None, group, :]
        largest = np.maximum(np.abs(products).max(axis=1), np.abs(total))
        # largest = fraction * 2**exponent with a fraction from 1/2 to 1.
        shift = bits - np.frexp(largest)[1]
        kept = np.trunc(np.ldexp(products, shift[:, None, :])).sum(axis=1)
        finite = np.ldexp(kept + np.trunc(np.ldexp(total, shift)), -shift)
        # NaN and infinity have no exponent to align to.
        total = np.where(np.isfinite(largest), finite, total + products.sum(axis=1))
    np.copyto(c, total)


def gemm_int(
    a: Array, b: Array, c: Array, transpose_a: bool, transpose_b: bool, clear: Any
) -> None:
    """`gemm` of integers, exact and wrapping in the width of `c`."""
    # Exact below 2^53: products of 8-bit integers never come near it.
    left, right = a.astype(np.float64), b.astype(np.float64)
    product = (left.T if transpose_a else left) @ (right.T if transpose_b else right)
    total = product.astype(np.int64) + (0 if clear else c.astype(np.int64))
    np.copyto(c, total.astype(c.dtype))


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

_PROPAGATE: dict[str, Any] = {"max": np.maximum, "absmax": np.maximum, "min": np.minimum}


def reduce_float(
    kind: str,
    src: torch.Tensor,
    axis: int,
    dst: Array,
    clear: Any,
    rounding: Codec | None,
    nan_propagate: bool = False,
) -> None:
    """`T.reduce_*` over `axis` of `src` into `dst`; without `clear` combined with what it holds.

    A maximum or minimum ignores NaN, unless `nan_propagate`.
    """
    if src.shape[axis] == 0:
        raise Unsupported(f"T.reduce_{kind} over an empty dimension")
    if kind in ("abssum", "absmax"):
        src = src.abs()
    value: Any
    if kind in ("sum", "abssum"):
        value = torch.sum(src, axis).numpy()
    else:
        value = (torch.amin if kind == "min" else torch.amax)(src, axis).numpy()
        if not nan_propagate and np.count_nonzero(np.isnan(value)):
            # CUDA's fmaxf and fminf ignore NaN beside a number.
            value = _COMBINE[kind].reduce(src.numpy(), axis)
    value = value.reshape(dst.shape)
    combine = _PROPAGATE[kind] if nan_propagate else _COMBINE[kind]
    if not clear and rounding is None and value.dtype == dst.dtype:
        combine(dst, value, out=dst)
        return
    if not clear:
        value = combine(dst, value)
    if rounding is not None:
        rounding.round_into(dst, np.ascontiguousarray(value, np.float32))
    else:
        np.copyto(dst, value, casting="unsafe")


def reduce_int(kind: str, src: Array, axis: int, dst: Array, clear: Any) -> None:
    """`reduce_float` of integers and booleans."""
    if src.shape[axis] == 0:
        raise Unsupported(f"T.reduce_{kind} over an empty dimension")
    if kind in ("abssum", "absmax"):
        src = np.abs(src)
    if kind in ("sum", "abssum"):
        value = np.add.reduce(src, axis, dtype=dst.dtype)
    else:
        value = _COMBINE[kind].reduce(src, axis)
    value = value.reshape(dst.shape)
    np.copyto(dst, value if clear else _COMBINE[kind](dst, value), casting="unsafe")


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


def im2col(
    image: Array,
    codec: Codec | None,
    out: Array,
    row: int,
    step: int,
    kernel: int,
    stride: int,
    dilation: int,
    pad: int,
) -> None:
    """`T.im2col` of an image [n, h, w, c] into the tile `out` [pixels, channels].

    Tile (`row`, `step`) of the matrix [n * h_out * w_out, kernel * kernel * c]; outside the image
    is 0. All channels of a tile belong to one tap of the filter.

    Raises:
        Unsupported: if the channels of the image are no multiple of the tile's.
    """
    pixels, width = out.shape
    n, h, w, channels = image.shape
    if channels % width:
        raise Unsupported(f"T.im2col of {width} channels at a time from an image of {channels}")
    h_out = (h + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1
    w_out = (w + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1
    tap, channel = divmod(step * width, channels)
    pixel = row * pixels + np.arange(pixels)
    index = (
        pixel // (w_out * h_out),
        pixel // w_out % h_out * stride - pad + tap // kernel * dilation,
        pixel % w_out * stride - pad + tap % kernel * dilation,
    )
    inside = (tap // kernel < kernel) & np.ones(pixels, bool)
    for at, extent in zip(index, (n, h, w), strict=True):
        inside &= (at >= 0) & (at < extent)
    at_pixel = tuple(np.where(inside, at, 0) for at in index)
    values = image[..., channel : channel + width][at_pixel]
    if codec is not None:
        values = codec.widen(values)
    np.copyto(out, np.where(inside[:, None], values, 0))
