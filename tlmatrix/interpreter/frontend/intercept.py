"""Where TileLang hands over: its entry points, redirected while `interpret()` is in force.

Each `@tilelang.jit` object gets a shadow: a copy with caches of its own. Inside the context
calls go to the shadow, so that nothing interpreted is ever found outside, nor the reverse;
shadows live as long as their originals, so a second context finds its kernels traced.
"""

from __future__ import annotations

import copy
import functools
import math
import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.explain import LaunchLog
from tlmatrix.interpreter.locks import TRACING
from tlmatrix.interpreter.recorder import Recorder
from tlmatrix.interpreter.reports import declared_sequences, sanitizer_names
from tlmatrix.interpreter.session import Session, current
from tlmatrix.interpreter.session import local as _local

from .environment import unseen
from .kernel import InterpretedKernel
from .parsing import keeping_parsed
from .programs import programs_of
from .tracing import TracedKernel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    import torch

    from tlmatrix.interpreter.explain import Trace
    from tlmatrix.interpreter.reports import Sequences

__all__ = ["interpret", "interpreted"]

_GUARDS_OFF = "tl.disable_safe_memory_legalize"


_lock = TRACING
_patches: list[tuple[Any, str, Any]] = []
_stances = ExitStack()
_users = 0
# Per jit object (by identity: they are not hashable) its shadows by architecture and use.
_shadows: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}


@contextmanager
def interpret(
    *,
    arch: str = "sm_90a",
    sanitize: bool | str | Collection[str] | None = None,
    on_report: Literal["collect", "keep", "raise"] = "collect",
    sequences: Mapping[str, Any] | Callable[[str, torch.Tensor], Sequences | None] | None = None,
    partial: Collection[str] = (),
    poison: Mapping[torch.dtype, int] | None = None,
    tf32: bool | None = None,
    coverage: bool | Recorder | None = None,
    trace: Trace | bool = False,
    launched: list[TracedKernel] | None = None,
) -> Iterator[Session]:
    """Run every TileLang kernel called inside on the CPU, with no GPU and no change to its code.

    Lazy factories return an `InterpretedKernel`, eager kernels run at once,
    `tilelang.compile` gives an `InterpretedKernel`. Tensors must be on the CPU. Contexts nest;
    only the thread that entered is concerned.

        with interpret(sanitize=True) as run:
            op(...)
        for report in run.reports:
            print(report)

    Args:
        arch: the CUDA architecture kernels are traced for.
        sanitize: True for the default sanitizers, or the names of those wanted (`SANITIZERS`
            lists them); None for what the enclosing context has, or none.
        on_report: whether findings are collected in `reports` of what the context gives ("keep",
            or "collect" to have them logged too, as warnings of the logger
            `tlmatrix.interpreter`), or raised as `SanitizerError` when their kernel ends.
        sequences: for packed parameters by name their boundaries (cu_seqlens), a pair of
            boundaries and the dimension of the rows, or `Sequences`; or a function that gives
            `Sequences` or None for a parameter's name and tensor.
        partial: names of parameters that kernels may leave unwritten in part.
        poison: the bits, as an integer of its size, with which the caller has filled what nobody
            has written, by dtype. Elements that hold them count as unwritten, in whatever a
            kernel is passed, and all others as written.
        tf32: whether `T.gemm` cuts float32 factors to TF32, as tensor cores do; None for what
            the enclosing context has, or not.
        coverage: whether to count which lines and guards of kernels are exercised, in
            `coverage` of what the context gives; None for what the enclosing context does, to
            which what is counted here is added. Several contexts count together in a `Recorder`.
        trace: an element to follow in every kernel that writes it, whose explanations are in
            `traces` of what the context gives; True keeps the launches (and so their tensors),
            for `explain` of what the context gives.
        launched: a list to which kernels are added that are traced and not run, see `traced`.

    Raises:
        ValueError: for a sanitizer that does not exist, or sequences that are none.
    """
    global _users  # noqa: PLW0603  # counts the contexts that need the patches
    if on_report not in ("collect", "keep", "raise"):
        raise ValueError(f'on_report must be "collect", "keep" or "raise", got {on_report!r}')
    outer = _local.stack[-1] if _local.stack else None
    if sanitize is None and outer is not None:
        options = replace(outer, arch=arch)
    else:
        options = Session(
            arch,
            sanitizer_names(sanitize or False),
            on_report,
            declared_sequences(sequences),
            frozenset(partial),
            dict(poison or {}),
        )
    if tf32 is not None or outer is not None:
        inherited = outer.tf32 if outer is not None else False
        options = replace(options, tf32=inherited if tf32 is None else tf32)
    around = outer.recorder if outer is not None else None
    if coverage is not None:
        options = replace(options, recorder=_recorder(coverage))
    elif around is not None:
        options = replace(options, recorder=around)
    if trace:
        options = replace(options, trace=trace, traces=[], untraced={}, log=LaunchLog())
    if launched is not None:
        options = replace(options, launched=launched)
    with _lock:
        if _users == 0:
            _install()
        _users += 1
    _local.stack.append(options)
    try:
        yield options
    finally:
        _local.stack.pop()
        if coverage is True and around is not None:
            around.add(options.coverage)
        with _lock:
            _users -= 1
            if _users == 0:
                _remove()


def _recorder(coverage: bool | Recorder) -> Recorder | None:
    if isinstance(coverage, Recorder):
        return coverage
    return Recorder() if coverage else None


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
    with _lock:
        return InterpretedKernel(programs, prim_func, out_idx, session=current(), configs=configs)


# ---------------------------------------------------------------------------------------
# Patching


def _patch(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, make(original))
    _patches.append((owner, name, original))


def _install() -> None:
    import sys

    import tilelang
    import torch
    from tilelang.autotuner.tuner import AutoTuneImpl
    from tilelang.jit import JITImpl
    from tilelang.language.eager.builder import Builder

    del tilelang
    jit = sys.modules["tilelang.jit"]
    _patch(jit, "cached", _cached)
    _patch(jit, "par_compile", _par_compile)
    for name in ("__call__", "compile", "par_compile"):
        _patch(JITImpl, name, _on_shadow)
    _patch(AutoTuneImpl, "__call__", _untuned)
    _patch(Builder, "set_fileline", _users_lines)
    _patch(sys.modules["tilelang.language.eager.builder"], "mutate", keeping_parsed)
    _patch(sys.modules["tilelang.profiler"], "do_bench", _untimed)
    _patch(torch.cuda, "synchronize", _synchronous)
    _patch(torch, "compile", _eager)
    if "torch._dynamo" in sys.modules:
        # A function compiled before runs as written: Dynamo would trace into generated programs.
        _stances.enter_context(torch.compiler.set_stance("force_eager"))


def _remove() -> None:
    _stances.close()
    while _patches:
        owner, name, original = _patches.pop()
        setattr(owner, name, original)


def _cached(original: Any) -> Any:
    def cached(func: Any = None, out_idx: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not _local.stack:
            return original(func, out_idx, *args, **kwargs)
        return _kernel(func, out_idx, kwargs)

    return cached


def _eager(original: Any) -> Any:
    """`torch.compile` inside the context: a function that runs as written."""

    def compile(model: Any = None, **kwargs: Any) -> Any:  # noqa: A001 - torch's name
        if not _local.stack:
            return original(model, **kwargs)
        return model if model is not None else lambda function: function

    return compile


def _par_compile(original: Any) -> Any:
    def par_compile(funcs: Any, *args: Any, **kwargs: Any) -> Any:
        if not _local.stack:
            return original(funcs, *args, **kwargs)
        out_idx = args[0] if args else kwargs.get("out_idx")
        return [_kernel(func, out_idx, kwargs) for func in funcs]

    return par_compile


def _kernel(
    func: Any, out_idx: Any, options: Mapping[str, Any]
) -> InterpretedKernel | TracedKernel:
    if _local.stack[-1].launched is None:
        return interpreted(func, out_idx, options.get("pass_configs"))
    return TracedKernel(func, out_idx, options.get("pass_configs"), options.get("compile_flags"))


def _on_shadow(original: Any) -> Any:
    """A method of a jit object, run on its shadow with the target and pass configs in force."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _local.stack or getattr(self, "_tlmatrix_shadow", False):
            return original(self, *args, **kwargs)
        options = _local.stack[-1]
        shadow = _shadow_of(self, options)
        if original.__name__ == "__call__" and shadow.mode == "lazy":
            known = _known_kernel(shadow, args, kwargs)
            if known is not None:
                return known
        with _lock, _tracing(shadow, options), unseen():  # a rank keeps its turn in the lock
            return original(shadow, *args, **kwargs)

    return method


def _known_kernel(shadow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kernel of a call that this shadow has seen, without entering TileLang."""
    try:
        return shadow._call_form_cache.entries.get((args, tuple(kwargs.items())))  # noqa: SLF001
    except TypeError:  # an argument that cannot be a key
        return None


@contextmanager
def _tracing(shadow: Any, options: Session) -> Iterator[None]:
    from tilelang import tvm
    from tilelang.transform.pass_config import normalize_pass_configs

    target = tvm.target.Target({"kind": "cuda", "arch": options.arch})
    configs = normalize_pass_configs(shadow.pass_configs) or {}
    with target, tvm.transform.PassContext(opt_level=3, config=configs):
        yield


def _shadow_of(jit: Any, options: Session) -> Any:
    with _lock:
        found = _shadows.get(id(jit))
        if found is None or found[0]() is not jit:
            identity = id(jit)
            found = (weakref.ref(jit, lambda _: _shadows.pop(identity, None)), {})
            _shadows[identity] = found
        # Kernels that are only traced are found by nobody who wants to run them.
        key = options.arch if options.launched is None else f"{options.arch} traced"
        shadow = found[1].get(key)
        if shadow is None:
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
            found[1][key] = shadow
        return shadow


def _untuned(original: Any) -> Any:
    """An autotuned factory: there is no time to tune by, so the first configuration stands in."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _local.stack:
            return original(self, *args, **kwargs)
        only_compile = kwargs.pop("__return_kernel", False)
        chosen: dict[str, Any] = {}
        configs = self.configs(*args, **kwargs) if callable(self.configs) else self.configs
        if configs:
            first = configs[0] if isinstance(configs, (list, tuple)) else configs
            parameters = list(self.jit_impl.signature.parameters)
            given = {*parameters[: len(args)], *kwargs}
            chosen = {k: v for k, v in first.items() if k in parameters and k not in given}
            kwargs.update(chosen)
        found = (self.jit_impl.compile if only_compile else self.jit_impl)(*args, **kwargs)
        if isinstance(found, InterpretedKernel):
            # As after tuning, except that nothing was measured.
            found.latency = found.ref_latency = math.nan
            found.config = chosen
        return found

    return call


def _untimed(original: Any) -> Any:
    """TileLang's benchmark: the interpreter's time says nothing of a GPU's."""

    @functools.wraps(original)
    def do_bench(*args: Any, **kwargs: Any) -> Any:
        if _local.stack:
            raise Unsupported("the interpreter does not model profiling: it has no GPU to time")
        return original(*args, **kwargs)

    return do_bench


def _synchronous(original: Any) -> Any:
    """Interpreted kernels are done when their call returns."""

    @functools.wraps(original)
    def synchronize(device: Any = None) -> None:
        import torch

        if not _local.stack or torch.cuda.is_available():
            original(device)

    return synchronize


def _users_lines(original: Any) -> Any:
    """Statements of TileLang's own macros keep the line of the user who called them."""

    def set_fileline(self: Any, filename: str, lineno: int, name: str) -> Any:
        if _local.stack and "/site-packages/tilelang/" in filename:
            return None
        return original(self, filename, lineno, name)

    return set_fileline
