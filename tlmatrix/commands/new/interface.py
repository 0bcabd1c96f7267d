"""The interface of the code under test, from tracing a factory or recording one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tlmatrix.commands.new.accesses import Accesses

Size = int | str
"""A dimension: a number, or an expression of arguments and symbolic dimensions."""


@dataclass(frozen=True)
class Argument:
    """An argument that is not a tensor.

    Attributes:
        name: its name.
        kind: dtype, tile, setting, flag, size or other.
        value: its value in the traced or recorded call.
        default: whether the value is the default.
    """

    name: str
    kind: str
    value: Any
    default: bool


@dataclass(frozen=True)
class Tensor:
    """A tensor that the code takes, returns or writes.

    Attributes:
        shape: numbers, and expressions of arguments and symbolic dimensions.
        dtype_of: the argument that determines its dtype.
        sizes: its shape in a recorded call.
        values: the values of a small integer tensor in a recorded call.
        grad: whether it required a gradient in a recorded call.
    """

    name: str
    dtype: str
    shape: tuple[Size, ...]
    dtype_of: str | None = None
    sizes: tuple[int, ...] = ()
    values: tuple[int, ...] | None = None
    grad: bool = False

    @property
    def integer(self) -> bool:
        """Whether it may hold indices."""
        return self.dtype in ("int32", "int64")


@dataclass(frozen=True)
class Number:
    """A scalar parameter of a traced kernel."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Interface:
    """The parameters, results and accesses of the code under test.

    Attributes:
        target: `package.module:name`.
        factory: whether the target is a factory.
        parameters: the parameters of the kernel or entry, in order.
        results: the tensors that the call returns.
        arguments: the arguments of the factory, or those of the entry that are not tensors.
        construct: the arguments of a module's constructor.
        module: the tensors that are parameters of the module.
        symbols: the symbolic dimensions, in order.
        mutated: the parameters that the call writes.
        accesses: how kernels use the parameters.
        sizes: the sizes of the symbols in a recorded call.
        free: symbols that may have any size.
        dtypes: the dtypes that inputs with the axis `dtype` support.
        order: the outputs in the order of the reference; empty for the order of the call.
        paths: the position of each result in the returned value: `0`, `aux.counts`.
    """

    target: str
    factory: bool
    parameters: tuple[Tensor | Number, ...]
    results: tuple[Tensor, ...]
    arguments: tuple[Argument, ...] = ()
    symbols: tuple[str, ...] = ()
    mutated: frozenset[str] = frozenset()
    accesses: Accesses = field(default_factory=Accesses)
    sizes: tuple[tuple[str, int], ...] = ()
    free: frozenset[str] = frozenset()
    dtypes: tuple[str, ...] = ()
    paths: tuple[tuple[str, str], ...] = ()
    order: tuple[str, ...] = ()
    construct: tuple[Argument, ...] = ()
    module: frozenset[str] = frozenset()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among the parameters."""
        return tuple(item for item in self.parameters if isinstance(item, Tensor))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors that the call only reads."""
        return tuple(item for item in self.tensors if item.name not in self.mutated)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Tensors that the call writes or returns, in the order of the reference or the call."""
        found = [*(item for item in self.tensors if item.name in self.mutated), *self.results]
        if self.order:
            by_name = {item.name: item for item in found}
            return tuple(by_name[name] for name in self.order)
        return tuple(found)
