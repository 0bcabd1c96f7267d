"""Runs lowered kernels one warp after another, with asynchronous work as early or late as allowed.

This shows what the clocks of `tlmatrix.interpreter.lowered` claim, without them: two accesses that
nothing orders happen in one order if warps run in ascending order between two barriers, and in the
other if they run in descending order. Asynchronous copies happen when they are issued, or as late
as the waits of the program permit; `wgmma` and bulk stores see what threads wrote only after a
proxy fence. A kernel whose results are equal under all of these needs no further synchronization.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.errors import DeadlockError
from tlmatrix.interpreter.lowered import copies, execution, matrices
from tlmatrix.interpreter.lowered.barriers import Barriers
from tlmatrix.interpreter.lowered.machine import Machine, Watching
from tlmatrix.interpreter.lowered.memory import Memory
from tlmatrix.interpreter.lowered.registers import Registers
from tlmatrix.interpreter.reports import ReportSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.interpreter.lowered.lowering import LoweredKernel
    from tlmatrix.interpreter.lowered.program import DeviceProgram


@dataclass(frozen=True)
class Schedule:
    """An order of warps, and when asynchronous work is done."""

    descending: bool
    late: bool


SCHEDULES = tuple(Schedule(order, late) for late in (False, True) for order in (False, True))


class _Block:
    """What the warps of a block share."""

    def __init__(self, program: DeviceProgram, shared_bytes: int, schedule: Schedule) -> None:
        self.schedule = schedule
        self.barriers = Barriers(1, sum(program.barriers.values()) or 1, None)
        self.data = np.full(max(shared_bytes, 1), 0xFF, np.uint8)
        self.proxied = self.data.copy()
        self.arrived: dict[int, int] = defaultdict(int)
        self.passed: dict[int, int] = defaultdict(int)
        self.loads: list[Callable[[], None]] = []
        self.threads = math.prod(program.threads)
        self.progress = 0


class _Units:
    """Asynchronous work of a warp in groups; late work is done when its group is waited for."""

    def __init__(self, late: bool) -> None:
        self._late = late
        self._open: dict[str, list[Any]] = defaultdict(list)
        self._groups: dict[str, list[list[Any]]] = defaultdict(list)

    def start(self, unit: str, work: Callable[[], None]) -> None:
        if self._late:
            self._open[unit].append(work)
        else:
            work()

    def commit(self, unit: str, mask: Any) -> None:
        if mask is None or np.any(mask):
            self._groups[unit].append(self._open.pop(unit, []))

    def wait(self, unit: str, left: int, mask: Any) -> None:
        if mask is None or np.any(mask):
            groups = self._groups[unit]
            while len(groups) > left:
                for work in groups.pop(0):
                    work()

    def finish(self, unit: str) -> None:
        """Do all that was started."""
        for work in self.abandoned(unit):
            work()
        self._groups[unit], self._open[unit] = [], []

    def abandoned(self, unit: str) -> Iterator[Any]:
        """Work that the program never waited for."""
        for group in (*self._groups[unit], self._open[unit]):
            yield from group


class _Warps(Machine):
    """One warp of a block, or one warp group."""

    def __init__(
        self, program: DeviceProgram, grid: Any, number: int, part: tuple[int, int], block: _Block
    ) -> None:
        first, count = part
        self.program, self.watching = program, Watching(frozenset(), ReportSet(), "")
        self.threads = self.count = count
        self.blocks, self._block = 1, block
        self.lanes = np.arange(count)
        self.block = np.zeros(count, np.int64)
        thread = np.arange(first, first + count)
        tx, ty, _ = program.threads
        self.thread = (thread % tx, thread // tx % ty, thread // (tx * ty))
        x, y, _ = (*grid, 1, 1)[:3]
        index = (number % x, number // x % y, number // (x * y))
        self.index = tuple(np.full(count, each) for each in index)  # type: ignore[assignment]
        self.stride = self._shared_bytes = len(block.data)
        self.clocks, self.watched = None, frozenset()
        self.barriers = block.barriers
        self.units = _Units(block.schedule.late)  # type: ignore[assignment]
        self.registers = Registers(self)
        self.progress = 0
        self.arena = Memory("shared", block.data, len(block.data), self.block, 0, None, "shared")

    def synchronize(self, mask: Any, number: int, count: int) -> Any:
        if mask is not None and not np.any(mask):
            return
        block, need = self._block, count or self._block.threads
        block.arrived[number] += self.count if mask is None else int(np.count_nonzero(mask))
        target = block.passed[number] + 1
        if block.arrived[number] >= need:
            block.arrived[number] = 0
            block.passed[number] = target
        while block.passed[number] < target:
            yield f"barrier {number}"
        block.progress += 1

    def wait(self, number: Any, parity: Any, mask: Any, site: int) -> Any:
        yield from super().wait(number, parity, mask, site)
        self._block.progress += 1

    def arrive_after_copies(self, number: Any, mask: Any) -> None:
        self.units.finish("copies")  # type: ignore[attr-defined]
        self.arrive(number, mask)

    def fence_proxy(self, mask: Any) -> None:
        if mask is None or np.any(mask):
            self._block.proxied[:] = self._block.data

    def by_unit(self, work: Callable[[], Any]) -> Any:
        """Do work of an asynchronous unit, which reads what proxy fences have shown it."""
        self.arena.data = self._block.proxied
        try:
            return work()
        finally:
            self.arena.data = self._block.data


def _deferred(function: Any, unit: str, reads: bool) -> Any:
    def start(m: _Warps, *args: Any) -> None:
        args = tuple(a.copy() if _is_index(a) else a for a in args)
        work = partial(function, m, *args)
        m.units.start(unit, partial(m.by_unit, work) if reads else work)  # type: ignore[attr-defined]

    return start


def _is_index(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1


def _load(function: Any) -> Any:
    def start(m: _Warps, *args: Any) -> None:
        args = tuple(a.copy() if _is_index(a) else a for a in args)

        def work() -> None:
            brought, m.brought = m.brought, lambda *_: None  # type: ignore[method-assign]
            m.by_unit(partial(function, m, *args))
            m.brought = brought  # type: ignore[method-assign]
            function(m, *args)

        if m._block.schedule.late:  # noqa: SLF001
            m._block.loads.append(work)  # noqa: SLF001
        else:
            work()

    return start


_REPLACED = {
    "cp_async": _deferred(copies.cp_async, "copies", reads=False),
    "tma_store": _deferred(copies.tma_store, "stores", reads=True),
    "bulk_store": _deferred(copies.bulk_store, "stores", reads=True),
    "wgmma": _deferred(matrices.wgmma, "products", reads=True),
    "tma_load": _load(copies.tma_load),
    "bulk_load": _load(copies.bulk_load),
}


def run_scheduled(kernel: LoweredKernel, values: Sequence[Any], schedule: Schedule) -> None:
    """Run the first and the last block of each launch; `kernel` is emitted with `suspends`.

    Raises:
        DeadlockError: no warp can go on.
    """
    for each in kernel.programs.values():
        execution.function_of(each).__globals__.update(_REPLACED)  # type: ignore[attr-defined]
    original = execution._run_blocks  # noqa: SLF001

    def run_blocks(
        program: Any, grid: Any, chosen: Any, shared: Any, arguments: Any, *_: Any
    ) -> None:
        total = math.prod(grid)
        for number in sorted({0, total - 1} & set(chosen.tolist())):
            _run_block(
                program, execution.function_of(program), grid, number, shared, arguments, schedule
            )

    execution._run_blocks = run_blocks  # noqa: SLF001
    try:
        execution.run(kernel, values, Watching(frozenset(), ReportSet(), ""))
    finally:
        execution._run_blocks = original  # noqa: SLF001


def _run_block(
    program: DeviceProgram,
    function: Any,
    grid: Any,
    number: int,
    shared: int,
    arguments: Any,
    schedule: Schedule,
) -> None:
    block = _Block(program, shared, schedule)
    size = 128 if "wgmma(" in program.source else 32
    parts = [(k, min(size, block.threads - k)) for k in range(0, block.threads, size)]
    warps = [_Warps(program, grid, number, part, block) for part in parts]
    running = [function(m, *arguments) for m in warps]
    if schedule.descending:
        running.reverse()
    while running:
        before = block.progress + sum(m.progress for m in warps), len(running)
        running = [each for each in running if _goes_on(each)]
        if running and before == (block.progress + sum(m.progress for m in warps), len(running)):
            if not block.loads:
                raise DeadlockError("no warp can go on")
            block.loads.pop(0)()
    if schedule.late:
        # Shared memory is another block's once the threads have ended.
        block.proxied[:] = block.data[:] = 0xFF
        for m in warps:
            for work in m.units.abandoned("stores"):  # type: ignore[attr-defined]
                work()


def _goes_on(running: Any) -> bool:
    try:
        next(running)
    except StopIteration:
        return False
    return True
