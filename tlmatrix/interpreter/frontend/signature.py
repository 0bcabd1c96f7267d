"""Arguments of a launch: what a kernel takes, and how generated programs take it."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter import runtime
from tlmatrix.interpreter.analysis.expressions import evaluate
from tlmatrix.interpreter.analysis.threads import placeholders
from tlmatrix.interpreter.errors import ArgumentError, InterpreterError
from tlmatrix.interpreter.ops.pointer import tensor_at
from tlmatrix.interpreter.runtime.codecs import pack_into, unpacked

if TYPE_CHECKING:
    from tlmatrix.interpreter.program import GlobalLayout, Parameter, Program

    Array = np.ndarray[Any, Any]


# The signature of a kernel: which arguments it takes, and what symbolic dimensions they bind ------


class Signature:
    """Binds what a caller passes to the parameters of a program.

    Attributes:
        name: the kernel's name.
        parameters: of the PrimFunc, in order.
        symbols: names of symbolic dimensions.
        out_idx: positions of the parameters that are allocated and returned.
        inputs: positions of the others.
    """

    def __init__(self, program: Program, out_idx: Sequence[int] | int | None) -> None:
        self.name = program.name
        self.parameters = program.parameters
        self.symbols = program.symbols
        self.out_idx = _positions(out_idx, len(self.parameters))
        self.inputs = [k for k in range(len(self.parameters)) if k not in self.out_idx]
        scalars = tuple(p.code for p in self.parameters if p.shape is None)
        self._names = (*self.symbols, *scalars)
        self._expressions = {
            code: eval(  # noqa: S307  # our own source
                f"lambda {', '.join(self._names)}: {code}", runtime.environment()
            )
            for p in self.parameters
            for code in (*(p.shape or ()), *p.strides)
            if isinstance(code, str) and code not in self.symbols
        }

    def bind(
        self, args: tuple[Any, ...], unused: Callable[[], Collection[int]] = tuple
    ) -> tuple[list[Any], dict[str, int]]:
        """The value of every parameter, outputs allocated, and those of symbolic dimensions.

        Args:
            args: what the caller passes.
            unused: gives the positions of the parameters that no access of the lowered kernel
                is left of; asked for an argument None of a parameter that the kernel accesses.

        Raises:
            ArgumentError: for an argument that the signature does not allow.
            TypeError: for an argument of the wrong kind.
        """
        if len(args) != len(self.inputs):
            raise ArgumentError(
                f"kernel {self.name} expected {len(self.inputs)} inputs "
                f"({', '.join(self.parameters[k].name for k in self.inputs)}), "
                f"but {len(args)} are provided"
            )
        values: list[Any] = [None] * len(self.parameters)
        for k, value in zip(self.inputs, args, strict=True):
            values[k] = value
        symbols = _Binding(self).of(values, unused)
        for k in self.out_idx:
            values[k] = self.allocated(self.parameters[k], symbols)
        return values, symbols

    def allocated(self, p: Parameter, symbols: dict[str, int]) -> torch.Tensor:
        """A new tensor for a parameter, its elements not initialized.

        Raises:
            ArgumentError: the parameter is a scalar.
        """
        if p.shape is None:
            raise ArgumentError(f"kernel {self.name}: out_idx names {p.name}, which is a scalar")
        dtype = TILE_DTYPES[p.dtype]
        shape = dtype.tensor_shape([self.evaluate(n, symbols) for n in p.shape])
        return torch.empty(shape, dtype=dtype.torch, device="cpu")

    def at_address(self, k: int, address: int, symbols: dict[str, int]) -> torch.Tensor:
        """The memory at an address as the tensor that parameter `k` declares.

        Raises:
            ArgumentError: no tensor holds all of that memory, or it is not aligned.
        """
        p = self.parameters[k]
        assert p.shape is not None
        where = f"kernel {self.name}: argument {p.name}"
        if k not in self.packed or TILE_DTYPES[p.dtype].packed_as:
            what = "has strides" if k not in self.packed else f"is of dtype {p.dtype}"
            raise ArgumentError(f"{where} {what}, so it must be a tensor, got an address")
        shape = [self.evaluate(n, symbols) for n in p.shape]
        dtype = TILE_DTYPES[p.dtype].torch
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype)
        holder = tensor_at(address, size)
        if holder is None:
            raise ArgumentError(f"{where} is {size} bytes at {address:#x}, which no tensor holds")
        storage = holder.untyped_storage()
        offset, rest = divmod(address - storage.data_ptr(), dtype.itemsize)
        if rest:
            raise ArgumentError(f"{where} of dtype {p.dtype} is not aligned: {address:#x}")
        strides = [self.evaluate(n, symbols) for n in p.strides]
        return torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)

    @cached_property
    def packed(self) -> frozenset[int]:
        """The inputs with the strides of a contiguous tensor of their shape.

        Tried with two choices of the symbolic dimensions.
        """
        trials = [
            {name: first + 7 * n for n, name in enumerate(self._names)} for first in (1009, 2003)
        ]
        return frozenset(
            k for k in self.inputs if all(self._is_packed(self.parameters[k], t) for t in trials)
        )

    def _is_packed(self, p: Parameter, symbols: dict[str, int]) -> bool:
        if p.shape is None:
            return False
        step = 1
        for extent, stride in zip(reversed(p.shape), reversed(p.strides), strict=True):
            if self.evaluate(stride, symbols) != step:
                return False
            step *= self.evaluate(extent, symbols)
        return True

    def evaluate(self, code: int | str, symbols: dict[str, int], solve: int | None = None) -> int:
        """An extent or stride; binds the symbolic dim that it may lack so that it is `solve`.

        Raises:
            ArgumentError: dimensions are not bound.
        """
        if isinstance(code, int):
            return code
        if code in symbols:
            return symbols[code]
        function = self._expressions.get(code)
        if function is None:
            raise ArgumentError(f"kernel {self.name}: no input binds the symbolic dimension {code}")
        names = self._names
        missing = [n for n in names if n not in symbols and re.search(rf"\b{n}\b", code)]
        if missing and solve is not None and len(missing) == 1:
            trial = {n: symbols.get(n, 0) for n in names}
            zero = function(**trial)
            trial[missing[0]] = 1
            slope = function(**trial) - zero
            if slope and (solve - zero) % slope == 0 and (solve - zero) // slope >= 0:
                symbols[missing[0]] = (solve - zero) // slope
        elif missing:
            raise ArgumentError(
                f"kernel {self.name}: the symbolic dimensions {', '.join(missing)} "
                f"in {code} are not bound by any input"
            )
        return int(function(**{n: symbols.get(n, 0) for n in names}))


class _Binding:
    """Symbolic dimensions as the inputs of one call bind them."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._known = signature.symbols
        self._symbols: dict[str, int] = {}
        # Extents and strides to compare once all dimensions are bound.
        self._pending: list[tuple[Parameter, Any, str, int, int | str, int]] = []

    def of(self, values: list[Any], unused: Callable[[], Collection[int]]) -> dict[str, int]:
        """Check the inputs among the values; the symbols they bind.

        Addresses among the values become tensors, once all symbols are bound; so does None for a
        parameter whose accesses are never executed.
        """
        signature = self._signature
        absent: list[int] = []
        addresses: list[int] = []
        for k in signature.inputs:
            p, value = signature.parameters[k], values[k]
            if p.shape is None:
                self._scalar(p, value)
            elif value is None and (not p.used or k in unused()):
                absent.append(k)
            elif p.pointer and isinstance(value, int) and not isinstance(value, bool):
                addresses.append(k)
            else:
                self._tensor(p, value, packed=k in signature.packed)
        self._compare()
        # As TileLang binds dimensions of absent tensors alone.
        for k in absent:
            p = signature.parameters[k]
            for want in (*(p.shape or ()), *p.strides):
                self._default(want, 0)
            if p.used:
                values[k] = signature.allocated(p, self._symbols)
        for k in addresses:
            values[k] = signature.at_address(k, values[k], self._symbols)
        return self._symbols

    def _default(self, want: int | str, value: int) -> None:
        """Bind a symbolic dimension that nothing else binds."""
        if isinstance(want, str) and want in self._known:
            self._symbols.setdefault(want, value)

    def _scalar(self, p: Parameter, value: Any) -> None:
        _check_scalar(f"kernel {self._signature.name}: argument {p.name}", p, value)
        if p.dtype.startswith(("int", "uint", "bool")):
            self._symbols[p.code] = int(value)
        if p.name in self._known:
            self._symbols[p.name] = int(value)

    def _tensor(self, p: Parameter, value: Any, *, packed: bool) -> None:
        assert p.shape is not None
        _check_tensor(f"kernel {self._signature.name}: argument {p.name}", p, value)
        shape, strides = _extents(p, value)
        for axis, (want, got) in enumerate(zip(p.shape, shape, strict=True)):
            if want != got and self._symbols.get(want) != got:  # type: ignore[arg-type]
                self._bind(p, value, "shape", axis, want, got)
        if packed and value.is_contiguous():
            return
        empty = 0 in value.shape
        for axis, (want, got) in enumerate(zip(p.strides, strides, strict=True)):
            if empty or value.shape[axis] == 1:
                self._default(want, got)
            elif want != got:
                self._bind(p, value, "strides", axis, want, got)

    def _bind(
        self, p: Parameter, value: Any, what: str, axis: int, want: int | str, got: int
    ) -> None:
        if isinstance(want, int):
            raise self._mismatch(p, what, axis, str(want), got, value)
        if want in self._known and want not in self._symbols:
            self._symbols[want] = got
        else:
            self._pending.append((p, value, what, axis, want, got))

    def _compare(self) -> None:
        for p, value, what, axis, want, got in self._pending:
            expected = self._signature.evaluate(str(want), self._symbols, solve=got)
            if expected != got:
                shown = f"{want} = {expected}" if str(want) != str(expected) else str(want)
                raise self._mismatch(p, what, axis, shown, got, value)

    def _mismatch(
        self, p: Parameter, what: str, axis: int, expected: str, got: int, value: torch.Tensor
    ) -> ArgumentError:
        full = _extents(p, value)[what == "strides"]
        hint = "; pass a contiguous tensor" if what == "strides" else ""
        if TILE_DTYPES[p.dtype].packed_as:
            hint += f"; a tensor of {p.dtype} has two elements in a byte"
        return ArgumentError(
            f"kernel {self._signature.name}: argument {p.name} must have "
            f"{what}[{axis}] = {expected}, got {got} ({what} {full}){hint}"
        )


def _extents(p: Parameter, tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and the strides of a tensor in elements, of which a byte may have two."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if not TILE_DTYPES[p.dtype].packed_as or not shape:
        return shape, strides
    return (*shape[:-1], 2 * shape[-1]), (*(2 * n for n in strides[:-1]), strides[-1])


def _check_scalar(where: str, p: Parameter, value: Any) -> None:
    wanted = numbers.Real if p.dtype.startswith("float") else numbers.Integral
    if isinstance(value, torch.Tensor) or not isinstance(value, wanted):
        raise TypeError(f"{where} must be a number of type {p.dtype}, got {type(value).__name__}")
    if p.dtype.startswith(("int", "uint")):
        low, high = _limits(p.dtype)
        number: Any = value
        if not low <= number <= high:
            raise ArgumentError(f"{where} must fit {p.dtype} ({low} to {high}), got {value}")


def _check_tensor(where: str, p: Parameter, value: Any) -> None:
    assert p.shape is not None
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{where} must be a tensor, got {type(value).__name__}")
    dtype = TILE_DTYPES[p.dtype]
    if (
        value.dtype != dtype.torch
        and str(value.dtype).removeprefix("torch.") not in dtype.packed_as
    ):
        raise ArgumentError(f"{where} must have dtype {p.dtype}, got {value.dtype}")
    if not value.is_cpu:
        raise ArgumentError(
            f"{where} is on {value.device}, but interpreted kernels take tensors of the CPU; "
            "move it there, or call the kernel outside interpret()"
        )
    if value.dim() != len(p.shape):
        raise ArgumentError(
            f"{where} must have {len(p.shape)} dimensions "
            f"({', '.join(str(n) for n in p.shape)}), got shape {tuple(value.shape)}"
        )


@cache
def _limits(dtype: str) -> tuple[int, int]:
    """The least and the largest integer of a dtype."""
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _positions(out_idx: Sequence[int] | int | None, count: int) -> list[int]:
    if out_idx is None:
        return []
    found = []
    for raw in [out_idx] if isinstance(out_idx, int) else list(out_idx):
        index = int(raw) + count if int(raw) < 0 else int(raw)
        if not 0 <= index < count:
            raise ArgumentError(f"out_idx {raw} is out of range for {count} parameters")
        if index in found:
            raise ArgumentError(f"out_idx names parameter {index} twice")
        found.append(index)
    return found


# Arguments of a launch as generated programs take them: NumPy arrays and numbers ------------------
#
# A kernel that annotates a layout on a global buffer indexes it logically, and TileLang places each
# element elsewhere. Its program gets a copy of the buffer in logical order, which is written back.
# A tensor with two elements in a byte is copied too, to a byte for each element.

Offsets = dict[tuple[Any, ...], "Array"]
"""Where the elements of a buffer with an annotated layout lie, by its name, shape and symbols."""


class LayoutError(InterpreterError):
    """A layout places elements outside of its buffer, or apart that belong together."""

    def __init__(self, message: str, buffer: str) -> None:
        super().__init__(message)
        self.buffer = buffer


class Arguments:
    """The arguments of one launch; tensors are views, but for those with an annotated layout.

    Attributes:
        values: what the program takes, in the order of its parameters.
    """

    def __init__(
        self,
        program: Program,
        values: Sequence[Any],
        symbols: Mapping[str, int],
        offsets: Offsets,
        *,
        wide: bool = False,
    ) -> None:
        self._program = program
        self._symbols = symbols
        self._offsets = offsets
        self._moved: list[tuple[Array, Array, Array]] = []
        self._packed: list[tuple[Array, Array]] = []
        given = list(zip(program.parameters, values, strict=True))
        self.values = [self._argument(p, value) for p, value in given]
        if wide:
            self.values = [
                _wide(p, value, argument)
                for (p, value), argument in zip(given, self.values, strict=True)
            ]

    @property
    def moved(self) -> bool:
        """Whether a tensor was copied, to its logical order or to an element a byte."""
        return bool(self._moved or self._packed)

    def write_back(self) -> None:
        """Copy what the program wrote to tensors with an annotated layout or packed elements."""
        for flat, where, logical in self._moved:
            flat[where] = logical
        for packed, elements in self._packed:
            pack_into(packed, elements)

    def _argument(self, p: Parameter, value: Any) -> Any:
        if p.shape is None:
            return _number(p, value)
        if value is None:
            return None
        tensor = value.detach() if value.requires_grad else value
        dtype = TILE_DTYPES[_held_as(p, value)]
        if dtype.packed_as:
            packed = tensor.view(torch.uint8).numpy()
            array = unpacked(packed, dtype)
            self._packed.append((packed, array))
        else:
            codec = runtime.CODECS.get(dtype.codec or "")
            array = codec.view(tensor) if codec is not None else tensor.numpy()
        if p.name not in self._program.layouts:
            return array
        flat = array.reshape(-1)
        key = (p.name, array.shape, *self._symbols.values())
        where = self._offsets.get(key)
        if where is None:
            layout = self._program.layouts[p.name]
            where = _offsets_of(layout, array.shape, p.name, self._symbols)
            _check_together(where, self._program.together.get(p.name, 1), p.name)
            self._offsets[key] = where
        logical = flat[where]
        self._moved.append((flat, where, logical))
        return logical


def _number(p: Parameter, value: Any) -> Any:
    if p.dtype.startswith(("int", "uint")):
        return int(value)
    if p.dtype == "bool":
        return bool(value)
    codec = runtime.CODECS.get(TILE_DTYPES[p.dtype].codec or "")
    if codec is not None:
        return codec.round(float(value))
    return np.float64(value) if p.dtype == "float64" else np.float32(value)


def _held_as(p: Parameter, value: torch.Tensor) -> str:
    """The dtype of a tensor; a wide program may declare float64 for any float."""
    return str(value.dtype).removeprefix("torch.") if p.dtype == "float64" else p.dtype


def _wide(p: Parameter, value: Any, argument: Any) -> Any:
    """A float argument as float64; arrays are new."""
    if argument is None or not p.dtype.startswith(("float", "bfloat")):
        return argument
    if p.shape is None:
        return np.float64(value)
    codec = runtime.CODECS.get(TILE_DTYPES[_held_as(p, value)].codec or "")
    array = argument if codec is None else codec.widen(np.ascontiguousarray(argument))
    return np.array(array, np.float64)


def _offsets_of(
    layout: GlobalLayout, shape: tuple[int, ...], name: str, symbols: Mapping[str, int]
) -> Array:
    """Where each logical element lies: flat offsets, an array of `shape`.

    Raises:
        LayoutError: if the layout needs more memory than the buffer has.
    """
    grid = np.indices(shape, sparse=True)
    variables: dict[Any, Any] = {**symbols}
    variables.update(zip(placeholders(layout.layout), grid, strict=True))
    offset: Any = 0
    for index, extent in zip(layout.layout.index, layout.shape, strict=True):
        offset = offset * int(evaluate(extent, symbols)) + evaluate(index, variables)
    offset = np.broadcast_to(offset, shape)
    if offset.size and int(offset.max()) >= offset.size:
        raise LayoutError(
            f"the layout annotated on {name} of shape {shape} places an element at "
            f"{int(offset.max())}, but only {offset.size} elements are allocated: "
            "pad the tensor to the layout's tile",
            name,
        )
    found: Array = offset
    return found


def _check_together(offset: Array, together: int, name: str) -> None:
    """Refuse a layout that separates elements of a row which a vector atomic takes for neighbours.

    Raises:
        LayoutError: names the first element of such a group.
    """
    if together == 1 or not offset.size:
        return
    *rows, columns = offset.shape
    groups = offset[..., : columns // together * together].reshape(*rows, -1, together)
    apart = np.argwhere((groups != groups[..., :1] + np.arange(together)).any(-1))
    if len(apart):
        *row, group = apart[0].tolist()
        place = ", ".join(map(str, (*row, group * together)))
        raise LayoutError(
            f"an atomic adds to {together} elements side by side from {name}[{place}] on, but the "
            f"layout annotated on {name} places them apart: on a GPU others would be added to",
            name,
        )
