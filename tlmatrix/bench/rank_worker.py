"""Times implementations on one of several ranks: tries each, then times all in lockstep.

The process of the rank (`tlmatrix.distributed.process`) calls `time_on_rank` by name.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from tlmatrix.backend.binding import bind
from tlmatrix.bench.candidates import NotApplicableError, entry_run, prepare_candidate
from tlmatrix.bench.errors import first_sentence, summarize_error
from tlmatrix.bench.timing import Samples, Schedule, Timing, cuda_clock, interleaved
from tlmatrix.distributed.job import to_device
from tlmatrix.distributed.rank_runner import RankRunner
from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tlmatrix.backend import Backend
    from tlmatrix.bench.candidates import Candidate
    from tlmatrix.bench.timing import Call, Clock
    from tlmatrix.distributed.job import Job
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


@dataclass(frozen=True)
class Variant:
    """An implementation: the spec's entry, or `target`, with a configuration of a sweep."""

    name: str
    target: str | None = None
    config: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class RankResult:
    """The results of one implementation on a rank, or the reason why there are none.

    `not_applicable` if it does not support the case, `failed` if it raised.
    """

    results: Mapping[str, torch.Tensor] = field(default_factory=dict)
    not_applicable: str = ""
    failed: str = ""


@dataclass(frozen=True)
class RankTimes:
    """The results of a rank for a case by implementation, and the samples of each pass."""

    results: Mapping[str, RankResult]
    passes: Mapping[str, Mapping[str, Samples]]


def time_on_rank(
    backend: Backend,
    rank: int,
    world: int,
    spec: Spec,
    job: Job,
    variants: Sequence[Variant],
    schedule: Schedule,
    roots: tuple[Path, ...],
) -> RankTimes:
    """Try every implementation of a case, then time those that work on all ranks.

    Ranks synchronize before each call and run the same number of rounds.
    """
    group = dist.group.WORLD
    runner = RankRunner(bind(spec, backend, roots=roots), rank, world, group)
    (call,) = to_device(job, backend.device).calls
    problem = runner.with_context(call.problem({"rank": rank, "world": world, "group": group}))
    ready: dict[str, Candidate] = {}
    results: dict[str, RankResult] = {}
    with backend.active():
        for variant in variants:
            found = None
            try:
                run = entry_run(
                    spec,
                    problem,
                    backend,
                    roots=roots,
                    target=variant.target,
                    config=variant.config,
                )
                found = prepare_candidate(run, problem)
                backend.synchronize()
            except (NotApplicableError, NotImplementedError) as error:
                results[variant.name] = RankResult(
                    not_applicable=first_sentence(str(error)) or type(error).__name__
                )
            except SpecError:
                raise
            except Exception as error:  # noqa: BLE001 - any error is reported in the table
                results[variant.name] = RankResult(failed=summarize_error(error, backend))
            if found is not None:
                results[variant.name] = RankResult(_to_host(found.results))
            if _minimum(found is not None) and found is not None:
                ready[variant.name] = found
        clock = _clock(backend)
        passes = {}
        for name in ("forward", "backward"):
            calls = {
                variant_name: each
                for variant_name, tried in ready.items()
                if (each := tried.forward if name == "forward" else tried.backward) is not None
            }
            if calls:
                passes[name] = interleaved(calls, clock, schedule, agree=_maximum)
    return RankTimes(results, passes)


def _to_host(results: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in results.items()}


def _minimum(value: float) -> float:
    """The minimum over all ranks; also a barrier."""
    mine = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MIN)
    return float(mine)


def _maximum(value: float) -> float:
    """The maximum over all ranks."""
    return -_minimum(-value)


def _clock(backend: Backend) -> Clock:
    """A clock for calls that all ranks start together."""
    if backend.name != "cuda":
        return _synchronized(_host_clock)
    one = torch.ones(1, device=backend.device)

    def begin() -> None:
        dist.all_reduce(one, op=dist.ReduceOp.MAX)

    return _synchronized(cuda_clock(backend.device, begin))


def _synchronized(clock: Clock) -> Clock:
    def timed(call: Call, lead: float) -> Timing:
        _minimum(0)
        return clock(call, lead)

    return timed


def _host_clock(call: Call, _lead: float) -> Timing:
    begin = time.perf_counter()
    call()
    spent = (time.perf_counter() - begin) * 1e3
    return Timing(spent, spent)
