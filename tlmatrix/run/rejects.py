"""Bad input must raise, with words that help: the judge of the `rejects` of a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.backend import EntryError
from tlmatrix.check.finding import Finding
from tlmatrix.tracebacks import user_traceback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.spec.model.spec import Reject, Spec
    from tlmatrix.spec.values import Value

__all__ = ["judge_reject", "reject_problem"]

_CHECK = "rejects"


def reject_problem(
    spec: Spec,
    case: Case,
    reject: Reject,
    make: Callable[[Mapping[str, Value]], Problem],
    takes: frozenset[str] | None,
) -> Problem:
    """The problem of a reject: a good one where its bad values are set.

    A bad value of an axis makes another problem where the family can make one of it
    (`head_dim: 48`); what it refuses itself, and names that are no axes (`k.dtype: float32`),
    replace arguments of a good problem. `takes` are the parameters of the entry (None: any).

    Raises:
        ValueError: a bad value is for a name that the problem does not have, or the entry would
            never see it.
    """
    from tlmatrix.problem import with_changed_arguments

    others = {name: value for name, value in reject.set.items() if name not in spec.axes}
    values = {name: value for name, value in case.values.items() if name not in others}
    try:
        problem = make(values)
    except ValueError as error:
        unseen = [name for name in reject.set if takes is not None and name not in takes]
        if unseen:
            raise ValueError(
                f"no input can be made of it ({error}), and the entry takes no {unseen[0]!r}; "
                "set a tensor instead, as in `k: {shape: [4, 3, 64]}`"
            ) from error
        others = dict(reject.set)
        values |= {name: spec.axes[name][0] for name in reject.set if name in spec.axes}
        problem = make(values)
    return with_changed_arguments(problem, others) if others else problem


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
