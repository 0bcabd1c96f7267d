"""Checks a call history: every call has the results that it has alone.

The history that a finding shows is a shortest one: without any of its calls, the others are right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.check.determinism import compare_runs
from tlmatrix.check.finding import KEEPS_STATE, Finding, FindingsError
from tlmatrix.check.results import results_of_call
from tlmatrix.problem.model import InapplicableError
from tlmatrix.unwinding import unwinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tlmatrix.check.tolerance import ReferenceBounds
    from tlmatrix.problem.model import History, Problem, Relation, Tensors

_ALONE = "the call alone"


def check_history(
    relation: Relation,
    first: Tensors,
    bounds: ReferenceBounds,
    execute: Callable[[Problem], Tensors],
    make_bounds: Callable[[Problem, Tensors], ReferenceBounds],
    *,
    deterministic: bool,
) -> list[Finding]:
    """Make the calls of a history and return the findings about the first call that differs.

    `first` are the results of the problem itself. The other problem is called alone before; if
    that fails, there is no finding: it is a case of its own.
    """
    assert relation.history is not None
    problem = bounds.problem
    try:
        alone = execute(relation.history.other)
    except BaseException as error:
        if unwinds(error):
            raise
        return []
    other_bounds = make_bounds(relation.history.other, alone)

    def findings(history: History) -> list[Finding]:
        try:
            results = execute(replace(problem, history=history))
        except InapplicableError:
            return []
        except BaseException as error:
            if unwinds(error):
                raise
            return [_raised(relation, history, error)]
        for number, name in enumerate(history.calls):
            got = results_of_call(results, number)
            if name == "a":
                found = compare_runs(first, got, bounds, exact=deterministic, against=_ALONE)
            elif history.exact and deterministic:
                found = compare_runs(alone, got, other_bounds, exact=True, against=_ALONE)
            else:
                continue
            if found:
                return [_named(relation, history, number, finding) for finding in found]
        return []

    history, found = relation.history, findings(relation.history)
    while found:
        shorter = next(_shorter(history, findings), None)
        if shorter is None:
            break
        history, found = shorter
    return found


def _shorter(
    history: History, findings: Callable[[History], list[Finding]]
) -> Iterator[tuple[History, list[Finding]]]:
    """Histories with one call less that have findings too, and these findings."""
    for call in range(len(history.calls)):
        shorter = history.without(call)
        if shorter.calls and (found := findings(shorter)):
            yield shorter, found


def _named(relation: Relation, history: History, number: int, finding: Finding) -> Finding:
    title = f"{relation.name}: {finding.title}, of {history.name(number)} in {history}"
    because = f"the results of {history.name(number)} differ from those alone: {KEEPS_STATE}"
    return replace(
        finding,
        check=relation.kind,
        title=title,
        hint=None,
        call=f"{history}; b has {history.difference}",
        detail="\n".join(filter(None, (because, finding.detail))),
    )


def _raised(relation: Relation, history: History, error: BaseException) -> Finding:
    title = f"{relation.name}: raised {type(error).__name__}: {error} in {history}"
    if isinstance(error, FindingsError):
        title = f"{relation.name}: {error.findings[0].title} in {history}"
    trace: str = getattr(error, "trace", "")
    return Finding(
        relation.kind,
        title,
        pattern="raised",
        call=f"{history}; b has {history.difference}",
        detail=trace or None,
    )
