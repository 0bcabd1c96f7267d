"""The device of a simulated rank: what `torch.cuda` and symmetric memory answer, and operations.

The answers are put in place once for all simulations that run, and only threads of ranks get
them; any other thread gets PyTorch's own.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from enum import IntEnum
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tlmatrix.interpreter.gpu import device_properties, is_cuda
from tlmatrix.interpreter.patching import Shared, replace_in
from tlmatrix.interpreter.reports import caller
from tlmatrix.interpreter.sync import context
from tlmatrix.interpreter.sync.context import current_rank
from tlmatrix.interpreter.sync.externs import Slot

from . import symmetric
from .graphs import Capturing, Graph, captured_at_once
from .groups import ThreadsWorld
from .streams import Done, Event, Stream, enqueue, of_this_rank, synchronize

if TYPE_CHECKING:
    from tlmatrix.interpreter.sync.agents import Request
    from tlmatrix.interpreter.sync.world import Rank


_made: list[str] = []
"""Modules that this machine lacks, and ranks get all the same."""


def _stream(*_args: Any, **_options: Any) -> Stream:
    rank = current_rank()
    return Stream(rank, str(len(rank.streams)))


def _current_stream(*_device: Any) -> Stream:
    rank = current_rank()
    rank.asks_stream = True
    return rank.stream  # type: ignore[no-any-return]


@contextmanager
def _on(stream: Stream | None) -> Iterator[None]:
    rank = current_rank()
    rank.current.append(of_this_rank(stream))
    try:
        yield
    finally:
        rank.current.pop()


def _set_stream(stream: Stream) -> None:
    current_rank().current[:] = [of_this_rank(stream)]


def _properties(*_device: Any) -> Any:
    rank = current_rank()
    return device_properties(rank.world.state["arch"], rank.world.state["sms"])


def _capability(*device: Any) -> tuple[int, int]:
    found = _properties(*device)
    return found.major, found.minor


_CUDA: dict[str, Callable[..., Any]] = {
    "current_stream": _current_stream,
    "default_stream": lambda *_device: current_rank().streams[0],
    "stream": _on,
    "set_stream": _set_stream,
    "synchronize": lambda *_device: synchronize(),
    "current_device": lambda: current_rank().number,
    "device_count": lambda: current_rank().world.size,
    "set_device": lambda *_device: None,
    "device": lambda *_device: nullcontext(),
    "get_device_properties": _properties,
    "get_device_capability": _capability,
    "is_current_stream_capturing": lambda: current_rank().stream.capture is not None,
}


def _set_pad(size: int) -> None:
    current_rank().world.memory.pad_bytes = int(size)


_SYMMETRIC: dict[str, Callable[..., Any]] = {
    "empty": symmetric.empty,
    "rendezvous": symmetric.rendezvous,
    "set_signal_pad_size": _set_pad,
    "get_signal_pad_size": lambda: current_rank().world.memory.pad_bytes,
    "enable_symm_mem_for_group": lambda _name: None,
    "is_symm_mem_enabled_for_group": lambda _name: True,
    "set_backend": lambda _name: None,
    "get_backend": lambda _device: "CUDA",
}

_FLAGS: dict[str, Callable[..., Any]] = {
    "stream_write_value32": symmetric.stream_write_value,
    "memset32": symmetric.write_value,
}

_DRIVER = "cuda.bindings.driver"
"""The driver's own functions, which come with PyTorch for GPUs."""
_DRIVER_CALLS: dict[str, Callable[..., Any]] = {
    "cuStreamWaitValue32": symmetric.stream_wait_value,
    "cuStreamWriteValue32": symmetric.stream_write_flag,
}
_DRIVER_NAMES = {
    "CUresult": ("CUDA_SUCCESS",),
    "CUstreamWaitValue_flags": ("CU_STREAM_WAIT_VALUE_GEQ", "CU_STREAM_WAIT_VALUE_EQ"),
    "CUstreamWriteValue_flags": (
        "CU_STREAM_WRITE_VALUE_DEFAULT",
        "CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER",
    ),
}
"""The driver's enumerations that go with these, with their values from 0 on."""


Replacement = tuple[Any, str, Any]


def _answer(owner: Any, name: str, simulated: Callable[..., Any]) -> Replacement:
    """A function that ranks get another answer of."""
    original = getattr(owner, name)

    def answer(*args: Any, **kwargs: Any) -> Any:
        return (original if context.rank() is None else simulated)(*args, **kwargs)

    answer.__name__ = name
    return owner, name, staticmethod(answer) if isinstance(owner, type) else answer


def _class(name: str, make: Callable[..., Any], kind: type) -> Replacement:
    """A class in the place of one of `torch.cuda`: its objects on ranks are simulated."""
    original = getattr(torch.cuda, name)

    class _Kind(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, (original, kind))

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return (original if context.rank() is None else make)(*args, **kwargs)

    return torch.cuda, name, _Kind(original.__name__, (), {"__doc__": kind.__doc__})


def _answers() -> Iterator[Replacement]:
    import torch.distributed._symmetric_memory as module
    from torch.distributed import distributed_c10d as c10d

    symm_mem: Any = module
    yield from (_answer(torch.cuda, *each) for each in _CUDA.items())
    yield _class("Stream", _stream, Stream)
    yield _class("Event", Event, Event)
    yield _class("CUDAGraph", Graph, Graph)
    yield _class("graph", Capturing, Capturing)
    yield from (_answer(symm_mem, *each) for each in _SYMMETRIC.items())
    yield from (_answer(symm_mem._SymmetricMemory, *each) for each in _FLAGS.items())  # noqa: SLF001
    driver = _driver()
    for name, call in _DRIVER_CALLS.items():
        yield _answer(driver, name, _with_result(driver, call))
    yield c10d, "_world", ThreadsWorld(c10d._world)  # noqa: SLF001  # per thread meanwhile


def _install(stack: ExitStack) -> None:
    stack.callback(_isolate, False)
    stack.callback(_remove_driver)
    replace_in(stack, _answers())
    _isolate(True)


def _driver() -> Any:
    """The driver's module, or one in its place: without a GPU PyTorch comes without it."""
    try:
        return importlib.import_module(_DRIVER)
    except ImportError:
        pass
    parts = _DRIVER.split(".")
    names = [".".join(parts[: count + 1]) for count in range(len(parts))]
    for name in names:
        if name not in sys.modules:
            sys.modules[name] = ModuleType(name, "What simulated ranks get of it.")
            sys.modules[name].__path__ = []
            _made.append(name)
    for package, name, module in zip(names, parts[1:], names[1:], strict=False):
        setattr(sys.modules[package], name, sys.modules[module])
    driver = sys.modules[_DRIVER]
    for name in _DRIVER_CALLS:
        setattr(driver, name, partial(_no_gpu, name))
    for name, values in _DRIVER_NAMES.items():
        setattr(driver, name, IntEnum(name, values, start=0))
    return driver


def _with_result(driver: Any, call: Callable[..., None]) -> Callable[..., tuple[Any]]:
    """A function of the driver, which returns whether it succeeded."""

    def done(*args: Any) -> tuple[Any]:
        call(*args)
        return (driver.CUresult.CUDA_SUCCESS,)

    return done


def _no_gpu(name: str, *_args: Any) -> None:
    raise RuntimeError(f"{name} needs a GPU, or a simulated rank: {_DRIVER} is not installed")


def _isolate(isolated: bool) -> None:
    """Whether each thread has its own names of groups."""
    c10d: Any = torch._C._distributed_c10d  # noqa: SLF001  # has no public name
    c10d._set_thread_isolation_mode(isolated)  # noqa: SLF001


def _remove_driver() -> None:
    while _made:
        del sys.modules[_made.pop()]


answering = Shared(_install, threading.Lock()).installed
"""Answers for the GPUs of ranks until the context ends."""


# PyTorch's operations on a rank: copies and fills are enqueued, others wait for the stream --------
#
# A mode sees every operation of a rank's thread. `copy_`, `fill_` and `zero_` go to the current
# stream and run later. Others first let the current stream finish, then run at once, as accesses of
# that stream; those that only allocate or view memory run at once without that.

_aten = torch.ops.aten
_LATER = {
    _aten.copy_.default: "copy",
    _aten.fill_.Scalar: "fill",
    _aten.fill_.Tensor: "fill",
    _aten.zero_.default: "zero",
}
_FREE: dict[int, Any] = {}
"""Operations that touch no element, by identity: their own hash is slow."""
_ALLOCATING = ("aten::empty", "aten::new_empty", "aten::detach", "aten::alias", "aten::lift_fresh")
_READING = frozenset({torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu})
_REPLACED = _READING | {torch.Tensor.record_stream, torch.Tensor.cuda, torch.Tensor.to}


def _is_free(func: Any) -> bool:
    """Whether an operation touches no element: it allocates, or views."""
    schema = func._schema  # noqa: SLF001  # PyTorch's own description of it
    if schema.name.startswith(_ALLOCATING):
        return True
    returned = [r.alias_info for r in schema.returns]
    return bool(returned) and all(a is not None and not a.is_write for a in returned)


class OnStreams(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch has no types
    """Runs a rank's operations on its streams."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rank = rank

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: what keeps torch.compile out of a mode imports all of it first, for a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if id(func) in _FREE:
            return func(*args, **kwargs)
        what = _LATER.get(func)
        if what is not None:
            with torch._C.DisableTorchFunction():  # noqa: SLF001  # has no public name
                return self._enqueue(func, what, args, kwargs)
        if _is_free(func):
            _FREE[id(func)] = func
            return func(*args, **kwargs)
        rank = self._rank
        stream = rank.stream
        if stream.capture is not None:
            return self._capture(func, args, kwargs)
        if not any(isinstance(t, torch.Tensor) for t in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        last = stream.last()
        if last is not None:
            rank.call_site = caller()
            rank.world.wait(rank, Done(last, f"for {stream.name}, before {func}, to finish"))
        accesses = rank.world.accesses
        if accesses is not None and accesses.follows:
            self._note(stream, func, args, kwargs)
        return func(*args, **kwargs)

    def _note(self, stream: Stream, func: Any, args: Any, kwargs: Any) -> None:
        """Note what an operation that runs at once reads and writes."""
        stream.learn(self._rank.clock)
        stream.tick()
        with torch._C.DisableTorchFunction():  # noqa: SLF001  # has no public name
            self._touch(stream, func, args, kwargs, caller())
        stream.tick()

    def _capture(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Capture an operation that runs at once."""
        place = caller()
        accesses = self._rank.world.accesses

        def note(stream: Stream, made: list[torch.Tensor]) -> None:
            if accesses is None:
                return
            self._touch(stream, func, args, kwargs, place)
            for tensor in made:
                accesses.touch(tensor, "write", str(func).removeprefix("aten."), agent=stream)

        return captured_at_once(func, args, kwargs, note)

    def _touch(
        self, stream: Stream, func: Any, args: Any, kwargs: Any, place: tuple[str, int]
    ) -> None:
        accesses = self._rank.world.accesses
        assert accesses is not None
        name = str(func).removeprefix("aten.")
        arguments = func._schema.arguments  # noqa: SLF001
        named = [(argument, kwargs.get(argument.name)) for argument in arguments]
        for argument, value in (*zip(arguments, args, strict=False), *named):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tree_leaves(value):
                if isinstance(tensor, torch.Tensor):
                    action = "write" if writes else "read"
                    accesses.touch(tensor, action, name, agent=stream, place=place)

    def _enqueue(self, func: Any, what: str, args: Any, kwargs: Any) -> Any:
        world = self._rank.world
        given = args[0]
        with torch._C._DisableTorchDispatch():  # noqa: SLF001  # has no public name
            args = tuple(
                world.memory.borrowed(a.detach()) if isinstance(a, torch.Tensor) else a
                for a in args
            )
        target = args[0]

        # A copy of contiguous memory is the copy engine's; the rest are kernels.
        engine = what == "zero" or (
            what == "copy"
            and args[1].dtype == target.dtype
            and args[1].shape == target.shape
            and args[1].is_contiguous()
            and target.is_contiguous()
        )

        def work(stream: Stream) -> Iterator[Request]:
            if not engine:
                yield Slot(stream.host, f"a {what}")
            if world.accesses is not None:
                for tensor in args[1:]:
                    if isinstance(tensor, torch.Tensor):
                        world.accesses.touch(tensor, "read", what)
                world.accesses.touch(target, "write", what)
            with torch.no_grad():
                func(*args, **kwargs)

        enqueue(what, work)
        return given


class _BesideCompiled(OnStreams):  # type: ignore[no-untyped-call]  # as above
    """The mode where something may be compiled, which must not trace it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    __torch_dispatch__ = OnStreams.__torch_dispatch__  # what PyTorch looks for to keep it out


def on_streams(rank: Rank) -> OnStreams:
    """The mode that runs a rank's operations on its streams."""
    return (_BesideCompiled if "torch._dynamo" in sys.modules else OnStreams)(rank)


class HostReads(TorchFunctionMode):
    """What the host reads without an operation waits for the stream too; `cuda` is the CPU."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self._rank = rank

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        if not kwargs and func not in _REPLACED:
            return func(*args)
        kwargs = kwargs or {}
        if func in _READING:
            self._rank.stream.synchronize()
        elif func is torch.Tensor.record_stream:
            return None
        elif func is torch.Tensor.cuda:
            return args[0]
        elif "device" in kwargs and is_cuda(kwargs["device"]):
            kwargs = {**kwargs, "device": torch.device("cpu")}
        elif func is torch.Tensor.to and any(is_cuda(a) for a in args[1:]):
            args = (args[0], *("cpu" if is_cuda(a) else a for a in args[1:]))
        return func(*args, **kwargs)
