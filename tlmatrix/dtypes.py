"""Every dtype of the project: size, precision, memory, names. Imports neither torch nor NumPy.

`DTYPES` has the dtypes of tensors, which specs name. `dtype_of` knows more: names that only
TileLang uses, and elements that no PyTorch tensor holds (less than a byte, `tfloat32`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True)
class DType:
    """A dtype by its name in PyTorch, or in TileLang if PyTorch has none.

    Attributes:
        name: the name.
        kind: "float", "int", "uint" or "bool".
        bits: the size of an element.
        roundoff: unit roundoff, half the distance from 1 to the next number; 0 if not floating.
        largest: the largest finite value; 0 if not floating.
        poison: bits that mark unwritten memory, as an integer of the element's size; a NaN that no
            arithmetic produces where there is one.
        codec: what generated source calls its codec, if it has less precision than float32.
        saturates: whether CUDA's conversion gives `largest` for greater values, not infinity.
        held_as: NumPy's dtype for its memory, if NumPy has no such dtype; a byte for each element
            of less.
        tensors: whether PyTorch computes with tensors of it.
        packed_as: PyTorch's dtypes of tensors with two of its elements in a byte, the first of
            which is its own.
    """

    name: str
    kind: str
    bits: int
    roundoff: float = 0
    largest: float = 0
    poison: int | None = None
    codec: str | None = None
    saturates: bool = False
    held_as: str | None = None
    tensors: bool = True
    packed_as: tuple[str, ...] = ()

    @property
    def floating(self) -> bool:
        """Whether values are floating-point numbers."""
        return self.kind == "float"

    @property
    def bytes(self) -> int:
        """The size of an element; 0 if several share a byte."""
        return self.bits // 8

    @property
    def memory(self) -> str:
        """The NumPy dtype of its memory: its own, or integers of its size."""
        return self.held_as or self.name

    @property
    def carrier(self) -> str:
        """The NumPy dtype that carries its values between loads and stores."""
        if self.codec is not None or self._is_tf32:
            return "float32"
        return self.memory

    @property
    def interpreted(self) -> bool:
        """Whether the interpreter computes with its values."""
        plain = self.held_as is None or bool(self.packed_as)
        return self.codec is not None or plain or self._is_tf32

    @property
    def torch(self) -> torch.dtype:
        """PyTorch's dtype; of packed elements the dtype of their bytes."""
        if self.packed_as:
            return _of_torch(self.packed_as[0])
        return _of_torch("float32" if self._is_tf32 else self.name)

    def tensor_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of PyTorch's tensor of `shape` elements: packed ones halve the last dim."""
        if not self.packed_as or not shape:
            return tuple(shape)
        return (*shape[:-1], -(-shape[-1] // 2))

    @property
    def _is_tf32(self) -> bool:
        """Whether it is float32 of which tensor cores read the leading bits."""
        return self.held_as == "float32"


@cache
def _of_torch(name: str) -> torch.dtype:
    import torch

    found: torch.dtype = getattr(torch, name)
    return found


def _float(
    name: str,
    bits: int,
    roundoff: float,
    largest: float,
    poison: int | None = None,
    codec: str | None = None,
    *,
    held_as: str | None = None,
    tensors: bool = True,
    packed_as: tuple[str, ...] = (),
) -> DType:
    return DType(
        name,
        "float",
        bits,
        roundoff,
        largest,
        poison,
        codec,
        saturates=bits <= 8,
        held_as=held_as,
        tensors=tensors,
        packed_as=packed_as,
    )


_REGISTRY = (
    _float("float16", 16, 2.0**-11, 65504.0, 0x7E5D, "f16"),
    _float("bfloat16", 16, 2.0**-8, (2 - 2.0**-7) * 2.0**127, 0x7FDB, "bf16", held_as="int16"),
    _float("float32", 32, 2.0**-24, (2 - 2.0**-23) * 2.0**127, 0x7FDBADC5),
    _float("float64", 64, 2.0**-53, (2 - 2.0**-52) * 2.0**1023, 0x7FFDBADC0FFEE5ED),
    _float("float8_e4m3fn", 8, 2.0**-4, 448.0, 0x7F, "e4m3", held_as="uint8"),
    _float("float8_e4m3fnuz", 8, 2.0**-4, 240.0, held_as="uint8"),
    _float("float8_e5m2", 8, 2.0**-3, 57344.0, 0x7F, "e5m2", held_as="uint8"),
    _float("float8_e5m2fnuz", 8, 2.0**-3, 57344.0, held_as="uint8"),
    DType("int8", "int", 8, poison=0x5B),
    DType("int16", "int", 16, poison=0x5BAD),
    DType("int32", "int", 32, poison=0x5BADC0DF),
    DType("int64", "int", 64, poison=0x5BADC0DF5BADC0DF),
    DType("uint8", "uint", 8, poison=0x5B),
    DType("uint16", "uint", 16),
    DType("uint32", "uint", 32),
    DType("uint64", "uint", 64),
    DType("bool", "bool", 8, poison=1),
    DType("int4", "int", 4, held_as="int8", tensors=False, packed_as=("int8", "uint8")),
    DType("uint4", "uint", 4, held_as="uint8", tensors=False, packed_as=("uint8", "int8")),
    _float("float8_e8m0fnu", 8, 0.5, 2.0**127, 0xFF, "e8m0", held_as="uint8"),
    _float(
        *("float4_e2m1fn", 4, 2.0**-2, 6.0, None, "e2m1"),
        held_as="uint8",
        tensors=False,
        packed_as=("float4_e2m1fn_x2", "int8", "uint8"),
    ),
    _float("float4_e2m1_unpacked", 8, 2.0**-2, 6.0, None, "e2m1", held_as="uint8", tensors=False),
    _float("tfloat32", 32, 2.0**-11, (2 - 2.0**-10) * 2.0**127, held_as="float32", tensors=False),
)

DTYPES = {dtype.name: dtype for dtype in _REGISTRY if dtype.tensors}
"""The dtypes of PyTorch's tensors, which specs may name."""

_TILELANG_NAMES = {"float8_e4m3": "float8_e4m3fn"}
"""Dtypes of tensors by TileLang's own names for them."""

TILE_DTYPES = {dtype.name: dtype for dtype in _REGISTRY} | {
    alias: DTYPES[name] for alias, name in _TILELANG_NAMES.items()
}
"""Dtypes by every name that tile IR may have for them."""

_ALIASES = {
    "half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16",
    "float": "float32", "fp32": "float32", "f32": "float32", "double": "float64",
    "fp8": "float8_e4m3fn", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
}  # fmt: skip
"""Common aliases of dtype names, for suggestions."""


def dtype_of(name: str) -> DType | None:
    """The dtype that tile IR calls `name`; None for what is no number (`handle`) or unknown."""
    return TILE_DTYPES.get(name)


def size_in_bits(name: str) -> int:
    """The size of an element that tile IR calls `name`, all lanes of a vector; 8 if unknown."""
    element, _, lanes = name.partition("x")
    found = dtype_of(element)
    return (found.bits if found is not None else 8) * int(lanes or 1)


def explain_dtype(name: object, *, floating: bool = False) -> str | None:
    """The error of a name that is not a (floating) dtype of tensors, or None."""
    if isinstance(name, str) and name in DTYPES and (DTYPES[name].floating or not floating):
        return None
    names = [dtype.name for dtype in DTYPES.values() if dtype.floating or not floating]
    return f"unknown dtype {name!r}{nearest(dtype_meant(name), names)}"


def dtype_meant(name: object) -> object:
    """PyTorch's name of an alias (`half`, `bf16`), else `name`."""
    return _ALIASES.get(str(name), name)


def dtype_named(name: object) -> DType:
    """The dtype of tensors with a name; raises ValueError with a suggestion."""
    if reason := explain_dtype(name):
        raise ValueError(reason)
    return DTYPES[str(name)]


def torch_dtype(name: object) -> torch.dtype:
    """The `torch.dtype` of a name; raises ValueError with a suggestion."""
    return dtype_named(name).torch


def is_float8(dtype: torch.dtype) -> bool:
    """Whether a dtype of tensors is floating-point and one byte, with which PyTorch does little."""
    return dtype.is_floating_point and dtype.itemsize == 1
