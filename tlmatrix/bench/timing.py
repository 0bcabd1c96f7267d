"""Times calls in interleaved rounds, so that drift of the clock rate affects all alike.

A `Clock` times one call; `interleaved` schedules the calls. Only `cuda_clock` needs a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: on the device, and on the host until all work was launched."""

    device: float
    host: float


Clock = Callable[[Call, float], Timing]
"""Times a call. The second argument is how many milliseconds the device is kept busy beforehand, so
that the host can launch the call."""


@dataclass(frozen=True)
class Schedule:
    """How often calls are timed: for about `seconds`, with `least` to `most` rounds."""

    seconds: float = 2.0
    least: int = 20
    most: int = 200
    warmup: int = 3


@dataclass
class Samples:
    """Device milliseconds of each round, and the least host milliseconds of a call."""

    device: list[float] = field(default_factory=list)
    host: float = 0.0


def interleaved(
    calls: Mapping[str, Call],
    clock: Clock,
    schedule: Schedule,
    agree: Callable[[float], float] | None = None,
) -> dict[str, Samples]:
    """Time each call once per round; each round starts with another call.

    The number of rounds is fixed in advance: stopping once the interval is narrow would bias it.
    If several ranks time in lockstep, `agree` reduces a measured value over all of them.
    """
    warm: dict[str, list[Timing]] = {name: [] for name in calls}
    for _ in range(schedule.warmup):
        for name, call in calls.items():
            warm[name].append(clock(call, 0.0))
    found = {
        name: Samples(host=min(timing.host for timing in timings)) for name, timings in warm.items()
    }
    # The slower of device and host, and half a millisecond of overhead.
    once = sum(
        median(max(timing.device, timing.host) for timing in timings) + 0.5
        for timings in warm.values()
    )
    once = once if agree is None else agree(once)
    rounds = min(max(int(schedule.seconds * 1e3 / once), schedule.least), schedule.most)
    names = list(calls)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples = found[name]
            samples.device.append(clock(calls[name], samples.host).device)
    return found


def cuda_clock(device: torch.device, barrier: Callable[[], None] | None = None) -> Clock:
    """A clock that uses CUDA events and flushes the L2 cache before each call.

    `barrier` enqueues a barrier between devices, so that their calls start together.

    The device flushes, then spins for as long as the host takes to launch the call. So the call's
    kernels queue up behind the first event, and time in which the device waits for the host is not
    measured. `Timing.host` shows whether it would matter.
    """
    import torch

    properties = torch.cuda.get_device_properties(device)
    l2 = int(getattr(properties, "L2_cache_size", 0)) or 64 * 2**20
    flush = torch.empty(4 * l2, dtype=torch.int8, device=device)
    spin: Callable[[int], None] = torch.cuda._sleep  # noqa: SLF001 - PyTorch has no public spin kernel
    ticks = int(getattr(properties, "clock_rate", 0)) or 2_000_000  # kHz: cycles per millisecond

    def events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
        event: Callable[..., torch.cuda.Event] = torch.cuda.Event
        return event(enable_timing=True), event(enable_timing=True)

    def clock(call: Call, lead: float) -> Timing:
        start, end = events()
        torch.cuda.synchronize(device)
        flush.zero_()
        if lead:
            spin(int((1.5 * lead + 0.05) * ticks))
        if barrier is not None:
            barrier()
        start.record()
        begin = time.perf_counter()
        call()
        host = time.perf_counter() - begin
        end.record()
        torch.cuda.synchronize(device)
        return Timing(float(start.elapsed_time(end)), host * 1e3)

    return clock
