"""The code that computes what a test or script compares a result with, as a function of its own.

It is the backward slice of the expected value: the statements before the comparison that define it,
down to the arguments of the recorded call and to constants, which become parameters. A slice that
runs a kernel is none, as the kernel would be compared with itself.
"""

from __future__ import annotations

import ast
import builtins
import sys
from copy import copy
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch

from tlmatrix.backend.signature import definition_of, parsed_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import CodeType, FrameType

Position = tuple[int, str]
"""An argument of a call: its number, and the name of its parameter."""

_CONSTANTS = (bool, int, float, str, list, tuple, type(None), torch.dtype)


class Slice(NamedTuple):
    """A function made of a part of another one.

    Attributes:
        function: the function that it is a part of, `package.module:function`.
        source: a module with the function `reference`.
        arguments: what its parameters were in the program.
    """

    function: str
    source: str
    arguments: dict[str, Any]


class Slicer:
    """Finds slices.

    Args:
        is_own: whether a frame is one of the program.
        module: the module of a frame, as others import it.
    """

    def __init__(
        self, is_own: Callable[[FrameType], bool], module: Callable[[FrameType], str]
    ) -> None:
        self.is_own = is_own
        self._module = module
        self._running: set[tuple[CodeType, int]] = set()

    def note_launch(self) -> None:
        """Note the lines of the program that run a kernel now."""
        self._running.update((frame.f_code, frame.f_lineno) for frame in self._frames())

    def _frames(self) -> Iterator[FrameType]:
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        while frame is not None:
            if self.is_own(frame):
                yield frame
            frame = frame.f_back

    def slice_of(
        self,
        expected: Sequence[object],
        position: Position | None,
        is_input: Callable[[object], bool],
    ) -> Slice | None:
        """The code that computes an expected value; None if it cannot be a function of its own.

        Args:
            expected: the value, and those from which it was converted.
            position: that of the value in the call of the program that compares it, if it is one.
            is_input: whether a value is an argument of the recorded call.
        """
        known = {id(each) for each in expected}
        for frame in self._frames():
            own = [name for name, value in frame.f_locals.items() if id(value) in known]
            parameters = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            if passed := [name for name in own if name in parameters]:
                position = parameters.index(passed[0]) - (parameters[0] == "self"), passed[0]
                continue
            function = _syntax(frame.f_code)
            named = [ast.Name(name, ast.Load()) for name in own if name.isidentifier()]
            if not isinstance(function, ast.FunctionDef | ast.Module):
                return None
            value = named[0] if named else _argument(function, frame, position)
            return None if value is None else self._sliced(frame, function, value, is_input)
        return None

    def _sliced(
        self,
        frame: FrameType,
        function: ast.FunctionDef | ast.Module,
        value: ast.expr,
        is_input: Callable[[object], bool],
    ) -> Slice | None:
        """The slice of an expression at the line that a frame executes."""
        # What a script defines and imports is imported from it.
        given = _defined(function.body) if isinstance(function, ast.Module) else set()
        known = {name: each for name, each in frame.f_locals.items() if name not in given}
        inputs = {name for name, each in known.items() if is_input(each)}
        constants = {name for name, each in known.items() if isinstance(each, _CONSTANTS)}
        modules = {name for name, each in known.items() if isinstance(each, ModuleType)}

        def is_constant(statement: ast.stmt) -> bool:
            """Whether it sets constants, and not by what parameters give."""
            reads = (_free([statement]) & {*known}) - modules
            return _changed(statement) <= constants and not (reads and reads <= constants | inputs)

        needed = _free([value]) - inputs - given
        before = _before(function.body, frame.f_lineno)
        chosen = _cut(before, needed, inputs | given, is_constant)
        lines = [line for code, line in self._running if code is frame.f_code]
        if any(each.lineno <= line <= (each.end_lineno or 0) for each in chosen for line in lines):
            return None
        free = _free([*chosen, value]) - {*dir(builtins), _GRADIENTS}
        local = free & {*known}
        outside = free - local
        tensors = sorted(local & inputs)
        if not tensors or local - inputs - constants or outside - {*frame.f_globals}:
            return None
        dtypes = {n: known[n] for n in sorted(local - inputs) if is_dtype(known[n])}
        parameters = [*tensors, *sorted(local - inputs - dtypes.keys())]
        nodes = (node for part in (*chosen, value) for node in ast.walk(part))
        of_grads = {e.value.id for e in nodes if _is_gradient(e) and isinstance(e.value, ast.Name)}
        leaves = [name for name in tensors if name in of_grads]
        body = [
            *(f"{name} = {name}.detach().requires_grad_()" for name in leaves),
            *_dtypes(dtypes, tensors[0]),
            *map(ast.unparse, chosen),
        ]
        body.append(f"return {ast.unparse(value)}")
        return self._function(frame, parameters, outside, body)

    def local_function(self, frame: FrameType) -> Slice | None:
        """A function inside of another one; None if it needs more than constants and tensors.

        Args:
            frame: of the call of it.
        """
        code = frame.f_code
        function, inputs = _syntax(code), code.co_varnames[: code.co_argcount]
        constants = {name: frame.f_locals.get(name, ...) for name in code.co_freevars}
        fine = all(isinstance(each, (*_CONSTANTS, torch.Tensor)) for each in constants.values())
        if function is None or not fine:
            return None
        body = [ast.Return(function.body)] if isinstance(function, ast.Lambda) else function.body
        # References are called in other dtypes than the program.
        body = [s for s in body if not (isinstance(s, ast.Assert) and "dtype" in ast.unparse(s))]
        outside = _free(body) - {*inputs, *constants, *dir(builtins)}
        values = ((name, frame.f_locals[name]) for name in inputs)
        tensors = ((n, e) for n, e in values if isinstance(e, torch.Tensor))
        given = (name for name, each in tensors if each.is_floating_point())
        dtypes = {n: each for n, each in constants.items() if is_dtype(each)}
        first = next(given, "") if dtypes else ""
        constants = {n: each for n, each in constants.items() if not (first and n in dtypes)}
        parameters = [*inputs, *constants]
        lines = [*(_dtypes(dtypes, first) if first else ()), *map(ast.unparse, body)]
        found = self._function(frame, parameters, outside, lines)
        return found._replace(arguments=constants)

    def _function(
        self,
        frame: FrameType,
        parameters: Sequence[str],
        outside: Iterable[str],
        body: Iterable[str],
    ) -> Slice:
        """A module with a function, and what its parameters are in a frame."""
        module, path = self._module(frame), frame.f_code.co_qualname
        names = ", ".join(sorted(outside))
        text = "\n".join(
            [
                f'"""Computes what `{path}` of `{module}` compares a result with."""',
                "",
                *([f"from {module} import {names}", ""] if names else []),
                "",
                f"def reference({', '.join(parameters)}):",
                *(f"    {line}" for part in body for line in part.splitlines()),
                "",
            ]
        )
        return Slice(f"{module}:{path}", text, {n: frame.f_locals.get(n) for n in parameters})


def _dtypes(found: Mapping[str, object], tensor: str) -> Iterator[str]:
    """Lines that set dtypes and names of dtypes to that of a tensor.

    The reference is called in other dtypes than the program.
    """
    for name, value in found.items():
        text = f'str({tensor}.dtype).removeprefix("torch.")'
        yield f"{name} = {text if isinstance(value, str) else f'{tensor}.dtype'}"


def is_dtype(value: object) -> bool:
    """Whether a value is a dtype of PyTorch, or the name of one."""
    found = getattr(torch, value, None) if isinstance(value, str) else value
    return isinstance(found, torch.dtype)


def _syntax(code: CodeType) -> ast.FunctionDef | ast.Lambda | ast.Module | None:
    """The definition of a function, or the module; None if there is no source of it."""
    if code.co_name == "<module>":
        return parsed_file(code.co_filename)
    if code.co_name != "<lambda>":
        return definition_of(code)
    taken = code.co_varnames[: code.co_argcount]
    for node in ast.walk(parsed_file(code.co_filename)):
        if (
            isinstance(node, ast.Lambda)
            and node.lineno == code.co_firstlineno
            and tuple(each.arg for each in node.args.args) == taken
        ):
            return node
    return None


def _defined(body: Sequence[ast.stmt]) -> set[str]:
    """The functions, classes and modules that statements define or import."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    return {name for each in body if isinstance(each, kinds) for name in _changed(each)}


def _argument(
    function: ast.FunctionDef | ast.Module, frame: FrameType, position: Position | None
) -> ast.expr | None:
    """The expression of an argument of the call that a frame executes."""
    if position is None:
        return None
    at = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        if at == (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset):
            number, name = position
            named = [each.value for each in node.keywords if each.arg == name]
            return named[0] if named else node.args[number] if number < len(node.args) else None
    return None


def _before(body: Sequence[ast.stmt], line: int) -> list[ast.stmt]:
    """The statements that ran before a line, in order; of loops around it one iteration."""
    found = []
    for statement in body:
        if statement.lineno > line:
            break
        if line <= (statement.end_lineno or 0):
            for part in ("body", "orelse", "finalbody"):
                inner = getattr(statement, part, ())
                if inner and inner[0].lineno <= line <= (inner[-1].end_lineno or 0):
                    found += _before(inner, line)
            break
        found.append(statement)
    return found


def _cut(
    body: Sequence[ast.stmt],
    needed: set[str],
    inputs: set[str],
    is_constant: Callable[[ast.stmt], bool],
) -> list[ast.stmt]:
    """The statements that define or change names; adds those that they read, without inputs."""
    chosen: list[ast.stmt] = []
    for statement in reversed(body):
        kept: Any = copy(statement)
        if isinstance(statement, ast.For | ast.While | ast.If | ast.With):
            for _ in range(2):  # an iteration may read what an earlier one has set
                kept.body = _cut(statement.body, needed, inputs, is_constant)
                if not isinstance(statement, ast.With):
                    kept.orelse = _cut(statement.orelse, needed, inputs, is_constant)
            if not kept.body and not getattr(kept, "orelse", ()):
                continue
            kept.body = kept.body or [ast.Pass()]
            needed -= (
                _changed(ast.Assign([kept.target], ast.Constant(0)))
                if isinstance(kept, ast.For)
                else set()
            )
        else:
            names = _changed(statement)
            again = any(names & _changed(each) for each in chosen)
            if not names & needed or (is_constant(statement) and not again):
                continue
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                needed -= names
            needed -= names & {_GRADIENTS}  # of the last backward pass
        needed |= _free([kept]) - inputs
        chosen.insert(0, kept)
    return chosen


# Names -------------------------------------------------------------------------------------------

_SCOPES = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp, ast.FunctionDef, ast.Lambda)
_GRADIENTS = ".grad"
"""What a backward pass sets, among names."""
_BEFORE = ("generators", "iter", "defaults", "kw_defaults", "value")
"""Parts of a node that run before its others."""


def _is_gradient(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr == "grad" and type(node.ctx) is ast.Load


def _free(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that code reads before it binds them, in the order of the text."""
    bound: set[str] = set()
    return {name for node in nodes for name in _read(node, bound)}


def _changed(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, or whose elements it sets."""
    found: set[str] = set()
    for _ in _read(statement, found):
        pass
    for node in ast.walk(statement):
        target: ast.AST | None = None
        match node:
            case ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                target = node
            case ast.Call(func=ast.Attribute(attr="backward")):
                found.add(_GRADIENTS)
            case ast.Call(func=ast.Attribute(attr=method)) if method.endswith("_"):
                target = node.func  # of PyTorch, in place
        while isinstance(target, ast.Subscript | ast.Attribute):
            target = target.value
        found |= {target.id} if isinstance(target, ast.Name) else set()
    return found


def _read(node: ast.AST, bound: set[str]) -> Iterator[str]:
    """The names that a node reads and that are not bound before; adds those that it binds."""
    match node:
        case ast.Name(name, ast.Load()) | ast.AugAssign(ast.Name(name)):
            yield from {name} - bound
        case ast.Name(name) | ast.FunctionDef(name) | ast.arg(name):
            bound.add(name)
        case ast.Attribute() if _is_gradient(node):
            yield from {_GRADIENTS} - bound
        case ast.alias():
            bound.add((node.asname or node.name).partition(".")[0])
    scope = {*bound} if isinstance(node, _SCOPES) else bound
    later = [field for field in node._fields if field not in _BEFORE]
    for field in (*_BEFORE, *later):
        value = getattr(node, field, None)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from _read(part, scope)
