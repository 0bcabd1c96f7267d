"""Times the bench cases of a spec: every implementation tried, compared, and then sampled in turn.

Nothing is printed and nothing written here; each case is yielded as soon as it is done.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import EntryError, refuse_unknown_axes
from tlmatrix.backend.binding import bind
from tlmatrix.bench.baselines import torch_run
from tlmatrix.bench.candidates import Candidate, CannotError, candidate, distance, entry_run
from tlmatrix.bench.results import CaseTimes, Implementation, PassTimes, State
from tlmatrix.bench.timing import Clock, Schedule, in_turn
from tlmatrix.problem import family_for
from tlmatrix.run.faults import fault_finding
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.issues import SpecError
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
    refuse_unknown_axes(bind(spec, machine.backend, roots=roots), family)
    names = baselines if baselines is not None else spec.bench.baselines if spec.bench else ()
    for case in cases:
        values = {"values": "normal", **case.values}
        try:
            problem = family.problem(spec, values, seed=case.seed, device=machine.backend.device)
        except Exception as error:  # noqa: BLE001 - a case too large for the machine is a result
            words = _words(error, machine.backend)
            failed = Implementation(ENTRY, State.FAILED, words)
            yield CaseTimes(spec.name, path, case.id, dict(case.values), implementations=(failed,))
            continue
        ways: dict[str, Callable[[], Run]] = {
            ENTRY: lambda problem=problem: entry_run(spec, problem, machine.backend, roots=roots)  # type: ignore[misc]
        }
        for name in names:
            ways[_short(name, ways)] = _baseline(name, spec, problem, machine.backend, roots)
        if sweep and spec.bench is not None:
            for config in _combinations(spec.bench.configs):
                ways[_config_name(config)] = _configured(
                    config, spec, problem, machine.backend, roots
                )
        with machine.backend.active():
            yield _timed(spec, path, case, problem, ways, machine, schedule or Schedule())
        del problem, ways
        gc.collect()
        machine.backend.release()


def _baseline(
    name: str, spec: Spec, problem: Problem, backend: Backend, roots: tuple[Path, ...]
) -> Callable[[], Run]:
    if ":" in name:
        return lambda: entry_run(spec, problem, backend, roots=roots, target=name)
    return lambda: torch_run(name, spec, problem)


def _configured(
    config: Mapping[str, Value],
    spec: Spec,
    problem: Problem,
    backend: Backend,
    roots: tuple[Path, ...],
) -> Callable[[], Run]:
    return lambda: entry_run(spec, problem, backend, roots=roots, config=config)


def _combinations(configs: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    if not configs:
        return []
    return [dict(zip(configs, values, strict=True)) for values in product(*configs.values())]


def _config_name(config: Mapping[str, Value]) -> str:
    return ",".join(f"{name}={label(value)}" for name, value in config.items())


def _short(name: str, taken: Mapping[str, object]) -> str:
    """`rms_norm` of `mypkg.other:rms_norm`, where that is free."""
    short = name.rpartition(":")[2]
    return name if short in taken else short


def _timed(
    spec: Spec,
    path: str,
    case: Case,
    problem: Problem,
    ways: Mapping[str, Callable[[], Run]],
    machine: Machine,
    schedule: Schedule,
) -> CaseTimes:
    ready, told = _tried(problem, ways, machine.backend)
    before = dict(machine.clocks())
    passes = []
    cost = problem.cost() if problem.cost is not None else None
    for name, work in (("forward", cost), ("backward", cost.backward if cost else None)):
        calls = {
            who: call
            for who, each in ready.items()
            if (call := each.forward if name == "forward" else each.backward) is not None
        }
        if calls:
            samples = in_turn(calls, machine.clock, schedule)
            passes.append(PassTimes(name, work, samples))
    dtype = str(case.values.get("dtype", "")) or _dtype(problem)
    return CaseTimes(
        spec.name,
        path,
        case.id,
        dict(case.values),
        dtype=dtype,
        implementations=tuple(told),
        passes=tuple(passes),
        clocks={"before": before, "after": dict(machine.clocks())},
    )


def _tried(
    problem: Problem, ways: Mapping[str, Callable[[], Run]], backend: Backend
) -> tuple[dict[str, Candidate], list[Implementation]]:
    """Implementations that work and are right; and what became of every one."""
    expected = problem.lowp()
    ready: dict[str, Candidate] = {}
    told: list[Implementation] = []
    for name, way in ways.items():
        try:
            found = candidate(way(), problem)
            backend.synchronize()
            wrong = distance(problem, expected, found.results)
        except (CannotError, NotImplementedError) as error:
            told.append(Implementation(name, State.CANNOT, _sentence(str(error))))
            continue
        except SpecError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an implementation raises is its result
            told.append(Implementation(name, State.FAILED, _words(error, backend)))
            if backend.broken():
                break
            continue
        if wrong is not None:
            told.append(Implementation(name, State.WRONG, wrong))
            continue
        ready[name] = found
        told.append(Implementation(name, State.TIMED))
    return ({} if backend.broken() else ready), told


def _words(error: Exception, backend: Backend) -> str:
    raised = error.error if isinstance(error, EntryError) else error
    finding = fault_finding(raised, backend, "entry", 0)
    if finding is not None:
        return f"{finding.check}: {finding.title}"
    first = _sentence(str(raised))
    return f"{type(raised).__name__}: {first}" if first else type(raised).__name__


def _sentence(text: str) -> str:
    """The first sentence of a message: PyTorch's may go on for pages."""
    return text.strip().partition("\n")[0].partition(". ")[0]


def _dtype(problem: Problem) -> str:
    first: torch.Tensor | None = next(iter(problem.inputs.values()), None)
    return "" if first is None else str(first.dtype).removeprefix("torch.")
