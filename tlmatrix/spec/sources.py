"""Parameters of a function that a spec names, from its source code, without importing it.

`tlmatrix check` uses it to avoid importing PyTorch and TileLang. Classes, unknown decorators and
names that are created at run time are not resolved.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlmatrix.spec.values import Value

_APPLY = ".apply"
_METHODS = {_APPLY: "forward", ".__init__": "__init__"}
_MAX_REEXPORTS = 5
"""The longest chain of re-exports to follow."""
_TRANSPARENT = frozenset({"torch", "tilelang", "T"})
"""Packages whose decorators keep the signature."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function.

    Attributes:
        names: their names.
        anything: whether a `**` parameter accepts any name.
        options: those with a default, by name: the values that a `Literal` or `bool` allows, else
            none.
        defaults: the defaults that are constants, by name.
        positional: those that may be passed by position, in order.
    """

    names: frozenset[str]
    anything: bool
    options: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Value] = field(default_factory=dict)
    positional: tuple[str, ...] = ()


def parameters_in_source(target: str, folder: Path) -> Parameters | None:
    """The parameters of `package.module:name`, or None if they cannot be resolved.

    Of `name.apply`, an autograd function, those of its `forward` without the context; of
    `name.__init__` those of a constructor without the object.
    Modules in `folder`, the spec's, take precedence over installed ones.
    """
    module, _, name = target.partition(":")
    return _found(module, name, folder, _MAX_REEXPORTS) if _is_known(name) else None


def _is_known(name: str) -> bool:
    return _split(name)[0].isidentifier()


def _split(name: str) -> tuple[str, str]:
    """A name, and what it ends in: `.apply`, `.__init__` or nothing."""
    function, dot, method = name.rpartition(".")
    return (function, dot + method) if dot + method in _METHODS else (name, "")


def _found(module: str, name: str, folder: Path, hops: int) -> Parameters | None:
    path = _file_of(module, folder)
    if path is None or not hops:
        return None
    try:
        body = _parsed(path, path.stat().st_mtime_ns)
    except (OSError, SyntaxError, ValueError):
        return None
    last = None
    function, ending = _split(name)
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == function:
            last = node
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == function:
                    origin = _absolute(node, module, package=path.name == "__init__.py")
                    return _found(origin, alias.name + ending, folder, hops - 1)
        elif isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == function for each in node.targets
        ):
            return None
    scope = _Scope(module, path, body, folder)
    if ending:
        return _of_method(last, ending, scope) if isinstance(last, ast.ClassDef) else None
    if not isinstance(last, ast.FunctionDef) or not all(map(_keeps_signature, last.decorator_list)):
        return None
    return _of_function(last, scope)


def _of_method(owner: ast.ClassDef, ending: str, scope: _Scope) -> Parameters | None:
    """The parameters of a method of a class, after its context or object."""
    name = _METHODS[ending]
    found = [n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == name]
    bases = {ast.unparse(base).rpartition(".")[2] for base in owner.bases}
    if len(found) != 1 or not found[0].args.args or (ending == _APPLY and bases != {"Function"}):
        return None
    return _of_function(found[0], scope, skipped=1)


def _of_function(function: ast.FunctionDef, scope: _Scope, skipped: int = 0) -> Parameters:
    given = function.args
    positional = [*given.posonlyargs, *given.args][skipped:]
    names = [each.arg for each in (*positional, *given.kwonlyargs)]
    pairs: list[tuple[ast.arg, ast.expr | None]] = [
        *zip(positional[len(positional) - len(given.defaults) :], given.defaults, strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    optional = [(each, default) for each, default in pairs if default is not None]
    return Parameters(
        frozenset(names),
        given.kwarg is not None,
        {each.arg: _allowed(each.annotation, scope, _MAX_REEXPORTS) for each, _ in optional},
        {each.arg: found for each, default in optional for found in _constant(default)},
        tuple(each.arg for each in positional),
    )


def _constant(default: ast.expr) -> Iterator[Value]:
    """The value of a default that is a number, a text, a truth value or None."""
    try:
        value = ast.literal_eval(default)
    except ValueError:
        return
    if value is None or isinstance(value, str | int | float):
        yield value


@dataclass(frozen=True)
class _Scope:
    """A module in which annotations are looked up."""

    module: str
    path: Path
    body: list[ast.stmt]
    folder: Path


def _allowed(annotation: ast.expr | None, scope: _Scope, hops: int) -> tuple[Value, ...]:
    """The values that an annotation lists: `Literal[...]`, `bool`, unions and names of these."""
    match annotation:
        case ast.Name("bool"):
            return False, True
        case ast.Constant(None):
            return (None,)
        case ast.Constant(str(text)):
            return _allowed(ast.parse(text, mode="eval").body, scope, hops)
        case ast.BinOp(left, ast.BitOr(), right):
            sides = _allowed(left, scope, hops), _allowed(right, scope, hops)
            return (*sides[0], *sides[1]) if all(sides) else ()
        case ast.Subscript(ast.Name("Literal") | ast.Attribute(attr="Literal"), listed):
            values = listed.elts if isinstance(listed, ast.Tuple) else [listed]
            constants = [each.value for each in values if isinstance(each, ast.Constant)]
            if len(constants) == len(values):
                return tuple(each for each in constants if isinstance(each, str | int | None))
        case ast.Name(name) if hops:
            return _of_alias(name, scope, hops)
    return ()


def _of_alias(name: str, scope: _Scope, hops: int) -> tuple[Value, ...]:
    """The values of an annotation that a module assigns to a name, or imports."""
    for node in scope.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == name for each in node.targets
        ):
            return _allowed(node.value, scope, hops - 1)
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if (alias.asname or alias.name) == name and isinstance(node, ast.ImportFrom):
                package = scope.path.name == "__init__.py"
                origin = _absolute(node, scope.module, package=package)
                path = _file_of(origin, scope.folder)
                if path is None:
                    return ()
                body = _parsed(path, path.stat().st_mtime_ns)
                return _of_alias(alias.name, _Scope(origin, path, body, scope.folder), hops - 1)
    return ()


@lru_cache(maxsize=64)
def _parsed(path: Path, _changed: int) -> list[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body


def _keeps_signature(decorator: ast.expr) -> bool:
    while isinstance(decorator, ast.Call | ast.Attribute):
        decorator = decorator.func if isinstance(decorator, ast.Call) else decorator.value
    return isinstance(decorator, ast.Name) and decorator.id in _TRANSPARENT


def _absolute(node: ast.ImportFrom, module: str, *, package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + package]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _file_of(module: str, folder: Path) -> Path | None:
    top, *rest = module.split(".")
    for place in (folder / f"{top}.py", folder / top / "__init__.py"):
        if place.exists():
            return _below(place, rest)
    try:
        found = find_spec(top)
    except (ImportError, ValueError):
        return None
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return None
    return _below(Path(found.origin), rest)


def _below(path: Path, parts: list[str]) -> Path | None:
    """The file of a submodule of the package with the `__init__.py` at `path`."""
    for part in parts:
        if path.name != "__init__.py":
            return None
        inside = (path.parent / f"{part}.py", path.parent / part / "__init__.py")
        found = next((each for each in inside if each.exists()), None)
        if found is None:
            return None
        path = found
    return path
