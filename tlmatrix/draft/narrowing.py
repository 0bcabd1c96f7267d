"""Narrows a draft to what the code under test and the reference do not refuse."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from tlmatrix.draft.conditions import (
    conditions_of,
    distinguished,
    sizes_of,
    with_condition,
    with_tied,
)
from tlmatrix.draft.sizes import WORD, holds
from tlmatrix.draft.verdicts import (
    VALUES,
    is_taken,
    of_zeros,
    passes,
    ranges_line,
    refusal,
    relax,
    sizes_in,
    why_refused,
    worst,
)
from tlmatrix.spec.loader import load_spec
from tlmatrix.spec.values import canonical, label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tlmatrix.draft.attempts import Attempts
    from tlmatrix.draft.text import Draft
    from tlmatrix.draft.verdicts import Trial
    from tlmatrix.run.result import CaseResult

_ROUNDS = 5
"""The last only runs the cases that are left."""
_MORE = 6
"""Further cases that tell conditions apart."""
_LEAST_TRIED = 2
"""Such cases before a condition of two axes is believed."""


def narrow(trial: Trial, attempts: Attempts, recorded: CaseResult | None) -> None:
    """Narrow a draft in rounds, until all its cases are taken or the time ends.

    Args:
        trial: the draft.
        attempts: runs cases.
        recorded: the result of a recorded case, from which others differ if no other is taken.
    """
    for left in reversed(range(_ROUNDS)):
        trial.results = attempts.cases(trial.draft)
        relaxed, lines = relax(trial.draft, trial.results)
        if relaxed != trial.draft:
            trial.draft = relaxed
            trial.lines += lines
            trial.results = attempts.cases(relaxed)
        _draw_as_recorded(trial, attempts)
        base = _accepted(trial, attempts, recorded)
        if base is not None and not passes(base):  # nothing tells which sizes make it wrong
            trial.draft = replace(trial.draft, multiples={})
        refused = any(why_refused(trial.draft, each) for each in trial.results)
        if base is None or not refused or not left:
            return
        narrowed, lines = _narrowed(trial.draft, base, attempts)
        if narrowed == trial.draft:
            narrowed, lines = _explained(trial.draft, [base, *trial.results], attempts)
        if narrowed == trial.draft:
            narrowed, lines = _without_shared(trial.draft, base, trial.results)
        if narrowed == trial.draft:
            return
        trial.draft = narrowed
        trial.lines += lines
        trial.results = [each for each in (*trial.results, base) if has_case(narrowed, each)]
        if attempts.limit.left <= 0:
            return


def _draw_as_recorded(trial: Trial, attempts: Attempts) -> None:
    """Draw integers from the recorded range, or floats of the recorded sign, if more cases pass."""
    failed = [each for each in trial.results if each.failed]
    for integer, wrong in (
        (True, [e for e in failed if any(f.check in VALUES for f in e.findings[:1])]),
        (False, [e for e in failed if "NaN" in (refusal(e) or "NaN")]),
    ):
        narrower = trial.draft.ranges_of(integer=integer)
        if wrong and narrower and (integer or of_zeros(wrong)):
            results = attempts.cases(ranged := trial.draft.in_ranges(integer=integer))
            if sum(map(passes, results)) > sum(map(passes, trial.results)):
                trial.lines.append(ranges_line(trial.draft, wrong[0], integer=integer))
                trial.draft, trial.results = ranged, results


def probe(trial: Trial, attempts: Attempts) -> None:
    """Try an odd size and the largest of each range of the fuzz section, if no case has such.

    Where they are refused and no condition tells which are, random cases have listed sizes alone.
    """
    axes = trial.draft.fuzz.get("axes", {})
    ranges = {
        name: e["range"] if isinstance(e, dict) and "range" in e else e for name, e in axes.items()
    }
    base = _accepted(trial, attempts, None) if ranges else None
    for name, drawn in ranges.items():
        if base is None or not isinstance(drawn, str) or attempts.limit.left <= 0:
            continue
        draft, most, listed = trial.draft, int(drawn.partition("..")[2]), trial.draft.axes[name]
        odd = [3] if most > 3 and not any(n % 2 and n > 1 for n in listed) else []
        group = [base, *_varied(draft, base, name, [*odd, most], attempts)]
        relaxed, lines = relax(draft, group[1:])
        if relaxed != draft:
            trial.lines += lines
            draft = trial.draft = relaxed
            group = [base, *_varied(draft, base, name, [*odd, most], attempts)]
        reasons = [why_refused(draft, each, base) for each in group[1:]]
        pairs = zip(group[1:], reasons, strict=True)
        trial.results += [each for each, why in pairs if each.failed and not why]
        if why := worst(reasons):
            conditions = distinguished(draft, name, group, attempts)
            if conditions:
                trial.draft = with_condition(draft, conditions[0], why)
                trial.lines.append(f"  only {conditions[0]}: {why}")
            else:
                trial.draft = _without_values(draft, name, {}, None)
                trial.lines.append(f"  no other {name} in random cases: {why}")


def keep_recorded(trial: Trial, recorded: CaseResult | None) -> None:
    """Restrict the spec to a recorded case that is taken, if refusals of others remain unexplained.

    Not if a case fails for another reason, which is a finding. A recorded case that is not modelled
    is kept, too, as are the recorded sizes if no case of them ended in time and all others are
    refused: that is why nothing is judged.
    """
    draft, refusals = trial.draft, [refusal(each) for each in trial.results]
    if any(each.failed and not why for each, why in zip(trial.results, refusals, strict=True)):
        return
    why = next(filter(None, refusals), "" if refusals else "no other case ended in time")
    if recorded is None:
        fine = bool(refusals) and all(refusals)
        values = {**{name: each[0] for name, each in draft.axes.items()}, **draft.recorded}
    else:
        fine = is_taken(recorded) or str(recorded.status) == "skipped"
        fine = fine and has_case(draft, recorded, listed=False)
        values = dict(recorded.values)
    if fine and why and values.keys() == draft.axes.keys():
        trial.draft = replace(draft, axes={name: (values[name],) for name in draft.axes}, fuzz={})
        trial.results = [] if recorded is None else [recorded]
        trial.lines.append(f"  only the recorded sizes: {why}")


def has_case(draft: Draft, result: CaseResult, *, listed: bool = True) -> bool:
    """Whether a draft still has the case of a result; its sizes need be listed by default."""
    numbers = sizes_in(result)
    own = (numbers[name] in values for name, values in draft.axes.items() if name in numbers)
    fine = not listed or all(own)
    return fine and all(holds(rule, numbers) is not False for rule, _ in draft.constraints)


def _accepted(trial: Trial, attempts: Attempts, recorded: CaseResult | None) -> CaseResult | None:
    """The fastest case that passes, or the recorded one; without such one that is taken."""
    passed = [result for result in trial.results if passes(result)]
    # Values such as rows of zeros hide that others are wrong, as sizes of 1 do, which broadcast.
    passed.sort(key=lambda e: (not _is_normal(e.values), 1 in sizes_in(e).values(), e.seconds))
    if passed and not _is_normal(passed[0].values):
        with suppress(TimeoutError):
            normal = attempts.case(trial.draft, {**passed[0].values, "values": "normal"})
            passed = [normal, *passed] if passes(normal) else passed
    taken = [each for each in trial.results if is_taken(each)]
    if not passed and recorded is not None:
        own = {name: each for name, each in recorded.values.items() if name in trial.draft.axes}
        with suppress(TimeoutError):
            same = own.keys() == trial.draft.axes.keys()
            result = recorded if same else attempts.case(trial.draft, own)
            taken[:0] = [result] * is_taken(result)
    return next(iter([*passed, *taken]), None)


def _is_normal(values: Mapping[str, Any]) -> bool:
    return str(values.get("values", "normal")) == "normal"


def _narrowed(draft: Draft, base: CaseResult, attempts: Attempts) -> tuple[Draft, list[str]]:
    """The draft without what is refused where one axis of an accepted case is another.

    Several axes are refused for a reason of one of them, so that each is varied alone.
    """
    narrowed, lines = draft, []
    axes = load_spec(attempts.path).axes

    def growth(name: str) -> float:
        """How much larger its largest size is than the accepted one; time may end there."""
        own = base.values[name]
        sizes = [value for value in axes[name] if type(value) is int]
        return max(sizes, default=0) / max(1, own) if type(own) is int else 1

    for name in sorted(axes, key=growth):
        others = [value for value in axes[name] if canonical(value) != canonical(base.values[name])]
        found = narrowed.constraints[len(draft.constraints) :]
        if any(name in WORD.findall(condition) for condition, _ in found):
            continue
        group = [base, *_varied(draft, base, name, others, attempts)]
        reasons = {canonical(r.values[name]): why_refused(draft, r, base) for r in group[1:]}
        why = worst(reasons.values())
        conditions = distinguished(draft, name, group, attempts) if why else []
        if conditions:
            narrowed = with_condition(narrowed, conditions[0], why)
            lines.append(f"  only {conditions[0]}: {why}")
        elif why:
            narrowed = _without_values(narrowed, name, reasons, base.values[name])
            left_out = [value for value in others if reasons.get(canonical(value))]
            lines += [f"  left out {name}={label(v)}: {reasons[canonical(v)]}" for v in left_out]
    return narrowed, lines


def _explained(
    draft: Draft, results: Sequence[CaseResult], attempts: Attempts
) -> tuple[Draft, list[str]]:
    """The draft with a condition of two axes, of which nothing is refused that varies one alone.

    Further cases have sizes for which the conditions differ that fit, and for each left one that is
    to be refused and one that is not.
    """
    judged = [each for each in results if is_taken(each) or why_refused(draft, each)]
    why = worst(why_refused(draft, each) for each in judged)
    conditions: list[str] = []
    tried: list[dict[str, Any]] = []
    with suppress(TimeoutError):
        for _ in range(2 * _MORE):
            found = conditions_of(judged, [why_refused(draft, result) for result in judged])
            conditions = [e for e in found if len({*WORD.findall(e)} & {*draft.axes}) > 1]
            chosen = next(_doubtful(draft, conditions, judged[0].values, tried), None)
            if chosen is None:
                break
            tried.append(chosen)
            judged.append(attempts.case(draft, {**judged[0].values, **with_tied(draft, chosen)}))
    if len(conditions) != 1 or len(tried) < _LEAST_TRIED:
        return draft, []
    return with_condition(draft, conditions[0], why), [f"  only {conditions[0]}: {why}"]


def _without_shared(
    draft: Draft, base: CaseResult, results: Sequence[CaseResult]
) -> tuple[Draft, list[str]]:
    """The draft without values that refused cases share: the most frequent, of several the least.

    Code may take each value of some axes, but not all of them together.
    """
    refused = [(each, why) for each in results if (why := why_refused(draft, each, base))]
    lines = []
    while refused:
        shared = Counter(
            (name, canonical(value))
            for each, _ in refused
            for name, value in each.values.items()
            if canonical(value) != canonical(base.values[name])
        )
        if not shared:
            break
        # Sizes rather than options and dtypes.
        rank = {
            e: (n, e[1].isdigit(), -int(e[1]) if e[1].isdigit() else 0) for e, n in shared.items()
        }
        name, text = max(shared, key=rank.__getitem__)
        value, why = next(
            (e.values[name], w) for e, w in refused if canonical(e.values[name]) == text
        )
        draft = _without_values(draft, name, {text: why}, base.values[name])
        lines.append(f"  left out {name}={label(value)}: {why}")
        refused = [(e, w) for e, w in refused if canonical(e.values[name]) != text]
    return draft, lines


def _doubtful(
    draft: Draft,
    conditions: Sequence[str],
    base: Mapping[str, Any],
    tried: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Sizes of two axes for which conditions differ; of one condition, of each side one."""
    for condition in conditions:
        a, b = dict.fromkeys(WORD.findall(condition))
        known = [holds(condition, {**base, **each}) for each in tried if {*each} == {a, b}]
        for one, other in product(sizes_of(draft, a), sizes_of(draft, b)):
            values = {a: one, b: other}
            if min(one, other) == 1 or one == other or values in tried:
                continue
            held = [holds(each, {**base, **values}) for each in conditions]
            if len({*held}) > 1 or (len(held) == 1 and held[0] not in known):
                yield values


def _varied(
    draft: Draft, base: CaseResult, name: str, values: Sequence[Any], attempts: Attempts
) -> list[CaseResult]:
    """Cases that differ from an accepted one in an axis; if all are refused, in two equal ones."""
    found: list[CaseResult] = []
    own = base.values[name]

    def run(changes: Iterable[Mapping[str, Any]]) -> None:
        cases = ({**base.values, **with_tied(draft, each)} for each in changes)
        allowed = (c for c in cases if all(holds(r, c) is not False for r, _ in draft.constraints))
        found.extend(attempts.case(draft, each) for each in allowed)

    def taken() -> bool:
        return not all(why_refused(draft, each, base) for each in found)

    with suppress(TimeoutError):
        run({name: value} for value in values)
        if type(own) is not int or own < 1 or not values or taken():
            return found
        run({name: factor * own} for factor in (2, 3))
        if not taken():
            equal = [n for n, v in base.values.items() if type(v) is int and v == own and n != name]
            run({name: 2 * own, other: 2 * own} for other in equal)
    return found


def _without_values(draft: Draft, name: str, reasons: Mapping[str, str], accepted: Any) -> Draft:  # noqa: ANN401 - a value
    """The draft without the values of an axis that are refused, for reasons by canonical text."""
    axes, fuzz = dict(draft.axes), dict(draft.fuzz)
    left = tuple(value for value in axes[name] if not reasons.get(canonical(value)))
    axes[name] = left or (accepted,)
    if "axes" in fuzz:
        fuzz["axes"] = {each: drawn for each, drawn in fuzz["axes"].items() if each != name}
        fuzz = fuzz if fuzz["axes"] else {}
    return replace(draft, axes=axes, fuzz=fuzz)
