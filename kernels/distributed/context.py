"""What the operators of several ranks keep from call to call: buffers, flags, a stream, epochs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tlmatrix_kernels.distributed.barriers import barrier
from tlmatrix_kernels.distributed.memory import SymmetricBuffer, allocate

__all__ = ["Context", "create_context"]

SMALLEST = 1 << 16
"""Bytes of the smallest buffer: growing costs a synchronisation."""
MAX_CACHED_CALLS = 256
"""Calls that are kept ready: more kinds than a model has layers."""
_GRAPH_CHANNEL = 1

Prepared = TypeVar("Prepared")


class Context:
    """Buffers, flags, a side stream and epochs of one process group, on one device.

    Made once by every rank (`create_context`), then passed to every call; shapes may change from
    call to call. All ranks make the same calls in the same order, as with any collective.

    *Epochs.* Each operator counts its calls, by its name; flags are raised to the epoch and never
    lowered.

    *Two halves.* Buffers that peers read are there twice, and calls take turns (`epoch % 2`). An
    operator has one barrier of all ranks in each call, and its stream has waited for its pulls when
    the call ends. So when the barrier of a call has let a rank pass, every peer is done with what
    it pulled in the call before, and the half that the next call writes is nobody's.

    Attributes:
        group: the process group; None with a world of one.
        rank: of this process in the group.
        world: ranks of the group.
        device: where its buffers lie.
    """

    def __init__(
        self, group: ProcessGroup | None, rank: int, world: int, device: torch.device
    ) -> None:
        self.group = group
        self.rank = rank
        self.world = world
        self.device = device
        self._buffers: dict[str, SymmetricBuffer] = {}
        self._epochs: dict[str, int] = {}
        self._counts: dict[str, list[int]] = {}
        self._agreed: dict[tuple[Any, ...], int] = {}
        self._prepared: dict[tuple[Any, ...], Any] = {}
        self._stream: torch.cuda.Stream | None = None
        self._last: torch.cuda.Stream | None = None

    def __repr__(self) -> str:
        return f"Context(rank={self.rank}, world={self.world}, device={self.device})"

    def next_epoch(self, operator: str) -> int:
        """The epoch of a call of `operator` that begins now, counted from 1.

        Where the caller's stream is another than in the last call, it waits for that one.
        """
        if self.world > 1 and not self.capturing():  # a graph waits for nothing outside of it
            stream = torch.cuda.current_stream()
            if self._last is not None and self._last != stream:
                stream.wait_stream(self._last)
            self._last = stream
        self._epochs[operator] = epoch = self._epochs.get(operator, 0) + 1
        return epoch

    def expected_counts(self, operator: str, added: list[int]) -> list[int]:
        """What the counters of `operator` will have come to when `added` to each was counted.

        Every rank keeps these sums of all ranks' counters itself: equal calls add equally.
        """
        before = self._counts.get(operator, [0] * len(added))
        self._counts[operator] = after = [old + new for old, new in zip(before, added, strict=True)]
        return after

    def cached(self, key: tuple[Any, ...], make: Callable[[], Prepared]) -> Prepared:
        """What `make` gave when a call with this key was first made: checked, and its kernel found.

        Nothing of a key depends on what its tensors hold. What peers' memory it has must be looked
        up again once a buffer has grown: then all is forgotten.
        """
        found = self._prepared.get(key)
        if found is None:
            found = make()
            if len(self._prepared) >= MAX_CACHED_CALLS:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[key] = found
        return found

    def agreed_max(self, key: tuple[Any, ...], mine: int) -> int:
        """The largest `mine` of all ranks in the first call with this key; a collective in that.

        Args:
            key: of values that are the same on all ranks, or some would wait for the others.
            mine: of this rank.
        """
        if self.world == 1:
            return mine
        if key not in self._agreed:
            most = torch.tensor([mine], device=self.device)
            dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self.group)
            self._agreed[key] = int(most)
        return self._agreed[key]

    def side_stream(self) -> torch.cuda.Stream:
        """The stream of pulls and reductions; it waits for what is enqueued on the current one.

        Of high priority: what it launches goes before waiting blocks of the main kernel.
        """
        if self._stream is None:
            self._stream = torch.cuda.Stream(priority=-1)
        self._stream.wait_stream(torch.cuda.current_stream())
        return self._stream

    def capturing(self) -> bool:
        """Whether the current stream is being captured to a CUDA graph."""
        if self.device.type != "cuda" and self.group is None:
            return False
        try:  # simulated ranks have streams as well, CPU processes none
            return torch.cuda.is_current_stream_capturing()
        except RuntimeError:
            return False

    @contextmanager
    def graph_barriers(self, buffer: SymmetricBuffer) -> Iterator[None]:
        """Around what a call does with a buffer, so that it may be captured to a CUDA graph.

        Replays of a graph do not take turns: all use the half that was captured. So a graph has
        barriers of its own, before the half is written and behind its last reader.
        """
        captured = self.capturing()
        if captured:
            barrier(buffer, _GRAPH_CHANNEL)
        yield
        if captured:
            barrier(buffer, _GRAPH_CHANNEL)

    def buffer(self, name: str, size: int) -> SymmetricBuffer:
        """The symmetric buffer of that name, of at least `size` bytes; contents are not kept.

        All ranks ask for the same sizes. Growing waits for all ranks and for the device, so that
        nobody reads what is given up.

        Raises:
            RuntimeError: it is to grow while a graph is captured.
        """
        old = self._buffers.get(name)
        if old is not None and old.storage.numel() >= size:
            return old
        if self.capturing():
            raise RuntimeError(
                f"buffer {name!r} is to grow to {size} bytes while a graph is captured: "
                "call the operator twice with such shapes before"
            )
        if old is not None:
            barrier(old)
            if self.device.type == "cuda":  # among ranks `allocate` waits as well
                torch.cuda.synchronize(self.device)
            self._prepared.clear()
        grown = max(SMALLEST, 1 << (size - 1).bit_length())
        new = allocate(grown, self.device, self.group, self.rank, self.world)
        self._buffers[name] = new
        return new

    def flags(self, name: str, count: int) -> SymmetricBuffer:
        """`count` int32 flags on every rank, zero when they are made and kept from then on.

        Raises:
            ValueError: more flags than the first call asked for.
        """
        old = self._buffers.get(name)
        if old is not None:
            if old.storage.numel() < 4 * count:
                raise ValueError(
                    f"flags {name!r} were made for {old.storage.numel() // 4}, got count={count}"
                )
            return old
        new = allocate(max(4 * count, 64), self.device, self.group, self.rank, self.world)
        new.storage.zero_()
        barrier(new)  # nobody raises a flag of ours before it is zero
        self._buffers[name] = new
        return new


def create_context(
    group: ProcessGroup | None = None, *, device: torch.device | str | None = None
) -> Context:
    """The context of this process in `group`, by default all processes; every rank calls it.

    Without an initialised `torch.distributed` it is a world of one.

    Args:
        group: whose ranks take part: those of one node, connected by NVLink.
        device: where buffers lie; by default the current GPU, or the CPU where there is none.
    """
    if device is None:
        gpu = torch.cuda.is_available()
        device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    if not dist.is_initialized():
        return Context(None, 0, 1, torch.device(device))
    group = group or dist.group.WORLD
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    return Context(group, rank, world, torch.device(device))
