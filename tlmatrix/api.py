"""The Python API: load a spec, list its cases, run them, read findings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, overload

from tlmatrix.report.text import describe_result
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.loader import find_specs, load_spec
from tlmatrix.spec.model.spec import Spec

if TYPE_CHECKING:
    from tlmatrix.backend import Backend
    from tlmatrix.check.finding import Finding
    from tlmatrix.matrix import Case
    from tlmatrix.run.result import CaseResult

PathLike = str | os.PathLike[str]


def load(path: PathLike) -> Spec:
    """Load the spec in a file; raises SpecError with all errors of the file."""
    spec = load_spec(path)
    make_importable(spec.path)
    return spec


def cases(spec: Spec | PathLike, tier: str = "quick", *, seed: int | None = None) -> Iterator[Case]:
    """Generate the cases of a tier; invalid inputs come last.

    Raises:
        SpecError: the spec is invalid, or the tier has no case.
    """
    return plan(_spec(spec), tier, seed=seed).cases()


def run_specs(
    specs: Spec | PathLike | Iterable[Spec | PathLike],
    *,
    tier: str = "quick",
    backend: str | Backend = "auto",
    seed: int = 0,
    select: Callable[[Case], bool] | None = None,
    limit: int | None = None,
    on_result: Callable[[CaseResult], None] | None = None,
) -> Results:
    """Run cases in this process, one after the other.

    Args:
        specs: specs, spec files, or folders of them.
        tier: the tier of each spec.
        backend: a backend or its name.
        seed: another seed gives other inputs and other samples.
        select: picks cases (`lambda case: case["causal"]`).
        limit: the most cases of each spec.
        on_result: called after each case.

    Raises:
        SpecError: a spec is invalid.
        BackendUnavailableError: the backend cannot run here.
    """
    results = []
    with Runner(backend, seed=seed) as runner:
        for spec in _specs(specs):
            planned = plan(spec, tier, seed=seed or None)
            picked = (case for case in planned.cases() if select is None or select(case))
            for case in islice(picked, limit):
                result = runner.run(spec, case)
                results.append(result)
                if on_result is not None:
                    on_result(result)
    return Results(tuple(results))


@dataclass(frozen=True)
class Results(Sequence["CaseResult"]):
    """The results of cases, in running order."""

    results: tuple[CaseResult, ...]

    @property
    def ok(self) -> bool:
        """Whether no case failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[CaseResult, ...]:
        """The cases that failed, crashed or ran out of time."""
        return tuple(result for result in self.results if result.failed)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the cases that failed."""
        return tuple(finding for result in self.failed for finding in result.findings)

    def __len__(self) -> int:
        return len(self.results)

    @overload
    def __getitem__(self, index: int) -> CaseResult: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[CaseResult, ...]: ...
    def __getitem__(self, index: int | slice) -> CaseResult | tuple[CaseResult, ...]:
        return self.results[index]

    def __str__(self) -> str:
        counts = Counter(result.status for result in self.results)
        text = ", ".join(f"{count} {status}" for status, count in counts.items()) or "none"
        lines = [f"{len(self.results)} cases: {text}"]
        for result in self.failed:
            lines += ["", f"{result.spec}: {result.case}", *describe_result(result)]
        return "\n".join(lines)


def _spec(spec: Spec | PathLike) -> Spec:
    return spec if isinstance(spec, Spec) else load(spec)


def _specs(specs: Spec | PathLike | Iterable[Spec | PathLike]) -> Iterator[Spec]:
    given = [specs] if isinstance(specs, Spec | str | os.PathLike) else specs
    for item in given:
        if isinstance(item, Spec):
            yield item
        else:
            yield from map(load, find_specs([Path(item)]))
