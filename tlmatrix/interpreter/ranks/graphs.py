"""CUDA graphs: the work of a rank's streams, captured and replayed.

A capture notes operations in place of running them: kernels with the arguments they were launched
with, copies, barriers, values of flags. A replay runs the same ones, in the order of the captured
streams and events, beside other work. So a value that the host chose at the capture, such as a
counter, is the same in every replay.

What CUDA refuses while it captures is refused: waiting for a stream, or reading from it; waiting
for what is not captured, or leaving behind what nothing waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from tlmatrix.interpreter.reports import caller
from tlmatrix.interpreter.sync.context import current_rank

from .streams import Done, Operation, Stream, enqueue, synchronize, waiting

if TYPE_CHECKING:
    from tlmatrix.interpreter.sync.agents import Request


class Capture:
    """The captured operations, by stream.

    Attributes:
        origin: the stream that began.
        branches: the operations of each stream, in order; one joins by waiting for another.
        over: whether it has ended.
    """

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self.branches: dict[Stream, list[Operation]] = {}
        self.after: dict[int, Operation] = {}
        self.over = False
        self._join(origin)

    def _join(self, stream: Stream) -> None:
        stream.capture = self
        self.branches.setdefault(stream, [])

    def note(self, stream: Stream, operation: Operation) -> Operation:
        """Remember an operation in place of running it."""
        operation.capture = self
        self.branches[stream].append(operation)
        return operation

    def wait(self, stream: Stream, target: Operation, what: str) -> None:
        """A stream waits for an operation, one of the two captured.

        Raises:
            RuntimeError: the other is not, or of another capture.
        """
        if target.capture is not self:
            raise RuntimeError(
                f"a stream that is captured to a CUDA graph waits {what}, which is not captured "
                "(cudaErrorStreamCaptureIsolation): a graph cannot wait for what is outside of it"
            )
        if self.over:
            raise RuntimeError(
                f"{stream.name} waits {what}, which was captured to a CUDA graph "
                "(cudaErrorCapturedEvent): wait for the stream that the graph is replayed on"
            )
        self._join(stream)
        operation = Operation(f"wait {what}", waiting(target, what), caller(), {})
        self.after[id(operation)] = target
        self.note(stream, operation)

    def refuse(self, what: str) -> NoReturn:
        """Raise the error of what CUDA does not do while it captures.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            f"{what}: operation not permitted when stream is capturing "
            "(cudaErrorStreamCaptureUnsupported)"
        )

    def end(self) -> None:
        """End the capture: the streams run their work again."""
        self.over = True
        for stream in self.branches:
            stream.capture = None

    def unjoined(self) -> Operation | None:
        """The last operation of a stream that the origin does not wait for in the end."""
        reached: set[int] = set()
        own = self.branches[self.origin]
        left = [own[-1]] if own else []
        before = {
            id(later): earlier
            for operations in self.branches.values()
            for earlier, later in pairwise(operations)
        }
        while left:
            operation = left.pop()
            if id(operation) in reached:
                continue
            reached.add(id(operation))
            found = (before.get(id(operation)), self.after.get(id(operation)))
            left += [each for each in found if each is not None]
        ends = (operations[-1] for operations in self.branches.values() if operations)
        return next((each for each in ends if id(each) not in reached), None)


class Graph:
    """A simulated `torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        del keep_graph
        self._capture: Capture | None = None
        self._streams: dict[Stream, Stream] = {}
        self._last: Operation | None = None

    def capture_begin(self, *_pool: Any, **_options: Any) -> None:
        """Capture later work of the current stream.

        Raises:
            RuntimeError: it is captured already, or the graph has been.
        """
        stream = current_rank().stream
        if stream.capture is not None:
            stream.capture.refuse("the beginning of a capture")
        if self._capture is not None:
            raise RuntimeError("this CUDA graph has been captured already: make another, or reset")
        self._capture = Capture(stream)

    def capture_end(self) -> None:
        """The end of the capture.

        Raises:
            RuntimeError: there is none, or it has work that its first stream does not wait for.
        """
        capture = self._capture
        if capture is None or capture.over:
            raise RuntimeError("no capture of this CUDA graph is under way")
        left = capture.unjoined()
        capture.end()
        if left is not None:
            self._capture = None
            raise RuntimeError(
                f"the capture of a CUDA graph ends, and its first stream does not wait for the "
                f"{left.what} at {left.place[0]}:{left.place[1]} on another one "
                "(cudaErrorStreamCaptureUnjoined): wait_stream, or an event, before the end"
            )
        rank = current_rank()
        self._streams = {
            stream: Stream(rank, f"{number} of a graph")
            for number, stream in enumerate(capture.branches)
        }

    def drop(self) -> None:
        """End a capture in which something was raised."""
        if self._capture is not None:
            self._capture.end()
            self._capture = None

    reset = drop

    def pool(self) -> tuple[int, int]:
        """The name of a pool of memory; what is captured keeps its own."""
        return (0, id(self))

    def replay(self) -> None:
        """Enqueue the captured work on the current stream.

        Raises:
            RuntimeError: nothing was.
        """
        capture = self._capture
        if capture is None or not capture.over:
            raise RuntimeError("replay of a CUDA graph that has not been captured")

        before = self._last

        def work(stream: Stream) -> Iterator[Request]:
            if before is not None:  # a graph does not overlap itself, whichever streams replay it
                yield Done(before, "for the replay of the same graph before")
            yield from self._run(capture, stream)

        self._last = enqueue("replay of a CUDA graph", work)

    def _run(self, capture: Capture, stream: Stream) -> Iterator[Request]:
        again = {
            id(operation): Operation(operation.what, operation.work, operation.place, {})
            for operations in capture.branches.values()
            for operation in operations
        }
        for number, target in capture.after.items():
            again[number].work = waiting(again[id(target)], again[number].what.partition(" ")[2])
        clock = dict(stream.clock)
        ends = []
        for branch, operations in capture.branches.items():
            for operation in operations:
                copy = again[id(operation)]
                copy.host_clock = clock
                self._streams[branch].queue.append(copy)
            if operations:
                ends.append(again[id(operations[-1])])
        for end in ends:
            yield Done(end, "for a CUDA graph that it replays to end")


class Capturing:
    """A simulated `torch.cuda.graph`: what is enqueued inside is captured."""

    def __init__(
        self, cuda_graph: Graph, pool: Any = None, stream: Any = None, **_options: Any
    ) -> None:
        del pool
        self._graph = cuda_graph
        self._stream: Stream | None = stream

    def __enter__(self) -> None:
        rank = current_rank()
        synchronize()
        if self._stream is None:
            self._stream = rank.state.get("capturing")
        if self._stream is None:
            self._stream = rank.state["capturing"] = Stream(rank, f"{len(rank.streams)}")
        rank.current.append(self._stream)
        try:
            self._graph.capture_begin()
        except RuntimeError:
            rank.current.pop()
            raise

    def __exit__(self, kind: object, *_error: object) -> None:
        try:
            if kind is None:
                self._graph.capture_end()
            else:
                self._graph.drop()
        finally:
            current_rank().current.pop()


def captured_at_once(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Any,
    note: Callable[[Stream, list[torch.Tensor]], None],
) -> Any:
    """Capture an operation of PyTorch that is not enqueued otherwise; what it returns.

    Results have their shapes now, and values with each replay: until then they are NaN. What it
    writes to stays as it is. `note` is called with the stream and the results, before these are
    computed.

    Raises:
        RuntimeError: the host would have to know values.
    """
    rank = current_rank()
    capture = rank.stream.capture
    assert capture is not None
    name = str(func).removeprefix("aten.")
    tags = getattr(func, "tags", ())
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        capture.refuse(f"{name}, whose result the host must know,")
    schema = func._schema  # type: ignore[attr-defined]  # noqa: SLF001  # PyTorch's own description
    given = dict(zip((each.name for each in schema.arguments), args, strict=False)) | (kwargs or {})
    written = [
        given[each.name]
        for each in schema.arguments
        if each.alias_info is not None
        and each.alias_info.is_write
        and isinstance(given.get(each.name), torch.Tensor)
    ]
    with torch.no_grad():
        kept = [tensor.detach().clone() for tensor in written]
        result = func(*args, **kwargs)
        for tensor, old in zip(written, kept, strict=True):
            tensor.detach().copy_(old)
        known = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs)) if t.numel()}
        made = {
            number: tensor.detach()
            for number, tensor in enumerate(_tensors(result))
            if tensor.numel() and tensor.untyped_storage().data_ptr() not in known
        }
        for tensor in made.values():
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))

    def work(stream: Stream) -> None:
        note(stream, list(made.values()))
        with torch.no_grad():
            again = _tensors(func(*args, **kwargs))
            for number, target in made.items():
                target.copy_(again[number].detach())

    enqueue(name, work)
    return result


def _tensors(value: Any) -> list[torch.Tensor]:
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
