"""An element explained: what a trace answers, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tlmatrix.interpreter.ir.nodes import Location
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.watch.recorders import LoopRange


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
