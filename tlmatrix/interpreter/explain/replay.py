"""An element followed back through a launch: its writer, the statements, their operands.

Four runs of the launch, on copies of its arguments: one of all blocks to find the writer of
the element; one of its block, for the geometry of its accesses; two more for the values of
the elements that matter, as the kernel computes them and with float64 in the place of every float
dtype. Blocks that no other block waits for are skipped in all but the first.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.errors import InterpreterError, Unsupported
from tlmatrix.interpreter.watch.recorders import Follower, Mapper

from .model import (
    Block,
    Explanation,
    NotMadeError,
    Read,
    Rounding,
    Source,
    Step,
    Writer,
)
from .slicing import carried_rounding, sliced
from .text import rendered_indices

if TYPE_CHECKING:
    from tlmatrix.interpreter.program import Record
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.runtime.elements import Iteration
    from tlmatrix.interpreter.watch.recorders import BlockRun, Write

    from .model import Launch, LaunchLog
    from .slicing import Link, Slice

_VALUES = 1 << 22
"""Values of tiles kept of one run: 32 MiB."""
_FLOAT32 = 2.0**-18
"""Relative deviation that sums and exponentials in float32 can have without anything lost."""
_UNDERFLOW = 2.0**-120
"""Below this float32 may hold nothing, and nothing is lost by it."""
_JUMP = 8.0
"""A step loses precision where its deviation is so many times that of what it read."""


def _mapped(launch: Launch, target: tuple[str, int]) -> Mapper:
    """Run a launch again, to find the writers of an element: (memory, flat index).

    Raises:
        Unsupported: the kernel's threads have warp roles, its blocks tell each other by flags what
            they have written, or its arguments have been changed since.
    """
    changed = launch.changed_since()
    if changed:
        raise Unsupported(
            f"{launch} cannot be run again: PyTorch has changed {', '.join(changed)} since"
        )
    record = launch.kernel.recorded(wide=False)
    if launch.kernel.waits and not record.independent:
        raise Unsupported(
            f"{launch} cannot be run again: its blocks use flags, and read what the kernel writes"
        )
    mapper = Mapper(record, target)
    launch.kernel.run_recorded(_arguments(launch), launch.symbols, mapper, wide=False)
    return mapper


def explain_element(
    log: LaunchLog,
    launch: Launch,
    buffer: str,
    index: Sequence[int],
    *,
    block: tuple[int, ...] | None = None,
    carried: bool = True,
) -> Explanation:
    """Explain an element of a parameter of a launch.

    Args:
        log: the launches around it, to name those that made its inputs.
        launch: the launch.
        buffer: the name of a parameter that the kernel writes.
        index: one number for each dimension.
        block: the index of the block to follow, of several that wrote the element.
        carried: whether to measure the rounding that earlier launches pass on.

    Raises:
        ValueError: there is no such parameter, element or block.
        NotMadeError: the launch did not write the element.
        Unsupported: the kernel's threads have warp roles, or its arguments have been changed since.
    """
    tensor = launch.live.get(buffer)
    if buffer not in launch.written or not isinstance(tensor, torch.Tensor):
        raise ValueError(
            f"{launch} writes no {buffer!r}; it writes {', '.join(sorted(launch.written))}"
        )
    shape = tuple(tensor.shape)
    if len(index) != len(shape) or not all(0 <= i < n for i, n in zip(index, shape, strict=False)):
        raise ValueError(f"{buffer} has no element {list(index)}: its shape is {list(shape)}")
    record = launch.kernel.recorded(wide=False)
    memory = record.memories[buffer]
    flat = int(np.ravel_multi_index(tuple(index), shape)) if shape else 0
    mapper = _mapped(launch, (memory, flat))
    chosen = _chosen(mapper, launch, buffer, index, block)
    follower = Follower(record, (chosen.grid, chosen.index), alone=_alone(launch, record))
    launch.kernel.run_recorded(_arguments(launch), launch.symbols, follower, wide=False)
    found = sliced(follower.events, record.sites, memory, tensor.numel(), flat)
    walk = _Walk(launch, record, found, chosen)
    steps = walk.steps()
    last = next((s for s in reversed(steps) if s.buffer == buffer), None)
    initial = _initial(launch, buffer, index)
    rounding = Rounding()
    if carried and tensor.is_floating_point():
        rounding = carried_rounding(log, launch, buffer, index)
    return Explanation(
        kernel=launch.kernel.name,
        launch=launch.number,
        rank=launch.rank,
        buffer=buffer,
        index=tuple(index),
        shape=shape,
        dtype=str(tensor.dtype).removeprefix("torch."),
        grid=_grid(mapper, record, chosen.grid),
        block=Block(record.grids[chosen.grid], chosen.index),
        writers=_writers(mapper, record, initial),
        loops=tuple(chosen.loops.values()),
        steps=steps,
        sources=walk.sources(log),
        addresses=walk.reads(found.addresses),
        missing=walk.missing(),
        value=last.value if last is not None else float("nan"),
        exact=None if last is None or last.exact is None else float(last.exact[0]),
        no_exact=walk.no_exact,
        rounding=rounding,
        earlier=walk.earlier(log),
        tensors=launch.live.get,
    )


def writers_of(launch: Launch, buffer: str, index: Sequence[int]) -> tuple[Writer, ...]:
    """The writes of an element of a parameter in a launch, in order.

    Raises:
        NotMadeError: the launch did not write the element.
        Unsupported: as for `explain_element`.
    """
    shape = tuple(launch.live[buffer].shape)
    flat = int(np.ravel_multi_index(tuple(index), shape)) if shape else 0
    record = launch.kernel.recorded(wide=False)
    mapper = _mapped(launch, (record.memories[buffer], flat))
    if not mapper.writes:
        raise NotMadeError(f"{launch} did not write {buffer}{list(index)}")
    return _writers(mapper, record, _initial(launch, buffer, index))


def _arguments(launch: Launch) -> dict[str, Any]:
    """The arguments as they were, with copies of what the kernel writes."""
    copies: dict[int, torch.Tensor] = {}
    found = dict(launch.before)
    for name, value in launch.before.items():
        if isinstance(value, torch.Tensor) and name in launch.written:
            key = (value.data_ptr(), tuple(value.shape), value.stride())
            found[name] = copies.setdefault(hash(key), value.clone())
    return found


def _alone(launch: Launch, record: Record) -> bool:
    """Whether a block's values do not depend on whether the others ran."""
    memories = [
        v.untyped_storage().data_ptr()
        for v in launch.live.values()
        if isinstance(v, torch.Tensor) and v.numel()
    ]
    return record.independent and len(memories) == len(set(memories))


def _chosen(
    mapper: Mapper,
    launch: Launch,
    buffer: str,
    index: Sequence[int],
    block: tuple[int, ...] | None,
) -> BlockRun:
    """The block to follow."""
    if not mapper.writes:
        raise NotMadeError(f"{launch} did not write {buffer}{list(index)}")
    writers = [w.block for w in mapper.writes]
    if block is not None:
        for run in writers:
            if run.index == block:
                return run
        names = ", ".join(dict.fromkeys(str(run.index) for run in writers))
        raise ValueError(f"block {block} did not write {buffer}{list(index)}; written by {names}")
    record = mapper.record
    if record.sites[mapper.writes[-1].site].action != "atomic":
        return writers[-1]
    added = _added(mapper.writes, _initial(launch, buffer, index))
    return writers[int(np.argmax(np.abs(np.nan_to_num(added, nan=np.inf))))]


def _initial(launch: Launch, buffer: str, index: Sequence[int]) -> float:
    """What the element held before the launch."""
    return float(launch.before[buffer][tuple(index)])


def _added(writes: Sequence[Write], initial: float) -> list[float]:
    held = [initial, *(w.value for w in writes)]
    return [after - before for before, after in pairwise(held)]


def _writers(mapper: Mapper, record: Record, initial: float) -> tuple[Writer, ...]:
    found = []
    for write, added in zip(mapper.writes, _added(mapper.writes, initial), strict=True):
        run = write.block
        site = record.sites[write.site]
        found.append(
            Writer(
                Block(record.grids[run.grid], run.index),
                site.location,
                site.action,
                _named_loops(write.iteration, record),
                write.value,
                added if site.action == "atomic" else None,
            )
        )
    return tuple(found)


def _grid(mapper: Mapper, record: Record, grid: int) -> dict[str, int]:
    runs = [run.index for run in mapper.blocks if run.grid == grid]
    names = record.grids[grid]
    return {name: max(index[k] for index in runs) + 1 for k, name in enumerate(names)}


def _named_loops(iteration: Iteration, record: Record) -> tuple[tuple[str, int], ...]:
    return tuple((record.loops[number].name or "iteration", at) for number, at in iteration)


class _Walk:
    """Turns a slice into steps."""

    def __init__(self, launch: Launch, record: Record, found: Slice, run: BlockRun) -> None:
        self._launch, self._record, self._found, self._run = launch, record, found, run
        self._shapes: dict[str, tuple[int, ...]] = {}
        for link in found.links:
            event = link.event
            self._shapes[record.sites[event.site].memory] = event.write.shape
            for place, access in event.reads:
                self._shapes.setdefault(record.sites[place].memory, access.shape)
        self.no_exact = ""

    def steps(self) -> tuple[Step, ...]:
        """The steps, with their values and those of a float64 run."""
        links = self._found.links
        cap = max(64, _VALUES // max(len(links), 1))
        wanted = {link.event.number: _sample(link.elements, cap) for link in links}
        values = self._values(wanted, wide=False)
        exact: Mapping[int, Array] = {}
        try:
            exact = self._values(wanted, wide=True)
        except (Unsupported, InterpreterError) as error:
            self.no_exact = str(error).splitlines()[0]
        if exact and exact.keys() != values.keys():
            self.no_exact = "the float64 run took another way through the program"
            exact = {}
        known: dict[str, float] = {}
        return tuple(
            self._step(link, values[link.event.number], exact.get(link.event.number), known)
            for link in links
        )

    def _values(self, wanted: Mapping[int, Array], *, wide: bool) -> dict[int, Array]:
        kernel = self._launch.kernel
        record = kernel.recorded(wide=wide)
        follower = Follower(
            record,
            (self._run.grid, self._run.index),
            alone=_alone(self._launch, self._record),
            wanted=wanted,
        )
        kernel.run_recorded(_arguments(self._launch), self._launch.symbols, follower, wide=wide)
        return follower.values

    def _step(
        self, link: Link, values: Array, exact: Array | None, known: dict[str, float]
    ) -> Step:
        site = self._record.sites[link.event.site]
        deviation = None if exact is None else _deviation(values, exact)
        departs = ""
        if deviation is not None:
            sources = (known.get(self._record.sites[n].memory, 0.0) for n, _ in link.reads)
            before = max(sources, default=0.0)
            if deviation > max(_FLOAT32, _JUMP * before):
                wide = site.dtype in ("float32", "float64")
                departs = "rounded" if not wide else "cancels" if before > _FLOAT32 else "departs"
            known[site.memory] = deviation
        location = site.location
        text = linecache.getline(location.file, location.line).strip() if location else ""
        return Step(
            loops=_named_loops(link.event.iteration, self._record),
            location=location,
            text=text,
            action=site.action,
            buffer=site.buffer,
            place=rendered_indices(link.elements, link.event.write.shape),
            elements=len(link.elements),
            values=values,
            exact=exact,
            deviation=deviation,
            departs=departs,
            reads=self.reads(link.reads),
        )

    def reads(self, found: Iterable[tuple[int, Array]]) -> tuple[Read, ...]:
        """The reads as text; several of one memory are one."""
        together: dict[str, tuple[int, list[Array]]] = {}
        for number, flat in found:
            memory = self._record.sites[number].memory
            together.setdefault(memory, (number, []))[1].append(flat)
        reads = []
        for memory, (number, parts) in together.items():
            site = self._record.sites[number]
            flat = np.unique(np.concatenate(parts))
            shape = self._shapes.get(memory) or self._shape_of(site.buffer)
            place = rendered_indices(flat, shape)
            reads.append(Read(site.buffer, place, len(flat), site.is_global))
        return tuple(reads)

    def _shape_of(self, buffer: str) -> tuple[int, ...]:
        tensor = self._launch.before.get(buffer)
        return tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else ()

    def missing(self) -> tuple[Read, ...]:
        """Memory read before anything wrote it."""
        sites = {s.memory: s for s in self._record.sites}
        return tuple(
            Read(sites[m].buffer, rendered_indices(flat, self._shapes.get(m, ())), len(flat), False)
            for m, flat in self._found.missing
        )

    def _global(self) -> dict[str, list[tuple[Iteration, Array]]]:
        """What was read of each parameter, by iteration."""
        found: dict[str, list[tuple[Iteration, Array]]] = {}
        for link in self._found.links:
            for place, flat in link.reads:
                site = self._record.sites[place]
                own = place == link.event.site
                if site.is_global and site.buffer in self._launch.before and not own:
                    found.setdefault(site.buffer, []).append((link.event.iteration, flat))
        return found

    def sources(self, log: LaunchLog) -> tuple[Source, ...]:
        """The parameters it was made of."""
        found = []
        for buffer, parts in self._global().items():
            flat = np.unique(np.concatenate([flat for _, flat in parts]))
            tensor = self._launch.live[buffer]
            makers = log.makers(tensor, self._launch.number)
            by_iteration: dict[tuple[tuple[str, int], ...], list[Array]] = {}
            for iteration, part in parts:
                by_iteration.setdefault(_named_loops(iteration, self._record), []).append(part)
            found.append(
                Source(
                    buffer,
                    rendered_indices(flat, tuple(tensor.shape)),
                    len(flat),
                    str(makers[0][0]) if makers else None,
                    _nonfinite(self._launch.before[buffer], flat),
                    tuple((t, np.unique(np.concatenate(p))) for t, p in by_iteration.items()),
                )
            )
        return tuple(found)

    def earlier(self, log: LaunchLog) -> Explanation | None:
        """The explanation of the one element of an earlier launch, if that is all there is."""
        read = self._global()
        if len(read) != 1:
            return None
        ((buffer, parts),) = read.items()
        flat = np.unique(np.concatenate([part for _, part in parts]))
        tensor = self._launch.live[buffer]
        if len(flat) != 1 or not tensor.dim():
            return None
        index = [int(i[0]) for i in np.unravel_index(flat, tuple(tensor.shape))]
        try:
            launch, name, place = log.find(tensor, index, until=self._launch.number)
            return explain_element(log, launch, name, place, carried=False)
        except (NotMadeError, Unsupported):
            return None


def _nonfinite(tensor: torch.Tensor, flat: Array) -> Array:
    """Which of the elements `flat` (numbered by rows) are NaN or infinite."""
    if not tensor.is_floating_point():
        return flat[:0]
    values = tensor.detach().flatten()[torch.from_numpy(flat)].double()
    found: Array = flat[~values.isfinite().numpy()]
    return found


def _sample(flat: Array, cap: int) -> Array:
    """All elements, or evenly spaced ones where there are too many."""
    if len(flat) <= cap:
        return flat
    return flat[np.linspace(0, len(flat) - 1, cap).astype(np.int64)]


def _deviation(values: Array, exact: Array) -> float:
    """Root mean square of the difference, relative to that of `exact`."""
    same = (values == exact) | (np.isnan(values) & np.isnan(exact))
    same |= (np.abs(exact) < _UNDERFLOW) & (np.abs(values) < _UNDERFLOW)
    if same.all():
        return 0.0
    with np.errstate(all="ignore"):
        difference = np.where(same, 0.0, values - exact)
        size = np.where(np.isfinite(exact), exact, 0.0)
    if not np.isfinite(difference).all():
        return float("inf")
    scale = float(np.sqrt(np.mean(size**2)))
    error = float(np.sqrt(np.mean(difference**2)))
    return error / scale if scale else float("inf")
