"""Dtypes of specs with unit roundoff and range, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tlmatrix.words import nearest

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "DType", "dtype_meant", "dtype_named", "explain_dtype", "torch_dtype"]


@dataclass(frozen=True)
class DType:
    """A dtype by its name in PyTorch.

    `roundoff` is the unit roundoff (half the distance from 1 to the next number) and `largest`
    the largest finite value; both are 0 for dtypes that are not floating.
    """

    name: str
    roundoff: float
    largest: float
    bytes: int

    @property
    def floating(self) -> bool:
        """Whether values are floating-point numbers."""
        return self.roundoff > 0


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("float16", 2.0**-11, 65504.0, 2),
        DType("bfloat16", 2.0**-8, (2 - 2.0**-7) * 2.0**127, 2),
        DType("float32", 2.0**-24, (2 - 2.0**-23) * 2.0**127, 4),
        DType("float64", 2.0**-53, (2 - 2.0**-52) * 2.0**1023, 8),
        DType("float8_e4m3fn", 2.0**-4, 448.0, 1),
        DType("float8_e4m3fnuz", 2.0**-4, 240.0, 1),
        DType("float8_e5m2", 2.0**-3, 57344.0, 1),
        DType("float8_e5m2fnuz", 2.0**-3, 57344.0, 1),
        DType("int8", 0, 0, 1),
        DType("int16", 0, 0, 2),
        DType("int32", 0, 0, 4),
        DType("int64", 0, 0, 8),
        DType("uint8", 0, 0, 1),
        DType("uint16", 0, 0, 2),
        DType("uint32", 0, 0, 4),
        DType("uint64", 0, 0, 8),
        DType("bool", 0, 0, 1),
    )
}


_ALIASES = {
    "half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16",
    "float": "float32", "fp32": "float32", "f32": "float32", "double": "float64",
    "fp8": "float8_e4m3fn", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
}  # fmt: skip
"""Common aliases of dtype names, for suggestions."""


def explain_dtype(name: object, *, floating: bool = False) -> str | None:
    """The error of a name that is not a (floating) dtype, or None."""
    if isinstance(name, str) and name in DTYPES and (DTYPES[name].floating or not floating):
        return None
    names = [dtype.name for dtype in DTYPES.values() if dtype.floating or not floating]
    return f"unknown dtype {name!r}{nearest(dtype_meant(name), names)}"


def dtype_meant(name: object) -> object:
    """PyTorch's name of an alias (`half`, `bf16`), else `name`."""
    return _ALIASES.get(str(name), name)


def dtype_named(name: object, *, floating: bool = False) -> DType:
    """The dtype of a name; raises ValueError with a suggestion."""
    if reason := explain_dtype(name, floating=floating):
        raise ValueError(reason)
    return DTYPES[str(name)]


def torch_dtype(name: object, *, floating: bool = False) -> torch.dtype:
    """The `torch.dtype` of a name; raises ValueError with a suggestion."""
    import torch

    found: torch.dtype = getattr(torch, dtype_named(name, floating=floating).name)
    return found
