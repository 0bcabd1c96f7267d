"""Bad input must raise, with words that help: the judge of the `rejects` of a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.backend import EntryError, user_traceback
from tlmatrix.check.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.spec.models import Reject

__all__ = ["judge_reject"]

_CHECK = "rejects"


def judge_reject(
    reject: Reject, problem: Problem, run_entry: Callable[[Problem], Tensors]
) -> list[Finding]:
    """Run the entry on input it must refuse; the finding says what it did instead.

    The exception may be of the named type or a subclass; `matching` must occur in its message.
    """
    wanted = f"{reject.raises} with {reject.matching!r} in its message"
    why = f" ({reject.because})" if reject.because else ""
    try:
        run_entry(problem)
    except EntryError as error:
        raised = error.error
        detail = user_traceback(raised)
        if not _is_a(raised, reject.raises):
            return [
                Finding(
                    check=_CHECK,
                    title=f"raises {type(raised).__name__} where {wanted} was due{why}",
                    hint=f"it said: {raised}",
                    detail=detail,
                    pattern="another exception",
                )
            ]
        if reject.matching not in str(raised):
            return [
                Finding(
                    check=_CHECK,
                    title=f"raises {type(raised).__name__} without {reject.matching!r}{why}",
                    hint=f"it said: {raised}",
                    detail=detail,
                    pattern="other words",
                )
            ]
        return []
    return [
        Finding(
            check=_CHECK,
            title=f"accepts input that must be refused: no {wanted}{why}",
            hint="check the argument before it reaches the kernel",
            pattern="accepted",
        )
    ]


def _is_a(error: BaseException, name: str) -> bool:
    kinds = type(error).__mro__
    return any(name in (kind.__name__, f"{kind.__module__}:{kind.__qualname__}") for kind in kinds)
