"""Lowers the thresholds of an entry's host code, so that small cases take the path of large ones.

A threshold is a constant of a module, of 65,536 or more, that host code compares with sizes, or
divides: `if flop >= MIN_FLOP`, `rows * n // MIN_ELEMENTS`. Code that is right for large sizes is
right with a lower threshold, too. Constants with any other use (in other arithmetic, as a shape, in
a kernel, as an argument) are left alone, and so are limits, at which code raises.
"""

from __future__ import annotations

import ast
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType

_LEAST = 2**16
_MOST_MODULES = 300
_NOT_READ = frozenset({"tlmatrix", "torch", "tilelang", "triton"})
_KERNEL = re.compile(r"prim_func|jit|macro|kernel")
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@dataclass(frozen=True)
class Threshold:
    """A constant `name` of a module, and where else it is imported, as (module, name)."""

    module: str
    name: str
    imported: tuple[tuple[str, str], ...] = ()


@contextmanager
def lower_thresholds(entry: str, target: int) -> Iterator[Sequence[str]]:
    """Lower the thresholds of the modules of an entry, and yield their names.

    Each number is divided by the power of two that brings it to `target` or somewhat more.
    """
    found = thresholds_of(entry)
    before: list[tuple[ModuleType, str, Any]] = []
    try:
        for each in found:
            value = vars(sys.modules[each.module])[each.name]
            for module, name in ((each.module, each.name), *each.imported):
                before.append((sys.modules[module], name, vars(sys.modules[module])[name]))
                setattr(sys.modules[module], name, _lower(value, target))
        yield [each.name for each in found]
    finally:
        for of_module, name, value in before:
            setattr(of_module, name, value)


def thresholds_of(entry: str) -> tuple[Threshold, ...]:
    """The thresholds of the loaded modules of an entry, `package.module:name`."""
    root = entry.partition(":")[0].partition(".")[0]
    modules = _modules(root, tuple(sys.modules)) if root not in _NOT_READ else ()
    return _thresholds(modules) if len(modules) <= _MOST_MODULES else ()


@lru_cache(maxsize=4)
def _modules(root: str, loaded: tuple[str, ...]) -> tuple[str, ...]:
    """The modules of a package, or a module and those beside its file, of those that are loaded."""
    top = sys.modules.get(root)
    if top is None or not getattr(top, "__file__", None):
        return ()
    package = hasattr(top, "__path__")
    folder = Path(str(top.__file__)).parent
    found = []
    for name in loaded:
        file = getattr(sys.modules[name], "__file__", None)
        if not file or not str(file).endswith(".py"):
            continue
        beside = "." not in name and Path(file).parent == folder
        if (name == root or name.startswith(f"{root}.")) if package else beside:
            found.append(name)
    return tuple(sorted(found))


@lru_cache(maxsize=16)
def _thresholds(modules: tuple[str, ...]) -> tuple[Threshold, ...]:
    texts = {name: _source(sys.modules[name]) for name in modules}
    found = []
    for module in modules:
        for name, value in list(vars(sys.modules[module]).items()):
            if not _has_large(value) or not re.search(rf"(?m)^{name}\b[^=\n]*=", texts[module]):
                continue
            uses = _uses(module, name, modules, texts)
            if uses is not None:
                found.append(Threshold(module, name, uses))
    return tuple(found)


def _source(module: ModuleType) -> str:
    try:
        return Path(str(module.__file__)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _has_large(value: object) -> bool:
    """Whether a value is a number of `_LEAST` or more, or a mapping with such values."""
    if isinstance(value, dict):
        return any(map(_has_large, value.values()))
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= _LEAST


def _lower(value: Any, target: int) -> Any:  # noqa: ANN401 - a number, or a mapping of numbers
    if isinstance(value, dict):
        return {key: _lower(each, target) for key, each in value.items()}
    while _has_large(value) or (isinstance(value, int | float) and value >= 2 * target):
        value = value // 2 if isinstance(value, int) else value / 2
    return value


def _uses(
    module: str, name: str, modules: Sequence[str], texts: Mapping[str, str]
) -> tuple[tuple[str, str], ...] | None:
    """Where else a constant is imported, if its uses are those of a threshold; else None."""
    imported: list[tuple[str, str]] = []
    switches = 0
    value = vars(sys.modules[module])[name]
    for other in modules:
        if not re.search(rf"\b{name}\b", texts[other]):
            continue
        try:
            tree = _Tree(texts[other])
        except SyntaxError:
            return None
        names = {name} if other == module else set(tree.imported(name))
        if any(vars(sys.modules[other]).get(each) is not value for each in names):
            return None
        imported += [(other, each) for each in names if other != module]
        for node in ast.walk(tree.root):
            if isinstance(node, ast.Attribute) and node.attr == name:
                return None
            if isinstance(node, ast.Name) and node.id in names:
                use = tree.use(node)
                if use is None:
                    return None
                switches += use
    return tuple(imported) if switches else None


class _Tree:
    """A module's syntax tree with the parent of each node."""

    def __init__(self, text: str) -> None:
        self.root = ast.parse(text)
        self._parents = {
            child: node for node in ast.walk(self.root) for child in ast.iter_child_nodes(node)
        }

    def imported(self, name: str) -> Iterator[str]:
        """The names by which the module imports `name` from another one."""
        for node in ast.walk(self.root):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.name == name:
                        yield alias.asname or alias.name

    def use(self, node: ast.AST, depth: int = 2) -> int | None:
        """1 if a use of a constant makes host code switch, 0 if it does nothing, None if other."""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            return 0 if self._function(node) is None else None
        if self._is_in_kernel(node):
            return None
        parent = self._parents[node]
        while isinstance(parent, ast.Subscript) and parent.value is node:
            node, parent = parent, self._parents[parent]
        match parent:
            case ast.FormattedValue():
                return 0
            case ast.comprehension() | ast.For():
                return 0 if parent.iter is node else None
            case ast.Call(func=ast.Name(id="min" | "max")) if node in parent.args:
                return 1
            case ast.BinOp(op=ast.FloorDiv()):
                return 1
            case ast.UnaryOp(op=ast.USub()):
                return 1 if self._is_divided(parent) else None
            case ast.BinOp(op=ast.Mult() | ast.Add() | ast.Sub()):
                above = self._parents[parent]
                return self._compared(above) if isinstance(above, ast.Compare) else None
            case ast.Compare():
                return self._compared(parent)
            case ast.Assign(targets=[ast.Name(id=alias)]) if depth:
                return self._of_alias(parent, alias, depth - 1)
        return None

    def _is_divided(self, node: ast.AST) -> bool:
        """Whether a negated constant is divided, as in `-(-LIMIT // size)`."""
        parent = self._parents[node]
        return isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.FloorDiv)

    def _compared(self, node: ast.Compare) -> int | None:
        """A comparison of order switches, unless it is that of a limit."""
        if not all(isinstance(op, _ORDER) for op in node.ops):
            return None
        above: ast.AST = node
        while isinstance(above, ast.Compare | ast.BoolOp | ast.UnaryOp):
            above = self._parents[above]
        raises = isinstance(above, ast.Assert) or (
            isinstance(above, ast.If) and any(isinstance(each, ast.Raise) for each in above.body)
        )
        return None if raises else 1

    def _of_alias(self, node: ast.Assign, alias: str, depth: int) -> int | None:
        function = self._function(node)
        if function is None:
            return None
        total = 0
        for each in ast.walk(function):
            if isinstance(each, ast.Name) and each.id == alias and isinstance(each.ctx, ast.Load):
                use = self.use(each, depth)
                if use is None:
                    return None
                total += use
        return total

    def _function(self, node: ast.AST) -> ast.FunctionDef | None:
        while node in self._parents:
            node = self._parents[node]
            if isinstance(node, ast.FunctionDef):
                return node
        return None

    def _is_in_kernel(self, node: ast.AST) -> bool:
        function = self._function(node)
        while function is not None:
            if any(_KERNEL.search(ast.unparse(each)) for each in function.decorator_list):
                return True
            function = self._function(function)
        return False
