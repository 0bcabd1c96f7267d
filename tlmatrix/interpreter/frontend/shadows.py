"""Copies of `@tilelang.jit` objects, with caches of their own.

Inside `interpret()` calls go to the shadow of an object, so nothing interpreted is found outside,
nor the reverse. A shadow lives as long as its original: a second context finds its kernels traced.
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

# By identity, as jit objects are not hashable: their shadows by architecture and use.
_shadows: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}


def is_shadow(jit: Any) -> bool:
    """Whether a jit object is a shadow."""
    return getattr(jit, "_tlmatrix_shadow", False)


def shadow_of(jit: Any, session: Session) -> Any:
    """The shadow of a jit object for the architecture of a session."""
    with TRACING:
        found = _shadows.get(id(jit))
        if found is None or found[0]() is not jit:
            identity = id(jit)
            found = (weakref.ref(jit, lambda _: _shadows.pop(identity, None)), {})
            _shadows[identity] = found
        # Kernels that are only traced must not be found by a session that runs them.
        key = session.arch if session.launched is None else f"{session.arch} traced"
        if key not in found[1]:
            found[1][key] = _shadow(jit)
        return found[1][key]


def _shadow(jit: Any) -> Any:
    shadow = copy.copy(jit)
    shadow.func = copy.copy(jit.func)
    if hasattr(shadow.func, "p1_cache"):
        shadow.func.p1_cache = {}
    shadow._kernel_cache = {}  # noqa: SLF001
    shadow._call_form_cache = type(jit._call_form_cache)()  # noqa: SLF001
    shadow._tuner_cache = {}  # noqa: SLF001
    # The interpreter's own target, whatever machine the kernel names.
    shadow.target = None
    shadow._tlmatrix_shadow = True  # noqa: SLF001
    return shadow


def known_kernel(shadow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kernel of a call that a shadow has seen, without entering TileLang; None of others."""
    if shadow.mode != "lazy":
        return None
    try:
        return shadow._call_form_cache.entries.get((args, tuple(kwargs.items())))  # noqa: SLF001
    except TypeError:  # an argument that cannot be a key
        return None


@contextmanager
def target_of(shadow: Any, session: Session) -> Iterator[None]:
    """The target and pass configs under which TileLang traces a shadow."""
    from tilelang import tvm
    from tilelang.transform.pass_config import normalize_pass_configs

    target = tvm.target.Target({"kind": "cuda", "arch": session.arch})
    configs = normalize_pass_configs(shadow.pass_configs) or {}
    with target, tvm.transform.PassContext(opt_level=3, config=configs):
        yield
