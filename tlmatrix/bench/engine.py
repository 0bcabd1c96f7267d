"""Times the bench cases of a spec: checks every implementation, then samples them interleaved.

This module prints and writes nothing; it yields each case as soon as it is timed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tlmatrix.backend import ArchitectureError
from tlmatrix.backend.axes import refuse_unknown_axes
from tlmatrix.backend.binding import bind
from tlmatrix.bench.baselines import torch_run
from tlmatrix.bench.candidates import (
    ENTRY,
    Timed,
    entry_run,
    find_mismatch,
    summarize_error,
    time_passes,
    try_variants,
    variants_of,
)
from tlmatrix.bench.results import CaseTimes, Implementation, PassTimes, State
from tlmatrix.bench.timing import Clock, Samples, Schedule
from tlmatrix.problem import family_for
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.spec import DeclaredProblem, has_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tlmatrix.backend import Backend
    from tlmatrix.bench.candidates import Candidate, Run, Variant
    from tlmatrix.bench.roofs import Roof
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem
    from tlmatrix.spec.model.spec import Spec

_Pair: TypeAlias = "tuple[Case, Mapping[str, Any]]"


@dataclass(frozen=True)
class Machine:
    """The backend, its clock and its hardware.

    Attributes:
        backend: where kernels run.
        clock: times calls.
        hardware: written to the file; `gpu` is the GPU's name.
        roof: the peak rates of the GPU, None if unknown.
        clocks: called before and after each case to read clock rates and temperature.
        precompile: compiles cases and their configurations in parallel before timing.
    """

    backend: Backend
    clock: Clock
    hardware: Mapping[str, Any] = field(default_factory=dict)
    roof: Roof | None = None
    clocks: Callable[[], Mapping[str, Any]] = dict
    precompile: Callable[[Spec, Sequence[_Pair], Sequence[Path]], None] | None = None


class Timer(Protocol):
    """Times the implementations of a case."""

    def timed(self, problem: Problem, variants: Sequence[Variant], schedule: Schedule) -> Timed:
        """Try each implementation, and time those that work."""

    def close(self) -> None:
        """Free what the cases shared."""


def bench(
    spec: Spec,
    cases: Sequence[Case],
    machine: Machine,
    *,
    path: str = "",
    baselines: Sequence[str] | None = None,
    sweep: bool = False,
    schedule: Schedule | None = None,
    roots: tuple[Path, ...] = (),
) -> Iterator[CaseTimes]:
    """Time cases one after the other.

    `baselines` replace those of the spec. With `sweep` every combination of `configs` is timed
    too, under the name `name=value,name=value`.

    Raises:
        SpecError: the spec is invalid, or names code that does not exist.
    """
    make_importable(spec.path, roots)
    family = family_for(spec)
    issues = list(family.lint(spec))
    if issues:
        raise SpecError(issues)
    backend, reason = machine.backend, ""
    # The values of a matrix product affect its power consumption and so the clock rate.
    known = isinstance(spec.problem, DeclaredProblem) or "values" in getattr(family, "axes", ())
    distribution = {"values": "normal"} if known else {}
    try:
        refuse_unknown_axes(bind(spec, backend, roots=roots), family)
    except ArchitectureError as error:
        reason = str(error)
    variants = variants_of(spec, baselines, sweep=sweep)
    timer = _timer(spec, machine, roots)
    pairs = [(case, each.config) for case in cases for each in variants if each.target is None]
    if machine.precompile and len(pairs) > 1 and not reason and not has_ranks(spec):
        machine.precompile(spec, pairs, roots)
    try:
        for case in cases:
            untimed = CaseTimes(spec.name, path, case.id, dict(case.values))
            if reason:
                yield _untimed(untimed, State.NOT_APPLICABLE, reason)
                continue
            if backend.broken():
                words = "an earlier case left the CUDA context unusable; time this case separately"
                yield _untimed(untimed, State.FAILED, words)
                continue
            try:
                values = {**distribution, **case.values}
                problem = family.problem(spec, values, seed=case.seed, device=backend.device)
            except Exception as error:  # noqa: BLE001 - such as out of memory; reported in the table
                yield _untimed(untimed, State.FAILED, summarize_error(error, backend))
                continue
            timed = timer.timed(problem, variants, schedule or Schedule())
            yield replace(
                untimed,
                dtype=str(case.values.get("dtype", "")) or _dtype(problem),
                implementations=tuple(timed.implementations),
                passes=tuple(_passes(problem, timed)),
                clocks={"before": timed.before, "after": dict(machine.clocks())},
            )
            del problem, timed
            backend.release()
    finally:
        timer.close()


def _timer(spec: Spec, machine: Machine, roots: tuple[Path, ...]) -> Timer:
    if not has_ranks(spec):
        return _OneGpu(spec, machine, roots)
    from tlmatrix.bench.ranks import RankTimer

    return RankTimer(spec, machine.backend, machine.clocks, roots)


def _untimed(case: CaseTimes, state: State, reason: str) -> CaseTimes:
    return replace(case, implementations=(Implementation(ENTRY, state, reason),))


def _passes(problem: Problem, timed: Timed) -> Iterator[PassTimes]:
    cost = problem.cost() if problem.cost is not None and timed.samples else None
    for name, samples in timed.samples.items():
        work = cost if name == "forward" or cost is None else cost.backward
        yield PassTimes(name, work, samples)


def _dtype(problem: Problem) -> str:
    first = next(iter(problem.inputs.values()), None)
    return "" if first is None else str(first.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class _OneGpu:
    """Times the calls of this process."""

    spec: Spec
    machine: Machine
    roots: tuple[Path, ...]

    def timed(self, problem: Problem, variants: Sequence[Variant], schedule: Schedule) -> Timed:
        """See `Timer.timed`."""
        with self.machine.backend.active():
            return self._timed(problem, variants, schedule)

    def close(self) -> None:
        """See `Timer.close`."""

    def _timed(self, problem: Problem, variants: Sequence[Variant], schedule: Schedule) -> Timed:
        backend = self.machine.backend
        try:
            expected = problem.lowp()
        except Exception as error:  # noqa: BLE001 - as for the problem
            words = f"its reference: {summarize_error(error, backend)}"
            return Timed([Implementation(ENTRY, State.FAILED, words)])

        def make(variant: Variant) -> Run:
            if variant.target is not None and ":" not in variant.target:
                return torch_run(variant.target, self.spec, problem)
            return entry_run(
                self.spec,
                problem,
                backend,
                roots=self.roots,
                target=variant.target,
                config=variant.config,
            )

        def mismatch(_name: str, found: Candidate) -> str | None:
            return find_mismatch(problem, expected, found.results)

        ready: dict[str, Candidate] = {}
        implementations: list[Implementation] = []
        for found, implementation in try_variants(variants, make, problem, backend, mismatch):
            implementations.append(implementation)
            if found is not None:
                ready[implementation.name] = found
            elif implementation.state is State.FAILED and backend.broken():
                ready.clear()
                break
        before = dict(self.machine.clocks())
        samples: dict[str, dict[str, Samples]] = {}
        try:
            samples.update(time_passes(ready, self.machine.clock, schedule))
        except Exception as error:  # noqa: BLE001 - GPU errors are asynchronous
            words = summarize_error(error, backend)
            implementations[0] = Implementation(ENTRY, State.FAILED, words)
        return Timed(implementations, samples, before)
