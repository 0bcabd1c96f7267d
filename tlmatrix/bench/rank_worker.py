"""What one rank does when several are timed: tries every implementation, then times all in step.

It runs in the process of the rank (`tlmatrix.backend.ranks.process`), which calls `time_on_rank` by
its name.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from tlmatrix.backend.binding import bind
from tlmatrix.backend.ranks.job import to_device
from tlmatrix.backend.ranks.rank_runner import RankRunner
from tlmatrix.bench.candidates import NotApplicableError, candidate, entry_run
from tlmatrix.bench.timing import Samples, Schedule, Timing, cuda_clock, in_turn
from tlmatrix.bench.words import error_words, first_sentence
from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tlmatrix.backend import Backend
    from tlmatrix.backend.ranks.job import Job
    from tlmatrix.bench.candidates import Candidate
    from tlmatrix.bench.timing import Call, Clock
    from tlmatrix.spec.models import Spec
    from tlmatrix.spec.values import Value

__all__ = ["OnRank", "RankTimes", "Way", "time_on_rank"]


@dataclass(frozen=True)
class Way:
    """An implementation: the spec's entry, or `target`, with the arguments that a sweep chose."""

    name: str
    target: str | None = None
    config: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class OnRank:
    """What a rank told of one implementation: `results`, or why it has none.

    `cannot` where it does not do such cases, `failed` where it raised.
    """

    results: Mapping[str, torch.Tensor] = field(default_factory=dict)
    cannot: str = ""
    failed: str = ""


@dataclass(frozen=True)
class RankTimes:
    """What a rank told of a case: of each implementation, and the samples of each pass."""

    told: Mapping[str, OnRank]
    passes: Mapping[str, Mapping[str, Samples]]


def time_on_rank(
    backend: Backend,
    rank: int,
    world: int,
    spec: Spec,
    job: Job,
    ways: Sequence[Way],
    schedule: Schedule,
    roots: tuple[Path, ...],
) -> RankTimes:
    """Try every implementation of a case, then time those that work on all ranks.

    Ranks meet before each call, and take the same number of rounds.
    """
    group = dist.group.WORLD
    runner = RankRunner(bind(spec, backend, roots=roots), rank, world, group)
    (call,) = to_device(job, backend.device).calls
    problem = runner.with_context(call.problem({"rank": rank, "world": world, "group": group}))
    ready: dict[str, Candidate] = {}
    told: dict[str, OnRank] = {}
    with backend.active():
        for way in ways:
            found = None
            try:
                run = entry_run(
                    spec, problem, backend, roots=roots, target=way.target, config=way.config
                )
                found = candidate(run, problem)
                backend.synchronize()
            except (NotApplicableError, NotImplementedError) as error:
                told[way.name] = OnRank(cannot=first_sentence(str(error)) or type(error).__name__)
            except SpecError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it raises is its result
                told[way.name] = OnRank(failed=error_words(error, backend))
            if found is not None:
                told[way.name] = OnRank(_on_host(found.results))
            if _least(found is not None) and found is not None:
                ready[way.name] = found
        clock = _clock(backend)
        passes = {}
        for name in ("forward", "backward"):
            calls = {
                who: each
                for who, tried in ready.items()
                if (each := tried.forward if name == "forward" else tried.backward) is not None
            }
            if calls:
                passes[name] = in_turn(calls, clock, schedule, agree=_largest)
    return RankTimes(told, passes)


def _on_host(results: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in results.items()}


def _least(value: float) -> float:
    """The smallest of all ranks, which also meet here."""
    mine = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MIN)
    return float(mine)


def _largest(value: float) -> float:
    """The largest of all ranks."""
    return -_least(-value)


def _clock(backend: Backend) -> Clock:
    """Times a call that all ranks begin together."""
    if backend.name != "cuda":
        return _together(_host_clock)
    one = torch.ones(1, device=backend.device)

    def begin() -> None:
        dist.all_reduce(one, op=dist.ReduceOp.MAX)

    return _together(cuda_clock(backend.device, begin))


def _together(clock: Clock) -> Clock:
    def timed(call: Call, lead: float) -> Timing:
        _least(0)
        return clock(call, lead)

    return timed


def _host_clock(call: Call, _lead: float) -> Timing:
    begin = time.perf_counter()
    call()
    spent = (time.perf_counter() - begin) * 1e3
    return Timing(spent, spent)
