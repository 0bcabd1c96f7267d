"""`torch.compile` in a program that takes the CPU for its GPU: Dynamo traces as on a GPU.

A function is traced where the program can tell: with `fullgraph=True`, which promises that it can
be traced, or for a backend that is not made for the device. Otherwise it runs as written: code
for a CPU takes longer to make than it saves.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from tlmatrix.interpreter.frontend.kernel import InterpretedKernel

from .tensors import CPU, CUDA, TensorsOnTheCpu, is_host, under_stand_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FOR_THE_DEVICE = ("inductor", "cudagraphs")
"""Backends that make code for a GPU: `aot_eager` runs the same graphs without."""


@contextmanager
def dynamo_traces() -> Iterator[None]:
    """Inside of `interpret` and the stand-in, `torch.compile` traces."""
    replacement = functools.partial(_compile, inspect.unwrap(torch.compile))
    with mock.patch.object(torch, "compile", replacement):
        yield


def _compile(
    original: Callable[..., Any],
    model: Any = None,
    *,
    fullgraph: bool = False,
    backend: Any = "inductor",
    mode: Any = None,
    options: Any = None,
    **more: Any,
) -> Any:
    """`torch.compile`: traces with `fullgraph` or a backend that is not made for the device."""
    if model is None:
        given = {"fullgraph": fullgraph, "backend": backend, "mode": mode, "options": options}
        return functools.partial(_compile, original, **given, **more)
    if backend in _FOR_THE_DEVICE:
        if not fullgraph:
            return model
        backend, mode, options = "aot_eager", None, None
    _prepare_dynamo()
    if isinstance(backend, str):
        backend = import_module("torch._dynamo").lookup_backend(backend)
    backend = _called_under_stand_in(backend)
    return original(model, fullgraph=fullgraph, backend=backend, mode=mode, options=options, **more)


# Dynamo compiles anew for another backend, so that each is wrapped once.
_called_under_stand_in = functools.lru_cache(maxsize=64)(under_stand_in)


@functools.cache  # once in a process: programs without the mode do not notice
def _prepare_dynamo() -> None:
    """Keep Dynamo out of kernels and out of the mode, whose answers its own tensors give."""
    from tilelang.jit import JITImpl
    from torch._dynamo.variables.tensor import TensorVariable
    from torch._dynamo.variables.torch_function import SymbolicTorchFunctionState

    jit = import_module("tilelang.jit")
    disable: Any = torch.compiler.disable
    for owner, name in (
        (InterpretedKernel, "__call__"),
        (JITImpl, "__call__"),
        *((owner, name) for owner in (JITImpl, jit) for name in ("compile", "par_compile")),
    ):
        reason = "a kernel of TileLang has no graph"
        setattr(owner, name, disable(getattr(owner, name), reason=reason))
    started: Any = SymbolicTorchFunctionState.__init__
    specialize: Any = TensorVariable.specialize

    @functools.wraps(started)
    def without_stand_in(state: Any, stack: Any, *args: Any, **kwargs: Any) -> None:
        modes = list(stack)
        started(state, modes, *args, **kwargs)
        for k in reversed(range(len(modes))):
            if isinstance(modes[k], TensorsOnTheCpu):
                del state.mode_stack[k]

    @functools.wraps(specialize)
    def on_the_gpu(value: Any) -> dict[str, Any]:
        found: dict[str, Any] = specialize(value)
        if TensorsOnTheCpu.entered and found["device"] == CPU and not is_host(value):
            found["device"] = CUDA
        return found

    # Dynamo runs each call of a graph on fake tensors, without the modes of the program.
    utils: Any = import_module("torch._dynamo.utils")
    run, run_under_mode = utils.run_node, under_stand_in(utils.run_node)

    @functools.wraps(run)
    def run_node(*args: Any, **kwargs: Any) -> Any:
        return (run_under_mode if TensorsOnTheCpu.entered else run)(*args, **kwargs)

    for owner, name, replacement in (
        (SymbolicTorchFunctionState, "__init__", without_stand_in),
        (TensorVariable, "specialize", staticmethod(on_the_gpu)),
        (utils, "run_node", run_node),
    ):
        setattr(owner, name, replacement)
