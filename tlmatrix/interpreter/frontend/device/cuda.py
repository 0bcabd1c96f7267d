"""`torch.cuda`: streams, events, graphs and questions about the device."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import torch

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.gpu import is_cuda
from tlmatrix.interpreter.ranks.streams import Event, of_this_rank
from tlmatrix.interpreter.sync import context

from .tensors import CPU, CUDA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tlmatrix.interpreter.gpu import DeviceProperties


def no_time(quantiles: Any = None) -> Any:
    """A measured time, or one for each quantile: NaN, as there is no GPU."""
    _note_no_time()
    return math.nan if quantiles is None else [math.nan] * len(quantiles)


@cache  # once in a process
def _note_no_time() -> None:
    sys.stderr.write("tlmatrix: there is no GPU to time, every measured time is NaN\n")


class _Event:
    """`torch.cuda.Event`: everything has happened already, at no known time.

    On a simulated rank, `record` makes it an event of the simulation.
    """

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.operation: Any = None

    def record(self, stream: Any = None) -> None:
        """It happens when the work before is done, which it is outside of a simulation."""
        if context.rank() is not None:
            event = Event()
            event.record(stream)
            self.operation = event.operation

    def wait(self, stream: Any = None) -> None:
        """Later work of `stream` waits for it."""
        if context.rank() is not None:
            (stream if stream is not None else context.current_rank().stream).wait_event(self)

    def synchronize(self) -> None:
        """The host waits for it."""
        if context.rank() is not None and self.operation is not None:
            event = Event()
            event.operation = self.operation
            event.synchronize()

    def query(self) -> bool:
        """Whether the event has happened."""
        return True

    def elapsed_time(self, other: Any) -> float:
        """NaN: no time is invented."""
        del other
        answer: float = no_time()
        return answer


class _Stream:
    """`torch.cuda.Stream`: work is done in the order it is given.

    An entry may keep one that it uses on a simulated rank later: there it is a stream of the rank.
    """

    cuda_stream = 0
    stream_id = 0
    priority = 0
    device = CUDA
    default = False

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __enter__(self) -> Self:
        if (simulated := of_this_rank(self)) is not None:
            simulated.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if (simulated := of_this_rank(self)) is not None:
            simulated.__exit__(*error)

    def wait_stream(self, stream: Any) -> None:
        """Later work waits for the work of another stream."""
        if (simulated := of_this_rank(self)) is not None:
            simulated.wait_stream(stream)

    def wait_event(self, event: Any) -> None:
        """Later work waits for an event."""
        if (simulated := of_this_rank(self)) is not None:
            simulated.wait_event(event)

    def synchronize(self) -> None:
        """The host waits for the work."""
        if (simulated := of_this_rank(self)) is not None:
            simulated.synchronize()

    def query(self) -> bool:
        """Whether the work is done."""
        return True

    def record_event(self, event: Any = None) -> Any:
        """The event that is given, or a new one."""
        event = event if event is not None else _Event()
        event.record(self)
        return event


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
