"""Runs a whole program written for a GPU, unchanged, on the interpreter.

Its kernels answer `get_kernel_source` with CUDA, which TileLang makes of them.
"""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from .device import stand_in
from .device.answers import dynamo_traces
from .interpret import interpret
from .kernel import InterpretedKernel

if TYPE_CHECKING:
    from .session import Session


def run_program(
    program: Path | str,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    arch: str = "sm_90a",
    sms: int = 8,
    lower: bool = False,
    started: Callable[[Session], None] = lambda _session: None,
    **options: Any,
) -> Session:
    """Run a script or a module as `python PROGRAM ARGUMENTS` would, with the CPU for its GPU.

    Its kernels are interpreted, its `cuda` tensors live on the CPU, its measurements are NaN.
    Exceptions of the program are raised, `SystemExit` included.

    Args:
        program: the script, whose folder is put first in `sys.path`; with `module`, the name of
            a module, and the working folder is put first.
        arguments: the rest of `sys.argv`.
        module: whether `program` is a module, as in `python -m`.
        arch: the architecture kernels are traced for, and that of the device.
        sms: the number of multiprocessors of the device.
        lower: whether TileLang lowers every kernel as well, for the errors that its compiler
            raises.
        started: called with the session before the program runs: a program that ends by
            `SystemExit` returns none.
        options: more of `interpret`.

    Returns:
        The session of `interpret`: its `reports` are the sanitizers' findings.
    """
    with ExitStack() as stack:
        session = stack.enter_context(interpret(arch=arch, **options))
        started(session)
        stack.enter_context(stand_in(arch=arch, sms=sms))
        stack.enter_context(dynamo_traces())
        stack.enter_context(_lowering(arch, every=lower))
        run_as_main(str(program), arguments, module=module)
    return session


def run_as_main(
    program: str, arguments: Sequence[str] = (), *, module: bool = False
) -> dict[str, Any]:
    """Run a script, or a module as by `python -m`, with `sys.argv` and `sys.path` as Python's.

    Returns:
        Its global names.
    """
    argv, search = sys.argv, list(sys.path)
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path.cwd() if module else Path(program).resolve().parent))
    try:
        if module:
            return runpy.run_module(program, run_name="__main__", alter_sys=True)
        return runpy.run_path(program, run_name="__main__")
    finally:
        sys.argv = argv
        sys.path[:] = search


@contextmanager
def _lowering(arch: str, *, every: bool) -> Iterator[None]:
    """Kernels answer `get_kernel_source` with CUDA; with `every`, each is lowered when compiled.

    Enter inside `interpret`, whose entry points it wraps.
    """

    def source(kernel: InterpretedKernel, kernel_only: bool = True) -> str:
        del kernel_only
        return _cuda(kernel.prim_func, arch, kernel._configs)  # noqa: SLF001 - of one package

    def lowered_first(compiling: Callable[..., Any]) -> Callable[..., Any]:
        """`cached` or `par_compile`, whose first argument is one PrimFunc or several."""
        signature = inspect.signature(compiling)

        def compile_lowered(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            given = bound.arguments
            name = next(iter(signature.parameters))
            if hasattr(given[name], "__iter__"):
                given[name] = list(given[name])
            for func in given[name] if isinstance(given[name], list) else [given[name]]:
                configs = given.get("pass_configs") or {}
                _cuda(func, _arch_of(given.get("target")) or arch, configs)
            return compiling(*bound.args, **bound.kwargs)

        return compile_lowered

    with ExitStack() as stack:
        stack.enter_context(
            mock.patch.multiple(
                InterpretedKernel, get_kernel_source=source, kernel_source=property(source)
            )
        )
        if every:
            jit: Any = import_module("tilelang.jit")
            for name in ("cached", "par_compile"):
                compiling = lowered_first(getattr(jit, name))
                stack.enter_context(mock.patch.object(jit, name, compiling))
        yield


def _arch_of(target: Any) -> str | None:
    """The CUDA architecture that a target of `tilelang.compile` names."""
    from tilelang import tvm

    if isinstance(target, dict):
        target = tvm.target.Target(target)
    if isinstance(target, tvm.target.Target) and target.kind.name == "cuda":
        named = target.attrs.get("arch")
        return str(named) if named is not None else None
    return None


def _cuda(prim_func: Any, arch: str, configs: Mapping[Any, Any]) -> str:
    """CUDA source of a kernel; raises what TileLang's compiler raises."""
    import tilelang
    from tilelang import tvm

    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    named = {str(getattr(key, "value", key)): value for key, value in configs.items()}
    with tvm.transform.PassContext(opt_level=3, config=named), target:
        return str(tilelang.lower(prim_func, target=target).kernel_source)
