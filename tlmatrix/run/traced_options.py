"""Traces the kernels of options that no case of the tier combines, and checks what they need.

A tier runs few combinations of the axes that kernels are compiled for, and a tile that exceeds
shared memory at another one would show only there. Tracing takes milliseconds and runs nothing, so
in some cases of a spec, which their seeds select, another combination is traced as well. It happens
in a child process, one for all cases of a spec: code under test may keep what it traced. What was
found is kept on disk until the sources of the spec change. So are the numbers that kernels combine
sizes with, for fuzzing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import CompileBackend
from tlmatrix.backend.binding import execute
from tlmatrix.check.finding import Finding
from tlmatrix.distributed.entry import trace
from tlmatrix.interpreter.analysis.accesses import accesses_of
from tlmatrix.interpreter.analysis.usage import edges
from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.frontend.programs import kept
from tlmatrix.interpreter.ir.read import read_all, saved
from tlmatrix.matrix import known_bug
from tlmatrix.problem.distributions import seeded_random
from tlmatrix.problem.sharding import with_owners
from tlmatrix.processes import ForkError
from tlmatrix.run.sources import digest_of, read_sources
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.spec import has_ranks
from tlmatrix.spec.values import canonical
from tlmatrix.tracebacks import short_path

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tlmatrix.interpreter.frontend.kernel import TracedKernel
    from tlmatrix.matrix import Case
    from tlmatrix.run.harness import Harness
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

    _Work = Callable[[Harness, Spec, CompileBackend], list[Any]]

_SAMPLED = 12
"""Of this many cases, one traces another combination."""
_LARGEST = 4
"""Of as many, so many trace one in which all numbers are the largest."""
_ATTEMPTS = 20
"""Combinations tried, until constraints allow one."""
_SECONDS = 8.0
"""A child that takes longer is ended, and says nothing."""


def check_other_options(harness: Harness, spec: Spec, case: Case) -> list[Finding]:
    """Findings about the memory of kernels for another combination of options, in some cases."""
    if (
        case.origin in ("invalid", "fuzz")
        or case.seed // 11 % _SAMPLED > _LARGEST
        or harness.backend.name != "interpreter"
        or "budget" in spec.sanitizers.without
        or not hasattr(os, "fork")
    ):
        return []
    pick = seeded_random(case.seed + 6)
    values = _other(harness, spec, case, pick, largest=case.seed // 11 % _SAMPLED > 0)
    if values is None:
        return []
    arch = pick.choice(spec.architectures or (str(getattr(harness.backend, "target", "sm_90a")),))
    return _kept(harness, spec, arch, canonical(dict(values)), partial(_needs, values))


def kernel_edges(harness: Harness, spec: Spec, cases: Sequence[Mapping[str, Value]]) -> list[int]:
    """The numbers that kernels of cases combine sizes with (`interpreter.analysis.usage.edges`).

    None if the backend is not the interpreter, and of cases that cannot be traced.
    """
    if harness.backend.name != "interpreter" or not hasattr(os, "fork"):
        return []
    arch = next(iter(spec.architectures), str(getattr(harness.backend, "target", "sm_90a")))
    plain = [dict(each) for each in cases]  # which is pickled
    with suppress(Exception, SpecError):  # a case that runs reports it
        return _kept(harness, spec, arch, f"edges of {canonical(plain)}", partial(_edges, plain))
    return []


def _kept(harness: Harness, spec: Spec, arch: str, key: str, work: _Work) -> list[Any]:
    """What a child process finds, or found for the sources as they are."""

    def full_key() -> str:
        parts = digest_of(_parts(spec.path, harness.roots))
        return f"{sha256(f'{parts}:{key}:{arch}'.encode()).hexdigest()}-options"

    return list(kept(full_key, tuple, lambda: tuple(_in_child(harness, spec, arch, work))))


@cache
def _parts(spec: Path, roots: tuple[Path, ...]) -> Mapping[str, str]:
    return read_sources(spec, roots).parts


def _other(
    harness: Harness, spec: Spec, case: Case, pick: random.Random, *, largest: bool
) -> Mapping[str, Value] | None:
    """The values of another case: any combination of the spec's values that constraints allow.

    In half of the attempts numbers are the largest ones, which need the most memory; with `largest`
    all of them in the first attempt.
    """
    offered = _values(harness, spec, case.values)
    for attempt in range(_ATTEMPTS):
        values = {
            axis: _launched(value, spec.axes.get(axis, ())) for axis, value in case.values.items()
        }
        for axis, each in offered.items():
            numbers = [value for value in each if type(value) is int]
            most = bool(numbers) and (attempt % 2 == 1 or (largest and attempt == 0))
            values[axis] = max(numbers) if most else pick.choice(each)
            if most and attempt and pick.random() < 0.5:
                values[axis] = pick.choice(each)
        another = replace(case, values=values)
        try:
            if (
                canonical(values) != canonical(dict(case.values))
                and spec.allows(values)
                and known_bug(spec, another, harness.environment) is None
            ):
                return values
        except ExpressionError:
            continue
    return None


def _launched(value: Value, others: Sequence[Value]) -> Value:
    """A size at which there is something to launch: not 0."""
    if value == 0 and type(value) is int:
        return next((each for each in others if type(each) is int and each > 0), value)
    return value


def _values(harness: Harness, spec: Spec, values: Mapping[str, Value]) -> dict[str, list[Value]]:
    """The values of the axes that kernels are compiled for, in the spec's axes and listed cases."""
    key = harness.bind(spec).family.compile_key
    mine = key(spec, values)
    listed = [*spec.extra_cases, *(each.case for each in spec.regressions)]
    found: dict[str, list[Value]] = {}
    for axis in spec.axes:
        every = [*spec.axes[axis], *(case[axis] for case in listed if axis in case)]
        once = list({canonical(value): value for value in every}.values())
        if any(key(spec, {**values, axis: value}) != mine for value in once):
            found[axis] = once
    return found


def _in_child(harness: Harness, spec: Spec, arch: str, work: _Work) -> list[Any]:
    """What a forked child that traces finds; nothing if it fails or takes too long."""
    with suppress(ForkError):
        return harness.tracer(spec, arch)(work, _SECONDS)
    return []


def _needs(
    values: Mapping[str, Value], harness: Harness, spec: Spec, backend: CompileBackend
) -> list[Finding]:
    kernels = _traced(harness, spec, values, backend)
    compiled = _values(harness, spec, values)
    options = ", ".join(f"{axis}={values[axis]}" for axis in compiled)
    return [each for kernel in kernels for each in _over_budget(kernel, backend, options)]


def _edges(
    cases: Sequence[Mapping[str, Value]], harness: Harness, spec: Spec, backend: CompileBackend
) -> list[int]:
    found: set[int] = set()
    for case in cases:
        values = {axis: _launched(value, spec.axes.get(axis, ())) for axis, value in case.items()}
        for kernel in _traced(harness, spec, values, backend):
            with suppress(Unsupported):
                found.update(edges(accesses_of(read_all(saved(kernel.prim_func)))))
    return sorted(found)


def _traced(
    harness: Harness, spec: Spec, values: Mapping[str, Value], backend: CompileBackend
) -> list[TracedKernel]:
    """The kernels of a case, traced and not run; exceptions say nothing here."""
    bound = harness.bind(spec, backend)
    traced = bound.binding.backend
    assert isinstance(traced, CompileBackend)
    traced.launched.clear()
    with suppress(Exception, SpecError):  # another case's, which the entry may refuse
        problem = bound.family.problem(spec, values, seed=1, device=traced.device)
        if has_ranks(spec):
            trace(bound.binding, with_owners(spec, problem))
        else:
            execute(bound.binding, problem)
    return list(traced.launched)


def _over_budget(kernel: TracedKernel, backend: CompileBackend, options: str) -> list[Finding]:
    from tlmatrix.interpreter.frontend.lowered import memory_faults

    return [
        Finding(
            "sanitizers",
            f"budget: with {options}: {fault.message}",
            pattern=f"budget of {kernel.name} at {fault.buffer}",
            hint="use smaller tiles or fewer stages, or refuse these options",
            source=f"{short_path(fault.file)}:{fault.line}" if fault.file else kernel.place or None,
            kernel=kernel.name,
            detail="traced, not run: no case of this tier combines these options",
        )
        for fault in memory_faults(kernel.prim_func, backend.target)
    ]
