"""Models of the functions by which kernels use flags: `tlm_ACTION_ORDER_SCOPE(pointer, value)`.

See `kernels/distributed/signals.py`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .flags import ORDERS, SCOPES, access, poll, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from .agents import Request
    from .pointers import Pointer

__all__ = ["FLAG_FUNCTIONS"]


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


def _wait(
    compare: str, order: str, scope: str, pointer: Pointer, value: int
) -> Generator[Request, None, int]:
    return wait_for(pointer, value, compare, order, scope)


def _given(
    scope: str, pointer: Pointer, value: int, number: int, waits: bool
) -> Generator[Request, None, int]:
    if waits:
        yield from wait_for(pointer, value, "ge", "acquire", scope)
    return number


def _functions() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for scope in SCOPES:
        found[f"tlm_given_ge_acquire_{scope}"] = partial(_given, scope)
        for order in ("relaxed", "acquire"):
            found[f"tlm_load_{order}_{scope}"] = partial(_load, order, scope)
            for compare in ("ge", "eq"):
                wait = partial(_wait, compare, order, scope)
                found[f"tlm_wait_{compare}_{order}_{scope}"] = wait
        # A function of the block, and one that every thread calls.
        for prefix in ("tlm_block", "tlm"):
            for order in ("relaxed", "release"):
                found[f"{prefix}_store_{order}_{scope}"] = partial(_store, order, scope)
            for order in ORDERS:
                found[f"{prefix}_fetch_add_{order}_{scope}"] = partial(_add, order, scope)
    return found


FLAG_FUNCTIONS = _functions()
"""The models, by name."""
