"""The callable that a spec is written for, and its reference."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend import backend_named
from tlmatrix.backend.signature import is_tilelang_factory, undecorated
from tlmatrix.exit_codes import UsageError
from tlmatrix.spec.importing import import_named
from tlmatrix.tracebacks import user_traceback

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

_TEST = re.compile(r"(^|/)(tests?|testing)/|(^|/)(test_\w*|\w*_test|conftest)\.py$")


@dataclass(frozen=True)
class Target:
    """A callable by its name, `package.module:name` or `package.module:Class.apply`.

    Attributes:
        text: the name.
        module: the module.
        owner: the module or class that has it; of a class the class.
        found: the callable.
        written: the function with the author's signature and source.
        hidden: parameters of `written` that callers do not pass.
    """

    text: str
    module: ModuleType
    owner: Any
    found: Callable[..., Any]
    written: Callable[..., Any]
    hidden: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name in its module."""
        return self.text.partition(":")[2]

    @cached_property
    def is_factory(self) -> bool:
        """Whether it is a TileLang kernel factory: decorated, or a function that makes kernels."""
        if inspect.isclass(self.owner):
            return is_tilelang_factory(self.found)
        return is_tilelang_factory(self.found) or _makes_kernels(self.found)

    @property
    def positional(self) -> bool:
        """Whether it accepts no keywords, as `apply` of an autograd function."""
        return self.name.endswith(".apply") and inspect.isclass(self.owner)

    @property
    def constructs(self) -> bool:
        """Whether it is a class whose objects are called."""
        return self.owner is self.found

    @property
    def parameters(self) -> Sequence[inspect.Parameter]:
        """The parameters that callers pass by name.

        Raises:
            UsageError: there are none, or Python cannot read the signature.
        """
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        try:
            parameters = inspect.signature(self.written).parameters.values()
        except (TypeError, ValueError):
            parameters = ()  # type: ignore[assignment]
        named = [each for each in parameters if each.kind in kinds and each.name not in self.hidden]
        if named:
            return named
        raise UsageError(f"{self.text!r} has no parameters, or its signature cannot be read")

    @property
    def returned_names(self) -> list[str]:
        """The names in the last `return` of its source; empty if it returns other expressions."""
        tree = syntax_tree(self.written)
        returns = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
        last = max((each for each in returns if each), key=lambda each: each.lineno, default=None)
        parts = last.elts if isinstance(last, ast.Tuple) else [last]
        names = [part.id for part in parts if isinstance(part, ast.Name)]
        return names if len(names) == len(parts) else []


def _in_a_line(error: Exception) -> str:
    """An error: the first and the last line of its words, and the line of code that led to it."""
    first, *more = str(error).strip().splitlines() or [""]
    words = f"{first} … {more[-1].strip()}" if more else first
    where = user_traceback(error).splitlines()[-1:]
    return f"{type(error).__name__}: {words}" + "".join(f" ({each})" for each in where if more)


def syntax_tree(function: Callable[..., Any]) -> ast.AST:
    """The parsed source of a function; an empty module if it has none."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def makes_prim_func(definition: ast.AST) -> bool:
    """Whether a function defines a PrimFunc in its body and returns it."""
    body = getattr(definition, "body", [])
    last = body[-1] if body else None
    return isinstance(last, ast.Return) and any(
        isinstance(each, ast.FunctionDef)
        and any(ast.unparse(part).endswith("prim_func") for part in each.decorator_list)
        and isinstance(last.value, ast.Name)
        and last.value.id == each.name
        for each in body
    )


def _makes_kernels(function: object, within: tuple[object, ...] = ()) -> bool:
    """Whether a function returns a PrimFunc of its own, or a kernel that `tilelang.compile` makes.

    So does one that returns the result of such a function of its module.
    """
    if not inspect.isfunction(function) or function in within:
        return False
    body = getattr(syntax_tree(function), "body", [None])[0]
    if not isinstance(body, ast.FunctionDef):
        return False
    last = body.body[-1]
    value = last.value if isinstance(last, ast.Return) else None
    if isinstance(value, ast.Name):  # of the call that gave it its value, if any
        name = value.id
        for node in body.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                value = node.value
    match value:
        case ast.Call(func=ast.Attribute(ast.Name("tilelang"), "compile")):
            return True
        case ast.Call(func=ast.Name(called)):
            return _makes_kernels(function.__globals__.get(called), (*within, function))
    return makes_prim_func(body)


def is_test_file(path: str) -> bool:
    """Whether a file is one of tests, by its path in the repository."""
    return _TEST.search(path) is not None


def target_of(text: str) -> Target:
    """Import `package.module:name`.

    Raises:
        UsageError: it does not exist, or is not callable.
    """
    module_name, _, attribute = text.partition(":")
    if not module_name or not attribute:
        raise UsageError(f'{text!r} is not a name; write "package.module:name"')
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with backend_named("auto").importing():
            module = import_named(module_name)
        owner: Any = module
        *path, last = attribute.split(".")
        for name in path:
            owner = getattr(owner, name)
        found: Any = getattr(owner, last)
    except Exception as error:
        raise UsageError(f"{text!r}: {_in_a_line(error)}") from error
    if not callable(found):
        raise UsageError(f"{text!r} is not callable; its type is {type(found).__name__}")
    if inspect.isclass(found):
        # Of `__call__` and `forward` the one that its author wrote with names.
        methods = [getattr(found, name, None) for name in ("forward", "__call__")]
        forward = next((each for each in methods if inspect.isfunction(each)), None)
        if forward is None:
            raise UsageError(
                f"{text!r}: objects of the class have neither `forward` nor `__call__`"
            )
        hidden = list(inspect.signature(forward).parameters)[:1]
        return Target(text, module, found, found, forward, frozenset(hidden))
    if last == "apply" and inspect.isclass(owner) and hasattr(owner, "forward"):
        forward = inspect.getattr_static(owner, "forward")
        function = getattr(forward, "__func__", forward)
        context = (
            [] if "setup_context" in vars(owner) else [*inspect.signature(function).parameters]
        )
        return Target(text, module, owner, found, function, frozenset(context[:1]))
    # A custom operator of torch.library keeps its function.
    function = getattr(found, "_init_fn", None) or undecorated(found)
    return Target(text, module, owner, found, function)
