"""TileLang's entry points, redirected while a thread is inside of `interpret()`.

Threads outside of it call TileLang as ever.
"""

from __future__ import annotations

import functools
import math
import sys
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.locks import TRACING

from .environment import without_modes
from .jit_copies import copy_of, is_copy, known_kernel, target_of
from .kernel import InterpretedKernel
from .parsing import keeping_parsed
from .programs import programs_of
from .session import current, local
from .tracing import TracedKernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GUARDS_OFF = "tl.disable_safe_memory_legalize"

_installed = ExitStack()
_users = 0
"""How many contexts need the entry points, in all threads."""


@contextmanager
def entry_points() -> Iterator[None]:
    """Redirect TileLang's entry points, for the threads that are in an `interpret()`."""
    global _users  # noqa: PLW0603
    with TRACING:
        if _users == 0:
            _install(_installed)
        _users += 1
    try:
        yield
    finally:
        with TRACING:
            _users -= 1
            if _users == 0:
                _installed.close()


def interpreted(
    prim_func: Any, out_idx: Any = None, pass_configs: dict[str, Any] | None = None
) -> InterpretedKernel:
    """An interpreted kernel of a traced PrimFunc.

    Args:
        prim_func: a PrimFunc before lowering.
        out_idx: as in `tilelang.compile`.
        pass_configs: as in `tilelang.compile`; `tl.disable_safe_memory_legalize` is honoured,
            and what decides on TMA.

    Raises:
        Unsupported: if the kernel uses something that is not modelled.
    """
    configs = {str(getattr(k, "value", k)): v for k, v in (pass_configs or {}).items()}
    programs = programs_of(prim_func, guard=not configs.get(_GUARDS_OFF, False))
    with TRACING:
        return InterpretedKernel(programs, prim_func, out_idx, session=current(), configs=configs)


def _install(stack: ExitStack) -> None:
    import torch

    for owner, name, replacement in _replacements():
        original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
        setattr(owner, name, replacement(original))
        stack.callback(setattr, owner, name, original)
    if "torch._dynamo" in sys.modules:
        # A function compiled before runs as written: Dynamo would trace into generated programs.
        stack.enter_context(torch.compiler.set_stance("force_eager"))


@functools.cache
def _replacements() -> list[tuple[Any, str, Callable[[Any], Any]]]:
    """The entry points, by owner and name, and what makes the replacement of an original."""
    import torch
    from tilelang.autotuner.tuner import AutoTuneImpl
    from tilelang.jit import JITImpl
    from tilelang.language.eager.builder import Builder

    jit = import_module("tilelang.jit")
    return [
        (import_module("tilelang.language.eager.builder"), "mutate", keeping_parsed),
        *((JITImpl, name, _on_copy) for name in ("__call__", "compile", "par_compile")),
        (jit, "cached", _redirected(_cached)),
        (jit, "par_compile", _redirected(_par_compile)),
        (AutoTuneImpl, "__call__", _redirected(_untuned)),
        (Builder, "set_fileline", _redirected(_set_fileline)),
        (import_module("tilelang.profiler"), "do_bench", _redirected(_do_bench)),
        (torch.cuda, "synchronize", _redirected(_synchronize)),
        (torch, "compile", _redirected(_uncompiled)),
    ]


def _redirected(replacement: Callable[..., Any]) -> Callable[[Any], Any]:
    """An entry point: in an `interpret()` the replacement, which is passed the original first."""

    @functools.lru_cache(maxsize=8)  # contexts are entered often
    def redirected(original: Any) -> Any:
        @functools.wraps(original)
        def entry_point(*args: Any, **kwargs: Any) -> Any:
            if not local.stack:
                return original(*args, **kwargs)
            return replacement(original, *args, **kwargs)

        return entry_point

    return redirected


# Compilation ------------------------------------------------------------------------------


def _cached(
    _original: Any, func: Any = None, out_idx: Any = None, *_args: Any, **options: Any
) -> InterpretedKernel | TracedKernel:
    """`tilelang.compile`, of a PrimFunc."""
    if local.stack[-1].launched is None:
        return interpreted(func, out_idx, options.get("pass_configs"))
    return TracedKernel(
        func,
        out_idx,
        options.get("pass_configs"),
        options.get("compile_flags"),
        options.get("execution_backend"),
    )


def _par_compile(
    original: Any, funcs: Any, out_idx: Any = None, *_args: Any, **options: Any
) -> list[Any]:
    return [_cached(original, func, out_idx, **options) for func in funcs]


@functools.lru_cache(maxsize=8)
def _on_copy(original: Any) -> Any:
    """A method of a jit object, run on its copy with the target and pass configs in force.

    Not by `_redirected`: operators call it each time they run.
    """
    is_call = original.__name__ == "__call__"

    @functools.wraps(original)
    def method(jit: Any, *args: Any, **kwargs: Any) -> Any:
        if not local.stack or is_copy(jit):
            return original(jit, *args, **kwargs)
        session = local.stack[-1]
        copied = copy_of(jit, session)
        if is_call:
            known = known_kernel(copied, args, kwargs)
            if known is not None:
                return known
        # A rank does not let others run while it holds the lock.
        with TRACING, target_of(copied, session), without_modes():
            return original(copied, *args, **kwargs)

    return method


# What needs a GPU -------------------------------------------------------------------------


def _untuned(_original: Any, tuned: Any, *args: Any, **kwargs: Any) -> Any:
    """An autotuned factory: there is no time to tune by, so the first configuration stands in."""
    only_compile = kwargs.pop("__return_kernel", False)
    chosen: dict[str, Any] = {}
    configs = tuned.configs(*args, **kwargs) if callable(tuned.configs) else tuned.configs
    if configs:
        first = configs[0] if isinstance(configs, (list, tuple)) else configs
        parameters = list(tuned.jit_impl.signature.parameters)
        # What the key of the tuner's cache leaves out is tuned, whatever value it is passed.
        seeds = set(getattr(tuned, "do_not_specialize", None) or ())
        given = {*parameters[: len(args)], *(kwargs.keys() - seeds)}
        chosen = {k: v for k, v in first.items() if k in parameters and k not in given}
        kwargs.update(chosen)
    found = (tuned.jit_impl.compile if only_compile else tuned.jit_impl)(*args, **kwargs)
    if isinstance(found, InterpretedKernel):
        # As after tuning, except that nothing was measured.
        found.latency = found.ref_latency = math.nan
        found.config = chosen
    return found


def _do_bench(_original: Any, *_args: Any, **_kwargs: Any) -> Any:
    raise Unsupported("the interpreter does not model profiling: it has no GPU to time")


def _synchronize(original: Any, device: Any = None) -> None:
    """Interpreted kernels are done when their call returns."""
    import torch

    if torch.cuda.is_available():
        original(device)


def _uncompiled(_original: Any, model: Any = None, **_options: Any) -> Any:
    """`torch.compile`: the function runs as written."""
    return model if model is not None else lambda function: function


def _set_fileline(original: Any, builder: Any, filename: str, lineno: int, name: str) -> Any:
    """Statements of TileLang's own macros keep the line of the call in the user's code."""
    if "/site-packages/tilelang/" not in filename:
        return original(builder, filename, lineno, name)
    return None
