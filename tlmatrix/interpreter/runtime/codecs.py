"""Low-precision dtypes: how they lie in memory, how values are rounded to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tlmatrix.dtypes import DTYPES, DType, torch_dtype

from .masks import run_of

__all__ = ["CODECS", "F32", "Array", "Codec"]


Array = np.ndarray[Any, Any]
F32 = np.float32


@dataclass(frozen=True)
class Codec:
    """How a low-precision dtype lies in global memory and how values are rounded to it.

    Attributes:
        dtype: torch's dtype.
        bits: torch's integer dtype of the same width, where numpy has no such float.
        limit: largest finite value when conversion saturates (CUDA's float8), else None.
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

    def narrow(self, out: Array, values: Any, where: Any = None) -> None:
        """Round float32 `values` into the memory view `out`, where `where` holds."""
        values = self._saturated(np.asarray(values, np.float32))
        if where is None:
            tensor = torch.from_numpy(values) if values.ndim else torch.tensor(float(values))
            self._torch(out).copy_(tensor)
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


CODECS = {dtype.codec: Codec.of(dtype) for dtype in DTYPES.values() if dtype.codec is not None}
"""Codecs by their names in generated source."""
