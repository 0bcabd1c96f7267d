"""Cases that a spec writes out itself: regressions first, then the extra cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.matrix.case import Case, Origin
from tlmatrix.matrix.nearest import did_you_mean
from tlmatrix.matrix.space import Space
from tlmatrix.matrix.tiers import constraints_of
from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.models import Spec
    from tlmatrix.spec.values import Value

__all__ = ["fixed_cases"]


def fixed_cases(spec: Spec) -> tuple[Case, ...]:
    """The regressions of a spec, then its extra cases, each once.

    An axis that an entry leaves out takes the axis's first value. Raises SpecError for an unknown
    axis, for a case that a `where` rule excludes (somebody has to decide which of the two is
    wrong), and for two cases with one id.
    """
    issues: list[Issue] = []
    found: dict[str, Case] = {}
    written: tuple[tuple[str, Origin, tuple[Mapping[str, Value], ...]], ...] = (
        ("regressions", "regression", spec.regressions),
        ("cases", "extra", spec.extra),
    )
    for key, origin, entries in written:
        for number, entry in enumerate(entries):
            case = Case(spec.name, _completed(spec, entry), origin)
            wrong = _wrong_with(spec, (key, number), entry)
            twin = found.setdefault(case.id, case)
            if not wrong and twin != case:
                wrong = [
                    spec.issue(
                        (key, number),
                        f"two cases have the id {case.id}: {dict(twin.values)} and "
                        f"{dict(case.values)}",
                    )
                ]
            issues += wrong
    if issues:
        raise SpecError(issues)
    return tuple(found.values())


def _completed(spec: Spec, entry: Mapping[str, Value]) -> dict[str, Value]:
    first = {name: values[0] for name, values in spec.axes.items() if values}
    return {**first, **entry}


def _wrong_with(spec: Spec, place: tuple[str, int], entry: Mapping[str, Value]) -> list[Issue]:
    unknown = [
        spec.issue(
            (*place, name),
            f"no axis {name!r}{did_you_mean(name, spec.axes)}",
        )
        for name in entry
        if name not in spec.axes
    ]
    if unknown:
        return unknown
    one = {name: (value,) for name, value in _completed(spec, entry).items()}
    space = Space(one, constraints_of(spec, one))
    return [
        spec.issue(
            place,
            f"the rule {spec.where[at].expr.text!r} excludes this case "
            f"({spec.where[at].because}); remove it or change the rule",
        )
        for at in space.failing((0,) * len(one))
    ]
