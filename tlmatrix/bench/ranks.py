"""Times an entry on several ranks, each in its own process, in lockstep; the slowest rank counts.

`RankTimer` runs in the command's process. The process of each rank
(`tlmatrix.distributed.process`) calls `time_on_rank`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tlmatrix.backend.binding import bind
from tlmatrix.backend.errors import DevicesError, EntryError
from tlmatrix.bench.candidates import (
    ENTRY,
    NotApplicableError,
    Timed,
    entry_run,
    find_mismatch,
    time_passes,
    try_variants,
)
from tlmatrix.bench.results import Implementation, State
from tlmatrix.bench.timing import Samples, Schedule, Timing, cuda_clock
from tlmatrix.check.finding import FindingsError
from tlmatrix.distributed.entry import gathered
from tlmatrix.distributed.executors import ProcessExecutor, executor_for
from tlmatrix.distributed.rank_runner import Job, RankRunner, to_device
from tlmatrix.problem.sharding import Sharding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tlmatrix.backend import Backend
    from tlmatrix.bench.candidates import Candidate, Named, Run, Variant
    from tlmatrix.bench.timing import Call, Clock
    from tlmatrix.problem import Problem
    from tlmatrix.spec.model.spec import Spec

_SECONDS = 900.0
"""Time limit of a case in seconds, including compilation."""
_ONE_GPU_ONLY = "runs on one GPU; give a function that every rank calls, package.module:name"


@dataclass(frozen=True)
class RankTimes:
    """What one rank has of a case: states and results by implementation, samples by pass."""

    implementations: Mapping[str, Implementation] = field(default_factory=dict)
    results: Mapping[str, Named] = field(default_factory=dict)
    samples: Mapping[str, Mapping[str, Samples]] = field(default_factory=dict)


class RankTimer:
    """Times cases on ranks of a backend: GPUs with NCCL, or CPU processes with gloo."""

    def __init__(
        self,
        spec: Spec,
        backend: Backend,
        clocks: Callable[[], Mapping[str, Any]],
        roots: tuple[Path, ...],
    ) -> None:
        self._spec, self._clocks, self._roots = spec, clocks, roots
        self._executor = executor_for(backend, roots, _SECONDS)

    def close(self) -> None:
        """End the processes."""
        self._executor.close()

    def timed(self, problem: Problem, variants: Sequence[Variant], schedule: Schedule) -> Timed:
        """Time a case; the time of a call is that of the slowest rank."""
        before = dict(self._clocks())

        def untimed(state: State, reason: str) -> Timed:
            return Timed([Implementation(ENTRY, state, reason)], before=before)

        if not isinstance(self._executor, ProcessExecutor):
            return untimed(State.NOT_APPLICABLE, "simulated ranks cannot be timed")
        sharding = Sharding.of(self._spec, problem)
        host = torch.device("cpu")
        jobs = [
            to_device(Job((sharding.of_rank(problem, rank),)), host)
            for rank in range(sharding.world)
        ]
        arguments = [(self._spec, job, list(variants), schedule, self._roots) for job in jobs]
        try:
            times: list[RankTimes] = self._executor.work(time_on_rank, arguments)
        except DevicesError as error:
            return untimed(State.NOT_APPLICABLE, str(error))
        except FindingsError as error:
            return untimed(State.FAILED, error.findings[0].title)
        except EntryError as error:
            words = f"{error.where} raises {type(error.error).__name__}: {error.error}"
            return untimed(State.FAILED, words)
        finally:
            self._executor.end()
        expected = problem.lowp()
        implementations = [
            _judged(variant, problem, sharding, expected, times) for variant in variants
        ]
        correct = {each.name for each in implementations if each.state is State.TIMED}
        samples = {
            name: {
                variant: _slowest([each.samples[name][variant] for each in times])
                for variant in found
                if variant in correct
            }
            for name, found in times[0].samples.items()
            if correct & found.keys()
        }
        return Timed(implementations, samples, before)


def _slowest(samples: Sequence[Samples]) -> Samples:
    """The time of the slowest rank in each round."""
    rounds = zip(*(each.device for each in samples), strict=True)
    return Samples([max(times) for times in rounds], max(each.host for each in samples))


def _judged(
    variant: Variant,
    problem: Problem,
    sharding: Sharding,
    expected: Named,
    times: Sequence[RankTimes],
) -> Implementation:
    """The state of an implementation, from those on all ranks and from its whole results."""
    of_ranks = [each.implementations[variant.name] for each in times]
    reasons = {each.reason for each in of_ranks}
    for state in (State.FAILED, State.NOT_APPLICABLE):
        for rank, each in enumerate(of_ranks):
            if each.state is state:
                where = "" if len(reasons) == 1 else f"rank {rank}: "
                return Implementation(each.name, state, where + each.reason, each.config)
    try:
        whole = gathered(problem, sharding, [each.results[variant.name] for each in times])
    except FindingsError as error:
        return Implementation(variant.name, State.WRONG, error.findings[0].title, variant.config)
    device = next(iter(problem.inputs.values())).device
    results = {name: tensor.to(device) for name, tensor in whole.items()}
    mismatch = find_mismatch(problem, expected, results)
    state = State.WRONG if mismatch else State.TIMED
    return Implementation(variant.name, state, mismatch or "", variant.config)


# In the process of a rank --------------------------------------------------------------------


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
    problem = runner.problem(call)
    results: dict[str, Named] = {}

    def make(variant: Variant) -> Run:
        if variant.target is not None and ":" not in variant.target:
            raise NotApplicableError(_ONE_GPU_ONLY)
        return entry_run(
            spec, problem, backend, roots=roots, target=variant.target, config=variant.config
        )

    def keep(name: str, found: Candidate) -> None:
        results[name] = {
            output: tensor.detach().cpu().contiguous() for output, tensor in found.results.items()
        }

    ready: dict[str, Candidate] = {}
    implementations: dict[str, Implementation] = {}
    with backend.active():
        for found, implementation in try_variants(variants, make, problem, backend, keep):
            implementations[implementation.name] = implementation
            if _minimum(found is not None) and found is not None:
                ready[implementation.name] = found
        samples = dict(time_passes(ready, _clock(backend), schedule, agree=_maximum))
    return RankTimes(implementations, results, samples)


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
