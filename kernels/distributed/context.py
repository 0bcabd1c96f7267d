"""State that multi-GPU operators keep between calls: buffers, flags, a side stream and epochs."""

import platform
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tlmatrix_kernels.distributed.agreement import check_equal
from tlmatrix_kernels.distributed.barriers import barrier
from tlmatrix_kernels.distributed.memory import SymmetricBuffer, allocate
from tlmatrix_kernels.distributed.topology import Links, gpu_name, nvlinks_between

SMALLEST = 1 << 16
"""Bytes of the smallest buffer; growing a buffer synchronizes."""
MAX_CACHED_CALLS = 256
"""Cached checked calls; more than the distinct calls of a model."""
MAX_AGREED_CALLS = 4096
"""Remembered agreements on sizes; the oldest is forgotten first, by all ranks alike."""
_GRAPH_CHANNEL = 1

Prepared = TypeVar("Prepared")


class Context:
    """Buffers, flags, a side stream and epochs of one process group, on one device.

    Every rank creates one (`create_context`) and passes it to every call; shapes may differ between
    calls. All ranks make the same calls in the same order, as with any collective, and change sizes
    in the same call: at the first use of sizes they agree on them (`agree`), or all raise.

    *Epochs.* Each operator counts its calls; flags are set to the epoch and never decrease.

    *Double buffering.* Buffers that peers read exist twice, and calls alternate (`epoch % 2`). Each
    call of an operator has one barrier of all ranks, and its stream waits for its pulls before it
    ends. When the barrier of a call lets a rank pass, all peers have therefore finished the pulls
    of the previous call, and the half that the next call writes is free.

    Attributes:
        group: the process group; None with a world of one.
        rank: of this process in the group.
        world: the number of ranks in the group.
        device: the device of the buffers.
        direct: whether ranks access the memory of their peers; if not, operators use collectives.
    """

    def __init__(
        self, group: ProcessGroup | None, rank: int, world: int, device: torch.device
    ) -> None:
        self.group = group
        self.rank = rank
        self.world = world
        self.device = device
        self.direct = True
        self._buffers: dict[str, SymmetricBuffer] = {}
        self._epochs: dict[str, int] = {}
        self._counts: dict[str, list[int]] = {}
        self._agreed: dict[tuple[Any, ...], int] = {}
        self._equal: dict[tuple[Any, ...], None] = {}
        self._prepared: dict[tuple[Any, ...], Any] = {}
        self._stream: torch.cuda.Stream | None = None
        self._last: torch.cuda.Stream | None = None

    def __repr__(self) -> str:
        return f"Context(rank={self.rank}, world={self.world}, device={self.device})"

    def next_epoch(self, operator: str) -> int:
        """Start a call of `operator`: returns its epoch, counted from 1.

        If the current stream is not that of the previous call, it waits for that one.
        """
        if self.world > 1 and not self.capturing():  # a graph cannot wait for outside work
            stream = torch.cuda.current_stream()
            if self._last is not None and self._last != stream:
                stream.wait_stream(self._last)
            self._last = stream
        self._epochs[operator] = epoch = self._epochs.get(operator, 0) + 1
        return epoch

    def expected_counts(self, operator: str, added: list[int]) -> list[int]:
        """The values of the counters of `operator` after each has increased by `added`.

        Every rank tracks these totals itself: equal calls add the same on all ranks.
        """
        before = self._counts.get(operator, [0] * len(added))
        self._counts[operator] = after = [old + new for old, new in zip(before, added, strict=True)]
        return after

    def cached(self, key: tuple[Any, ...], make: Callable[[], Prepared]) -> Prepared:
        """The result of `make` for this key: a checked call, with its kernel and views.

        Keys do not depend on tensor values. The cache is cleared when a buffer grows, since results
        hold views of peers' memory.
        """
        found = self._prepared.get(key)
        if found is None:
            found = make()
            if len(self._prepared) >= MAX_CACHED_CALLS:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[key] = found
        return found

    def agree(
        self,
        operator: str,
        sizes: Mapping[str, Any],
        *,
        between: ProcessGroup | None = None,
        hint: str = "",
    ) -> None:
        """Check that all ranks call `operator` with equal `sizes`: a collective at their first use.

        Args:
            operator: its name.
            sizes: by name, hashable; only what must be equal on all ranks, and all of it: a rank
                takes part exactly when its peers do.
            between: the group of this rank's peers on other nodes, if they must agree too.
            hint: what to do about a difference, for the message.

        Raises:
            ValueError: on all ranks, if sizes differ; the message has the values by rank.
            RuntimeError: first use while a CUDA graph is captured.
        """
        groups = [group for group in (self.group, between) if group is not None]
        if self.world == 1 and between is None:
            return
        key = (operator, *sizes.items())
        if key in self._equal:
            return
        if self.capturing():
            raise RuntimeError(
                f"{operator} is called with new sizes while a CUDA graph is captured: call it once "
                "with these shapes before the capture, so that ranks agree on them"
            )
        check_equal(operator, sizes, groups, self.device, hint)
        if len(self._equal) >= MAX_AGREED_CALLS:
            del self._equal[next(iter(self._equal))]
        self._equal[key] = None

    def agreed_max(self, key: tuple[Any, ...], mine: int) -> int:
        """The maximum of `mine` over ranks in the first call with this key, which is a collective.

        Args:
            key: the same on all ranks, or ranks would wait for each other forever.
            mine: the value of this rank.
        """
        if self.world == 1:
            return mine
        if key not in self._agreed:
            most = torch.tensor([mine], device=self.device)
            dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self.group)
            self._agreed[key] = int(most)
        return self._agreed[key]

    def side_stream(self) -> torch.cuda.Stream:
        """The stream of pulls and reductions; it waits for work enqueued on the current stream.

        It has high priority: its kernels are scheduled before waiting blocks of the main kernel.
        """
        if self._stream is None:
            self._stream = torch.cuda.Stream(priority=-1)
        self._stream.wait_stream(torch.cuda.current_stream())
        return self._stream

    def capturing(self) -> bool:
        """Whether the current stream is being captured to a CUDA graph."""
        if self.device.type != "cuda" and self.group is None:
            return False
        try:  # simulated ranks have streams too; CPU processes have none
            return torch.cuda.is_current_stream_capturing()
        except RuntimeError:
            return False

    @contextmanager
    def graph_barriers(self, buffer: SymmetricBuffer) -> Iterator[None]:
        """Wraps a call's use of a buffer so that it can be captured in a CUDA graph.

        Replays of a graph do not alternate: all use the captured half. A captured call therefore
        has two more barriers, before the half is written and after its last read.
        """
        captured = self.capturing()
        if captured:
            barrier(buffer, _GRAPH_CHANNEL)
        yield
        if captured:
            barrier(buffer, _GRAPH_CHANNEL)

    def buffer(self, name: str, size: int) -> SymmetricBuffer:
        """The symmetric buffer `name` with at least `size` bytes; growing discards its contents.

        All ranks request the same sizes. Growing waits for all ranks and for the device, so that no
        rank reads the old buffer.

        Raises:
            RuntimeError: the buffer has to grow while a CUDA graph is captured.
        """
        old = self._buffers.get(name)
        if old is not None and old.storage.numel() >= size:
            return old
        if self.capturing():
            raise RuntimeError(
                f"buffer {name!r} has to grow to {size} bytes while a CUDA graph is captured: "
                "call the operator twice with these shapes before the capture"
            )
        if old is not None:
            barrier(old)
            if self.device.type == "cuda":  # with several ranks, `allocate` synchronizes too
                torch.cuda.synchronize(self.device)
            self._prepared.clear()
        grown = max(SMALLEST, 1 << (size - 1).bit_length())
        new = allocate(grown, self.device, self.group, self.rank, self.world)
        self._buffers[name] = new
        return new

    def flags(self, name: str, count: int) -> SymmetricBuffer:
        """`count` int32 flags on every rank, zero when created and kept from then on.

        Raises:
            ValueError: count exceeds that of the first call.
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
        barrier(new)  # peers must not set flags before they are zero
        self._buffers[name] = new
        return new


def create_context(
    group: ProcessGroup | None = None,
    *,
    device: torch.device | str | None = None,
    require_nvlink: bool = True,
) -> Context:
    """The context of this process in `group`, by default all processes; every rank must call it.

    Without an initialized `torch.distributed` it is a world of one.

    Args:
        group: the ranks, which must be on one node, connected by NVLink.
        device: the device of buffers; by default the current GPU, or the CPU without a GPU.
        require_nvlink: whether to refuse GPUs without NVLink between them; if False, operators use
            collectives of `torch.distributed` between such GPUs, with a warning.

    Raises:
        RuntimeError: two GPUs of the group are not connected by NVLink, or on different machines.
    """
    if device is None:
        gpu = torch.cuda.is_available()
        device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    if not dist.is_initialized():
        return Context(None, 0, 1, torch.device(device))
    group = group or dist.group.WORLD
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    context = Context(group, rank, world, torch.device(device))
    links = _links(context)
    if links.every_pair is False:
        if require_nvlink:
            raise RuntimeError(
                f"{links.reason}: pass require_nvlink=False for collectives of torch.distributed, "
                "which are slower, or use a group of GPUs with NVLink"
            )
        warnings.warn(
            f"{links.reason}: operators use collectives of torch.distributed, which are slower",
            stacklevel=2,
        )
        context.direct = False
    return context


def _links(context: Context) -> Links:
    """The NVLinks between the GPUs of all ranks, asked once by each; a collective."""
    if context.world == 1 or context.device.type != "cuda":
        return Links(every_pair=True, reason="no pair of GPUs")
    index = context.device.index
    mine = (platform.node(), gpu_name(torch.cuda.current_device() if index is None else index))
    places: list[tuple[str, str]] = [mine] * context.world
    dist.all_gather_object(places, mine, group=context.group)
    if len({machine for machine, _ in places}) > 1:
        machines = ", ".join(dict.fromkeys(machine for machine, _ in places))
        return Links(every_pair=False, reason=f"the ranks are on several machines ({machines})")
    names = list(dict.fromkeys(name for _, name in places))
    return nvlinks_between(names)
