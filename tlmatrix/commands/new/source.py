"""Reads the names of dimensions and of returned values from source code."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING

from tlmatrix.backend.signature import parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any


def dimension_names(function: Callable[..., Any]) -> dict[tuple[str, int], str]:
    """The names of dimensions in a function, as in `rows, cols = x.shape`.

    By (parameter, dimension); `batch = len(cu_seqlens) - 1` gives "batch + 1".
    """
    found: dict[tuple[str, int], str] = {}
    passed: dict[tuple[str, int], str] = {}
    tree = syntax_tree(function)
    others = dict(_loops(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            for (of, dim), name in _assigned(node.targets[0], node.value):
                for tensor in others.get(of, [of]):
                    found.setdefault((tensor, dim), name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for key, name in _passed(node, getattr(function, "__globals__", {})):
                passed.setdefault(key, name)
    return passed | found


def returned_names(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """The names in the last `return`; None if it returns other expressions."""
    returns = [node for node in ast.walk(syntax_tree(function)) if isinstance(node, ast.Return)]
    values = [node.value for node in returns if node.value is not None]
    if not values:
        return None
    last = max(values, key=lambda value: value.lineno)
    parts = last.elts if isinstance(last, ast.Tuple) else [last]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return tuple(names) if len(names) == len(parts) else None


def syntax_tree(function: Callable[..., Any]) -> ast.AST:
    """The parsed source of a function; an empty module if it has none."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def _loops(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Loop variables with the names that they iterate over: `for x in (q, k)`."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.For)
            and isinstance(node.target, ast.Name)
            and isinstance(node.iter, ast.Tuple | ast.List)
        ):
            yield node.target.id, [each.id for each in node.iter.elts if isinstance(each, ast.Name)]


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[tuple[str, int], str]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts, strict=False):
            yield from _assigned(one, part)
        return
    if isinstance(target, ast.Tuple):
        of = _shape_of(value)
        if of is not None:
            for dim, name in enumerate(target.elts):
                if isinstance(name, ast.Name) and name.id.strip("_"):
                    yield (of, dim), name.id
        return
    if not isinstance(target, ast.Name):
        return
    more = ""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub):
        less = value.right.value if isinstance(value.right, ast.Constant) else None
        if isinstance(less, int):
            value, more = value.left, f" + {less}"
    key = _dimension(value)
    if key is not None:
        yield key, target.id + more


def _passed(call: ast.Call, names: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int], str]]:
    """The parameter to which a dimension is passed, as in `kernel(weight.shape[1])`."""
    assert isinstance(call.func, ast.Name)
    callee = names.get(call.func.id)
    parameters = parameters_of(callee) if callable(callee) else None
    for argument, name in zip(call.args, parameters or (), strict=False):
        key = _dimension(argument)
        if key is not None:
            yield key, name


def _shape_of(value: ast.expr) -> str | None:
    """The tensor of `x.shape`, `x.size()`, `x.shape[:2]`."""
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
        if value.slice.lower is not None:
            return None
        value = value.value
    if isinstance(value, ast.Call) and not value.args:
        value = value.func
    if isinstance(value, ast.Attribute) and value.attr in ("shape", "size"):
        return value.value.id if isinstance(value.value, ast.Name) else None
    return None


def _dimension(value: ast.expr) -> tuple[str, int] | None:
    """The dimension of `x.shape[1]`, `x.size(1)`, `len(x)`, `x.numel()`."""
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        of, dim = _shape_of(value.value), value.slice.value
        return (of, dim) if of is not None and isinstance(dim, int) and dim >= 0 else None
    if not isinstance(value, ast.Call):
        return None
    function = value.func
    if isinstance(function, ast.Name) and function.id == "len" and len(value.args) == 1:
        (of_node,) = value.args
        return (of_node.id, 0) if isinstance(of_node, ast.Name) else None
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return None
    if function.attr == "numel" and not value.args:
        return function.value.id, 0
    if function.attr == "size" and len(value.args) == 1:
        (dim_node,) = value.args
        if isinstance(dim_node, ast.Constant) and isinstance(dim_node.value, int):
            return function.value.id, dim_node.value
    return None
