"""Times the bench cases of a spec: checks every implementation, then samples them interleaved.

This module prints and writes nothing; it yields each case as soon as it is timed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from tlmatrix.backend import ArchitectureError, refuse_unknown_axes
from tlmatrix.backend.binding import bind
from tlmatrix.bench.baselines import torch_run
from tlmatrix.bench.candidates import (
    Candidate,
    NotApplicableError,
    entry_run,
    find_mismatch,
    prepare_candidate,
)
from tlmatrix.bench.errors import first_sentence, summarize_error
from tlmatrix.bench.results import CaseTimes, Implementation, PassTimes, State
from tlmatrix.bench.timing import Clock, Schedule, interleaved
from tlmatrix.problem import family_for
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.spec import DeclaredProblem, has_ranks
from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from tlmatrix.backend import Backend
    from tlmatrix.bench.candidates import Run
    from tlmatrix.bench.roofs import Roof
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

_Pair: TypeAlias = "tuple[Case, Mapping[str, Any]]"

ENTRY = "entry"
"""The name of the spec's own implementation in tables and files."""


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
    configs = _configs(spec) if sweep else ()
    if has_ranks(spec) and not reason:
        yield from _on_ranks(
            spec,
            cases,
            machine,
            path,
            baselines,
            configs,
            schedule or Schedule(),
            roots,
            distribution,
        )
        return
    pairs = [(case, config) for case in cases for config in ({}, *configs)]
    if machine.precompile is not None and len(pairs) > 1 and not reason:
        machine.precompile(spec, pairs, roots)
    for case in cases:
        untimed = CaseTimes(spec.name, path, case.id, dict(case.values))
        if reason:
            yield replace(untimed, implementations=(_entry(State.NOT_APPLICABLE, reason),))
            continue
        if backend.broken():
            words = "an earlier case left the CUDA context unusable; time this case separately"
            yield replace(untimed, implementations=(_entry(State.FAILED, words),))
            continue
        try:
            problem = family.problem(
                spec, {**distribution, **case.values}, seed=case.seed, device=backend.device
            )
        except Exception as error:  # noqa: BLE001 - such as out of memory; reported in the table
            words = summarize_error(error, backend)
            yield replace(untimed, implementations=(_entry(State.FAILED, words),))
            continue
        variants = _variants(spec, problem, backend, roots, baselines, configs)
        with backend.active():
            timed = _timed(untimed, problem, variants, machine, schedule or Schedule())
        yield timed
        del problem, variants
        backend.release()


def _on_ranks(
    spec: Spec,
    cases: Sequence[Case],
    machine: Machine,
    path: str,
    baselines: Sequence[str] | None,
    configs: Sequence[Mapping[str, Value]],
    schedule: Schedule,
    roots: tuple[Path, ...],
    distribution: Mapping[str, Value],
) -> Iterator[CaseTimes]:
    """Time cases whose entry several ranks call, each in its own process."""
    from tlmatrix.bench.ranks import RankTimer, variants_on_ranks

    named = spec.bench.baselines if spec.bench is not None else ()
    variants, refused = variants_on_ranks(ENTRY, named if baselines is None else baselines, configs)
    family, timer = family_for(spec), RankTimer(machine.backend, roots)
    try:
        for case in cases:
            untimed = CaseTimes(spec.name, path, case.id, dict(case.values))
            values = {**distribution, **case.values}
            try:
                problem = family.problem(
                    spec, values, seed=case.seed, device=machine.backend.device
                )
            except Exception as error:  # noqa: BLE001 - as for one GPU
                words = summarize_error(error, machine.backend)
                yield replace(untimed, implementations=(_entry(State.FAILED, words),))
                continue
            before = dict(machine.clocks())
            timed = timer.timed(untimed, spec, problem, variants, schedule)
            yield replace(
                timed,
                dtype=str(case.values.get("dtype", "")) or _dtype(problem),
                implementations=(*timed.implementations, *refused),
                clocks={"before": before, "after": dict(machine.clocks())},
            )
            del problem
            machine.backend.release()
    finally:
        timer.close()


@dataclass(frozen=True)
class _Variant:
    """An implementation to time, and its configuration in a sweep."""

    make: Callable[[], Run]
    config: Mapping[str, Value] = field(default_factory=dict)


def _entry(state: State, reason: str) -> Implementation:
    return Implementation(ENTRY, state, reason)


def _variants(
    spec: Spec,
    problem: Problem,
    backend: Backend,
    roots: tuple[Path, ...],
    baselines: Sequence[str] | None,
    configs: Sequence[Mapping[str, Value]],
) -> dict[str, _Variant]:
    """The implementations to time, by their names in tables."""
    named = spec.bench.baselines if spec.bench is not None else ()
    own = partial(entry_run, spec, problem, backend, roots=roots)
    variants = {ENTRY: _Variant(own)}
    for name in named if baselines is None else baselines:
        short = name.rpartition(":")[2]
        variants[name if short in variants else short] = _Variant(
            partial(own, target=name) if ":" in name else partial(torch_run, name, spec, problem)
        )
    for config in configs:
        name = ",".join(f"{key}={label(value)}" for key, value in config.items())
        variants[name] = _Variant(partial(own, config=config), config)
    return variants


def _configs(spec: Spec) -> tuple[Mapping[str, Value], ...]:
    """Every combination of the spec's `configs`."""
    tried = spec.bench.configs if spec.bench is not None else {}
    if not tried:
        return ()
    return tuple(dict(zip(tried, chosen, strict=True)) for chosen in product(*tried.values()))


def _timed(
    case: CaseTimes,
    problem: Problem,
    variants: Mapping[str, _Variant],
    machine: Machine,
    schedule: Schedule,
) -> CaseTimes:
    """Time a case."""
    backend = machine.backend
    ready, implementations = _tried(problem, variants, backend)
    before = dict(machine.clocks())
    passes = []
    cost = problem.cost() if problem.cost is not None else None
    for name, work in (("forward", cost), ("backward", cost.backward if cost else None)):
        calls = {
            variant: call
            for variant, each in ready.items()
            if (call := each.forward if name == "forward" else each.backward) is not None
        }
        if not calls:
            continue
        try:
            passes.append(PassTimes(name, work, interleaved(calls, machine.clock, schedule)))
        except Exception as error:  # noqa: BLE001 - GPU errors are asynchronous
            failed = _entry(State.FAILED, summarize_error(error, backend))
            implementations = [failed, *implementations[1:]]
            break
    return replace(
        case,
        dtype=str(case.values.get("dtype", "")) or _dtype(problem),
        implementations=tuple(implementations),
        passes=tuple(passes),
        clocks={"before": before, "after": dict(machine.clocks())},
    )


def _tried(
    problem: Problem, variants: Mapping[str, _Variant], backend: Backend
) -> tuple[dict[str, Candidate], list[Implementation]]:
    """Try every implementation; return those with correct results, and the state of each."""
    try:
        expected = problem.lowp()
    except Exception as error:  # noqa: BLE001 - as for the problem
        return {}, [_entry(State.FAILED, f"its reference: {summarize_error(error, backend)}")]
    ready: dict[str, Candidate] = {}
    implementations: list[Implementation] = []
    for name, variant in variants.items():
        state, reason = State.TIMED, ""
        try:
            found = prepare_candidate(variant.make(), problem)
            backend.synchronize()
            mismatch = find_mismatch(problem, expected, found.results)
        except (NotApplicableError, NotImplementedError) as error:
            state, reason = State.NOT_APPLICABLE, first_sentence(str(error))
        except SpecError:
            raise
        except Exception as error:  # noqa: BLE001 - any error is reported in the table
            state, reason = State.FAILED, summarize_error(error, backend)
        else:
            if mismatch is None:
                ready[name] = found
            else:
                state, reason = State.WRONG, mismatch
        implementations.append(Implementation(name, state, reason, variant.config))
        if state is State.FAILED and backend.broken():
            return {}, implementations
    return ready, implementations


def _dtype(problem: Problem) -> str:
    first: torch.Tensor | None = next(iter(problem.inputs.values()), None)
    return "" if first is None else str(first.dtype).removeprefix("torch.")
