"""How calls are timed: in turn, so that what drifts drifts for all.

A `Clock` times one call; `in_turn` decides who is called when. Only `cuda_clock` knows a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

__all__ = ["Call", "Clock", "Samples", "Schedule", "Timing", "cuda_clock", "in_turn"]

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: on the device, and until the host had launched all of it."""

    device: float
    host: float


Clock = Callable[[Call, float], Timing]
"""Times a call; the second argument are the milliseconds the host may take to launch it while the
device is still busy with something that is not timed."""


@dataclass(frozen=True)
class Schedule:
    """How often calls are timed: for about `seconds`, within these numbers of rounds."""

    seconds: float = 2.0
    least: int = 20
    most: int = 200
    warmup: int = 3


@dataclass
class Samples:
    """Device milliseconds of each round, and the host's of one."""

    device: list[float] = field(default_factory=list)
    host: float = 0.0


def _alone(value: float) -> float:
    return value


def in_turn(
    calls: Mapping[str, Call],
    clock: Clock,
    schedule: Schedule,
    agree: Callable[[float], float] = _alone,
) -> dict[str, Samples]:
    """Time each call once a round; each round begins with another one.

    The number of rounds is fixed before the first: one that waited for a narrow interval would
    stop at the luckiest. Where several ranks do this in step, `agree` gives them all the same
    number for what each of them measured.
    """
    warm: dict[str, list[Timing]] = {name: [] for name in calls}
    for _ in range(schedule.warmup):
        for name, call in calls.items():
            warm[name].append(clock(call, 0.0))
    found = {
        name: Samples(host=min(timing.host for timing in timings)) for name, timings in warm.items()
    }
    # A call takes what its device or its host does, and half a millisecond around it.
    once = sum(
        median(max(timing.device, timing.host) for timing in timings) + 0.5
        for timings in warm.values()
    )
    rounds = min(max(int(schedule.seconds * 1e3 / agree(once)), schedule.least), schedule.most)
    names = list(calls)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples = found[name]
            samples.device.append(clock(calls[name], samples.host).device)
    return found


def cuda_clock(device: torch.device, meet: Callable[[], None] | None = None) -> Clock:
    """A clock of device events, each call after a flush of the L2 cache.

    `meet` enqueues what several devices wait for, so that their calls begin together.

    While the device flushes, and then spins for as long as the host takes to launch the call, the
    call's kernels queue up behind the first event: time in which the device only waits for the
    host is not counted. (`Timing.host` tells where it would matter.)
    """
    import torch

    properties = torch.cuda.get_device_properties(device)
    l2 = int(getattr(properties, "L2_cache_size", 0)) or 64 * 2**20
    flush = torch.empty(4 * l2, dtype=torch.int8, device=device)
    spin: Callable[[int], None] = torch.cuda._sleep  # noqa: SLF001 - nothing else keeps a stream busy
    ticks = int(getattr(properties, "clock_rate", 0)) or 2_000_000  # kHz: a millisecond's

    def events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
        event: Callable[..., torch.cuda.Event] = torch.cuda.Event
        return event(enable_timing=True), event(enable_timing=True)

    def clock(call: Call, lead: float) -> Timing:
        start, end = events()
        torch.cuda.synchronize(device)
        flush.zero_()
        if lead:
            spin(int((1.5 * lead + 0.05) * ticks))
        if meet is not None:
            meet()
        start.record()
        begin = time.perf_counter()
        call()
        host = time.perf_counter() - begin
        end.record()
        torch.cuda.synchronize(device)
        return Timing(float(start.elapsed_time(end)), host * 1e3)

    return clock
