"""Parameters of a callable as its author wrote them, also under TileLang's decorators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Mapping


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
