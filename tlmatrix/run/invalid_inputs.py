"""Invalid-argument tests: runs the entry on an invalid input and checks the exception.

An exception often lists the valid values (`page_size must be one of 16, 32, 64, got 24`): the entry
must accept these, also those that no case has (`offered_values`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tlmatrix.backend import EntryError
from tlmatrix.check.finding import Finding
from tlmatrix.tracebacks import user_traceback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.spec.model.invalid_inputs import InvalidInput
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

_CHECK = "invalid_inputs"
_LIST = re.compile(r"(?:[\w.+-]+, )+(?:or |and )?[\w.+-]+")
"""A list of words with commas."""
_NO_TEXT = frozenset({"got", "None", "True", "False"})
"""Words in such a list that are no text that an axis has."""


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
) -> tuple[list[Finding], str]:
    """Run the entry on an invalid input; a finding if it does not raise as the spec says.

    The exception may be of the named class or a subclass; its message must contain
    `invalid.message`.

    Returns:
        The findings, and the message of the exception if it is as the spec says.
    """
    expected = f"{invalid.raises} with {invalid.message!r} in its message"
    try:
        run_entry(problem)
    except EntryError as error:
        raised = error.error
        title, pattern = _difference(invalid, raised, expected)
        if not title:
            return [], str(raised)
        finding = Finding(
            check=_CHECK,
            title=title,
            hint=f"the message is: {raised}",
            detail=user_traceback(raised),
            pattern=pattern,
        )
        return [finding], ""
    finding = Finding(
        check=_CHECK,
        title=f"accepts an invalid input: expected {expected}",
        hint="check the argument before it reaches the kernel",
        pattern="accepted",
    )
    return [finding], ""


def offered_values(
    spec: Spec, case: Case, invalid: InvalidInput, message: str
) -> Iterator[tuple[str, Case]]:
    """The valid values that a refusal lists and the axis lacks, each with a case that has it.

    Of a list in the message the axis must have two values, and more than it lacks: else it has
    only some of them on purpose.
    """
    from tlmatrix.matrix import Case

    (axis, *others) = invalid.settings
    if others or axis not in spec.axes:
        return
    listed = {str(each): each for each in spec.axes[axis] if isinstance(each, str | int)}
    integers = all(type(each) is int for each in listed.values())
    for found in _LIST.findall(message):
        offered = [word for word in re.split(", (?:or |and )?", found) if word not in _NO_TEXT]
        own = [word for word in offered if word in listed]
        more = [word for word in offered if word not in listed and word.isdecimal() == integers]
        if len(own) < 2 or len(more) >= len(own):
            continue
        for word in more:
            value = int(word) if integers else word
            values = {**case.values, axis: value}
            if spec.allows(values):
                yield f"{axis}={word}", Case(case.spec, values, "extra")


def refused_offer(what: str, message: str, raised: BaseException) -> Finding:
    """The finding about a value that the entry refuses and that its own message offers."""
    return Finding(
        check=_CHECK,
        title=f"refuses {what}, which a message of its own offers",
        hint=f"the message is: {message}; for {what} it is: {raised}",
        detail=user_traceback(raised),
        pattern="another message",
    )


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
