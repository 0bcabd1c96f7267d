"""Models of CUDA functions that kernels call with `T.call_extern`: the user's own, and flags.

A model is called as the function is: numbers come as Python numbers, `T.address_of(x[i])` as a
`Pointer`. What it returns is the value of the call. A model that has to wait is a generator that
yields `until(condition)`; other blocks, streams and ranks run meanwhile.
"""

from __future__ import annotations

from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import numpy as np

from .agents import Wait
from .flags import ORDERS, SCOPES, Pointers, access, poll, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from .agents import Request
    from .flags import Pointer

# Functions by which kernels use flags: `tlm_ACTION_ORDER_SCOPE(pointer, value)`; see
# `kernels/distributed/signals.py`.


def _load(order: str, scope: str, pointer: Pointer) -> Generator[Request | None, None, int]:
    yield poll(pointer)
    return access(pointer, order, scope)


def _store(order: str, scope: str, pointer: Pointer, value: int) -> Generator[None, None, int]:
    yield None
    access(pointer, order, scope, lambda _old: int(value), atomic=False)
    return value


def _add(order: str, scope: str, pointer: Pointer, value: int) -> Generator[None, None, int]:
    yield None
    return access(pointer, order, scope, lambda old: old + int(value))


def _given(
    scope: str, pointer: Pointer, value: int, number: int, waits: bool
) -> Generator[Request, None, int]:
    if waits:
        yield from wait_for(pointer, value, "ge", "acquire", scope)
    return number


def _flag_functions() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for scope in SCOPES:
        found[f"tlm_given_ge_acquire_{scope}"] = partial(_given, scope)
        for order in ("relaxed", "acquire"):
            found[f"tlm_load_{order}_{scope}"] = partial(_load, order, scope)
            for compare in ("ge", "eq"):
                wait = partial(wait_for, compare=compare, order=order, scope=scope)
                found[f"tlm_wait_{compare}_{order}_{scope}"] = wait
        # A function of the block, and one that every thread calls.
        for prefix in ("tlm_block", "tlm"):
            for order in ("relaxed", "release"):
                found[f"{prefix}_store_{order}_{scope}"] = partial(_store, order, scope)
            for order in ORDERS:
                found[f"{prefix}_fetch_add_{order}_{scope}"] = partial(_add, order, scope)
    return found


_models: dict[str, Callable[..., Any]] = _flag_functions()


def model_extern(name: str, model: Callable[..., Any]) -> None:
    """Give the interpreter a model of a function that kernels call with `T.call_extern`.

    Args:
        name: the function's name in the CUDA source.
        model: called with the arguments of the call: numbers, and a `Pointer` for
            `T.address_of`. It is called once on behalf of the whole block or warp role; for each
            iteration of `T.Parallel`; and for each active thread if arguments or a condition
            depend on the thread. A generator may yield `until(condition)` to wait.

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


def call_extern_by_lane(
    name: str, args: tuple[Any, ...], mask: Any, shape: tuple[int, ...], dtype: str
) -> Generator[Any, Any, Any]:
    """Call a model for each active iteration or thread, in order; returns their values.

    Values of inactive ones are 0. Arguments are numbers, arrays, `Pointer` and `Pointers`.
    """
    results = np.zeros(shape, dtype)
    active = np.broadcast_to(True if mask is None else mask, shape)
    for lane in zip(*np.nonzero(active), strict=True):
        values = [
            np.broadcast_to(arg, shape)[lane].item()
            if isinstance(arg, np.ndarray)
            else arg.of(lane, shape)
            if isinstance(arg, Pointers)
            else arg
            for arg in args
        ]
        found = yield from call_extern(name, *values)
        if found is not None:
            results[lane] = found
    return results


def until(condition: Callable[[], bool], what: str = "a condition") -> Any:
    """What a model yields to wait until `condition()` holds; reports show `what` it waits for."""
    return Wait(condition, lambda: f"for {what}", outside=True)
