"""What `torch.cuda`, `torch.compile`, TileLang and TVM answer of the device."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.frontend.kernel import InterpretedKernel
from tlmatrix.interpreter.gpu import is_cuda
from tlmatrix.interpreter.ranks.streams import Event, HostStream

from .tensors import CPU, CUDA, TensorsOnTheCpu, is_host, under_stand_in

if TYPE_CHECKING:
    from tlmatrix.interpreter.gpu import DeviceProperties


# `torch.compile` in a program that takes the CPU for its GPU: Dynamo traces as on a GPU -----------
#
# A function is traced where the program can tell: with `fullgraph=True`, which promises that it can
# be traced, or for a backend that is not made for the device. Otherwise it runs as written: code
# for a CPU takes longer to make than it saves.

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


# Answers ------------------------------------------------------------------------------------------


# `torch.cuda`: streams, events, graphs and questions about the device -----------------------------


def no_time(quantiles: Any = None) -> Any:
    """A measured time, or one for each quantile: NaN, as there is no GPU."""
    _note_no_time()
    return math.nan if quantiles is None else [math.nan] * len(quantiles)


@cache  # once in a process
def _note_no_time() -> None:
    sys.stderr.write("tlmatrix: there is no GPU to time, every measured time is NaN\n")


class _Event(Event):
    """An event whose time is asked for: no time is invented."""

    def elapsed_time(self, other: Any) -> float:
        """NaN, and a note."""
        del other
        answer: float = no_time()
        return answer


class _Stream(HostStream):
    """`torch.cuda.Stream` of the stand-in."""

    cuda_stream = 0
    stream_id = 0
    priority = 0
    device = CUDA
    default = False

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def query(self) -> bool:
        """Whether the work is done."""
        return True

    def record_event(self, event: Any = None) -> Any:
        """The event that is given, or a new one."""
        return super().record_event(event if event is not None else _Event())


class _DefaultStream(_Stream):
    """The default stream, which is the current one outside of a simulation."""

    default = True


class _NoGraph:
    """`torch.cuda.CUDAGraph` and `torch.cuda.graph`, which are refused where they are made."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise Unsupported(
            "the stand-in for a GPU has no CUDA graphs: leave them out where "
            "torch.cuda.get_device_name() says that it is the interpreter, and call what they "
            "would replay"
        )


def torch_answers(properties: DeviceProperties) -> Iterator[tuple[Any, str, Any]]:
    """What `torch.cuda` says, as (owner, name, replacement)."""

    # Each name gets a function of its own: torch.compile's tables are by identity.
    def always(value: Any) -> Callable[..., Any]:
        return lambda *_args, **_kwargs: value

    def seeding() -> Callable[[int], None]:
        def seed(number: int) -> None:
            torch.default_generator.manual_seed(int(number))

        return seed

    stream = _DefaultStream()
    answers = {
        "is_available": always(True),
        "is_initialized": always(True),
        "device_count": always(1),
        "current_device": always(0),
        "get_device_name": always(properties.name),
        "get_device_capability": always((properties.major, properties.minor)),
        "get_device_properties": always(properties),
        "get_arch_list": always([f"sm_{properties.major}{properties.minor}"]),
        "is_bf16_supported": always(True),
        "mem_get_info": always((properties.total_memory, properties.total_memory)),
        "memory_allocated": always(0),
        "max_memory_allocated": always(0),
        "memory_reserved": always(0),
        "max_memory_reserved": always(0),
        "current_stream": always(stream),
        "default_stream": always(stream),
        "stream": lambda _stream: nullcontext(),
        "device": lambda _device: nullcontext(),
        "Stream": _Stream,
        "ExternalStream": _Stream,
        "is_current_stream_capturing": always(False),
        "CUDAGraph": _NoGraph,
        "graph": _NoGraph,
        "make_graphed_callables": lambda functions, *_args, **_kwargs: functions,
        "get_rng_state": lambda *_args: torch.get_rng_state(),
        "set_rng_state": lambda state, *_args: torch.set_rng_state(state),
        "Event": _Event,
        "manual_seed": seeding(),
        "manual_seed_all": seeding(),
    }
    for name, value in answers.items():
        yield torch.cuda, name, value
    for name in (
        *("init", "_lazy_init", "synchronize", "empty_cache", "set_device", "ipc_collect"),
        *("reset_peak_memory_stats", "reset_max_memory_allocated", "set_stream", "check_error"),
        *("set_per_process_memory_fraction", "reset_accumulated_memory_stats"),
    ):
        yield torch.cuda, name, always(None)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        yield torch.cuda.nvtx, name, always(None)
    # A build of PyTorch for CUDA would ask a driver.
    yield torch.accelerator, "is_available", always(False)
    yield torch.cuda.profiler, "start", always(None)
    yield torch.cuda.profiler, "stop", always(None)
    yield torch.profiler, "profile", _HostProfile
    # PyTorch looks at the class of the stream before its attributes are looked up.
    yield torch.Tensor, "record_stream", always(None)
    yield torch, "Generator", _Generator


class _HostProfile(torch.profiler.profile):
    """`torch.profiler.profile` of the host: there are no activities of a GPU to record."""

    def __init__(self, *, activities: Any = None, **options: Any) -> None:
        del activities
        options.pop("use_cuda", None)
        super().__init__(activities=[torch.profiler.ProfilerActivity.CPU], **options)


class _AnyGenerator(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch._C.Generator)  # noqa: SLF001  # the class by its own name


class _Generator(metaclass=_AnyGenerator):
    """`torch.Generator`, of plain generators, which have the device of the CPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator(CPU if is_cuda(device) else device)  # noqa: SLF001


# What TileLang and TVM ask of a GPU and its driver, TileLang's profiler and autotuner -------------


def tilelang_answers(properties: DeviceProperties) -> Iterator[tuple[Any, str, Any]]:
    """What TileLang's profiler and driver say, as (owner, name, replacement)."""
    from tilelang.autotuner import AutoTuner
    from tilelang.autotuner.param import AutotuneResult
    from tilelang.carver.arch.driver import cuda_driver
    from tilelang.contrib import nvcc
    from tilelang.cuda import target as cuda_target
    from tilelang.utils import device

    def do_bench(fn: Any = None, *_args: Any, quantiles: Any = None, **_kwargs: Any) -> Any:
        """Call the function once: a benchmark that fails on a GPU fails here too."""
        if fn is not None:
            fn()
        return no_time(quantiles)

    def tuned(self: Any, *_args: Any, **_kwargs: Any) -> Any:
        """The first configuration: there is no time to choose by."""
        config = dict(self.configs[0]) if self.configs else {}
        given = dict(config)
        if "pass_configs" in given:
            # The tuner's own name for what is not an argument of the kernel.
            given["__pass_configs__"] = given.pop("pass_configs")
        kernel = (self.jit_compile or self._default_compile)(**given)
        return AutotuneResult(
            latency=no_time(),
            config=config,
            ref_latency=math.nan,
            libcode=kernel.source,
            func=kernel.prim_func,
            kernel=kernel,
        )

    attributes = {
        1: properties.max_threads_per_block,
        12: properties.regs_per_multiprocessor,
        81: properties.shared_memory_per_multiprocessor,
        108: properties.L2_cache_size,
    }
    yield device, "IS_CUDA", True
    yield device, "get_current_device", lambda: "cuda:0"
    yield device, "device_synchronize", lambda *_args: None
    yield cuda_driver, "get_device_attribute", lambda attr, *_args: attributes.get(int(attr), 0)
    yield from _tvm_answers(properties)
    compute_version = nvcc.get_target_compute_version

    def version(target: Any = None) -> Any:
        return compute_version(target) if target else f"{properties.major}.{properties.minor}"

    yield nvcc, "get_target_compute_version", version
    yield AutoTuner, "run", tuned
    yield cuda_target, "check_cuda_availability", lambda: True
    # The function is imported under its name into several modules.
    for module in list(sys.modules.values()):
        found = getattr(module, "__dict__", {}).get("do_bench")
        if getattr(found, "__module__", None) == "tilelang.profiler.bench":
            yield module, "do_bench", do_bench


def _tvm_answers(properties: DeviceProperties) -> Iterator[tuple[Any, str, Any]]:
    """What `tvm.cuda(0)` says: tests ask it whether to skip, and for the compute version."""
    from tilelang import tvm

    cuda = tvm.cuda(0).dlpack_device_type()
    ask = tvm.runtime.Device._GetDeviceAttr  # noqa: SLF001 - all of its properties end here
    # By TVM's DeviceAttrKind.
    attributes = {
        0: 1,
        1: properties.max_threads_per_block,
        2: properties.warp_size,
        3: properties.shared_memory_per_block,
        4: f"{properties.major}.{properties.minor}",
        5: properties.name,
        7: properties.multi_processor_count,
        8: "[1024, 1024, 64]",
        13: properties.L2_cache_size,
        14: properties.total_memory,
        15: properties.total_memory,
    }

    def answer(self: Any, kind: int, index: int, attribute: int) -> Any:
        if kind == cuda and index == 0 and attribute in attributes:
            return attributes[attribute]
        return ask(self, kind, index, attribute)

    yield tvm.runtime.Device, "_GetDeviceAttr", answer
