"""Times an entry on several ranks, each in its own process; the slowest rank counts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.backend.errors import DevicesError, EntryError
from tlmatrix.bench.candidates import find_mismatch
from tlmatrix.bench.rank_worker import Variant
from tlmatrix.bench.results import Implementation, PassTimes, State
from tlmatrix.bench.timing import Samples
from tlmatrix.check.finding import FindingsError
from tlmatrix.distributed.executors import ProcessExecutor, executor_for
from tlmatrix.distributed.gathering import gathered
from tlmatrix.distributed.job import Call, Job, to_device
from tlmatrix.problem.sharding import Sharding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tlmatrix.backend import Backend
    from tlmatrix.bench.rank_worker import RankTimes
    from tlmatrix.bench.results import CaseTimes
    from tlmatrix.bench.timing import Schedule
    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

_WORKER = "tlmatrix.bench.rank_worker:time_on_rank"
_SECONDS = 900.0
"""Time limit of a case in seconds, including compilation."""
_ONE_GPU_ONLY = "runs on one GPU; give a function that every rank calls, package.module:name"


def variants_on_ranks(
    entry: str, baselines: Sequence[str], configs: Sequence[Mapping[str, Value]]
) -> tuple[list[Variant], list[Implementation]]:
    """The implementations to time, `entry` first; and the baselines that run on one GPU only."""
    variants, not_applicable = [Variant(entry)], []
    for name in baselines:
        if ":" not in name:
            not_applicable.append(Implementation(name, State.NOT_APPLICABLE, _ONE_GPU_ONLY))
            continue
        short = name.rpartition(":")[2]
        variants.append(
            Variant(name if any(variant.name == short for variant in variants) else short, name)
        )
    for config in configs:
        name = ",".join(f"{key}={value}" for key, value in config.items())
        variants.append(Variant(name, None, config))
    return variants, not_applicable


class RankTimer:
    """Times cases on ranks of a backend: GPUs with NCCL, or CPU processes with gloo."""

    def __init__(self, backend: Backend, roots: tuple[Path, ...]) -> None:
        self._executor = executor_for(backend, roots, _SECONDS)
        self._roots = roots

    def close(self) -> None:
        """End the processes."""
        self._executor.close()

    def timed(
        self,
        case: CaseTimes,
        spec: Spec,
        problem: Problem,
        variants: Sequence[Variant],
        schedule: Schedule,
    ) -> CaseTimes:
        """Time a case; the time of a call is that of the slowest rank."""

        def untimed(state: State, reason: str) -> CaseTimes:
            return replace(case, implementations=(Implementation(variants[0].name, state, reason),))

        if not isinstance(self._executor, ProcessExecutor):
            return untimed(State.NOT_APPLICABLE, "simulated ranks cannot be timed")
        try:
            times = self._times(self._executor, spec, problem, variants, schedule)
        except DevicesError as error:
            return untimed(State.NOT_APPLICABLE, str(error))
        except FindingsError as error:
            return untimed(State.FAILED, error.findings[0].title)
        except EntryError as error:
            words = f"{error.where} raises {type(error.error).__name__}: {error.error}"
            return untimed(State.FAILED, words)
        finally:
            self._executor.end()
        sharding, expected = Sharding.of(spec, problem), problem.lowp()
        implementations = [
            _implementation(variant, problem, sharding, expected, times) for variant in variants
        ]
        correct = {each.name for each in implementations if each.state is State.TIMED}
        cost = problem.cost() if problem.cost is not None else None
        passes = []
        for name in times[0].passes:
            samples = {
                variant: _slowest([each.passes[name][variant] for each in times])
                for variant in times[0].passes[name]
                if variant in correct
            }
            work = cost if name == "forward" or cost is None else cost.backward
            if samples:
                passes.append(PassTimes(name, work, samples))
        return replace(case, implementations=tuple(implementations), passes=tuple(passes))

    def _times(
        self,
        executor: ProcessExecutor,
        spec: Spec,
        problem: Problem,
        variants: Sequence[Variant],
        schedule: Schedule,
    ) -> list[RankTimes]:
        sharding = Sharding.of(spec, problem)
        host = torch.device("cpu")
        jobs = [
            to_device(Job((Call.of(sharding.of_rank(problem, rank)),)), host)
            for rank in range(sharding.world)
        ]
        arguments = [(spec, job, list(variants), schedule, self._roots) for job in jobs]
        return executor.work(_WORKER, arguments)


def _slowest(samples: Sequence[Samples]) -> Samples:
    """The time of the slowest rank in each round."""
    rounds = zip(*(each.device for each in samples), strict=True)
    return Samples([max(times) for times in rounds], max(each.host for each in samples))


def _implementation(
    variant: Variant,
    problem: Problem,
    sharding: Sharding,
    expected: Tensors,
    times: Sequence[RankTimes],
) -> Implementation:
    """The state of an implementation, from its results on all ranks."""
    of_ranks = [each.results[variant.name] for each in times]
    for state, reasons in (
        (State.FAILED, [result.failed for result in of_ranks]),
        (State.NOT_APPLICABLE, [result.not_applicable for result in of_ranks]),
    ):
        rank = next((rank for rank, words in enumerate(reasons) if words), None)
        if rank is not None:
            where = "" if len(set(reasons)) == 1 else f"rank {rank}: "
            return Implementation(variant.name, state, where + reasons[rank], variant.config)
    try:
        whole = gathered(problem, sharding, [result.results for result in of_ranks])
    except FindingsError as error:
        return Implementation(variant.name, State.WRONG, error.findings[0].title, variant.config)
    device = next(iter(problem.inputs.values())).device
    results = {name: tensor.to(device) for name, tensor in whole.items()}
    mismatch = find_mismatch(problem, expected, results)
    state = State.WRONG if mismatch else State.TIMED
    return Implementation(variant.name, state, mismatch or "", variant.config)
