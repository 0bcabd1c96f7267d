"""Calls the entry of a case on several ranks and gathers whole results.

Each element comes from the rank that owns it. Copies of a result that every rank has whole must
agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.backend.thresholds import lower_thresholds
from tlmatrix.check.determinism import compare_runs
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.check.memory import same_bits
from tlmatrix.check.running import Results, SeveralRanks
from tlmatrix.distributed.counters import EDGES, Counters
from tlmatrix.distributed.executors import SimulatedExecutor, executor_for
from tlmatrix.distributed.failures import CHECK
from tlmatrix.distributed.rank_runner import Job
from tlmatrix.problem.model import InapplicableError
from tlmatrix.problem.sharding import Sharding
from tlmatrix.words import ranks_words

if TYPE_CHECKING:
    from tlmatrix.backend.binding import Binding
    from tlmatrix.check.sanitizers import SanitizerSession
    from tlmatrix.check.tolerance import ReferenceBounds
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
        calls = [*problems] * EDGES
        results: list[Tensors] = list(self.run(calls, sanitizers, counters=Counters(far))[0])
        self._attempts[spec] = left - _ATTEMPTS // 2
        return results

    def _thresholds(self, target: int | None) -> AbstractContextManager[object]:
        """Lowers thresholds for ranks in this process."""
        return (
            nullcontext()
            if target is None
            else lower_thresholds(str(self._binding.spec.entry), target)
        )

    def run(
        self,
        problems: Sequence[Problem],
        sanitizers: SanitizerSession | None = None,
        **options: Any,  # noqa: ANN401 - fields of `Job`
    ) -> tuple[list[Gathered], list[Finding]]:
        """See `SeveralRanks.run`."""
        sharings = [Sharding.of(self._binding.spec, problem) for problem in problems]
        turn = self._turns()
        jobs = _jobs(problems, sharings, turn=turn, straggle=turn, **options)
        with self._timed(), self._thresholds(problems[0].thresholds):
            answers = self._executor.run(self._binding, jobs, sanitizers)
        device = _device(problems[0])
        results = []
        made = len(answers[0].results)  # fewer if counters have fewer edges
        for number, (problem, sharding) in enumerate(
            list(zip(problems, sharings, strict=True))[:made]
        ):
            of_ranks = [
                {name: tensor.to(device) for name, tensor in answer.results[number].items()}
                for answer in answers
            ]
            given = [job.calls[number].inputs for job in jobs]
            absent = [answer.absent[number] for answer in answers if answer.absent]
            results.append(gathered(problem, sharding, of_ranks, given, absent))
        findings = [(rank, each) for rank, answer in enumerate(answers) for each in answer.findings]
        return results, same_on_ranks(findings, len(jobs))


def trace(binding: Binding, problem: Problem) -> None:
    """Call the entry on simulated ranks with a backend that records launches and runs no kernel.

    Raises:
        EntryError: the entry raised; `where` names the ranks.
        BindingError: arguments or results do not match the spec.
        FindingsError: the ranks deadlock.
    """
    sharing = Sharding.of(binding.spec, problem)
    SimulatedExecutor().run(binding, _jobs([problem], [sharing], poison=True))


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


# Whole results --------------------------------------------------------------------------------


class Gathered(Results):
    """Whole results of several ranks, by name.

    Attributes:
        copies: for each rank, its copies of the results that every rank has whole.
        returned: for each rank, the tensors that it returned.
        given: for each rank, the inputs that it got.
        parts: [world, ...] what the ranks returned of a result that is the sum of it.
    """

    def __init__(
        self,
        tensors: Tensors,
        copies: Sequence[Tensors],
        returned: Sequence[Tensors],
        given: Sequence[Tensors],
        parts: Tensors,
        absent: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(tensors, absent, parts)
        self.copies = tuple(copies)
        self.returned = tuple(returned)
        self.given = tuple(given)

    def inconsistencies(self, bounds: ReferenceBounds, *, exact: bool) -> list[Finding]:
        """Findings where ranks disagree on a result that each of them has whole."""
        first, *others = self.copies or ({},)
        world = len(self.copies)
        wrong: dict[str, list[int]] = {}
        found: dict[str, Finding] = {}
        for rank, copies in enumerate(others, 1):
            for finding in compare_runs(first, copies, bounds, exact=exact):
                name = str(finding.tensor)
                wrong.setdefault(name, []).append(rank)
                found.setdefault(name, finding)
        return [
            _disagreement(found[name], ranks, world, self, bounds) for name, ranks in wrong.items()
        ]


def gathered(
    problem: Problem,
    sharding: Sharding,
    results: Sequence[Tensors],
    given: Sequence[Tensors] = (),
    absent: Sequence[Mapping[str, str]] = (),
) -> Gathered:
    """Gather whole results from the results of each rank.

    Args:
        problem: of the call.
        sharding: of the problem.
        results: of each rank.
        given: the ranks' inputs.
        absent: the missing gradients of each rank; one is missing if every rank lacks it.

    Raises:
        FindingsError: a rank lacks a result, or returned another shape or dtype than its shard's.
    """
    found = list(_misfits(problem, sharding, results))
    if found:
        raise FindingsError(same_on_ranks(found, sharding.world))
    whole: dict[str, torch.Tensor] = {}
    copies: list[dict[str, torch.Tensor]] = [{} for _ in results]
    parts: dict[str, torch.Tensor] = {}
    for name, first in results[0].items():
        info = problem.outputs.get(name)
        if info is None:
            continue
        if name in sharding.summed:
            parts[name] = torch.stack([each[name] for each in results])
            whole[name] = parts[name].double().sum(0).to(first.dtype)
        elif name in sharding.splits:
            split = sharding.splits[name]
            whole[name] = torch.empty(info.shape, dtype=first.dtype, device=first.device)
            for rank, each in enumerate(results):
                split.put(whole[name], each[name], rank)
        else:
            whole[name] = first
            for rank, each in enumerate(results):
                copies[rank][name] = each[name]
    missing = {
        name: why
        for name, why in (absent[0] if absent else {}).items()
        if all(name in each for each in absent)
    }
    return Gathered(whole, copies, results, given, parts, missing)


def _misfits(
    problem: Problem, sharding: Sharding, results: Sequence[Tensors]
) -> Iterator[tuple[int, Finding]]:
    names = dict.fromkeys(name for each in results for name in each)
    for name in names:
        info = problem.outputs.get(name)
        if info is None:
            continue
        for rank, each in enumerate(results):
            got = each.get(name)
            if got is None:
                title = f"{name} is missing: other ranks return it"
                yield rank, Finding(CHECK, title, tensor=name, pattern="missing")
                continue
            split = sharding.splits.get(name)
            expected = info.shape if split is None else split.shape(info.shape, rank)
            if tuple(got.shape) != expected:
                part = f"its shard of {list(info.shape)}" if split is not None else "the whole"
                title = f"{name} has shape {list(got.shape)}, expected {list(expected)}, {part}"
                hint = None
                if split is not None and tuple(got.shape) == info.shape:
                    hint = "that is the whole: the shard of this rank alone is due"
                yield rank, Finding(CHECK, title, tensor=name, pattern="shape", hint=hint)
            elif got.dtype != results[0][name].dtype:
                title = f"{name} is {got.dtype}, and {results[0][name].dtype} on rank 0"
                yield rank, Finding(CHECK, title, tensor=name, pattern="dtype")


def same_on_ranks(found: Iterable[tuple[int, Finding]], world: int) -> list[Finding]:
    """Merge findings with the same cause on several ranks; the title lists the ranks."""
    groups: dict[tuple[str, str | None, str | None], dict[int, Finding]] = {}
    for rank, finding in found:
        groups.setdefault(finding.cause, {}).setdefault(rank, finding)
    merged = []
    for group in groups.values():
        first = next(iter(group.values()))
        title = f"{ranks_words(group, world)}: {first.title}"
        others = [f"rank {r}: {each.title}" for r, each in group.items()]
        alike = len({each.title for each in group.values()}) == 1
        detail = "\n".join(filter(None, [first.detail, *(() if alike else others)]))
        merged.append(replace(first, title=title, detail=detail or None))
    return merged


def _disagreement(
    finding: Finding, ranks: list[int], world: int, results: Gathered, bounds: ReferenceBounds
) -> Finding:
    name = str(finding.tensor)
    title = finding.title.replace("against the first of the equal calls", "against that of rank 0")
    others = _alike_ranks(results.copies, name, ranks)
    words = f"{ranks_words(ranks, world)}: {title}"
    detail = f"every rank returns {name} whole, and all must return the same"
    if len(ranks) == world - 1 > 1 and len(others) == world - 1:
        detail += "; all but rank 0 agree"
    if name in bounds.reference:
        detail += f"\n{_nearest(results.copies, name, bounds)}"
    return replace(finding, check=CHECK, title=words, detail=detail, pattern="ranks differ")


def _alike_ranks(
    copies: Sequence[Mapping[str, torch.Tensor]], name: str, ranks: list[int]
) -> list[int]:
    return [rank for rank in ranks if same_bits(copies[rank][name], copies[ranks[0]][name])]


def _nearest(copies: Sequence[Tensors], name: str, bounds: ReferenceBounds) -> str:
    """The largest error of each rank's copy, as text."""
    reference = bounds.reference[name]
    far = [float((each[name].double() - reference).abs().max()) for each in copies]
    errors = ", ".join(f"rank {rank} {distance:.3g}" for rank, distance in enumerate(far[:8]))
    return f"largest error against the reference: {errors}"
