"""Models of the user's own CUDA functions: what `T.call_extern` calls, in Python.

A model is called as the function is: numbers come as Python numbers, `T.address_of(x[i])` as a
`Pointer`. What it returns is the value of the call. A model that has to wait is a generator that
yields `until(condition)`; other blocks, streams and ranks run meanwhile.
"""

from __future__ import annotations

from types import GeneratorType
from typing import TYPE_CHECKING, Any

from .agents import Wait
from .flag_functions import FLAG_FUNCTIONS
from .pointers import Pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["Pointer", "call_extern", "is_modelled", "model_extern", "modelled", "until"]

_models: dict[str, Callable[..., Any]] = dict(FLAG_FUNCTIONS)


def model_extern(name: str, model: Callable[..., Any]) -> None:
    """Give the interpreter a model of a function that kernels call with `T.call_extern`.

    Args:
        name: the function's name in the CUDA source.
        model: called with the arguments of the call, on behalf of the whole block: numbers, and
            a `Pointer` for `T.address_of`. A generator may yield `until(condition)` to wait.

    Raises:
        TypeError: for a model that cannot be called.
    """
    if not callable(model):
        raise TypeError(f"the model of {name} must be callable, got {type(model).__name__}")
    _models[name] = model


def modelled() -> list[str]:
    """The names of all functions that have a model."""
    return sorted(_models)


def is_modelled(name: str) -> bool:
    """Whether there is a model of a function."""
    return name in _models


def call_extern(name: str, *args: Any) -> Generator[Any, Any, Any]:
    """Call a model; yields what it waits for, returns its value."""
    found = _models[name](*args)
    if isinstance(found, GeneratorType):
        found = yield from found
    return found


def until(condition: Callable[[], bool], what: str = "a condition") -> Any:
    """What a model yields to wait until `condition()` holds; reports show `what` it waits for."""
    return Wait(condition, lambda: f"for {what}")
