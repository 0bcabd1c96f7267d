"""Low-precision dtypes: how they lie in memory, how values are rounded to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tlmatrix.dtypes import TILE_DTYPES, DType, torch_dtype

from .masks import run_of

__all__ = ["CODECS", "F32", "Array", "Codec", "pack_into", "unpacked"]


Array = np.ndarray[Any, Any]
F32 = np.float32


@dataclass(frozen=True)
class Codec:
    """How a low-precision dtype lies in global memory and how values are rounded to it.

    Attributes:
        dtype: torch's dtype.
        bits: torch's integer dtype of the same width, where numpy has no such float.
        limit: largest finite value when conversion saturates (CUDA's float8), else None.
            `round` is the conversion; what is packed is converted already, where it is infinite.
    """

    dtype: torch.dtype
    bits: torch.dtype | None
    limit: float | None = None

    @classmethod
    def of(cls, dtype: DType) -> Codec:
        """The codec of a dtype of the registry."""
        bits = torch_dtype(dtype.held_as) if dtype.held_as is not None else None
        return cls(dtype.torch, bits, dtype.largest if dtype.saturates else None)

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

    def widen_into(self, out: torch.Tensor, array: Array) -> None:
        """Like `widen`, into `out`."""
        out.copy_(self._torch(array))

    def _saturated(self, values: Any) -> Any:
        return values if self.limit is None else np.clip(values, -self.limit, self.limit)

    def _fitted(self, values: Array) -> Array:
        """Values in the range of the dtype, which may have infinities."""
        fitted: Array = self._saturated(values)
        if self.dtype == torch.float8_e5m2:
            fitted = np.where(np.isinf(values), values, fitted)
        return fitted

    def _narrow(self, out: Array, values: Array) -> None:
        """Round saturated `values` into all of `out`."""
        tensor = torch.from_numpy(values) if values.ndim else torch.tensor(float(values))
        self._torch(out).copy_(tensor)

    def narrow(self, out: Array, values: Any, where: Any = None) -> None:
        """Round float32 `values` into the memory view `out`, where `where` holds."""
        values = self._fitted(np.asarray(values, np.float32))
        if where is None:
            self._narrow(out, values)
            return
        run = run_of(where, out.shape)
        if run is not None and values.ndim in (0, out.ndim):
            axis, first, last = run
            stretch = (slice(None),) * axis + (slice(first, last),)
            if values.ndim and values.shape[axis] != 1:
                values = values[stretch]
            if not values.flags.writeable:
                values = values.copy()  # torch warns of others
            self.narrow(out[stretch], values)
            return
        raw = np.empty(np.broadcast_shapes(out.shape, values.shape), out.dtype)
        self._narrow(raw, np.ascontiguousarray(values))
        np.copyto(out, raw, where=where)

    def pack(self, values: Any) -> Array:
        """Round float32 `values` into a new array of the memory's own element type."""
        values = self._fitted(np.array(values, np.float32, ndmin=1))
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


class TableCodec(Codec):
    """A dtype of so few values that a table has them; a byte for each element."""

    values: Array

    def _encode(self, values: Any) -> Array:
        """The codes of float32 values, each converted."""
        raise NotImplementedError

    def widen(self, array: Array) -> Array:
        """The elements of a memory view as a new float32 array."""
        out: Array = self.values[array & (len(self.values) - 1)]
        return out

    def widen_into(self, out: torch.Tensor, array: Array) -> None:
        """Like `widen`, into `out`."""
        out.copy_(torch.from_numpy(self.widen(array)))

    def _narrow(self, out: Array, values: Array) -> None:
        out[...] = self._encode(values)

    def pack(self, values: Any) -> Array:
        """Round float32 `values` into a new array of the memory's own element type."""
        return self._encode(np.array(values, np.float32, ndmin=1))

    def round(self, values: Any) -> Any:
        """`values` rounded to this precision, as a new float32 array or scalar."""
        rounded: Array = self.values[self._encode(np.asarray(values, np.float32))]
        return rounded if isinstance(values, np.ndarray) else F32(rounded)

    def round_into(self, out: Array, values: Any) -> None:
        """Round `values` into the float32 array `out` (which may be `values`)."""
        np.copyto(out, self.round(values))


class Float4(TableCodec):
    """E2M1 of the OCP Microscaling formats (MX) 1.0: a sign, two exponent bits, one of mantissa.

    Conversion is to nearest, ties to even, saturating, NaN to the largest value, as PTX's
    `cvt.rn.satfinite.e2m1x2.f32`.
    """

    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F32)
    # The least value that is rounded to each magnitude but 0: ties go up to even codes.
    _least = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], F32)
    _least[::2] = np.nextafter(_least[::2], F32(8))

    def _encode(self, values: Any) -> Array:
        codes = np.searchsorted(self._least, np.abs(values), side="right").astype(np.uint8)
        negative: Array = np.signbit(values) & ~np.isnan(values)
        encoded: Array = codes | negative.astype(np.uint8) << 3
        return encoded


class Exponent8(TableCodec):
    """E8M0 of the OCP Microscaling formats (MX) 1.0: powers of two from 2**-127 to 2**127, NaN.

    Conversion takes the absolute value and rounds it up, saturating, as TileLang's CUDA does by
    `__nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf)`.
    """

    values = np.append(np.ldexp(F32(1), np.arange(-127, 128)), F32(np.nan)).astype(F32)

    def _encode(self, values: Any) -> Array:
        fraction, exponent = np.frexp(np.abs(values))
        codes = np.clip(exponent + np.where(fraction == F32(0.5), 126, 127), 0, 254)
        codes = np.where(np.isinf(values), 254, np.where(values == 0, 0, codes))
        encoded: Array = np.where(np.isnan(values), 255, codes).astype(np.uint8)
        return encoded


_TABLES = {"e2m1": Float4, "e8m0": Exponent8}

CODECS = {
    dtype.codec: _TABLES.get(dtype.codec, Codec).of(dtype)
    for dtype in TILE_DTYPES.values()
    if dtype.codec is not None and dtype.name != "float4_e2m1_unpacked"
}
"""Codecs by their names in generated source."""


def unpacked(packed: Array, dtype: DType) -> Array:
    """Elements of four bits, two in a byte, the first in its low half; as memory has them."""
    out = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.uint8)
    out[..., ::2], out[..., 1::2] = packed & 15, packed >> 4
    if dtype.kind == "int":
        out = (out ^ 8) - 8
    return out.view(dtype.memory)


def pack_into(packed: Array, elements: Array) -> None:
    """The inverse of `unpacked`, into the bytes of a tensor."""
    halves = elements.view(np.uint8) & 15
    packed[...] = halves[..., ::2] | halves[..., 1::2] << 4
