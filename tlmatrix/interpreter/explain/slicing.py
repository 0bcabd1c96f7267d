"""Dynamic backward slice of an element: the writes of one block that lead to it.

The rule of each write says on which elements a written one depends: in a parallel loop on those
that the iteration read under its mask, in a product on a row and a column, and so on. Factors of a
product that meet an exact zero are left out: they add nothing, unless they are NaN or infinite.

The slice follows values. Integers that lead to a float are addresses, and are kept apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.errors import InterpreterError, Unsupported
from tlmatrix.interpreter.ops import TABLES
from tlmatrix.interpreter.runtime.elements import IndexArrays, Tile
from tlmatrix.interpreter.watch.recorders import Keeper

from .model import Carried, Rounding, memory_of

if TYPE_CHECKING:
    from tlmatrix.interpreter.program import Site
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.runtime.elements import Event

    from .model import Launch, LaunchLog


@dataclass(frozen=True)
class Link:
    """A write that leads to the element.

    Attributes:
        event: the write.
        elements: those of the elements it wrote that lead there.
        reads: for each read that these depend on its place and the elements.
    """

    event: Event
    elements: Array
    reads: tuple[tuple[int, Array], ...]


@dataclass(frozen=True)
class Slice:
    """All that leads to an element in one block.

    Attributes:
        links: in the order in which they ran.
        addresses: integers read on the way: place and elements.
        missing: memory of the block that was read before anything wrote it, with the elements.
    """

    links: tuple[Link, ...]
    addresses: tuple[tuple[int, Array], ...]
    missing: tuple[tuple[str, Array], ...]


class _Needed:
    """Which elements of each memory are still to be explained."""

    def __init__(self) -> None:
        self._marks: dict[str, Array] = {}

    def add(self, memory: str, size: int, flat: Array) -> None:
        if memory not in self._marks:
            self._marks[memory] = np.zeros(max(size, 1), bool)
        self._marks[memory][flat] = True

    def among(self, memory: str, flat: Array) -> Array | None:
        """Which of `flat` are needed; None where no element of the memory is."""
        marks = self._marks.get(memory)
        return None if marks is None else marks[flat]

    def settle(self, memory: str, flat: Array) -> None:
        self._marks[memory][flat] = False

    def left(self) -> Iterable[tuple[str, Array]]:
        for memory, marks in self._marks.items():
            if marks.any():
                yield memory, np.flatnonzero(marks)


def sliced(
    events: Sequence[Event], sites: Sequence[Site], memory: str, size: int, element: int
) -> Slice:
    """The writes among `events` that lead to an element of a memory of `size` elements."""
    needed = _Needed()
    needed.add(memory, size, np.array([element]))
    links: list[Link] = []
    addresses: dict[tuple[str, bytes], tuple[int, Array]] = {}
    outside = {s.memory for s in sites if s.is_global}
    registers = _Needed()

    def address(place: int, flat: Array, shape: Sequence[int]) -> None:
        memory = sites[place].memory
        if memory in outside:
            addresses.setdefault((memory, flat.tobytes()), (place, flat))
        else:
            registers.add(memory, int(np.prod(shape)), flat)

    for event in reversed(events):
        site = sites[event.site]
        if (found := _hit(event, site.memory, registers)) is not None:
            registers.settle(site.memory, found[0])
            for (place, access), flat in zip(event.reads, found[1], strict=True):
                if flat.size:
                    address(place, flat, access.shape)
            continue
        found = _hit(event, site.memory, needed)
        if found is None:
            continue
        hit, reads = found
        kept: list[tuple[int, Array]] = []
        if accumulates(event, site):
            kept.append((event.site, hit))
        else:
            needed.settle(site.memory, hit)
        exact = site.dtype.startswith(("int", "uint", "bool"))
        for (place, access), flat in zip(event.reads, reads, strict=True):
            if not flat.size:
                continue
            source = sites[place]
            if not exact and source.dtype.startswith(("int", "uint", "bool")):
                address(place, flat, access.shape)
                continue
            needed.add(source.memory, int(np.prod(access.shape)), flat)
            kept.append((place, flat))
        links.append(Link(event, hit, tuple(kept)))
    missing = tuple((name, flat) for name, flat in needed.left() if name not in outside)
    return Slice(tuple(reversed(links)), tuple(addresses.values()), missing)


def accumulates(event: Event, site: Site) -> bool:
    """Whether a write adds to what its elements held."""
    clear = {"gemm": 2, "reduce": 1}.get(event.rule)
    return site.action == "atomic" or (clear is not None and not event.extra[clear])


def _hit(event: Event, memory: str, needed: _Needed) -> tuple[Array, list[Array]] | None:
    """The needed elements that a write wrote, and for each of its reads what they depend on."""
    if isinstance(event.write, IndexArrays):
        return _hit_lanes(event, event.write, memory, needed)
    elements = event.write.elements()
    wanted = needed.among(memory, elements)
    if wanted is None or not wanted.any():
        return None
    hit: Array = np.unique(elements[wanted])
    reads = []
    for k, (_, access) in enumerate(event.reads):
        if isinstance(access, IndexArrays):
            reads.append(access.elements())
        else:
            reads.append(np.unique(_RULES[event.rule](event, event.write, hit, access, k)))
    return hit, reads


def _hit_lanes(
    event: Event, write: IndexArrays, memory: str, needed: _Needed
) -> tuple[Array, list[Array]] | None:
    accesses = [access for _, access in event.reads]
    parts = [access.extent for access in accesses if isinstance(access, IndexArrays)]
    extent = np.broadcast_shapes(write.extent, *parts)
    flat, there = write.numbered(extent)
    wanted = needed.among(memory, np.where(there, flat, 0))
    if wanted is None:
        return None
    lanes = wanted & there
    if not lanes.any():
        return None
    reads = []
    for access in accesses:
        assert isinstance(access, IndexArrays)
        source, on = access.numbered(extent)
        reads.append(np.unique(source[lanes & on]))
    return np.unique(flat[lanes]), reads


# Rules of buffers that have a copy for each iteration; those of tile operations are in `ops`.


def _spread(event: Event, write: Tile, hit: Array, read: Tile, number: int) -> Array:
    """Copies of one buffer, a lane each: their leading dimensions are the buffer's."""
    del event, number
    places, _ = write.inner(hit)
    return read.outer(places[: len(read.shape)])


def _collapsed(event: Event, write: Tile, hit: Array, read: Tile, number: int) -> Array:
    del event, number
    places, _ = write.inner(hit)
    known = len(places)
    if not known:
        return read.elements()
    rest = np.meshgrid(*map(np.arange, read.extent[known:]), indexing="ij", sparse=True)
    lead = [p.reshape(-1, *[1] * len(rest)) for p in places]
    return read.outer([*lead, *(r[None] for r in rest)])


_RULES: dict[str, Callable[[Event, Tile, Array, Tile, int], Array]] = {
    **TABLES.slices,
    "spread": _spread,
    "collapse": _collapsed,
}


# Rounding that a launch takes over from earlier ones ----------------------------------------------
#
# The launches that an element depends on run again in float64, each on the float64 results of those
# before it. Then they run once more for each tensor between two launches, with the values that the
# kernel really stored there: the change of the element is what that rounding does to it.


_MOST = 12
"""Most tensors between launches that are followed."""

_ROUNDING = 0.5
"""Relative difference of a whole tensor that rounding explains, even in dtypes of 4 bits."""
_UNDERFLOW = 1e-6

Stored = tuple[int, str]
"""A tensor that a launch wrote: the number of the launch, and the parameter."""


def carried_rounding(log: LaunchLog, launch: Launch, buffer: str, index: Sequence[int]) -> Rounding:
    """How much the rounding of earlier launches changes an element of the last one, `launch`."""
    launches = _needed(log, launch)
    if len(launches) < 2:
        return Rounding()
    stored = [(each.number, name) for each in launches[:-1] for name in sorted(each.written)]
    stored = [at for at in stored if _read_later(at, launches)]
    if not stored or len(stored) > _MOST:
        return Rounding(why=f"{len(stored)} tensors between launches" if stored else "")
    try:
        exact = _element(launches, buffer, index, ())
        moved = [(at, _element(launches, buffer, index, {at}) - exact) for at in stored]
    except (Unsupported, InterpreterError) as error:
        return Rounding(why=str(error).splitlines()[0])
    by_number = {each.number: each for each in launches}
    found = [
        Carried(str(by_number[number]), name, _dtype(by_number[number], name), change)
        for (number, name), change in moved
    ]
    return Rounding(exact, tuple(sorted(found, key=lambda each: -abs(each.change))))


def _dtype(launch: Launch, name: str) -> str:
    return str(launch.live[name].dtype).removeprefix("torch.")


def _floats(launch: Launch) -> dict[str, torch.Tensor]:
    """The floating-point arguments, as they were before the launch."""
    return {
        name: value
        for name, value in launch.before.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel()
    }


def _reads(launch: Launch) -> set[int]:
    """The memory that a launch reads."""
    usage = launch.kernel.usage
    reading = {"read", "atomic", "ordered"}
    return {
        memory_of(launch.live[n]) for n in _floats(launch) if usage.get(n, frozenset()) & reading
    }


def _writes(launch: Launch) -> set[int]:
    return {memory_of(launch.live[n]) for n in _floats(launch) if n in launch.written}


def _needed(log: LaunchLog, last: Launch) -> list[Launch]:
    """The launches whose results reach the last one, in order."""
    wanted, found = _reads(last) | _writes(last), [last]
    for launch in reversed(log.launches[: last.number - 1]):
        if launch.rank == last.rank and wanted & _writes(launch):
            wanted |= _reads(launch)
            found.append(launch)
    return found[::-1]


def _read_later(at: Stored, launches: Sequence[Launch]) -> bool:
    number, name = at
    (maker,) = (each for each in launches if each.number == number)
    if name not in _floats(maker):
        return False
    memory = memory_of(maker.live[name])
    return any(memory in _reads(each) for each in launches if each.number > number)


@dataclass(frozen=True)
class _Shadow:
    """The float64 contents of a storage, and the version of its tensors that PyTorch counts."""

    values: torch.Tensor
    version: int


def _element(
    launches: Sequence[Launch], buffer: str, index: Sequence[int], stored: Collection[Stored]
) -> float:
    """The element after float64 runs of the launches; those of `stored` keep what was stored."""
    shadows: dict[int, _Shadow] = {}
    result = None
    for launch in launches:
        record = launch.kernel.recorded(wide=True)
        keeper = Keeper(record)
        arguments = {**launch.before, **_shadowed(launch, shadows)}
        launch.kernel.run_recorded(arguments, launch.symbols, keeper, wide=True)
        for name in launch.written & _floats(launch).keys():
            array = keeper.arrays.get(record.memories[name])
            if array is None:
                continue
            tensor = launch.live[name]
            if launch is launches[-1]:
                if name == buffer:
                    result = float(array[tuple(index)])
                continue
            if (launch.number, name) in stored:
                shadows.pop(memory_of(tensor), None)
                continue
            known = shadows.get(memory_of(tensor))
            values = _whole(tensor).double() if known is None else known.values
            view = values.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            view.copy_(torch.from_numpy(array))
            shadows[memory_of(tensor)] = _Shadow(values, launch.unchanged[name])
    if result is None:
        raise Unsupported(f"a float64 run of {launches[-1]} does not write {buffer}")
    return result


def _shadowed(launch: Launch, shadows: dict[int, _Shadow]) -> dict[str, Any]:
    """The arguments that earlier launches wrote, in float64; not those that PyTorch changed."""
    found: dict[str, Any] = {}
    for name, value in _floats(launch).items():
        live = launch.live[name]
        shadow = shadows.get(memory_of(live))
        if shadow is not None and shadow.version == launch.unchanged[name]:
            view = shadow.values.as_strided(value.shape, live.stride(), live.storage_offset())
            if _far(view, value.double()):
                raise Unsupported(f"a float64 run gives far other values of {name} of {launch}")
            found[name] = view.contiguous()
    return found


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """The storage of a tensor, as a row of its elements."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((size,), (1,), 0)


def _far(exact: torch.Tensor, stored: torch.Tensor) -> bool:
    """Whether rounding does not explain the difference: memory changed in another way."""
    finite = exact.isfinite() & stored.isfinite()
    error = torch.linalg.vector_norm((exact - stored)[finite])
    return bool(error > _ROUNDING * torch.linalg.vector_norm(exact[finite]) + _UNDERFLOW)
