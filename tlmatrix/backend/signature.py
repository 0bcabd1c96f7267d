"""Parameters and definition of a callable as its author wrote them, also under decorators."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Mapping
    from types import CodeType


def is_tilelang_factory(function: object) -> bool:
    """Whether the function is decorated with `@tilelang.jit`, autotuned or not."""
    return hasattr(function, "get_tir") or hasattr(function, "jit_impl")


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Parameters by name; None if they are unknown, as for some builtins."""
    from tlmatrix.problem import calling

    return calling.parameters_of(undecorated(function))


def undecorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without TileLang's decorators."""
    original: Any = getattr(function, "jit_impl", function)
    if is_tilelang_factory(original):
        original = getattr(original, "func", original)
        original = getattr(original, "orig_func", original)
    found: Callable[..., Any] = original
    return found


@cache
def parsed_file(file: str) -> ast.Module:
    """The parsed source of a file; an empty module if it cannot be read or parsed."""
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return ast.Module([], [])


def definition_of(code: CodeType) -> ast.FunctionDef | None:
    """The definition of a function, by its name and first line; None if it has no source."""
    found = _definitions(code.co_filename).get(code.co_firstlineno)
    return found if found is not None and found.name == code.co_name else None


@cache
def _definitions(file: str) -> Mapping[int, ast.FunctionDef]:
    """The functions of a file by their first line, decorators included."""
    found = [node for node in ast.walk(parsed_file(file)) if isinstance(node, ast.FunctionDef)]
    return {
        min([node.lineno, *(each.lineno for each in node.decorator_list)]): node for node in found
    }
