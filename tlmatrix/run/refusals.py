"""Coverage of refusals: which of an entry's own `raise` statements its invalid inputs reach.

A refusal is a `raise`, an `assert`, or a call of a function that only raises, in a function that
ran while the entry was called with an invalid input. Each part of its condition (`a or b or c`, or
`assert a and b`) is a guard of its line: true for an input that was refused there of which it is
the first part that holds. Without a condition, the line counts as run if an input was refused.
"""

from __future__ import annotations

import ast
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import EntryError
from tlmatrix.backend.signature import definition_of
from tlmatrix.interpreter.coverage import Coverage, Guard, GuardSite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType, FrameType

    from tlmatrix.interpreter.coverage import Recorder
    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.spec.model.spec import Spec

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
