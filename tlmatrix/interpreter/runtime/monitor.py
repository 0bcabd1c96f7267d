"""What a sanitized program calls: it knows the block that runs and collects findings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.reports import Party, Report
from tlmatrix.interpreter.sync import context
from tlmatrix.interpreter.sync.races import Access

from .memory import outside
from .packed import Boundaries, Packed
from .shadows import GlobalShadow, LocalShadow, lanes_of
from .stretches import Stretches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tlmatrix.interpreter.ir.nodes import Location
    from tlmatrix.interpreter.program import Program, Site
    from tlmatrix.interpreter.reports import Sequences as Declared
    from tlmatrix.interpreter.session import Session
    from tlmatrix.interpreter.sync.accesses import View
    from tlmatrix.interpreter.sync.clocks import Clock

    from .codecs import Array
    from .masks import Dim

__all__ = ["Monitor", "Running"]

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers that hold the bits of an element of that many bytes."""


class _BoundaryShadow(GlobalShadow):
    """The shadow of a parameter that holds boundaries: it notes which a block has read."""

    __slots__ = ("_plain", "boundaries")
    boundaries: Boundaries
    _plain: bool

    def one(self, site: int, index: tuple[int, ...], value: Any) -> Any:
        """A single boundary is read: `value`."""
        self.boundaries.read.add(index[0])
        return value if self._plain else super().one(site, index, value)

    def _read(self, site: int, place: Any, *, copied: bool = False) -> None:
        if place is not None:
            (rows,), _ = place
            if isinstance(rows, slice):
                rows = np.arange(rows.start, rows.stop, rows.step or 1)
            self.boundaries.read.update(np.atleast_1d(rows).tolist())
        super()._read(site, place, copied=copied)


@dataclass(frozen=True)
class Running:
    """A block that has started and may wait while others run.

    Attributes:
        number: its running number.
        block: its index in the grid.
        acquired: the numbers of blocks that flags order before it.
        read: per parameter the boundaries that it has read.
    """

    number: int
    block: tuple[int, ...]
    acquired: set[int]
    read: dict[str, set[int]]


class Monitor:
    """One launch of a sanitized program.

    Attributes:
        sanitizers: the sanitizers that are on.
        number: the running number, from 1, of the block; with roles of a stretch of the time
            of one of its roles, or of one of its asynchronous operations.
        here: the running number of the block.
        block: its index in the grid.
        shadows: of global buffers, by name.
        usage: what the kernel does with each: "read", "write", "atomic". Parameters that are
            one tensor have one shadow and one usage.
        aliases: the first name of such a tensor, by each of its names.
    """

    traced = False

    def __init__(
        self,
        program: Program,
        session: Session,
        tensors: Mapping[str, torch.Tensor],
        outputs: frozenset[str],
    ) -> None:
        assert program.watch is not None
        self._tensors = tensors
        self._program = program
        self._session = session
        self._watch = program.watch
        self._outputs = outputs
        self.usage = dict(self._watch.usage)
        self.aliases: dict[str, str] = {}
        self._found: dict[tuple[str, int, int], list[Any]] = {}
        self._of_roles: list[Report] = []
        self.sanitizers = session.sanitizers
        self.shadows: dict[str, GlobalShadow] = {}
        self.number = self.here = 0
        self.block: tuple[int, ...] = ()
        self._blocks: list[tuple[int, ...]] = [()]
        self._base = 1
        self._count = len(self._watch.sites)
        self._atomic = np.array([s.action == "atomic" for s in self._watch.sites] or [False])
        # Per flag element the blocks that did an atomic on it; and whom this block has seen.
        self._released: dict[tuple[Any, ...], set[int]] = {}
        self._acquired: set[int] = set()
        self._stretches: Stretches | None = None
        self._noted: dict[tuple[int, str, int, int], Access] = {}
        self._boundaries: dict[str, Boundaries] = {}
        self._declared: dict[str, Declared] = {}
        self._blank: dict[str, Array] = {}
        self._find_boundaries()
        self._find_blank()
        self._find_aliases()

    def _find_boundaries(self) -> None:
        """Note whose the rows of parameters are, and which parameters hold the boundaries."""
        if not self.sanitizers & {"sequences", "overreads"}:
            return
        for name, tensor in self._tensors.items():
            declared = self._session.sequences(name, tensor)
            if declared is not None:
                self._declared[name] = declared
        known = {declared.boundaries for declared in self._declared.values()}
        starts = {boundaries[:-1]: boundaries for boundaries in known}
        lengths = {len(boundaries) for boundaries in (*known, *starts)}
        for name, tensor in self._tensors.items():
            if (
                tensor.dim() == 1
                and tensor.dtype in (torch.int32, torch.int64)
                and len(tensor) in lengths
            ):
                values = tuple(tensor.tolist())
                if values in known:
                    self._boundaries[name] = Boundaries(values)
                elif values in starts:
                    self._boundaries[name] = Boundaries(starts[values], ended=False)

    def _find_blank(self) -> None:
        """Note which elements hold what the caller filled unwritten memory with."""
        if not self.sanitizers & {"uninitialised", "unwritten"}:
            return
        for name, tensor in self._tensors.items():
            poison = self._session.poison.get(tensor.dtype)
            # A layout puts elements elsewhere, and what lies between them is nobody's.
            if poison is None or name in self._program.layouts:
                continue
            # numpy looks through a few thousand elements in a third of torch's time.
            blank = tensor.view(_INTEGERS[tensor.element_size()]).numpy() == poison
            if np.count_nonzero(blank):
                self._blank[name] = blank

    def _find_aliases(self) -> None:
        """Note which parameters are one tensor."""
        known: dict[Any, str] = {}
        for name, tensor in self._tensors.items():
            if tensor.numel():
                key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
                first = known.setdefault(key, name)
                if first != name:
                    self.aliases[name] = self.aliases[first] = first
        for first in set(self.aliases.values()):
            names = [n for n, f in self.aliases.items() if f == first]
            together = frozenset().union(*(self.usage.get(n, frozenset()) for n in names))
            self.usage.update(dict.fromkeys(names, together))

    # -- shadows

    def parameter(self, name: str, array: Any) -> GlobalShadow:
        """The shadow of a parameter."""
        first = self.aliases.get(name)
        if first in self.shadows:
            self.shadows[name] = self.shadows[first]
            return self.shadows[name]
        usage = self.usage.get(name, frozenset())
        shape = tuple(array.shape) if array is not None else ()
        boundaries = self._boundaries.get(name)
        kind = GlobalShadow if boundaries is None else _BoundaryShadow
        shadow = kind(
            self,
            name,
            shape,
            usage=usage,
            blank=self._unwritten(name, shape),
            packed=self._packed(name, shape),
            abroad=self._view(name),
        )
        if isinstance(shadow, _BoundaryShadow) and boundaries is not None:
            shadow.boundaries = boundaries
            shadow._plain = shadow.quiet  # noqa: SLF001  # of its own kind
            shadow.quiet = False
        self.shadows[name] = shadow
        return shadow

    def _view(self, name: str) -> View | None:
        """What simulated ranks and streams do to a parameter's memory."""
        world = context.world()
        if world is None or world.accesses is None or name not in self._tensors:
            return None
        return world.accesses.view(self._tensors[name])

    def abroad(self, view: View, site: int, place: Any, name: str, action: str) -> None:
        """An access of memory that other simulated ranks and streams reach."""
        world = context.world()
        if world is None or world.running is None:
            return
        task = world.running
        key = site, action, task.agent, task.clock.get(task.agent, 0)
        seen = self._noted.get(key)
        if seen is None:
            how = self._watch.sites[site]
            at = (how.location.file, how.location.line) if how.location is not None else ("", 0)
            scope = "gpu" if action == "atomic" or how.orders else ""
            what = f"kernel {self._program.name}"
            seen = self._noted[key] = Access.of(task, action, *at, what, scope)
        view.note(place, seen, task, name)

    def _packed(self, name: str, shape: tuple[int, ...]) -> Packed | None:
        declared = self._declared.get(name)
        if (
            declared is None
            or declared.axis >= len(shape)
            or shape[declared.axis] < declared.boundaries[-1]
        ):
            return None
        readers = [b for b in self._boundaries.values() if b.values == declared.boundaries]
        return Packed(self, declared, readers) if readers or declared.of_block else None

    def workspace(self, name: str, array: Array) -> GlobalShadow:
        """The shadow of global memory that the kernel allocates."""
        usage = self.usage.get(name, frozenset())
        blank = np.ones(array.shape, bool)
        return GlobalShadow(self, name, array.shape, usage=usage, blank=blank, packed=None)

    def _unwritten(self, name: str, shape: tuple[int, ...]) -> Array | None:
        """Which elements of a parameter nobody has written yet; None where all are."""
        blank = self._blank.get(name)
        if blank is None and name in self._outputs:
            blank = np.ones(shape, bool)
        return blank

    def local(self, name: str, shape: tuple[int, ...]) -> LocalShadow:
        """The shadow of a block's buffer."""
        return LocalShadow(self, name, shape)

    # -- blocks

    def launch(self) -> None:
        """A grid starts: everything before it is over."""
        self._base = len(self._blocks)

    def enter(self, block: tuple[int, ...]) -> Running:
        """A block starts."""
        self._blocks.append(block)
        self._acquired = set()
        for found in self._boundaries.values():
            found.read = set()
        self.block = block
        self.number = self.here = len(self._blocks) - 1
        read = {name: found.read for name, found in self._boundaries.items()}
        return Running(self.number, block, self._acquired, read)

    def resume(self, running: Running) -> None:
        """Go on with a block that has started before."""
        if running.number == self.here:
            return
        self.number = self.here = running.number
        self.block = running.block
        self._acquired = running.acquired
        for name, found in self._boundaries.items():
            found.read = running.read[name]

    def work_as(self, running: Running, clock: Clock, agent: int, time: int) -> None:
        """What follows is done by an agent of a block, who knows `clock`, at a time of its own."""
        self.resume(running)
        if self._stretches is None:
            self._stretches = Stretches()
        self._stretches.begin(clock, agent, time)

    def code(self, site: int) -> int:
        """How a shadow remembers an access of this block."""
        if self._stretches is not None:
            self.number = self._stretches.number(self._blocks, self.here)
        return self.number * self._count + site

    def block_numbers(self, codes: Any) -> Any:
        """The blocks of remembered accesses."""
        numbers = np.abs(codes) // self._count
        return numbers if self._stretches is None else self._stretches.blocks(numbers)

    def atomic_codes(self, codes: Any) -> Any:
        """Which remembered accesses were atomics."""
        return (codes != 0) & self._atomic[np.abs(codes) % self._count]

    def foreign(self, codes: Any) -> Any:
        """Which remembered accesses are another block's, with nothing to order it before this."""
        numbers = self.block_numbers(codes)
        found = (codes < 0) | (numbers != self.here)
        found = found & (codes != 0) & (numbers >= self._base)
        if self._stretches is not None and found.any():
            found = found & ~self._stretches.known(np.abs(codes) // self._count)
        elif self._acquired and found.any():
            found = found & ~np.isin(numbers, list(self._acquired))
        return found

    def orders(self, site: int) -> bool:
        """Whether an access is to a flag: an atomic load or store, or one whose value is used."""
        return self._watch.sites[site].orders

    def flag(self, site: int, name: str, place: Any, shape: tuple[int, ...]) -> None:
        """An atomic: what was done by those who set a flag comes before it is seen."""
        how = self._watch.sites[site]
        if not (how.acquires or how.releases) or "ordered" not in self.usage.get(name, ()):
            return
        memory, mask = place
        flat = np.arange(int(np.prod(shape))).reshape(shape)[memory]
        if mask is not None:
            flat = flat[np.broadcast_to(mask, np.shape(flat))]
        if context.world() is not None and name in self._tensors:
            self._flag_abroad(how, name, np.atleast_1d(flat).ravel().tolist())
        for offset in np.atleast_1d(flat).ravel().tolist():
            if self._stretches is not None:
                self._stretches.flag((name, offset), how.acquires, how.releases)
                continue
            before = self._released.setdefault((name, offset), set())
            if how.acquires:
                self._acquired |= before
            if how.releases:
                before.add(self.number)
                before |= self._acquired
        if self._stretches is not None and how.releases:
            self._stretches.go_on()

    def _flag_abroad(self, how: Site, name: str, offsets: list[int]) -> None:
        """The same for other launches and ranks: T.atomic_* are of device scope."""
        from tlmatrix.interpreter.sync.flags import atomic

        tensor = self._tensors[name]
        place = (how.location.file, how.location.line) if how.location is not None else ("", 0)
        for offset in offsets if not tensor.dtype.is_floating_point else ():
            index = tuple(int(i) for i in np.unravel_index(offset, tensor.shape))
            atomic(tensor.numpy(), index, name, place, how.acquires, how.releases)

    # -- bounds

    def outside(
        self,
        site: int,
        dims: Sequence[Dim],
        shape: tuple[int, ...],
        loose: tuple[int, ...],
        mask: Any,
    ) -> None:
        """A block that is not all inside; dimensions in `loose` are guarded."""
        if mask is not None and not np.any(mask):
            return
        for axis, (dim, n) in enumerate(zip(dims, shape, strict=True)):
            first, last = (
                (dim[0], dim[0] + (dim[1] - 1) * dim[2]) if isinstance(dim, tuple) else (dim, dim)
            )
            if first > last or (first >= 0 and last < n):
                continue
            bad = np.asarray([first if first < 0 else last])
            if isinstance(dim, tuple):
                steps = np.arange(dim[1]) * dim[2] + dim[0]
                wrong = (steps < 0) | (steps >= n)
                if mask is not None:
                    wrong = wrong & self._lanes_along(dims, axis, mask)
                if not wrong.any():
                    continue
                bad = steps[wrong]
            where = tuple(d[0] if isinstance(d, tuple) else int(d) for d in dims)
            where = (*where[:axis], int(bad[0]), *where[axis + 1 :])
            self._out(site, where, axis, shape, guarded=axis in loose)

    @staticmethod
    def _lanes_along(dims: Sequence[Dim], axis: int, mask: Any) -> Any:
        ranges = [k for k, d in enumerate(dims) if isinstance(d, tuple)]
        extents = tuple(d[1] for d in dims if isinstance(d, tuple))
        other = tuple(k for k, a in enumerate(ranges) if a != axis)
        return np.broadcast_to(mask, extents).any(other)

    def lanes_outside(
        self,
        site: int,
        index: tuple[Any, ...],
        shape: tuple[int, ...],
        loose: tuple[int, ...],
        mask: Any,
    ) -> None:
        """One index a lane, any of which may be outside."""
        for axis, (i, n) in enumerate(zip(index, shape, strict=True)):
            wrong = (np.asarray(i) < 0) | (np.asarray(i) >= n)
            if not wrong.any():
                continue
            full = np.broadcast_shapes(np.shape(mask), *(np.shape(x) for x in index))
            wrong = np.broadcast_to(wrong, full)
            if mask is not None:
                wrong = wrong & mask
            if wrong.any():
                lane = tuple(np.argwhere(wrong)[0])
                where = tuple(int(np.broadcast_to(x, full)[lane]) for x in index)
                self._out(site, where, axis, shape, guarded=axis in loose)

    def one(
        self,
        site: int,
        index: tuple[int, ...],
        shape: tuple[int, ...],
        loose: tuple[int, ...],
        value: Any,
    ) -> Any:
        """A single element is read: `value`."""
        for axis, (i, n) in enumerate(zip(index, shape, strict=True)):
            if not 0 <= i < n:
                self._out(site, tuple(int(x) for x in index), axis, shape, guarded=axis in loose)
        return value

    def _out(
        self,
        site: int,
        where: tuple[int, ...],
        axis: int,
        shape: tuple[int, ...],
        *,
        guarded: bool,
    ) -> None:
        """Report an index outside; without the sanitizers of bounds it is an error, as ever."""
        name = "fragments" if self._watch.sites[site].local else "bounds"
        name = "guarded" if guarded else name
        if not guarded and not self.sanitizers & {"bounds", "fragments"}:
            outside(self._watch.sites[site].buffer, where, shape)
        skipped = ", which TileLang's guard skips" if guarded else ""
        self.report(
            name,
            site,
            where,
            f"index {where[axis]} of dimension {axis} of {{buffer}} is outside "
            f"0..{shape[axis] - 1}{skipped}",
        )

    # -- lanes

    def lanes_twice(
        self, site: int, index: tuple[Any, ...], shape: tuple[int, ...], mask: Any, lanes: Any
    ) -> None:
        """Lanes store where the index is no block: no two may have the same element."""
        spread = (
            np.broadcast_to(index[0], np.broadcast_shapes(np.shape(index[0]), lanes)),
            *index[1:],
        )
        place = lanes_of(spread, mask, shape)
        if place is None:
            return
        flat = np.ravel_multi_index(place[0], shape)
        seen = np.zeros(int(np.prod(shape)), bool)
        seen[flat] = True
        if np.count_nonzero(seen) < flat.size:
            values, counts = np.unique(flat, return_counts=True)
            double = int(values[counts > 1][0])
            where = tuple(int(i) for i in np.unravel_index(double, shape))
            self._double(site, where)

    def axes_twice(
        self,
        site: int,
        dims: Sequence[Dim],
        shape: tuple[int, ...],
        missing: tuple[int, ...],
        mask: Any,
        lanes: tuple[int, ...],
    ) -> None:
        """Lanes along `missing` axes store their own values to the same elements."""
        del shape
        active = np.ones(lanes, bool) if mask is None else np.broadcast_to(mask, lanes)
        if (active.sum(missing) > 1).any():
            self._double(site, tuple(d[0] if isinstance(d, tuple) else int(d) for d in dims))

    def threads_twice(
        self,
        site: int,
        index: tuple[Any, ...],
        shape: tuple[int, ...],
        mask: Any,
        lanes: tuple[int, ...],
        value: Any,
    ) -> None:
        """Threads store where several may have the same element: their values must be equal."""
        full = np.broadcast_shapes(lanes, np.shape(mask), *(np.shape(i) for i in index))
        place = lanes_of((np.broadcast_to(index[0], full), *index[1:]), mask, shape)
        if place is None:
            return
        keep: Any = np.broadcast_to(True if mask is None else mask, full)
        for i, n in zip(index, shape, strict=True):
            keep = keep & (np.asarray(i) >= 0) & (np.asarray(i) < n)
        values = np.broadcast_to(value, full)[keep]
        flat = np.asarray(np.ravel_multi_index(place[0], shape))
        order = np.argsort(flat, kind="stable")
        flat, values = flat[order], values[order]
        one, other = values[1:], values[:-1]
        differ = (one != other) & ((one == one) | (other == other))  # noqa: PLR0124  # NaN
        bad = np.flatnonzero((flat[1:] == flat[:-1]) & differ)
        if bad.size:
            where = tuple(int(i) for i in np.unravel_index(int(flat[bad[0]]), shape))
            self.report(
                "lanes", site, where, "two threads write different values to {buffer} at once"
            )

    def _double(self, site: int, where: tuple[int, ...]) -> None:
        self.report(
            "lanes", site, where, "two lanes of one parallel loop write one element of {buffer}"
        )

    # -- reports

    def report(
        self, name: str, site: int, index: tuple[int, ...], message: str, other: int = 0
    ) -> None:
        """Note a finding; of several at one line the first is kept, and counted."""
        if name not in self.sanitizers:
            return
        other = abs(other)
        key = (name, site, other % self._count if other else -1)
        known = self._found.get(key)
        if known is not None:
            known[-1] += 1
            return
        self._found[key] = [tuple(int(i) for i in index), self.block, message, other, 1]

    def add(self, reports: Iterable[Report]) -> None:
        """Take what was found of the roles of a block: races between them, barriers."""
        self._of_roles += [r for r in reports if r.sanitizer in self.sanitizers]

    def reports(self) -> list[Report]:
        """What was found, in order."""
        found = list(self._of_roles)
        for (name, site_number, _), (index, block, message, other, count) in self._found.items():
            site = self._watch.sites[site_number]
            spelled = f"{site.buffer}[{', '.join(str(i) for i in index)}]" if index else site.buffer
            text = message.format(buffer=spelled, action=site.action)
            report = self._report(name, site.location, site.buffer, index, block, text)
            tensor = self._tensors.get(site.buffer) if site.is_global else None
            found.append(replace(report, other=self._party(other), count=count, tensor=tensor))
        return found

    def _party(self, code: int) -> Party | None:
        if not code:
            return None
        site = self._watch.sites[code % self._count]
        location = site.location
        return Party(
            self._blocks[code // self._count],
            location.file if location is not None else "",
            location.line if location is not None else 0,
            site.action,
        )

    def _report(
        self,
        name: str,
        location: Location | None,
        buffer: str,
        index: tuple[int, ...],
        block: tuple[int, ...] | None,
        message: str,
    ) -> Report:
        return Report(
            name,
            self._program.name,
            location.file if location is not None else "",
            location.line if location is not None else 0,
            buffer,
            index,
            block,
            message,
        )

    def finish(self) -> list[Report]:
        """The launch is over: what it found, and outputs that are not written."""
        found = self.reports()
        if "unwritten" not in self.sanitizers:
            return found
        for name, shadow in self.shadows.items():
            if name in self._session.partial or not self._is_output(name):
                continue
            blank = shadow.blank
            if blank is None or not np.count_nonzero(blank):
                continue
            where = tuple(int(i) for i in np.argwhere(blank)[0])
            count = int(np.count_nonzero(blank))
            site = next(
                (s for s in self._watch.sites if s.buffer == name and s.action != "read"), None
            )
            spelled = ", ".join(str(i) for i in where)
            message = f"output {name}[{spelled}] is never written, and {count - 1} other elements"
            location = site.location if site is not None else None
            report = self._report("unwritten", location, name, where, None, message)
            found.append(replace(report, tensor=self._tensors.get(name)))
        return found

    def _is_output(self, name: str) -> bool:
        """Whether a kernel should write the whole of a parameter, as far as can be told."""
        usage = self.usage.get(name, frozenset())
        if self._session.poison and name not in self._outputs:
            return name in self._blank and bool(usage & {"write", "atomic"})
        return name in self._outputs or ("write" in usage and not usage & {"read", "atomic"})
