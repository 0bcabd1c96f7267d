"""What was observed of the code under test, by tracing a factory or by recording one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tlmatrix.commands.new.accesses import Accesses

__all__ = ["Argument", "Number", "Observed", "Size", "Tensor"]

Size = int | str
"""A dimension: a number, or an expression of arguments and symbolic dimensions."""


@dataclass(frozen=True)
class Argument:
    """An argument that is no tensor: `kind` is dtype, tile, setting, flag, size or other."""

    name: str
    kind: str
    value: Any
    """What it was called with."""
    default: bool
    """Whether the value is the author's own."""


@dataclass(frozen=True)
class Tensor:
    """A tensor that is given, returned, or written.

    Attributes:
        shape: numbers, and expressions of arguments and symbolic dimensions.
        dtype_of: the argument that its dtype follows.
        sizes: the shape it had in a recorded call.
        values: what a small integer tensor held in a recorded call.
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
    """A number that a traced kernel takes."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Observed:
    """The code under test as its caller sees it.

    Attributes:
        target: `package.module:name`.
        factory: whether it makes kernels; else it is called with the tensors.
        parameters: what the kernel or entry is called with, in order.
        results: tensors that come back from the call.
        arguments: of the factory, or those of the entry that are no tensors.
        construct: arguments that a module is made with.
        module: the tensors that are parameters of the module.
        symbols: the symbolic dimensions, in order.
        mutated: parameters that the call writes.
        accesses: how kernels use the parameters.
        sizes: what sizes the symbols had in a recorded call.
        free: symbols that kernels take at any size.
        dtypes: what the inputs that follow the axis `dtype` may be.
        order: the outputs in the order of the reference; () as they are.
        paths: by result, where it is in what came back: `0`, `aux.counts`.
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
