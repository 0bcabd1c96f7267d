"""Calls the entry of a case on several ranks and gathers whole results."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.check.running import SeveralRanks
from tlmatrix.distributed.counters import Counters
from tlmatrix.distributed.gathering import Gathered, gathered, same_on_ranks
from tlmatrix.distributed.job import Call, Job
from tlmatrix.problem.model import InapplicableError
from tlmatrix.problem.sharding import Sharding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch

    from tlmatrix.backend.binding import Binding
    from tlmatrix.check.finding import Finding
    from tlmatrix.check.sanitizers import SanitizerSession
    from tlmatrix.distributed.executors import RankExecutor
    from tlmatrix.problem.model import Problem, Tensors


_ATTEMPTS = 8
"""Cases of a spec that are tried; one whose context counts calls in memory stands for half."""


class EntryOnRanks(SeveralRanks):
    """Calls a spec's entry on all ranks of a problem and returns whole results.

    In the first run of a case no rank is delayed; in later ones, delays depend on the run's number.
    """

    def __init__(
        self,
        binding: Binding,
        executor: RankExecutor,
        turns: Callable[[], int],
        timed: Callable[[], AbstractContextManager[None]],
        attempts: dict[Path, int] | None = None,
    ) -> None:
        self._binding = binding
        self._executor = executor
        self._turns = turns
        self._timed = timed
        self._attempts = attempts if attempts is not None else {}

    def __call__(self, problem: Problem) -> Gathered:
        """Return the whole results of one call; see `SeveralRanks`."""
        return self._run([problem])[0][0]

    def guarded(
        self, problem: Problem, *, poison: bool, sanitizers: SanitizerSession | None = None
    ) -> tuple[Tensors, list[Finding]]:
        """See `SeveralRanks.guarded`."""
        results, findings = self._run([problem], poison=poison, sanitizers=sanitizers)
        return results[0], findings

    def in_a_row(
        self,
        problems: Sequence[Problem],
        *,
        sanitizers: SanitizerSession | None = None,
        streams: bool = False,
    ) -> list[Tensors]:
        """See `SeveralRanks.in_a_row`."""
        return list(self._run(problems, sanitizers=sanitizers, streams=streams)[0])

    def captured(
        self, problems: Sequence[Problem], *, sanitizers: SanitizerSession | None = None
    ) -> list[Tensors]:
        """See `SeveralRanks.captured`."""
        return list(self._run(problems, sanitizers=sanitizers, captured=True)[0])

    def advanced(
        self,
        problems: Sequence[Problem],
        *,
        far: bool,
        sanitizers: SanitizerSession | None = None,
    ) -> list[Tensors]:
        """See `SeveralRanks.advanced`; after some cases a spec is left alone."""
        spec = self._binding.spec.path
        left = self._attempts.setdefault(spec, _ATTEMPTS)
        if far and left <= 0:
            raise InapplicableError(())
        self._attempts[spec] = left - 1
        counters = Counters(far)
        results: list[Tensors] = list(
            self._run(problems, sanitizers=sanitizers, counters=counters)[0]
        )
        self._attempts[spec] = left - _ATTEMPTS // 2
        return results

    def _run(
        self,
        problems: Sequence[Problem],
        *,
        poison: bool | None = None,
        sanitizers: SanitizerSession | None = None,
        captured: bool = False,
        streams: bool = False,
        counters: Counters | None = None,
    ) -> tuple[list[Gathered], list[Finding]]:
        sharings = [Sharding.of(self._binding.spec, problem) for problem in problems]
        jobs = _jobs(problems, sharings, poison=poison, turn=self._turns())
        jobs = [replace(job, captured=captured, streams=streams, counters=counters) for job in jobs]
        with self._timed():
            answers = self._executor.run(self._binding, jobs, sanitizers)
        device = _device(problems[0])
        results = []
        for number, (problem, sharding) in enumerate(zip(problems, sharings, strict=True)):
            of_ranks = [
                {name: tensor.to(device) for name, tensor in answer.results[number].items()}
                for answer in answers
            ]
            given = [job.calls[number].given() for job in jobs]
            results.append(gathered(problem, sharding, of_ranks, given))
        findings = [(rank, each) for rank, answer in enumerate(answers) for each in answer.findings]
        return results, same_on_ranks(findings, len(jobs))


def trace_on_ranks(binding: Binding, problem: Problem) -> None:
    """See `tlmatrix.distributed.trace`."""
    from tlmatrix.distributed.executors import SimulatedExecutor

    SimulatedExecutor().run(binding, _jobs([problem], [Sharding.of(binding.spec, problem)]))


def _jobs(
    problems: Sequence[Problem],
    sharings: Sequence[Sharding],
    *,
    poison: bool | None = None,
    turn: int = 0,
) -> list[Job]:
    """The job of each rank: call the entry for one problem after the other."""
    return [
        Job(
            tuple(
                Call.of(sharding.of_rank(problem, rank))
                for problem, sharding in zip(problems, sharings, strict=True)
            ),
            poison=poison,
            turn=turn,
            straggle=turn,
        )
        for rank in range(sharings[0].world)
    ]


def _device(problem: Problem) -> torch.device | None:
    first = next(iter(problem.inputs.values()), None)
    return None if first is None else first.device
