"""Known bugs of a spec: tracked failures, each with a condition, an issue and an expiry date.

After its expiry date an entry is an error, so that no test stays disabled forever.
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


def known_bug(spec: Spec, case: Case, environment: Mapping[str, object]) -> KnownBug | None:
    """The first known bug whose condition the case satisfies, or None.

    `environment` has the names of the backend, at least `arch` and `backend`; axes take precedence.

    Raises:
        SpecError: a condition cannot be evaluated.
    """
    for number, bug in enumerate(spec.known_bugs):
        if applies(spec, number, case, environment):
            return bug
    return None


def applies(spec: Spec, number: int, case: Case, environment: Mapping[str, object]) -> bool:
    """Whether the condition of one known bug holds for the case; see `known_bug`."""
    names = {**environment, **case.values}
    bug = spec.known_bugs[number]
    try:
        return bool(bug.when.evaluate(names))
    except ExpressionError as error:
        if case.origin == "invalid":
            return False  # its values may be of other types than conditions expect
        message = f"{bug.when.text!r} has no value for {case.id}: {error.reason}"
        raise SpecError([spec.issue(("known_bugs", number, "when"), message)]) from error


def expired(spec: Spec, today: date | None = None) -> tuple[Issue, ...]:
    """An error for each known bug that expired before `today`."""
    today = today or date.today()  # noqa: DTZ011 - the local date of the user
    return tuple(
        spec.issue(
            ("known_bugs", number, "expires"),
            f"the known bug {bug.issue} ({bug.when.text}) expired on {bug.expires}: "
            "fix it and remove the entry, or set a later date",
        )
        for number, bug in enumerate(spec.known_bugs)
        if bug.expires < today
    )
