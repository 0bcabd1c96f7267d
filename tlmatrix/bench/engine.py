"""Times the bench cases of a spec: every implementation tried, compared, and then sampled in turn.

Nothing is printed and nothing written here; each case is yielded as soon as it is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from tlmatrix.backend import ArchitectureError, refuse_unknown_axes
from tlmatrix.backend.binding import bind
from tlmatrix.bench.baselines import torch_run
from tlmatrix.bench.candidates import Candidate, NotApplicableError, candidate, distance, entry_run
from tlmatrix.bench.results import CaseTimes, Implementation, PassTimes, State
from tlmatrix.bench.timing import Clock, Schedule, in_turn
from tlmatrix.bench.words import error_words, first_sentence
from tlmatrix.problem import family_for
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.models import DeclaredProblem
from tlmatrix.spec.sharding import has_ranks
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
    from tlmatrix.spec.models import Spec
    from tlmatrix.spec.values import Value

__all__ = ["ENTRY", "Machine", "bench"]

_Pair: TypeAlias = "tuple[Case, Mapping[str, Any]]"

ENTRY = "entry"
"""What the spec's own implementation is called in tables and files."""


@dataclass(frozen=True)
class Machine:
    """Where kernels run, and what times them.

    `hardware` is told in the file (`gpu` is the GPU's name); `clocks` is asked before and after
    each case; `roof` is None where the GPU's peak is not known.
    """

    backend: Backend
    clock: Clock
    hardware: Mapping[str, Any] = field(default_factory=dict)
    roof: Roof | None = None
    clocks: Callable[[], Mapping[str, Any]] = dict
    warm: Callable[[Spec, Sequence[_Pair], Sequence[Path]], None] | None = None
    """Compiles cases in their configurations side by side, before they are timed in turn."""


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

    `baselines` stand in place of the spec's. With `sweep` every combination of `configs` is
    timed too, as `name=value,name=value`.

    Raises:
        SpecError: the spec is wrong, or names code that is not there.
    """
    make_importable(spec.path, roots)
    family = family_for(spec)
    issues = list(family.lint(spec))
    if issues:
        raise SpecError(issues)
    backend, reason = machine.backend, ""
    # What power a matrix product takes, and so the clocks, depends on the values in it.
    known = isinstance(spec.problem, DeclaredProblem) or "values" in getattr(family, "axes", ())
    drawn = {"values": "normal"} if known else {}
    try:
        refuse_unknown_axes(bind(spec, backend, roots=roots), family)
    except ArchitectureError as error:
        reason = str(error)
    configs = _configs(spec) if sweep else ()
    if has_ranks(spec) and not reason:
        yield from _on_ranks(
            spec, cases, machine, path, baselines, configs, schedule or Schedule(), roots, drawn
        )
        return
    pairs = [(case, config) for case in cases for config in ({}, *configs)]
    if machine.warm is not None and len(pairs) > 1 and not reason:
        machine.warm(spec, pairs, roots)
    for case in cases:
        untimed = CaseTimes(spec.name, path, case.id, dict(case.values))
        if reason:
            yield replace(untimed, implementations=(_entry(State.CANNOT, reason),))
            continue
        if backend.broken():
            words = "the GPU was lost to a fault of an earlier case; time this one in a new process"
            yield replace(untimed, implementations=(_entry(State.FAILED, words),))
            continue
        try:
            problem = family.problem(
                spec, {**drawn, **case.values}, seed=case.seed, device=backend.device
            )
        except Exception as error:  # noqa: BLE001 - a case too large for the machine is a result
            words = error_words(error, backend)
            yield replace(untimed, implementations=(_entry(State.FAILED, words),))
            continue
        ways = _ways(spec, problem, backend, roots, baselines, configs)
        with backend.active():
            timed = _timed(untimed, problem, ways, machine, schedule or Schedule())
        yield timed
        del problem, ways
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
    drawn: Mapping[str, Value],
) -> Iterator[CaseTimes]:
    """Time cases whose entry several ranks call, a process each."""
    from tlmatrix.bench.ranks import RankTimer, ways_on_ranks

    named = spec.bench.baselines if spec.bench is not None else ()
    ways, refused = ways_on_ranks(ENTRY, named if baselines is None else baselines, configs)
    family, timer = family_for(spec), RankTimer(machine.backend, roots)
    try:
        for case in cases:
            untimed = CaseTimes(spec.name, path, case.id, dict(case.values))
            values = {**drawn, **case.values}
            try:
                problem = family.problem(
                    spec, values, seed=case.seed, device=machine.backend.device
                )
            except Exception as error:  # noqa: BLE001 - as for one GPU
                words = error_words(error, machine.backend)
                yield replace(untimed, implementations=(_entry(State.FAILED, words),))
                continue
            before = dict(machine.clocks())
            timed = timer.timed(untimed, spec, problem, ways, schedule)
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
class _Way:
    """How an implementation is made, and with which configuration of a sweep."""

    make: Callable[[], Run]
    config: Mapping[str, Value] = field(default_factory=dict)


def _entry(state: State, reason: str) -> Implementation:
    return Implementation(ENTRY, state, reason)


def _ways(
    spec: Spec,
    problem: Problem,
    backend: Backend,
    roots: tuple[Path, ...],
    baselines: Sequence[str] | None,
    configs: Sequence[Mapping[str, Value]],
) -> dict[str, _Way]:
    """What makes each implementation, by the name it has in tables."""
    named = spec.bench.baselines if spec.bench is not None else ()
    own = partial(entry_run, spec, problem, backend, roots=roots)
    ways = {ENTRY: _Way(own)}
    for name in named if baselines is None else baselines:
        short = name.rpartition(":")[2]
        ways[name if short in ways else short] = _Way(
            partial(own, target=name) if ":" in name else partial(torch_run, name, spec, problem)
        )
    for config in configs:
        name = ",".join(f"{key}={label(value)}" for key, value in config.items())
        ways[name] = _Way(partial(own, config=config), config)
    return ways


def _configs(spec: Spec) -> tuple[Mapping[str, Value], ...]:
    """Every combination of the spec's `configs`."""
    tried = spec.bench.configs if spec.bench is not None else {}
    if not tried:
        return ()
    return tuple(dict(zip(tried, chosen, strict=True)) for chosen in product(*tried.values()))


def _timed(
    case: CaseTimes,
    problem: Problem,
    ways: Mapping[str, _Way],
    machine: Machine,
    schedule: Schedule,
) -> CaseTimes:
    """The case with its times."""
    backend = machine.backend
    ready, told = _tried(problem, ways, backend)
    before = dict(machine.clocks())
    passes = []
    cost = problem.cost() if problem.cost is not None else None
    for name, work in (("forward", cost), ("backward", cost.backward if cost else None)):
        calls = {
            who: call
            for who, each in ready.items()
            if (call := each.forward if name == "forward" else each.backward) is not None
        }
        if not calls:
            continue
        try:
            passes.append(PassTimes(name, work, in_turn(calls, machine.clock, schedule)))
        except Exception as error:  # noqa: BLE001 - the GPU's faults come when they come
            told = [_entry(State.FAILED, error_words(error, backend)), *told[1:]]
            break
    return replace(
        case,
        dtype=str(case.values.get("dtype", "")) or _dtype(problem),
        implementations=tuple(told),
        passes=tuple(passes),
        clocks={"before": before, "after": dict(machine.clocks())},
    )


def _tried(
    problem: Problem, ways: Mapping[str, _Way], backend: Backend
) -> tuple[dict[str, Candidate], list[Implementation]]:
    """Implementations that work and are right; and what became of every one."""
    try:
        expected = problem.lowp()
    except Exception as error:  # noqa: BLE001 - as for the problem
        return {}, [_entry(State.FAILED, f"its reference: {error_words(error, backend)}")]
    ready: dict[str, Candidate] = {}
    told: list[Implementation] = []
    for name, way in ways.items():

        def tell(state: State, reason: str = "", who: str = name, chosen: _Way = way) -> None:
            told.append(Implementation(who, state, reason, chosen.config))

        try:
            found = candidate(way.make(), problem)
            backend.synchronize()
            wrong = distance(problem, expected, found.results)
        except (NotApplicableError, NotImplementedError) as error:
            tell(State.CANNOT, first_sentence(str(error)))
        except SpecError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an implementation raises is its result
            tell(State.FAILED, error_words(error, backend))
            if backend.broken():
                return {}, told
        else:
            if wrong is None:
                ready[name] = found
            tell(State.WRONG if wrong else State.TIMED, wrong or "")
    return ready, told


def _dtype(problem: Problem) -> str:
    first: torch.Tensor | None = next(iter(problem.inputs.values()), None)
    return "" if first is None else str(first.dtype).removeprefix("torch.")
