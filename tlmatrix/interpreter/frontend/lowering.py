"""TileLang's own lowering of interpreted kernels: the errors it raises, and the CUDA source."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from .kernel import InterpretedKernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["lowering"]


@contextmanager
def lowering(arch: str, *, every: bool) -> Iterator[None]:
    """Kernels answer `get_kernel_source` with CUDA; with `every`, each is lowered when compiled.

    Enter inside `interpret`, whose entry points it wraps.
    """
    import tilelang

    def source(kernel: InterpretedKernel, kernel_only: bool = True) -> str:
        del kernel_only
        return _cuda(kernel.prim_func, arch, kernel._configs)  # noqa: SLF001 - of one package

    del tilelang
    jit = sys.modules["tilelang.jit"]
    with mock.patch.multiple(
        InterpretedKernel, get_kernel_source=source, kernel_source=property(source)
    ):
        if not every:
            yield
            return
        with mock.patch.multiple(
            jit,
            cached=_lowered_first(jit.cached, arch),
            par_compile=_all_lowered_first(jit.par_compile, arch),
        ):
            yield


def _lowered_first(compile_one: Callable[..., Any], arch: str) -> Callable[..., Any]:
    def cached(func: Any = None, *args: Any, **kwargs: Any) -> Any:
        _lower(func, arch, kwargs)
        return compile_one(func, *args, **kwargs)

    return cached


def _all_lowered_first(compile_all: Callable[..., Any], arch: str) -> Callable[..., Any]:
    def par_compile(funcs: Any, *args: Any, **kwargs: Any) -> Any:
        funcs = list(funcs)
        for func in funcs:
            _lower(func, arch, kwargs)
        return compile_all(funcs, *args, **kwargs)

    return par_compile


def _lower(prim_func: Any, arch: str, options: Mapping[str, Any]) -> None:
    """Lower a kernel for the CUDA architecture that `tilelang.compile` is given, or for `arch`."""
    from tilelang import tvm

    target = options.get("target")
    if isinstance(target, dict):
        target = tvm.target.Target(target)
    if isinstance(target, tvm.target.Target) and target.kind.name == "cuda":
        arch = str(target.attrs.get("arch", arch))
    _cuda(prim_func, arch, options.get("pass_configs") or {})


def _cuda(prim_func: Any, arch: str, configs: Mapping[Any, Any]) -> str:
    """CUDA source of a kernel; raises what TileLang's compiler raises."""
    import tilelang
    from tilelang import tvm

    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    named = {str(getattr(key, "value", key)): value for key, value in configs.items()}
    with tvm.transform.PassContext(opt_level=3, config=named), target:
        return str(tilelang.lower(prim_func, target=target).kernel_source)
