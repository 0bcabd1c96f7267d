"""Invalid-argument tests: runs the entry on an invalid input and checks the exception.

An exception often lists the valid values (`page_size must be one of 16, 32, 64, got 24`): the entry
must accept these, also those that no case has (`offered_values`). An entry that keeps the results
of its checks must refuse the input after a valid call too (`check_after_valid_call`), and one that
refuses gradients must do so for those of each input (`check_single_gradients`).
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import EntryError
from tlmatrix.backend.signature import definition_of
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.check.running import SeveralRanks
from tlmatrix.interpreter.coverage import Coverage, Guard, GuardSite
from tlmatrix.problem.model import AutogradVariant, InapplicableError
from tlmatrix.spec.values import canonical
from tlmatrix.tracebacks import user_traceback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType, FrameType

    from tlmatrix.interpreter.coverage import Recorder
    from tlmatrix.matrix import Case
    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.spec.model.checks import InvalidInput
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


_CHECK = "invalid_inputs"
_OF_THE_GPU = re.compile(r"compute capability|\bsm_?\d\d|\barchitecture\b", re.IGNORECASE)
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
    the value replaces an argument of a valid problem, that of `valid_case` if there is one. `takes`
    are the parameters of the entry (None: any).

    Raises:
        ValueError: the problem has no argument of that name, or the entry has no parameter for it.
    """
    from tlmatrix.matrix import valid_case
    from tlmatrix.problem import with_changed_arguments

    settings = invalid.settings
    others = {name: value for name, value in settings.items() if name not in spec.axes}
    values = {name: value for name, value in case.values.items() if name not in others}
    try:
        problem = make(values)
    except ValueError as error:
        valid = valid_case(spec, case, invalid)
        if valid is not None:
            values = dict(valid.values)
        else:
            values |= {name: spec.axes[name][0] for name in settings if name in spec.axes}
        others = {
            name: value
            for name, value in settings.items()
            if name not in values or canonical(value) != canonical(values[name])
        }
        unseen = [name for name in others if takes is not None and name not in takes]
        if unseen:
            raise ValueError(
                f"no input can be made of it ({error}), and the entry takes no {unseen[0]!r}; "
                "set a tensor instead, as in `k: {shape: [4, 3, 64]}`"
            ) from error
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


def check_after_valid_call(
    invalid: InvalidInput,
    problem: Problem,
    valid: Problem,
    run_entry: Callable[[Problem], Tensors],
) -> list[Finding]:
    """Run the entry on an invalid input after a valid one; a finding if it does not raise then.

    Several ranks make both calls on one context. An exception in the valid call is a finding of its
    own case.
    """

    def run_valid() -> bool:
        try:
            run_entry(valid)
        except (EntryError, FindingsError, InapplicableError):
            return False
        return True

    def run_both(problem: Problem) -> Tensors:
        return run_entry.run([valid, problem])[0][-1]  # type: ignore[attr-defined,no-any-return]

    if not isinstance(run_entry, SeveralRanks):
        return check_invalid_input(invalid, problem, run_entry)[0] if run_valid() else []
    try:
        found, _ = check_invalid_input(invalid, problem, run_both)
    except FindingsError as error:  # such as a deadlock of ranks that go on
        found = list(error.findings)
    return found if found and run_valid() else []


def after_words(valid: Case, invalid: InvalidInput) -> str:
    """The words for a call after that of a valid case: `after a valid call with causal=True`."""
    values = [f"{name}={valid[name]}" for name in invalid.settings if name in valid.values]
    return "after a valid call" + (f" with {', '.join(values)}" if values else "")


def check_single_gradients(
    invalid: InvalidInput, problem: Problem, message: str, run_entry: Callable[[Problem], Tensors]
) -> list[Finding]:
    """Findings of inputs whose gradients alone are not refused, if gradients are what is refused.

    They are if the entry accepts the input without any gradient. A message that names the inputs
    whose gradients are refused may mean these alone.
    """
    inputs = tuple(dict.fromkeys(problem.gradient_of.values()))
    if len(inputs) < 2:
        return []
    try:
        run_entry(replace(problem, gradient_of={}, cotangents={}))
    except EntryError:
        return []
    found = {}
    for name in inputs:
        alone = replace(problem, autograd=AutogradVariant("some", requires=(name,)))
        if wrong := check_invalid_input(invalid, alone, run_entry)[0]:
            found[name] = wrong[0]
    refused = [name for name in inputs if name not in found]
    named = [name for name in refused if re.search(rf"\b{re.escape(name)}\b", message)]
    if not found or (refused and named == refused):
        return []
    first = next(iter(found.values()))
    words = f"only {' or only '.join(found)} of {', '.join(inputs)} requires grad"
    hint = "check whether any input requires grad, or name those that may not in the message"
    return [replace(first, title=f"{first.title}, where {words}", hint=hint)]


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


def refused_offer(what: str, message: str, raised: BaseException) -> list[Finding]:
    """The finding about a value that the entry refuses and that its own message offers.

    None if it is refused for this GPU: the message may offer it on all.
    """
    if _OF_THE_GPU.search(str(raised)):
        return []
    finding = Finding(
        check=_CHECK,
        title=f"refuses {what}, which a message of its own offers",
        hint=f"the message is: {message}; for {what} it is: {raised}",
        detail=user_traceback(raised),
        pattern="another message",
    )
    return [finding]


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


# Coverage of refusals: which of an entry's own raise statements its invalid inputs reach ----------
#
# A refusal is a `raise`, an `assert`, or a call of a function that only raises, in a function that
# ran while the entry was called with an invalid input. Each part of its condition (`a or b or c`,
# or `assert a and b`) is a guard of its line: true for an input that was refused there of which it
# is the first part that holds. Without a condition, the line counts as run if an input was refused.

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class _Refusal:
    """A statement that raises, and the parts of its condition, any of which suffices."""

    statement: ast.stmt
    parts: tuple[ast.expr, ...]

    def coverage(self, file: str, first: int | None = None) -> Coverage:
        """Of an input that was refused here for the part number `first`, or of one that was not.

        The line of a condition counts as run, as the function ran.
        """
        place = (file, self.statement.lineno)
        guards = {
            GuardSite(*place, "if", number, ast.unparse(part)): Guard(int(number == first), 1)
            for number, part in enumerate(self.parts, 1)
        }
        return Coverage({place: int(bool(guards) or first is not None)}, guards)

    def first(self, frame: FrameType, file: str) -> int:
        """The number of the first part that holds in a frame; 0 if none does."""
        for number, part in enumerate(self.parts, 1):
            try:
                code = compile(ast.Expression(part), file, "eval")
                if eval(code, frame.f_globals, frame.f_locals):  # noqa: S307 - the frame's own code
                    return number
            except Exception:  # noqa: BLE001, S112 - a name that was deleted since
                continue
        return 0


def covering(
    spec: Spec, run_entry: Callable[[Problem], Tensors], recorder: Recorder | None
) -> Callable[[Problem], Tensors]:
    """`run_entry`, whose calls add their coverage of refusals to `recorder`."""
    if recorder is None:
        return run_entry
    own = _own_folder(spec)

    def run(problem: Problem) -> Tensors:
        ran: dict[CodeType, Mapping[str, Any]] = {}
        try:
            with _noting(ran):
                return run_entry(problem)
        except EntryError as error:
            recorder.add(Coverage.merged(_reached(error.error, own)))
            raise
        finally:
            recorder.add(Coverage.merged(_listed(ran, own)))

    return run


def _own_folder(spec: Spec) -> Path:
    """The folder of the package of a spec's entry, or of its module."""
    name = str(spec.entry or spec.factory).partition(":")[0].partition(".")[0]
    return Path(str(sys.modules[name].__file__)).resolve().parent


@contextmanager
def _noting(ran: dict[CodeType, Mapping[str, Any]]) -> Iterator[None]:
    """Note the functions that run inside, also in threads that start there, with their globals."""

    def event(frame: FrameType, what: str, _: object) -> None:
        if what == "call":
            ran[frame.f_code] = frame.f_globals

    before = sys.getprofile()
    threading.setprofile(event)
    sys.setprofile(event)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(before)


def _listed(ran: Mapping[CodeType, Mapping[str, Any]], own: Path) -> Iterator[Coverage]:
    """The refusals of functions that ran, not reached."""
    for code, names in ran.items():
        for refusal in _refusals(code, names, own):
            yield refusal.coverage(code.co_filename)


def _reached(error: BaseException, own: Path) -> Iterator[Coverage]:
    """The refusals that raised an exception: of each function on its way."""
    trace = error.__traceback__
    while trace is not None:
        frame, line, trace = trace.tb_frame, trace.tb_lineno, trace.tb_next
        for refusal in _refusals(frame.f_code, frame.f_globals, own):
            end = refusal.statement.end_lineno or line
            if refusal.statement.lineno <= line <= end:
                file = frame.f_code.co_filename
                yield refusal.coverage(file, refusal.first(frame, file))


def _refusals(code: CodeType, names: Mapping[str, Any], own: Path) -> Iterator[_Refusal]:
    """The refusals of a function, without those of functions inside it."""
    function = _function(code, own)
    for statement, parts in _statements(function) if function is not None else ():
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Name(id=called))):
                target = names.get(called)
                if isinstance(target, FunctionType) and _only_raises(target.__code__, own):
                    yield _Refusal(statement, parts)
            case ast.Raise(exc=ast.expr()) | ast.Assert():
                yield _Refusal(statement, parts)


def _only_raises(code: CodeType, own: Path) -> bool:
    function = _function(code, own)
    if function is None:
        return False
    documented = ast.get_docstring(function) is not None
    return [type(each) for each in function.body[documented:]] == [ast.Raise]


def _statements(
    node: ast.AST, parts: tuple[ast.expr, ...] = ()
) -> Iterator[tuple[ast.stmt, tuple[ast.expr, ...]]]:
    """The statements of a function, each with the parts of the condition of the `if` around it."""
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            if not isinstance(child, ast.AST) or isinstance(child, _Function | ast.ClassDef):
                continue
            inner = parts
            if isinstance(node, ast.If):
                inner = _parts(node.test, ast.Or) if name == "body" else ()
            if isinstance(child, ast.Assert):
                conditions = _parts(child.test, ast.And)
                inner = tuple(ast.UnaryOp(ast.Not(), each) for each in conditions)
            if isinstance(child, ast.stmt):
                yield child, tuple(map(ast.fix_missing_locations, inner))
            yield from _statements(child, inner)


def _parts(test: ast.expr, kind: type[ast.boolop]) -> tuple[ast.expr, ...]:
    several = isinstance(test, ast.BoolOp) and isinstance(test.op, kind)
    return tuple(test.values) if several else (test,)  # type: ignore[attr-defined]


def _function(code: CodeType, own: Path) -> ast.FunctionDef | None:
    """The definition of a function of the entry's own code."""
    return definition_of(code) if _is_own(code.co_filename, own) else None


@lru_cache(maxsize=1024)
def _is_own(file: str, own: Path) -> bool:
    """Whether a file is in a folder, and not of a package installed there."""
    path = Path(file).resolve()
    within = Path(file).is_absolute() and path.is_relative_to(own)
    return within and "site-packages" not in path.relative_to(own).parts
