"""Times an entry that several ranks call: each in its process, all in step, the slowest counted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.backend.errors import DevicesError, EntryError
from tlmatrix.backend.ranks.executors import ProcessExecutor, executor_for
from tlmatrix.backend.ranks.job import Call, Job, to_device
from tlmatrix.bench.candidates import distance
from tlmatrix.bench.rank_worker import Way
from tlmatrix.bench.results import Implementation, PassTimes, State
from tlmatrix.bench.timing import Samples
from tlmatrix.check.finding import FindingsError
from tlmatrix.check.gathering import gathered
from tlmatrix.problem.sharding.shards import Sharding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tlmatrix.backend import Backend
    from tlmatrix.bench.rank_worker import RankTimes
    from tlmatrix.bench.results import CaseTimes
    from tlmatrix.bench.timing import Schedule
    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.spec.models import Spec
    from tlmatrix.spec.values import Value

__all__ = ["RankTimer", "ways_on_ranks"]

_WORKER = "tlmatrix.bench.rank_worker:time_on_rank"
_SECONDS = 900.0
"""That ranks may take for a case: kernels are compiled in it."""
_OF_ONE_GPU = "is for one GPU; name a function that every rank calls, package.module:name"


def ways_on_ranks(
    entry: str, baselines: Sequence[str], configs: Sequence[Mapping[str, Value]]
) -> tuple[list[Way], list[Implementation]]:
    """What ranks time, the `entry` first; and the baselines that are none for several ranks."""
    ways, refused = [Way(entry)], []
    for name in baselines:
        if ":" not in name:
            refused.append(Implementation(name, State.CANNOT, _OF_ONE_GPU))
            continue
        short = name.rpartition(":")[2]
        ways.append(Way(name if any(way.name == short for way in ways) else short, name))
    for config in configs:
        name = ",".join(f"{key}={value}" for key, value in config.items())
        ways.append(Way(name, None, config))
    return ways, refused


class RankTimer:
    """Times cases on ranks of a backend: GPUs with NCCL, or CPU processes with gloo."""

    def __init__(self, backend: Backend, roots: tuple[Path, ...]) -> None:
        self._place = executor_for(backend, roots, _SECONDS)
        self._roots = roots

    def close(self) -> None:
        """End the processes."""
        self._place.close()

    def timed(
        self,
        case: CaseTimes,
        spec: Spec,
        problem: Problem,
        ways: Sequence[Way],
        schedule: Schedule,
    ) -> CaseTimes:
        """The case with its times: of each call that of the rank which took longest."""
        entry = ways[0].name
        if not isinstance(self._place, ProcessExecutor):
            reason = "simulated ranks take no time"
            return replace(case, implementations=(Implementation(entry, State.CANNOT, reason),))
        try:
            times = self._times(self._place, spec, problem, ways, schedule)
        except DevicesError as error:
            return replace(case, implementations=(Implementation(entry, State.CANNOT, str(error)),))
        except FindingsError as error:
            title = error.findings[0].title
            return replace(case, implementations=(Implementation(entry, State.FAILED, title),))
        except EntryError as error:
            words = f"{error.where} raises {type(error.error).__name__}: {error.error}"
            return replace(case, implementations=(Implementation(entry, State.FAILED, words),))
        finally:
            self._place.end()
        sharding, expected = Sharding.of(spec, problem), problem.lowp()
        told = [_told(way, problem, sharding, expected, times) for way in ways]
        right = {each.name for each in told if each.state is State.TIMED}
        cost = problem.cost() if problem.cost is not None else None
        passes = []
        for name in times[0].passes:
            samples = {
                who: _slowest([each.passes[name][who] for each in times])
                for who in times[0].passes[name]
                if who in right
            }
            work = cost if name == "forward" or cost is None else cost.backward
            if samples:
                passes.append(PassTimes(name, work, samples))
        return replace(case, implementations=tuple(told), passes=tuple(passes))

    def _times(
        self,
        place: ProcessExecutor,
        spec: Spec,
        problem: Problem,
        ways: Sequence[Way],
        schedule: Schedule,
    ) -> list[RankTimes]:
        sharding = Sharding.of(spec, problem)
        host = torch.device("cpu")
        jobs = [
            to_device(Job((Call.of(sharding.of_rank(problem, rank)),)), host)
            for rank in range(sharding.world)
        ]
        arguments = [(spec, job, list(ways), schedule, self._roots) for job in jobs]
        return place.work(_WORKER, arguments)


def _slowest(samples: Sequence[Samples]) -> Samples:
    """Of each round the time of the rank that took longest."""
    rounds = zip(*(each.device for each in samples), strict=True)
    return Samples([max(times) for times in rounds], max(each.host for each in samples))


def _told(
    way: Way,
    problem: Problem,
    sharding: Sharding,
    expected: Tensors,
    times: Sequence[RankTimes],
) -> Implementation:
    """What became of an implementation, on all ranks."""
    of_ranks = [each.told[way.name] for each in times]
    for state, reasons in (
        (State.FAILED, [told.failed for told in of_ranks]),
        (State.CANNOT, [told.cannot for told in of_ranks]),
    ):
        rank = next((rank for rank, words in enumerate(reasons) if words), None)
        if rank is not None:
            where = "" if len(set(reasons)) == 1 else f"rank {rank}: "
            return Implementation(way.name, state, where + reasons[rank], way.config)
    try:
        whole = gathered(problem, sharding, [told.results for told in of_ranks])
    except FindingsError as error:
        return Implementation(way.name, State.WRONG, error.findings[0].title, way.config)
    device = next(iter(problem.inputs.values())).device
    results = {name: tensor.to(device) for name, tensor in whole.items()}
    wrong = distance(problem, expected, results)
    state = State.WRONG if wrong else State.TIMED
    return Implementation(way.name, state, wrong or "", way.config)
