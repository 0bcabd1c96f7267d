"""Calls the entry of a case on several ranks and gathers whole results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tlmatrix.check.running import SeveralRanks
from tlmatrix.distributed.counters import Counters
from tlmatrix.distributed.executors import SimulatedExecutor, executor_for
from tlmatrix.distributed.gathering import Gathered, gathered, same_on_ranks
from tlmatrix.distributed.job import Job
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


@dataclass
class Executors:
    """The executors that the cases of a process share: one for each backend.

    Attributes:
        roots: folders, besides the spec's own, from which entries are imported.
        seconds: time limit of a call, after which ranks count as hung.
    """

    roots: tuple[Path, ...] = ()
    seconds: float = 120.0
    _executors: dict[str, RankExecutor] = field(default_factory=dict)
    _attempts: dict[Path, int] = field(default_factory=dict)
    """How many cases of each spec may still be called as after very many calls."""

    def entry(
        self,
        binding: Binding,
        turns: Callable[[], int],
        measured: Callable[[], AbstractContextManager[None]],
    ) -> SeveralRanks:
        """The function that runs the code under test on all ranks of a problem.

        `turns` numbers the calls: ranks are delayed differently in each. `measured` gives a context
        that is entered for each call.
        """
        backend = binding.backend
        if backend.name not in self._executors:
            self._executors[backend.name] = executor_for(backend, self.roots, self.seconds)
        executor = self._executors[backend.name]
        return EntryOnRanks(binding, executor, turns, measured, self._attempts)

    def end_case(self) -> None:
        """Free what belongs to the case that ran."""
        for executor in self._executors.values():
            executor.end()

    def close(self) -> None:
        """End the processes that were started."""
        for executor in self._executors.values():
            executor.close()
        self._executors = {}


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
        results, findings = self._run([problem], sanitizers, poison=poison)
        return results[0], findings

    def in_a_row(
        self,
        problems: Sequence[Problem],
        *,
        sanitizers: SanitizerSession | None = None,
        streams: bool = False,
    ) -> list[Tensors]:
        """See `SeveralRanks.in_a_row`."""
        return list(self._run(problems, sanitizers, streams=streams)[0])

    def captured(
        self, problems: Sequence[Problem], *, sanitizers: SanitizerSession | None = None
    ) -> list[Tensors]:
        """See `SeveralRanks.captured`."""
        return list(self._run(problems, sanitizers, captured=True)[0])

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
        results: list[Tensors] = list(self._run(problems, sanitizers, counters=Counters(far))[0])
        self._attempts[spec] = left - _ATTEMPTS // 2
        return results

    def _run(
        self,
        problems: Sequence[Problem],
        sanitizers: SanitizerSession | None = None,
        **options: Any,  # noqa: ANN401 - fields of `Job`
    ) -> tuple[list[Gathered], list[Finding]]:
        sharings = [Sharding.of(self._binding.spec, problem) for problem in problems]
        turn = self._turns()
        jobs = _jobs(problems, sharings, turn=turn, straggle=turn, **options)
        with self._timed():
            answers = self._executor.run(self._binding, jobs, sanitizers)
        device = _device(problems[0])
        results = []
        for number, (problem, sharding) in enumerate(zip(problems, sharings, strict=True)):
            of_ranks = [
                {name: tensor.to(device) for name, tensor in answer.results[number].items()}
                for answer in answers
            ]
            given = [job.calls[number].inputs for job in jobs]
            results.append(gathered(problem, sharding, of_ranks, given))
        findings = [(rank, each) for rank, answer in enumerate(answers) for each in answer.findings]
        return results, same_on_ranks(findings, len(jobs))


def trace(binding: Binding, problem: Problem) -> None:
    """Call the entry on simulated ranks with a backend that records launches and runs no kernel.

    Raises:
        EntryError: the entry raised; `where` names the ranks.
        BindingError: arguments or results do not match the spec.
        FindingsError: the ranks deadlock.
    """
    SimulatedExecutor().run(binding, _jobs([problem], [Sharding.of(binding.spec, problem)]))


def _jobs(
    problems: Sequence[Problem],
    sharings: Sequence[Sharding],
    **options: Any,  # noqa: ANN401 - fields of `Job`
) -> list[Job]:
    """The job of each rank: call the entry for one problem after the other."""
    pairs = list(zip(problems, sharings, strict=True))
    return [
        Job(tuple(sharding.of_rank(problem, rank) for problem, sharding in pairs), **options)
        for rank in range(sharings[0].world)
    ]


def _device(problem: Problem) -> torch.device | None:
    first = next(iter(problem.inputs.values()), None)
    return None if first is None else first.device
