"""Parameters of a function that a spec names, from its source code, without importing it.

`tlmatrix check` uses it to avoid importing PyTorch and TileLang. Classes, unknown decorators and
names that are created at run time are not resolved.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

_MAX_REEXPORTS = 5
"""The longest chain of re-exports to follow."""
_TRANSPARENT = frozenset({"torch", "tilelang", "T"})
"""Packages whose decorators keep the signature."""


@dataclass(frozen=True)
class Parameters:
    """Names of parameters; `anything` is whether a `**` parameter accepts any name."""

    names: frozenset[str]
    anything: bool


def parameters_in_source(target: str, folder: Path) -> Parameters | None:
    """The parameters of `package.module:name`, or None if they cannot be resolved.

    Modules in `folder`, the spec's, take precedence over installed ones.
    """
    module, _, name = target.partition(":")
    return _found(module, name, folder, _MAX_REEXPORTS) if name.isidentifier() else None


def _found(module: str, name: str, folder: Path, hops: int) -> Parameters | None:
    path = _file_of(module, folder)
    if path is None or not hops:
        return None
    try:
        body = _parsed(path, path.stat().st_mtime_ns)
    except (OSError, SyntaxError, ValueError):
        return None
    last = None
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            last = node
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    origin = _absolute(node, module, package=path.name == "__init__.py")
                    return _found(origin, alias.name, folder, hops - 1)
        elif isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == name for each in node.targets
        ):
            return None
    if not isinstance(last, ast.FunctionDef) or not all(map(_keeps_signature, last.decorator_list)):
        return None
    given = last.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return Parameters(frozenset(names), given.kwarg is not None)


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
