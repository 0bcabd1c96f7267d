"""What `torch.cuda` and torch's symmetric memory answer on a simulated rank.

The answers are put in place once for all simulations that run, and only threads of ranks get
them; any other thread gets PyTorch's own.
"""

from __future__ import annotations

import importlib
import sys
import threading
from contextlib import contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.interpreter.gpu import device_properties
from tlmatrix.interpreter.sync import context
from tlmatrix.interpreter.sync.context import current_rank

from . import symmetric
from .graphs import Capturing, Graph
from .groups import ThreadsWorld
from .streams import Event, Stream, of_this_rank, synchronize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_lock = threading.Lock()
_users = 0
_replaced: list[tuple[Any, str, Any]] = []
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
    own = of_this_rank(stream) if stream is not None else None
    rank.current.append(own if own is not None else rank.stream)
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
}


def _answer(owner: Any, name: str, simulated: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    def answer(*args: Any, **kwargs: Any) -> Any:
        return (original if context.rank() is None else simulated)(*args, **kwargs)

    answer.__name__ = name
    _replace(owner, name, staticmethod(answer) if isinstance(owner, type) else answer)


def _replace(owner: Any, name: str, value: Any) -> None:
    _replaced.append((owner, name, getattr(owner, name)))
    setattr(owner, name, value)


def _class(original: Any, make: Callable[..., Any], kind: type) -> Any:
    """A class in the place of one of `torch.cuda`: its objects on ranks are simulated."""

    class _Kind(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, (original, kind))

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return (original if context.rank() is None else make)(*args, **kwargs)

    return _Kind(original.__name__, (), {"__doc__": kind.__doc__})


def _install() -> None:
    import torch.distributed._symmetric_memory as module
    from torch.distributed import distributed_c10d as c10d

    symm_mem: Any = module
    for name, simulated in _CUDA.items():
        _answer(torch.cuda, name, simulated)
    _replace(torch.cuda, "Stream", _class(torch.cuda.Stream, _stream, Stream))
    _replace(torch.cuda, "Event", _class(torch.cuda.Event, Event, Event))
    _replace(torch.cuda, "CUDAGraph", _class(torch.cuda.CUDAGraph, Graph, Graph))
    _replace(torch.cuda, "graph", _class(torch.cuda.graph, Capturing, Capturing))
    for name, simulated in _SYMMETRIC.items():
        _answer(symm_mem, name, simulated)
    for name, simulated in _FLAGS.items():
        _answer(symm_mem._SymmetricMemory, name, simulated)  # noqa: SLF001
    driver = _driver()
    for name, simulated in _DRIVER_CALLS.items():
        _answer(driver, name, simulated)
    _replace(c10d, "_world", ThreadsWorld(c10d._world))  # noqa: SLF001  # per thread meanwhile
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
    return driver


def _no_gpu(name: str, *_args: Any) -> None:
    raise RuntimeError(f"{name} needs a GPU, or a simulated rank: {_DRIVER} is not installed")


def _isolate(isolated: bool) -> None:
    """Whether each thread has its own names of groups."""
    c10d: Any = torch._C._distributed_c10d  # noqa: SLF001  # has no public name
    c10d._set_thread_isolation_mode(isolated)  # noqa: SLF001


def _remove() -> None:
    while _replaced:
        owner, name, original = _replaced.pop()
        setattr(owner, name, original)
    while _made:
        del sys.modules[_made.pop()]
    _isolate(False)


@contextmanager
def answering() -> Iterator[None]:
    """Answer for the GPUs of ranks until the context ends."""
    global _users  # noqa: PLW0603  # counts the simulations that need the answers
    with _lock:
        if _users == 0:
            _install()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _remove()
