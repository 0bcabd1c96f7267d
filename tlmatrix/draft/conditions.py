"""Conditions of sizes that exactly the accepted cases of a draft satisfy."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import replace
from itertools import islice, permutations, product
from typing import TYPE_CHECKING, Any

from tlmatrix.draft.sizes import WORD, holds
from tlmatrix.draft.verdicts import is_taken, sizes_in, why_refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tlmatrix.draft.attempts import Attempts
    from tlmatrix.draft.text import Draft
    from tlmatrix.run.result import CaseResult

_MORE = 6
"""Further cases that tell conditions apart."""
_LEAST = 3
"""Cases that may confirm one of two axes."""
_SIZES = (2, 3, 4, 6, 8, 16, 24, 32)
_FACTORS = (256, 128, 64, 32, 16, 8, 4, 2)


def conditions_of(results: Sequence[CaseResult], refused: Sequence[str]) -> list[str]:
    """Conditions that exactly the accepted cases satisfy.

    Multiples of an axis, relations of two, or a packed axis without empty sequences.
    """
    cases = [
        (sizes_in(result), why)
        for result, why in zip(results, refused, strict=True)
        if why or is_taken(result)
    ]
    if sum(not why for _, why in cases) < 2 or not any(why for _, why in cases):
        return []
    every = sorted(set.intersection(*({*values} for values, _ in cases)))
    names = [name for name in every if all(type(values[name]) is int for values, _ in cases)]
    found = [f"{name} % {factor} == 0" for name in names for factor in _FACTORS]
    for a, b in permutations(names, 2):
        found += [f"{a} == {b}", f"{a} % {b} == 0", f"{a} <= {b}", f"{a} < {b}"]
    found += [f"min({name}) > 0" for name in every if name not in names]
    return [c for c in found if all(holds(c, values) == (not why) for values, why in cases)]


def distinguished(
    draft: Draft, name: str, results: list[CaseResult], attempts: Attempts
) -> list[str]:
    """The conditions of an axis that also fit further cases, of sizes for which they differ.

    Args:
        draft: the draft.
        name: the axis.
        results: cases that differ in it, the first of them accepted.
        attempts: runs cases.
    """
    base = results[0].values

    def fitting(results: Sequence[CaseResult]) -> list[str]:
        found = conditions_of(results, [why_refused(draft, result) for result in results])
        return [condition for condition in found if name in WORD.findall(condition)]

    conditions = fitting(results)
    known: list[dict[str, Any]] = []
    with suppress(TimeoutError):
        while len(conditions) > 1 and len(known) < _MORE:
            telling = (e for e in _telling(draft, name, conditions, base) if e not in known)
            if (chosen := next(telling, None)) is None:
                break
            known.append(chosen)
            more = [*results, attempts.case(draft, {**base, **with_tied(draft, chosen)})]
            if found := fitting(more):  # else it is refused because of another axis
                results, conditions = more, found
        return [each for each in conditions if _is_confirmed(draft, name, each, results, attempts)]
    return conditions


def _is_confirmed(
    draft: Draft, name: str, condition: str, results: Sequence[CaseResult], attempts: Attempts
) -> bool:
    """Whether a refused value of an axis is taken with another one of the second axis.

    Not with sizes of 1, which satisfy most conditions.
    """
    others = [each for each in WORD.findall(condition) if each in draft.axes and each != name]
    if not others:
        return True
    base = results[0].values
    refused = [e.values[name] for e in results if why_refused(draft, e)]
    sizes = sorted((n for n in refused if type(n) is int), key=lambda n: -math.gcd(n, 128))
    pairs = ((n, m) for n in sizes for m in (2 * n, n, n // 2) if min(n, m) > 1)
    made = ({**base, name: n, others[0]: m} for n, m in pairs)
    fitting = (values for values in made if holds(condition, values))
    return any(
        not why_refused(draft, attempts.case(draft, each)) for each in islice(fitting, _LEAST)
    )


def _telling(
    draft: Draft, name: str, conditions: Sequence[str], base: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Values for which conditions differ, of the axis alone, or of another one beside it."""
    sizes = {each: sizes_of(draft, each) for each in draft.axes if type(base.get(each)) is int}
    own = sizes.get(name, [])
    others = {n for c in conditions for n in WORD.findall(c)} & sizes.keys() - {name}
    alone = [{name: size} for size in [*own, 128]]
    pairs = [{name: a, n: b} for n in sorted(others) for a, b in product(own, sizes[n])]
    for values in (*alone, *pairs):
        held = [holds(condition, {**base, **values}) is True for condition in conditions]
        if 0 < sum(held) < len(held):
            yield values


def with_condition(draft: Draft, condition: str, why: str) -> Draft:
    """The draft with a condition, and values of axes that satisfy it, so that cases are left."""
    axes, fuzz = dict(draft.axes), dict(draft.fuzz)
    name, _, factor = condition.removesuffix(" == 0").partition(" % ")
    one, _, other = condition.partition(" == ")
    packed = re.fullmatch(r"min\((\w+)\) > 0", condition)
    if packed is not None:
        name = packed[1]
        axes[name] = tuple([length for length in each if length] for each in axes[name])
        if name in fuzz:
            fuzz[name] = fuzz[name] | {"length": fuzz[name]["length"].replace("0..", "1..")}
    elif factor.isdigit():
        fine = [value for value in axes[name] if value % int(factor) == 0]
        more = (k * (fine or [int(factor)])[0] for k in (1, 2, 3))
        axes[name] = tuple(dict.fromkeys([*fine, *more]))
    elif other in axes:
        axes[one] = axes[other] = tuple(dict.fromkeys([*axes[one], *axes[other]]))
    return replace(draft, axes=axes, fuzz=fuzz, constraints=(*draft.constraints, (condition, why)))


def sizes_of(draft: Draft, name: str) -> list[int]:
    """The numbers of an axis, and small ones that tell conditions apart."""
    return sorted({*(value for value in draft.axes[name] if type(value) is int), *_SIZES})


def with_tied(draft: Draft, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changed values, also of the axes that constraints demand to be equal."""
    found = dict(changes)
    for rule, _ in draft.constraints:
        one, equal, other = rule.partition(" == ")
        for a, b in ((one, other), (other, one)) if equal else ():
            if a in changes and b in draft.axes:
                found.setdefault(b, changes[a])
    return found
