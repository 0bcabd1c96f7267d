"""PyTorch's operations on a rank: copies and fills are enqueued, others wait for the stream.

A mode sees every operation of a rank's thread. `copy_`, `fill_` and `zero_` go to the current
stream and run later. Others first let the current stream finish, then run at once, as accesses of
that stream; those that only allocate or view memory run at once without that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tlmatrix.interpreter.callsite import caller
from tlmatrix.interpreter.gpu import is_cuda
from tlmatrix.interpreter.sync.dispatch import Slot

from .graphs import captured_at_once
from .streams import Done, enqueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.interpreter.sync.agents import Request
    from tlmatrix.interpreter.sync.world import Rank

    from .streams import Stream

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
