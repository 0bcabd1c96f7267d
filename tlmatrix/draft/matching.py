"""Finds the reference of a draft that agrees in a recorded case, and how it gives the outputs."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING

from tlmatrix.draft.attempts import recorded_case
from tlmatrix.draft.references import parameters_read
from tlmatrix.draft.text import Draft
from tlmatrix.draft.verdicts import (
    RETURNED,
    agrees,
    of_zeros,
    passes,
    raised,
    ranges_line,
    relax,
    sizes_in,
)
from tlmatrix.spec.expr.expression import Expression
from tlmatrix.spec.model.calling import SKIPPED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.draft.attempts import Attempts
    from tlmatrix.draft.sources import Drafts
    from tlmatrix.run.result import CaseResult

_RAISED = re.compile(r"\braise[sd] ")
_NO_GRAPH = re.compile(r"backward through the graph a second time|does not require grad")
_NOT_WATCHED = re.compile(r"does not model (sanitizers of|.* under sanitizers)")
_MOST_OUTPUTS = 4
"""Most outputs whose orders are tried."""


def untie(drafts: Drafts, attempts: Attempts, recorded: CaseResult | None) -> None:
    """Give a dimension its own axis if code and reference agree where its expression is wrong.

    A size that is a product or a part of others in the recorded calls may be so by chance.

    Args:
        drafts: the drafts.
        attempts: runs cases.
        recorded: a recorded case; if it does not pass, nothing tells.
    """
    for size, (name, _) in drafts.interface.guesses.items():
        untied = drafts.changed(interface=drafts.interface.untied(size))
        draft = untied()
        others: tuple[int, ...] = ()
        if recorded is not None and passes(recorded) and name in draft.axes and draft.complete:
            own = int(Expression(size).evaluate(sizes_in(recorded)))
            others = (2 * own, max(1, own // 2), own + 1)
        base = {n: v for n, v in (recorded.values if recorded else {}).items() if n in draft.axes}
        if any(passes(attempts.case(draft, base | {name: other})) for other in others):
            drafts.interface = untied.interface
        else:
            drafts.interface = drafts.interface.with_fact(size)


def match_reference(drafts: Drafts, attempts: Attempts, lines: list[str]) -> CaseResult | None:
    """Take the first reference that agrees in a recorded case, and how it gives the outputs.

    Returns the result of that case, or of the recorded one if none agrees.
    Without a reference its values are not compared. A reference may refuse float64, return outputs
    in another order, or fewer of them. What the code under test updates, it may return as new
    tensors, or update its own arguments. If the code passes without gradients alone, the draft has
    none, and `lines` get a line.
    """
    guessed = any("between" in each for each in drafts().inputs.values())

    def taken(own: Drafts, result: CaseResult, *why: str) -> CaseResult:
        lines.extend(why)
        drafts.interface, drafts.adapted = own.interface, own.adapted
        drafts.found = own.found and replace(own.found, part=False)
        return result

    def watched(own: Drafts) -> CaseResult:
        """The result of a recorded case, without what is not modelled or need not be right."""
        result = recorded_case(draft := own(), attempts)
        demanded, why = relax(draft, [result])
        if _NOT_WATCHED.search(result.message):
            why = [f"  without sanitizers: {result.message}"]
            demanded = draft.without_sanitizers()
        if demanded == draft:
            return result
        lines.extend(why)
        own.adapted = (*own.adapted, partial(_with_demands_of, demanded))
        if own is not drafts:
            drafts.adapted = (*drafts.adapted, own.adapted[-1])
        return watched(own)

    recorded: CaseResult | None = None
    for found in drafts.references:
        own = drafts.changed(found=found)
        draft = own()
        if draft.problem:
            drafts.found = found
            break
        if not draft.complete:
            continue
        kept = drafts.found is found
        first = watched(own)
        if raised(first, "reference", _RAISED):  # it may refuse float64
            other = drafts.changed(found=replace(found, same_dtype=True))
            again = watched(other)
            if not raised(again, "reference", _RAISED):
                own, first = other, again
        draft = own()
        for integer in (True, False):
            if agrees(first) or not draft.ranges_of(integer=integer):
                continue
            if integer or found.part or of_zeros([first]):
                ranged = partial(Draft.in_ranges, integer=integer)
                other = own.changed(adapted=(*own.adapted, ranged))
                if agrees(again := watched(other)):
                    lines.append(ranges_line(draft, first, integer=integer))
                    own, first, draft = other, again, other()
        if agrees(first):
            return taken(own, first)
        if guessed and drafts.interface.calls and str(first.status) == "failed":
            # Such guesses may be why it disagrees.
            others = (each for each in drafts.references if each is not found)
            drafts.references = [replace(found, part=True), *others]
            own = own.changed(found=own.found and replace(own.found, part=True))
        if kept:
            drafts.found = own.found
            recorded = first
        if raised(first, "reference", _RAISED):
            continue  # however its results are compared
        other = own.changed(interface=own.interface.without_gradients())
        refused = raised(first, "entry", _RAISED) and other.interface != own.interface
        if refused and passes(again := recorded_case(other(), attempts)):
            # The backward pass may need what callers set.
            return taken(other, again, f"  without gradients: {first.findings[0].title}")
        for order, updates in _ways_of_returning(own, first):
            other = own.changed(
                interface=replace(own.interface, order=order),
                found=own.found and replace(own.found, updates=updates, part=False),
            )
            first, why = recorded_case(other(), attempts), []
            plain = other.changed(interface=other.interface.without_gradients())
            if raised(first, "problem", _NO_GRAPH) and plain.interface != other.interface:
                other, first = plain, recorded_case(plain(), attempts)  # it has freed its graph
                why = ["  without gradients, which the reference computes itself"]
            if agrees(first):
                if scratch := ", ".join(sorted(other.interface.scratch)):
                    why += [f"  does not judge {scratch}, which the reference does not return"]
                return taken(other, first, *why)
    return watched(drafts) if recorded is None and drafts().runs else recorded


def _with_demands_of(other: Draft, draft: Draft) -> Draft:
    """The draft that demands what another one does."""
    return replace(draft, bounded=other.bounded, without=other.without)


def _ways_of_returning(drafts: Drafts, first: CaseResult) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Outputs in an order, and whether a reference changes what the code under test changes.

    What the code writes, and the reference neither reads nor returns, may be scratch memory.

    Args:
        drafts: of the code under test, with the reference.
        first: the result of a case, which may say how many outputs the reference returns.
    """
    interface, reference = drafts.interface, drafts().reference
    read = None if drafts.found is None else parameters_read(drafts.found.function)
    given = (reference and reference.call) or {}
    takes = None if read is None else {str(given.get(name, name)) for name in read}
    names = [each.name for each in interface.outputs]
    written = {each.name for each in interface.outputs if each.name in interface.changed}
    updated = [each.name for each in interface.inputs if each.name in interface.changed]
    said = (RETURNED.search(finding.title) for finding in first.findings)
    count = next((int(each[1]) for each in said if each), len(names))
    if max(len(names), count) <= _MOST_OUTPUTS:
        more = [SKIPPED] * (count - len(names))
        orders = dict.fromkeys(permutations([*names, *more], count))
        left = {order: written - {*order} for order in orders}
        fine = (order for order in orders if takes is not None and not left[order] & takes)
        returned = {*names} - written

        def dropped(order: tuple[str, ...]) -> tuple[int, int]:
            return len(returned - {*order}), len(left[order])

        yield from ((order, False) for order in sorted(fine, key=dropped))
        others = [name for name in names if name not in updated]
        yield from (((*order, *updated), True) for order in permutations(others) if updated)
