"""Launches kept to be run again, and an element explained: what a trace answers, as plain values.

A launch is explained by running it again, on copies of its arguments. So the contents that a
tensor had before a launch changed it are kept, unless nothing reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from tlmatrix.interpreter.ir.nodes import Location
    from tlmatrix.interpreter.program import Record
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.watch.recorders import LoopRange


class NotMadeError(LookupError):
    """No launch wrote the element that is asked for."""


class Kernel(Protocol):
    """A kernel that can be run again, recorded."""

    name: str
    waits: bool

    @property
    def usage(self) -> Mapping[str, frozenset[str]]:
        """What it does with each parameter: "read", "write", "atomic"."""

    def recorded(self, *, wide: bool) -> Record:
        """What a recorder of it needs to know; with `wide` every float is a float64."""

    def run_recorded(
        self, values: Mapping[str, Any], symbols: Mapping[str, int], recorder: Any, *, wide: bool
    ) -> None:
        """Run it recorded."""


@dataclass
class Launch:
    """A kernel that ran.

    Attributes:
        number: from 1, in its context.
        kernel: the kernel.
        symbols: its symbolic dims.
        live: its arguments, as they are now.
        before: its arguments as they were.
        written: names of the parameters that it writes.
        unchanged: of each argument the version that PyTorch counts.
        rank: the simulated rank that called it; None outside a simulation.
    """

    number: int
    kernel: Kernel
    symbols: Mapping[str, int]
    live: dict[str, Any]
    before: dict[str, Any]
    written: frozenset[str]
    unchanged: dict[str, int] = field(default_factory=dict)
    rank: int | None = None

    def __str__(self) -> str:
        where = "" if self.rank is None else f" on rank {self.rank}"
        return f"launch {self.number}{where}, {self.kernel.name}"

    def ended(self) -> None:
        """Keep the inputs as they are at the end: flags were set while the kernel ran."""
        if not self.kernel.waits:
            return
        for name, tensor in self.live.items():
            if isinstance(tensor, torch.Tensor) and name not in self.written:
                self.before[name] = tensor.clone()

    def changed_since(self) -> list[str]:
        """Arguments that PyTorch has changed in place since the launch."""
        return [
            name
            for name, version in self.unchanged.items()
            if self.before[name] is self.live[name] and self.live[name]._version != version  # noqa: SLF001 - PyTorch has no other name for it
        ]


class LaunchLog:
    """The launches of one context, in order."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def before(
        self,
        kernel: Kernel,
        values: Mapping[str, Any],
        symbols: Mapping[str, int],
        rank: int | None = None,
    ) -> Launch:
        """Note a launch that is about to run."""
        usage = kernel.usage
        tensors = {n: v.detach() for n, v in values.items() if isinstance(v, torch.Tensor)}
        held = {memory_of(t) for launch in self.launches for t in _tensors(launch.before.values())}
        before: dict[str, Any] = dict(values) | tensors
        written = frozenset(n for n, actions in usage.items() if actions & {"write", "atomic"})
        saved: dict[int, torch.Tensor] = {}
        for name in sorted(written & tensors.keys()):
            tensor = tensors[name]
            names = {n for n, t in tensors.items() if memory_of(t) == memory_of(tensor)}
            read = any(usage.get(n, frozenset()) & {"read", "atomic", "ordered"} for n in names)
            if not read and memory_of(tensor) not in held:
                continue
            copy = tensor.clone()
            saved[memory_of(tensor)] = copy
            if read:
                before[name] = copy
            self._freeze(tensor, copy)
        for name, tensor in tensors.items():
            # What is read through another name is the same memory, as it was before.
            if name not in written and memory_of(tensor) in saved:
                before[name] = tensor.clone()
        launch = Launch(
            len(self.launches) + 1,
            kernel,
            dict(symbols),
            dict(values) | tensors,
            before,
            written & tensors.keys(),
            {name: tensor._version for name, tensor in tensors.items()},  # noqa: SLF001 - as above
            rank,
        )
        self.launches.append(launch)
        return launch

    def _freeze(self, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        """Earlier launches keep the contents of a tensor that is about to change."""
        for launch in self.launches:
            for name, held in launch.before.items():
                if (
                    isinstance(held, torch.Tensor)
                    and held is launch.live[name]
                    and memory_of(held) == memory_of(tensor)
                ):
                    same = held.shape == tensor.shape and held.stride() == tensor.stride()
                    launch.before[name] = copy if same else held.clone()

    def find(
        self, tensor: torch.Tensor, index: Sequence[int], *, until: int | None = None
    ) -> tuple[Launch, str, tuple[int, ...]]:
        """The last launch that has written an element of a tensor: launch, parameter, index.

        Launches from number `until` on are left out.

        Raises:
            NotMadeError: no kernel of the context wrote it.
        """
        address = _address(tensor, index)
        for launch in reversed(self.launches[: None if until is None else until - 1]):
            for name in sorted(launch.written):
                place = _index_of(launch.live[name], address)
                if place is not None:
                    return launch, name, place
        raise NotMadeError(
            f"no kernel wrote the element {list(index)}: PyTorch made it, from what kernels wrote"
            if self.launches
            else f"no kernel ran that could have written the element {list(index)}"
        )

    def makers(self, tensor: torch.Tensor, until: int) -> list[tuple[Launch, str]]:
        """The launches before number `until` that wrote memory of a tensor, the last first."""
        memory = memory_of(tensor)
        return [
            (launch, name)
            for launch in reversed(self.launches[: until - 1])
            for name in sorted(launch.written)
            if memory_of(launch.live[name]) == memory
        ]


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def memory_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage."""
    return int(tensor.untyped_storage().data_ptr())


def _address(tensor: torch.Tensor, index: Sequence[int]) -> int:
    offset = sum(i * s for i, s in zip(index, tensor.stride(), strict=True))
    return int(tensor.data_ptr()) + offset * tensor.element_size()


def _index_of(tensor: torch.Tensor, address: int) -> tuple[int, ...] | None:
    """The index of the element at an address, for a tensor without overlaps."""
    rest, uneven = divmod(address - int(tensor.data_ptr()), tensor.element_size())
    if rest < 0 or uneven or not tensor.numel():
        return None
    place = [0] * tensor.dim()
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    for axis in order:
        if tensor.shape[axis] > 1 and tensor.stride(axis):
            place[axis], rest = divmod(rest, tensor.stride(axis))
    inside = all(0 <= i < n for i, n in zip(place, tensor.shape, strict=True))
    return tuple(place) if inside and rest == 0 else None


# Answers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """What to follow in `interpret(trace=...)`: an element of a parameter that kernels write.

    Attributes:
        buffer: the parameter's name in the kernel.
        index: the element, one number for each dimension.
        kernel: only in kernels of this name; None for any.
    """

    buffer: str
    index: tuple[int, ...]
    kernel: str | None = None


@dataclass(frozen=True)
class Block:
    """A block of a grid: its index, by the names of the block indices."""

    names: tuple[str, ...]
    index: tuple[int, ...]

    def __str__(self) -> str:
        if not self.names:
            return "the only block"
        return ", ".join(f"{n} {i}" for n, i in zip(self.names, self.index, strict=True))


@dataclass(frozen=True)
class Writer:
    """A write of the element; `value` is what it then held, `added` the change of an atomic."""

    block: Block
    location: Location | None
    action: str
    loops: tuple[tuple[str, int], ...]
    value: float
    added: float | None = None


@dataclass(frozen=True)
class Read:
    """Elements of a buffer that a step's value depends on; `place` is their index expression."""

    buffer: str
    place: str
    elements: int
    is_global: bool


@dataclass(frozen=True)
class Step:
    """A statement that wrote something that leads to the element, in one iteration.

    Attributes:
        loops: the iteration: (variable, value), outermost first.
        location: the user's line.
        text: that line.
        action: "store", "copy", "gemm", "reduce", ….
        buffer: what was written.
        place: the elements that lead to the one explained.
        elements: how many these are.
        values: their values, a sample where there are many.
        exact: the same in a float64 run of the same program; None without one.
        deviation: root mean square of the difference to `exact`, relative to that of `exact`.
        departs: how precision is lost here, where the deviation is past what float32 leaves, and
            far past that of everything read: "rounded" (to a dtype below float32), "cancels"
            (the error was there, the terms around it are gone), or "departs"; empty elsewhere.
        reads: what these elements depend on.
    """

    loops: tuple[tuple[str, int], ...]
    location: Location | None
    text: str
    action: str
    buffer: str
    place: str
    elements: int
    values: Array = field(compare=False, repr=False)
    exact: Array | None = field(compare=False, repr=False)
    deviation: float | None
    departs: str
    reads: tuple[Read, ...]

    @property
    def value(self) -> float:
        """The value, where it is one."""
        return float(self.values[0])


@dataclass(frozen=True)
class Source:
    """A parameter that the element was made of.

    Attributes:
        buffer: its name.
        place: the elements that the element's value depends on.
        elements: how many these are.
        made_by: the launch of this run that wrote it ("launch 2, packed_delta"), if one did.
        nonfinite: those of the elements (numbered by rows) that are NaN or infinite.
        iterations: the elements (numbered by rows) by the iteration that read them.
    """

    buffer: str
    place: str
    elements: int
    made_by: str | None
    nonfinite: Array = field(compare=False, repr=False)
    iterations: tuple[tuple[tuple[tuple[str, int], ...], Array], ...] = field(
        compare=False, repr=False
    )


@dataclass(frozen=True)
class Carried:
    """A tensor between two launches, and how much its rounding changes the element.

    Attributes:
        launch: the launch that wrote it ("launch 2, packed_delta").
        buffer: the parameter of that launch.
        dtype: its dtype.
        change: the element with the values that were stored in this tensor, less that of a float64
            run of all launches; it includes the rounding of earlier tensors that led to it.
    """

    launch: str
    buffer: str
    dtype: str
    change: float


@dataclass(frozen=True)
class Rounding:
    """The rounding that an element takes over from earlier launches.

    Attributes:
        exact: the element in a float64 run of all launches that reach it; None without one.
        carried: the tensors between launches, that of the largest change first.
        why: why there is no such run; empty if no earlier launch wrote what this one reads.
    """

    exact: float | None = None
    carried: tuple[Carried, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Explanation:
    """How one element of one launch came about.

    Attributes:
        kernel: the kernel's name.
        launch: the number of the launch in its context, from 1.
        buffer: the parameter.
        index: the element.
        shape: the parameter's shape.
        dtype: its dtype.
        grid: the names of the grid's indices and their extents.
        block: the block that is followed: the last that wrote it, of atomics the one that added
            most.
        writers: every write of the element, in order.
        loops: the ranges of the block's loops.
        steps: what leads to the element, in the order in which it ran.
        sources: the parameters it was made of.
        addresses: integers read on the way, such as sequence boundaries.
        missing: memory that the block read before anything wrote it.
        value: the element; after the followed block where others add to it.
        exact: what a float64 run of the same block makes of it.
        no_exact: why there is no such run.
        rounding: how much the rounding of earlier launches changes the element.
        earlier: the explanation of the one element of an earlier launch that this one was made of.
        rank: the simulated rank that launched it; None outside a simulation.
    """

    kernel: str
    launch: int
    buffer: str
    index: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    grid: Mapping[str, int]
    block: Block
    writers: tuple[Writer, ...]
    loops: tuple[LoopRange, ...]
    steps: tuple[Step, ...]
    sources: tuple[Source, ...]
    addresses: tuple[Read, ...]
    missing: tuple[Read, ...]
    value: float
    exact: float | None
    no_exact: str
    rounding: Rounding = Rounding()
    earlier: Explanation | None = None
    rank: int | None = None
    tensors: Callable[[str], Any] = field(compare=False, repr=False, default=lambda _name: None)
    """The argument of a parameter, by name."""

    @property
    def first_nan(self) -> Step | None:
        """The first statement that computed NaN, if the value is NaN and no source is."""
        if not np.isnan(self.value) or any(len(source.nonfinite) for source in self.sources):
            return None
        return next((step for step in self.steps if bool(np.isnan(step.values).any())), None)

    @property
    def departures(self) -> tuple[Step, ...]:
        """Where precision is lost, in the order in which it happened."""
        return tuple(step for step in self.steps if step.departs)

    def __str__(self) -> str:
        from .text import rendered_lines

        return "\n".join(rendered_lines(self))
