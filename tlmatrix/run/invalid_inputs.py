"""Invalid-argument tests: runs the entry on an invalid input and checks the exception."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.backend import EntryError
from tlmatrix.check.finding import Finding
from tlmatrix.tracebacks import user_traceback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.spec.model.invalid_inputs import InvalidInput
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

_CHECK = "invalid_inputs"


def invalid_problem(
    spec: Spec,
    case: Case,
    invalid: InvalidInput,
    make: Callable[[Mapping[str, Value]], Problem],
    takes: frozenset[str] | None,
) -> Problem:
    """The problem of an invalid input: a valid one with the invalid values set.

    An invalid value of an axis makes another problem if the family can make one of it
    (`head_dim: 48`). If the family raises ValueError, or for a name that is no axis (`k.dtype`),
    the value replaces an argument of a valid problem. `takes` are the parameters of the entry
    (None: any).

    Raises:
        ValueError: the problem has no argument of that name, or the entry has no parameter for it.
    """
    from tlmatrix.problem import with_changed_arguments

    settings = invalid.settings
    others = {name: value for name, value in settings.items() if name not in spec.axes}
    values = {name: value for name, value in case.values.items() if name not in others}
    try:
        problem = make(values)
    except ValueError as error:
        unseen = [name for name in settings if takes is not None and name not in takes]
        if unseen:
            raise ValueError(
                f"no input can be made of it ({error}), and the entry takes no {unseen[0]!r}; "
                "set a tensor instead, as in `k: {shape: [4, 3, 64]}`"
            ) from error
        others = dict(settings)
        values |= {name: spec.axes[name][0] for name in settings if name in spec.axes}
        problem = make(values)
    return with_changed_arguments(problem, others) if others else problem


def check_invalid_input(
    invalid: InvalidInput, problem: Problem, run_entry: Callable[[Problem], Tensors]
) -> list[Finding]:
    """Run the entry on an invalid input; a finding if it does not raise as the spec says.

    The exception may be of the named class or a subclass; its message must contain
    `invalid.message`.
    """
    expected = f"{invalid.raises} with {invalid.message!r} in its message"
    try:
        run_entry(problem)
    except EntryError as error:
        raised = error.error
        title, pattern = _difference(invalid, raised, expected)
        if not title:
            return []
        return [
            Finding(
                check=_CHECK,
                title=title,
                hint=f"the message is: {raised}",
                detail=user_traceback(raised),
                pattern=pattern,
            )
        ]
    return [
        Finding(
            check=_CHECK,
            title=f"accepts an invalid input: expected {expected}",
            hint="check the argument before it reaches the kernel",
            pattern="accepted",
        )
    ]


def _difference(invalid: InvalidInput, raised: BaseException, expected: str) -> tuple[str, str]:
    """Title and pattern of the finding about an exception; empty if it is as expected."""
    if not _is_a(raised, invalid.raises):
        return f"raises {type(raised).__name__}, expected {expected}", "another exception"
    if invalid.message not in str(raised):
        return f"raises {type(raised).__name__} without {invalid.message!r}", "another message"
    return "", ""


def _is_a(error: BaseException, name: str) -> bool:
    kinds = type(error).__mro__
    return any(name in (kind.__name__, f"{kind.__module__}:{kind.__qualname__}") for kind in kinds)
