"""A stand-in for the CUDA device that a program asks PyTorch and TileLang for.

A program written for a GPU says `device="cuda"`, `.cuda()`, `torch.cuda.synchronize()`. Inside
`stand_in()` its tensors live on the CPU and answer `cuda:0`; questions about the device are
answered as the interpreter is (its name says so, nothing is allocated on a GPU). Time is the
one thing that is not answered: every measurement is NaN, and a note says so once.
"""

from __future__ import annotations

import math
import os
import re
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._library.custom_ops import CustomOpDef
from torch.overrides import TorchFunctionMode

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.frontend.customops import registering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["DeviceProperties", "stand_in"]

_CPU = torch.device("cpu")
_CUDA = torch.device("cuda", 0)
# Dynamic shared memory a block may use, and of an SM, in bytes, by architecture.
_SHARED = {80: (166912, 167936), 86: (101376, 102400), 89: (101376, 102400)}
_SHARED_LATER = (232448, 233472)


@dataclass(frozen=True)
class DeviceProperties:
    """What `torch.cuda.get_device_properties` answers.

    Attributes:
        multi_processor_count: the number persistent kernels launch blocks by.
        total_memory: the machine's memory in bytes: tensors live there.
    """

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    regs_per_multiprocessor: int = 65536
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    warp_size: int = 32
    L2_cache_size: int = 50 << 20
    is_integrated: bool = False
    is_multi_gpu_board: bool = False


def _properties(arch: str, sms: int) -> DeviceProperties:
    number = re.match(r"sm_(\d+)", arch)
    if number is None:
        raise ValueError(f"arch must be like 'sm_90a', got {arch!r}")
    version = int(number.group(1))
    optin, whole = _SHARED.get(version, _SHARED_LATER)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceProperties(
        name=f"tlmatrix interpreter ({arch})",
        major=version // 10,
        minor=version % 10,
        multi_processor_count=sms,
        total_memory=memory,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=optin,
        shared_memory_per_multiprocessor=whole,
    )


@contextmanager
def stand_in(*, arch: str = "sm_90a", sms: int = 8) -> Iterator[None]:
    """Answer for `cuda:0` with the CPU until the context ends.

    Args:
        arch: the architecture the device claims, like `sm_90a`.
        sms: the number of multiprocessors it claims; persistent kernels launch that many blocks.

    Raises:
        ValueError: for an `arch` that is not like `sm_90a`.
    """
    with _replaced(_of_torch(arch, sms)):
        # TileLang reads whether there is a device when it is imported: after torch answers.
        answers = _of_tilelang(arch, sms, len(sys.modules))
        mode = _OnTheCpu()
        register = registering(mode, CustomOpDef.register_kernel)
        with _replaced([*answers, (CustomOpDef, "register_kernel", register)]), mode:
            yield


@lru_cache(maxsize=4)
def _of_torch(arch: str, sms: int) -> list[tuple[Any, str, Any]]:
    return list(_torch_answers(_properties(arch, sms), _NOTE))


@lru_cache(maxsize=4)
def _of_tilelang(arch: str, sms: int, modules: int) -> list[tuple[Any, str, Any]]:
    """Made anew for another number of modules, which may have imported what is replaced."""
    del modules
    return list(_tilelang_answers(_properties(arch, sms), _NOTE))


_MISSING = object()


@contextmanager
def _replaced(answers: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    originals = [(owner, name, getattr(owner, name, _MISSING)) for owner, name, _ in answers]
    for owner, name, value in answers:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, original in reversed(originals):
            if original is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


class _Note:
    """Says once that no time is measured."""

    def __init__(self) -> None:
        self._said = False

    def nan(self, quantiles: Any = None) -> Any:
        if not self._said:
            self._said = True
            sys.stderr.write("tlmatrix: there is no GPU to time, every measured time is NaN\n")
        return [math.nan] * len(quantiles) if quantiles is not None else math.nan


_NOTE = _Note()


# Tensors ------------------------------------------------------------------------------------


def _is_cuda(device: Any) -> bool:
    if isinstance(device, str):
        return device.split(":")[0] == "cuda"
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, int) and not isinstance(device, bool)


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that was moved between host and device: other memory, unless it is a leaf.

    A leaf that requires gradients stays itself, as it would where it is on the device already.
    """
    return tensor if tensor.requires_grad and tensor.is_leaf else tensor.clone()


class _OnTheCpu(TorchFunctionMode):
    """Sends what a program asks of `cuda` to the CPU; its tensors answer that they are there."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = dict(kwargs or {})
        if func is torch.device:
            # A number alone names an accelerator, and PyTorch looks for one.
            return (
                torch.device("cuda", *args) if isinstance(args[0], int) else func(*args, **kwargs)
            )
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(*args, **kwargs)
        if func is torch.Tensor.to and len(args) > 1 and isinstance(args[1], (str, torch.device)):
            return _to(args[0], *args[1:], **kwargs)
        if "device" in kwargs and _is_cuda(kwargs["device"]):
            kwargs["device"] = _CPU
            if func is torch.Tensor.to:
                return _to(args[0], *args[1:], **kwargs)
        if any(isinstance(a, torch.device) and a.type == "cuda" for a in args):
            args = tuple(_CPU if isinstance(a, torch.device) else a for a in args)
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    args = tuple(_CPU if isinstance(a, (str, torch.device)) and _is_cuda(a) else a for a in args)
    moved = tensor.to(*args, **kwargs)
    return _moved(tensor) if moved is tensor else moved


def _device(tensor: torch.Tensor) -> torch.device:
    """Where a tensor answers that it is: on the GPU if on the CPU; `meta` stays `meta`."""
    return _CUDA if tensor.device.type == "cpu" else tensor.device


_ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.cuda: lambda tensor, *_args, **_kwargs: _moved(tensor),
    torch.Tensor.cpu: lambda tensor, *_args, **_kwargs: _moved(tensor),
    torch.Tensor.pin_memory: lambda tensor, *_args, **_kwargs: tensor,
    torch.Tensor.is_cuda.__get__: lambda tensor, *_args: _device(tensor) == _CUDA,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__: lambda tensor, *_args: _device(tensor),
    torch.Tensor.get_device: lambda _tensor: 0,
}


# Questions ----------------------------------------------------------------------------------


class _Event:
    """`torch.cuda.Event`: everything has happened already, at no known time."""

    def __init__(self, note: _Note) -> None:
        self._note = note

    def record(self, stream: Any = None) -> None:
        """Nothing to record."""

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Whether the event has happened."""
        return True

    def elapsed_time(self, other: Any) -> float:
        """NaN: no time is invented."""
        del other
        answer: float = self._note.nan()
        return answer


class _Stream:
    """`torch.cuda.Stream`: work is done in the order it is given."""

    cuda_stream = 0
    stream_id = 0
    priority = 0
    device = _CUDA

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_args: object) -> None:
        pass

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Whether the work is done."""
        return True

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Any = None) -> Any:
        """The event that is given, or a new one."""
        return event if event is not None else _Event(_Note())


class _NoGraph:
    """`torch.cuda.CUDAGraph` and `torch.cuda.graph`, which are refused where they are made."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise Unsupported(
            "the stand-in for a GPU has no CUDA graphs: leave them out where "
            "torch.cuda.get_device_name() says that it is the interpreter, and call what they "
            "would replay"
        )


def _torch_answers(properties: DeviceProperties, note: _Note) -> Iterator[tuple[Any, str, Any]]:
    """What `torch.cuda` says, as (owner, name, replacement)."""

    # Each name gets a function of its own: torch.compile's tables are by identity.
    def always(value: Any) -> Callable[..., Any]:
        return lambda *_args, **_kwargs: value

    def seeding() -> Callable[[int], None]:
        def seed(number: int) -> None:
            torch.default_generator.manual_seed(int(number))

        return seed

    stream = _Stream()
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
        "Event": lambda *_args, **_kwargs: _Event(note),
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
    yield torch.cuda.profiler, "start", always(None)
    yield torch.cuda.profiler, "stop", always(None)
    yield torch.profiler, "profile", _HostProfile
    # PyTorch looks at the class of the stream before anybody else is asked.
    yield torch.Tensor, "record_stream", always(None)
    yield torch, "Generator", _Generator
    # Compiling a reference for a CPU takes longer than it saves.
    yield torch, "compile", _uncompiled


class _HostProfile(torch.profiler.profile):
    """`torch.profiler.profile` of the host: there are no activities of a GPU to record."""

    def __init__(self, *, activities: Any = None, **options: Any) -> None:
        del activities
        options.pop("use_cuda", None)
        super().__init__(activities=[torch.profiler.ProfilerActivity.CPU], **options)


def _uncompiled(function: Any = None, **_options: Any) -> Any:
    return function if function is not None else _uncompiled


class _AnyGenerator(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch._C.Generator)  # noqa: SLF001  # the class by its own name


class _Generator(metaclass=_AnyGenerator):
    """`torch.Generator`, whose objects say of themselves where they are."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator(_CPU if _is_cuda(device) else device)  # noqa: SLF001


def _tilelang_answers(properties: DeviceProperties, note: _Note) -> Iterator[tuple[Any, str, Any]]:
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
        return note.nan(quantiles)

    def tuned(self: Any, *_args: Any, **_kwargs: Any) -> Any:
        """The first configuration: there is no time to choose by."""
        config = dict(self.configs[0]) if self.configs else {}
        given = dict(config)
        if "pass_configs" in given:
            # The tuner's own name for what is not an argument of the kernel.
            given["__pass_configs__"] = given.pop("pass_configs")
        kernel = (self.jit_compile or self._default_compile)(**given)
        return AutotuneResult(
            latency=note.nan(),
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
