"""The ledger of a spec: failures that are known, each with an issue and a date by which it ends.

A known bug without an end is a test that was switched off. So every entry has a date, and past it
the spec is in error until somebody looks.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.issues import Issue, SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.matrix.case import Case
    from tlmatrix.spec.model.spec import KnownBug, Spec

__all__ = ["concerns", "expired", "known_bug"]


def known_bug(spec: Spec, case: Case, environment: Mapping[str, object]) -> KnownBug | None:
    """The first entry of the ledger that the case falls under, or None.

    `environment` gives the names of where the case runs, at least `arch` and `backend`; an axis
    of the same name comes first. Raises SpecError where a predicate has no answer.
    """
    for number, bug in enumerate(spec.known_bugs):
        if concerns(spec, number, case, environment):
            return bug
    return None


def concerns(spec: Spec, number: int, case: Case, environment: Mapping[str, object]) -> bool:
    """Whether the case falls under one entry of the ledger; see `known_bug`."""
    names = {**environment, **case.values}
    bug = spec.known_bugs[number]
    try:
        return bool(bug.when.evaluate(names))
    except ExpressionError as error:
        if case.origin == "invalid":
            return False  # its values are wrong on purpose, so no entry is about it
        message = f"{bug.when.text!r} has no value for {case.id}: {error.reason}"
        raise SpecError([spec.issue(("known_bugs", number, "when"), message)]) from error


def expired(spec: Spec, today: date | None = None) -> tuple[Issue, ...]:
    """An error for each entry whose date lies before `today` (the day itself still counts)."""
    today = today or date.today()  # noqa: DTZ011 - a deadline is a day where the user is
    return tuple(
        spec.issue(
            ("known_bugs", number, "expires"),
            f"the known bug {bug.issue} ({bug.when.text}) expired on {bug.expires}: "
            "fix it and remove the entry, or look at it again and set a later date",
        )
        for number, bug in enumerate(spec.known_bugs)
        if bug.expires < today
    )
