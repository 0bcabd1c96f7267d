"""TileLang's entry points, redirected while a thread is inside of `interpret()`.

Threads outside of it call TileLang as ever.
"""

from __future__ import annotations

import ast
import copy
import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.patching import TRACING, Shared, replace_in

from .kernel import InterpretedKernel, TracedKernel
from .programs import programs_of
from .session import current, local, without_modes

if TYPE_CHECKING:
    from .session import Session


# Copies of `@tilelang.jit` objects, with caches of their own --------------------------------------
#
# Inside `interpret()` calls go to the copy of an object, so nothing interpreted is found outside,
# nor the reverse. A copy lives as long as its original: a second context finds its kernels traced.

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


# Parsed kernels kept: TileLang parses the source of a PrimFunc each time a factory is called ------
#
# What it makes of the source depends on the code, and on the objects that some names in it stand
# for (`T.Tensor`, `T.Kernel`); where both are those of an earlier call, the parsed function is used
# again with the new closure.

_MOST = 4096
_MISSING = object()


@dataclass(frozen=True)
class _Parsed:
    """A parsed function.

    Attributes:
        names: the dotted names that TileLang looked up, and the objects they stood for.
        make_closure: makes the function of the values of its free variables.
        source: TileLang's rendering of it.
        hints: types of arguments that it found in the body.
    """

    names: tuple[tuple[str, Any], ...]
    make_closure: Callable[..., Any]
    source: str
    hints: dict[str, Any]


_kept: dict[tuple[Any, ...], _Parsed] = {}


@cache
def keeping_parsed(mutate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """TileLang's `mutate` (`language/eager/ast.py`), which parses a function, with a memory.

    Where TileLang's internals are not those that this relies on, `mutate` itself.
    """
    from tilelang.language.eager import ast as eager
    from tilelang.language.eager import utils

    needed = ("_try_eval", "IRGenerator")
    if not all(hasattr(eager, name) for name in needed) or not hasattr(
        utils, "get_compiled_object"
    ):
        return mutate

    def parsed(func: Any) -> Any:
        code = getattr(func, "__code__", None)
        if code is None:
            return mutate(func)
        values = utils.get_func_nonlocals(func)
        key = (code, id(func.__globals__), tuple(values))
        known = _kept.get(key)
        if known is not None and all(
            _resolved(name, values, func.__globals__) is found for name, found in known.names
        ):
            function = known.make_closure(**values)
            return eager.IRGenerator(
                gen=function, source=known.source, extra_type_hints=dict(known.hints)
            )
        made, names, make_closure = _observed(mutate, func, eager, utils)
        if make_closure is not None and len(_kept) < _MOST:
            hints = dict(made.extra_type_hints)
            _kept[key] = _Parsed(names, make_closure, made.source, hints)
        return made

    return parsed


def _observed(
    mutate: Callable[[Any], Any], func: Any, eager: Any, utils: Any
) -> tuple[Any, tuple[tuple[str, Any], ...], Callable[..., Any] | None]:
    """Parse a function; with the names that were looked up, and the maker of its closure.

    The maker is None where something else than a dotted name was evaluated.
    """
    looked_up: dict[str, Any] = {}
    made: list[Any] = []
    plain = True
    evaluate, compiled = eager._try_eval, utils.get_compiled_object  # noqa: SLF001

    def watched(node: Any, nonlocals: Any, global_names: Any) -> Any:
        nonlocal plain
        name = ast.unparse(node)
        if all(part.isidentifier() for part in name.split(".")):
            looked_up[name] = _resolved(name, nonlocals, global_names)
        else:
            plain = False
        return evaluate(node, nonlocals, global_names)

    def kept(*args: Any, **options: Any) -> Any:
        made.append(compiled(*args, **options))
        return made[-1]

    # TileLang looks both up when it is called; the caller holds the lock of tracing.
    eager._try_eval, utils.get_compiled_object = watched, kept  # noqa: SLF001
    try:
        result = mutate(func)
    finally:
        eager._try_eval, utils.get_compiled_object = evaluate, compiled  # noqa: SLF001
    maker = made[-1] if plain and len(made) == 1 else None
    return result, tuple(looked_up.items()), maker


def _resolved(name: str, nonlocals: Mapping[str, Any], global_names: Mapping[str, Any]) -> Any:
    """The object that a dotted name stands for."""
    first, *rest = name.split(".")
    found = nonlocals.get(first, global_names.get(first, _MISSING))
    for part in rest:
        found = getattr(found, part, _MISSING)
    return found


# TileLang's entry points, redirected while a thread is inside of `interpret()` --------------------
#
# Threads outside of it call TileLang as ever.

_GUARDS_OFF = "tl.disable_safe_memory_legalize"
_BARRIERS_OFF = "tl.disable_thread_storage_sync"


def interpreted(
    prim_func: Any, out_idx: Any = None, pass_configs: dict[str, Any] | None = None
) -> InterpretedKernel:
    """An interpreted kernel of a traced PrimFunc.

    Args:
        prim_func: a PrimFunc before lowering.
        out_idx: as in `tilelang.compile`.
        pass_configs: as in `tilelang.compile`; `tl.disable_safe_memory_legalize` and
            `tl.disable_thread_storage_sync` are honoured, and what decides on TMA.

    Raises:
        Unsupported: if the kernel uses something that is not modelled.
    """
    configs = {str(getattr(k, "value", k)): v for k, v in (pass_configs or {}).items()}
    programs = programs_of(
        prim_func,
        guard=not configs.get(_GUARDS_OFF, False),
        barriers=not configs.get(_BARRIERS_OFF, False),
    )
    with TRACING:
        return InterpretedKernel(programs, prim_func, out_idx, session=current(), configs=configs)


def _install(stack: ExitStack) -> None:
    import torch

    replace_in(stack, _entry_points())
    if "torch._dynamo" in sys.modules:
        # A function compiled before runs as written: Dynamo would trace into generated programs.
        stack.enter_context(torch.compiler.set_stance("force_eager"))


entry_points = Shared(_install, TRACING).installed
"""Redirects TileLang's entry points, for the threads that are in an `interpret()`."""


def _entry_points() -> Iterator[tuple[Any, str, Any]]:
    for owner, name, replacement in _replacements():
        yield owner, name, replacement(getattr(owner, name))


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
