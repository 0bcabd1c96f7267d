"""Copies of `@tilelang.jit` objects, with caches of their own.

Inside `interpret()` calls go to the copy of an object, so nothing interpreted is found outside,
nor the reverse. A copy lives as long as its original: a second context finds its kernels traced.
"""

from __future__ import annotations

import copy
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.locks import TRACING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .session import Session

# By identity, as jit objects are not hashable: their copies by architecture and use.
_copies: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}


def is_copy(jit: Any) -> bool:
    """Whether a jit object is a copy."""
    return getattr(jit, "_tlmatrix_copy", False)


def copy_of(jit: Any, session: Session) -> Any:
    """The copy of a jit object for the architecture of a session."""
    with TRACING:
        found = _copies.get(id(jit))
        if found is None or found[0]() is not jit:
            identity = id(jit)
            found = (weakref.ref(jit, lambda _: _copies.pop(identity, None)), {})
            _copies[identity] = found
        # Kernels that are only traced must not be found by a session that runs them.
        key = session.arch if session.launched is None else f"{session.arch} traced"
        if key not in found[1]:
            found[1][key] = _copied(jit)
        return found[1][key]


def _copied(jit: Any) -> Any:
    copied = copy.copy(jit)
    copied.func = copy.copy(jit.func)
    if hasattr(copied.func, "p1_cache"):
        copied.func.p1_cache = {}
    copied._kernel_cache = {}  # noqa: SLF001
    copied._call_form_cache = type(jit._call_form_cache)()  # noqa: SLF001
    copied._tuner_cache = {}  # noqa: SLF001
    # The interpreter's own target, whatever machine the kernel names.
    copied.target = None
    copied._tlmatrix_copy = True  # noqa: SLF001
    return copied


def known_kernel(copied: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kernel of a call that a copy has had, without entering TileLang; None of others."""
    if copied.mode != "lazy":
        return None
    try:
        return copied._call_form_cache.entries.get((args, tuple(kwargs.items())))  # noqa: SLF001
    except TypeError:  # an argument that cannot be a key
        return None


@contextmanager
def target_of(copied: Any, session: Session) -> Iterator[None]:
    """The target and pass configs under which TileLang traces a copy."""
    from tilelang import tvm
    from tilelang.transform.pass_config import normalize_pass_configs

    target = tvm.target.Target({"kind": "cuda", "arch": session.arch})
    configs = normalize_pass_configs(copied.pass_configs) or {}
    with target, tvm.transform.PassContext(opt_level=3, config=configs):
        yield
