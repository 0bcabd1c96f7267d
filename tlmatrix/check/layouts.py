"""Runs a case with other memory layouts of its tensors, and names the tensor that makes it fail.

An entry that refuses a layout in its own words is right to do so. A layout that its spec does not
promise to take it may refuse in any way, and it may need alignment; wrong values are findings.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.check.relations import check_calls
from tlmatrix.check.sanitizers import SanitizerSession
from tlmatrix.problem.model import InapplicableError, Relation
from tlmatrix.unwinding import unwinds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.check.finding import Finding
    from tlmatrix.check.running import CaseRun
    from tlmatrix.problem.model import LayoutRelation, Problem, Tensors

_ON_RANKS = frozenset({"races"})
_TRIES = 6
"""Sets of layouts tried until the entry takes one."""
_REFUSALS = re.compile(
    r"contiguous|stride|align|layout|expanded|overlap|multiple of \d+ bytes", re.IGNORECASE
)
_WORDS = {
    "offset": "begins one element after an aligned address",
    "sliced": "is a slice of a larger tensor",
    "aligned": "is a slice of a larger tensor, with aligned rows",
    "strided": "has stride 2 in its last dimension",
    "transposed": "has its dimensions in reverse order in memory",
    "ones": "has unusual strides in dimensions of size 1",
    "expanded": "has stride 0 in every dimension",
}


def check_layouts(relation: LayoutRelation, run: CaseRun) -> list[Finding]:
    """Findings about a call with the layouts of `relation`, narrowed down to one tensor."""
    layouts = dict(relation.layouts)
    found: list[Finding] = []
    for _ in range(_TRIES):
        try:
            found = _differences(relation, layouts, run)
            break
        except _RefusedError as error:
            layouts = _accepted(layouts, error.words)
    for name in layouts if found and len(layouts) > 1 else ():
        try:
            alone = _differences(relation, {name: layouts[name]}, run)
        except _RefusedError:
            continue
        if alone:
            return alone
    return found


class _RefusedError(Exception):
    """The entry does not take a layout; `words` are those of its exception."""

    def __init__(self, words: str) -> None:
        self.words = words
        super().__init__(words)


def _accepted(layouts: Mapping[str, str], refusal: str) -> dict[str, str]:
    """The layouts without those of tensors that a refusal names; without a name, half of them."""
    words = {re.sub(r"\W|_", "", word).lower() for word in re.findall(r"\w+", refusal)}
    kept = {
        name: each for name, each in layouts.items() if name.replace("_", "").lower() not in words
    }
    if len(kept) < len(layouts):
        return kept
    names = sorted(layouts, key=lambda name: layouts[name] != "offset")
    return {name: layouts[name] for name in names[: len(names) // 2]}


def _differences(
    relation: LayoutRelation, layouts: Mapping[str, str], run: CaseRun
) -> list[Finding]:
    """Findings about one call.

    Raises:
        _RefusedError: the entry refused a layout, and may do so.
    """
    if not layouts:
        return []
    problem = relation.laid_out(layouts)
    # On ranks, races are looked for in all later calls, by programs that are there already.
    only = frozenset({"alignment"}) & relation.promises | (_ON_RANKS if run.on_ranks else set())
    sanitizers = SanitizerSession(run.spec, problem, only=only)
    refused: list[str] = []

    def execute(problem: Problem) -> Tensors:
        try:
            return run.sanitized(problem, sanitizers)
        except BaseException as error:
            if not unwinds(error) and _may_refuse(error, relation.promises):
                refused.append(str(error))
                raise InapplicableError(()) from error
            raise

    words = [f"{name} {_WORDS[layout]}" for name, layout in layouts.items()]
    because = f"{'; '.join(words)}: with contiguous, aligned tensors the call was right"
    call = Relation(relation.name, relation.kind, (problem,), because=because, words=relation.words)
    found = check_calls(call, run, exact=False, execute=execute)
    if refused:
        raise _RefusedError(refused[0])
    reports = [
        replace(
            finding,
            title=f"{relation.name}: {finding.title}",
            tensor=finding.tensor or (next(iter(layouts)) if len(layouts) == 1 else None),
        ).with_notes(because)
        for finding in sanitizers.findings({}, [], None)
    ]
    return [*reports, *(() if reports else found)]


def _may_refuse(error: BaseException, promises: frozenset[str]) -> bool:
    """Whether an exception refuses a layout that the entry need not take."""
    from tlmatrix.interpreter.errors import ArgumentError, InterpreterError

    inner = getattr(error, "error", error)
    if isinstance(inner, InterpreterError):
        return False
    if "strides" not in promises:
        return True  # such as `assert x.is_contiguous()`, which has no words
    if isinstance(inner, ArgumentError):
        return False
    return bool(_REFUSALS.search(str(inner)))
