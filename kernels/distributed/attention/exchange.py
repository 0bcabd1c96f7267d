"""Communication of sequence-parallel attention: remote keys and values, and their gradients.

Forward and backward fetch in the same way, on the context's side stream:

1. A rank copies its k and v to a double-buffered symmetric buffer.
2. A barrier of all ranks, with stream memory operations, so that it needs no multiprocessor while
   kernels fill the GPU (while a CUDA graph is captured, a kernel).
3. The copy engine pulls the segments of the plan, step after step, to rows before the local ones,
   and records an event after each step. Meanwhile the caller's stream attends to the local keys; or
   one kernel attends to all keys and waits for the remote ones: the pulls are then cut into slices,
   and a flag counts those that have arrived.

One barrier per call suffices: the call after the next reuses this buffer, writes it after the
barrier of the next call, and every rank enters that barrier with all its pulls of this call done.

In the backward a rank has float32 sums of dk and dv for every row that it fetched, in a symmetric
buffer. After a second barrier each owner pulls the sums of its own rows and adds them in rank
order. The next backward call clears the sums after the barrier of its own fetch, hence after all
pulls.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from tlmatrix_kernels.distributed.attention.plan import Plan, Step, copies, slices
from tlmatrix_kernels.distributed.barriers import barrier, barrier_without_kernel
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.memory import SymmetricBuffer
from tlmatrix_kernels.distributed.pull import to_int32, write_flag

OPERATOR = "sequence_attention"
ALIGNMENT = 256
"""Alignment in bytes of the tensors in a buffer."""
MAX_SLICES = 8
"""Slices of the pulls for the overlapped kernel; a power of two, so that flags can wrap around."""
MIN_SLICE_BYTES = 1 << 22
"""For smaller copies, latency dominates."""


@dataclass(frozen=True)
class KeyValues:
    """k and v of some rows, or their gradients: [rows, kv_heads, dim] each."""

    k: torch.Tensor
    v: torch.Tensor

    def rows(self, first: int, count: int) -> "KeyValues":
        """The rows [first : first + count]."""
        return KeyValues(self.k[first : first + count], self.v[first : first + count])

    def copy_(self, source: "KeyValues") -> None:
        """Enqueue copies from `source`, with as many rows."""
        self.k.copy_(source.k, non_blocking=True)
        self.v.copy_(source.v, non_blocking=True)

    def zero_(self) -> None:
        """Enqueue zeroing."""
        self.k.zero_()
        self.v.zero_()


def _size(like: torch.Tensor, rows: int, dtype: torch.dtype) -> int:
    size = rows * like.shape[1] * like.shape[2] * dtype.itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT


def _bytes(like: KeyValues, rows: int, dtype: torch.dtype) -> int:
    return _size(like.k, rows, dtype) + _size(like.v, rows, dtype)


def _on(
    buffer: SymmetricBuffer, peer: int, like: KeyValues, rows: int, room: int, dtype: torch.dtype
) -> KeyValues:
    """The k and v [rows, ...] of a peer, in a buffer with capacity for `room` rows."""
    k = buffer.on(peer, (rows, *like.k.shape[1:]), dtype)
    v = buffer.on(peer, (rows, *like.v.shape[1:]), dtype, _size(like.k, room, dtype))
    return KeyValues(k, v)


@dataclass(frozen=True)
class RemoteKeys:
    """Keys and values for the overlapped kernel, which waits for the remote ones, and their flag.

    The first ``fetched`` rows arrive in slices of ``2 ** slice_bits`` rows, and slice n has arrived
    when ``ready[0]`` is at least ``epoch + n + 1``. The local keys follow them.
    """

    keys: KeyValues
    ready: torch.Tensor
    epoch: int
    slice_bits: int
    fetched: int


class Fetch:
    """Fetches the keys and values of other ranks.

    The constructor enqueues the copy and the barrier; `pull`, to be called once, the pulls. Enqueue
    work on local keys between the two, so that it starts early while the barrier can still be
    scheduled.

    Attributes:
        may_wait: whether kernels may wait for a flag (`pull_in_slices`): not while a CUDA graph is
            captured, since a replay has another epoch.
    """

    def __init__(self, plans: Sequence[Plan], own: KeyValues, context: Context) -> None:
        """`plans` are those of all ranks, `own` the local k and v."""
        self._plans, self._plan, self._own = plans, plans[context.rank], own
        self._events: list[torch.cuda.Event] = []
        self._side: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None
        self.may_wait = context.world > 1 and not context.capturing()
        self._use = ExitStack()
        if context.world == 1:
            return
        epoch = context.next_epoch(OPERATOR)
        self._room = max(plan.rows_k + plan.fetched for plan in plans)
        size = max(_bytes(own, self._room, own.k.dtype), 1)
        self._buffer = context.buffer(f"{OPERATOR}/{epoch % 2}", size)
        self._ready = context.flags(f"{OPERATOR}/ready", 1).local([1], torch.int32)
        self._epoch = epoch
        barrier_flags = context.flags(f"{OPERATOR}/barrier", context.world)
        self._use.enter_context(context.graph_barriers(self._buffer))
        self._side = context.side_stream()
        with torch.cuda.stream(self._side):
            self._of(context.rank).copy_(own)
            self._copied = torch.cuda.Event()
            self._copied.record(self._side)
            if context.capturing():
                barrier(self._buffer)
            else:
                barrier_without_kernel(barrier_flags, epoch)

    def _all(self, rank: int) -> KeyValues:
        """The buffer of a rank: the rows that it fetches, then its own rows.

        In this order, since a tile that runs past the end of the own keys must not read unwritten
        rows: a zero weight does not mask NaN.
        """
        rows = self._plans[rank].fetched + self._plans[rank].rows_k
        return _on(self._buffer, rank, self._own, rows, self._room, self._own.k.dtype)

    def _of(self, rank: int) -> KeyValues:
        """The own keys of a rank in its symmetric buffer."""
        return self._all(rank).rows(self._plans[rank].fetched, self._plans[rank].rows_k)

    def _step(self, number: int) -> KeyValues:
        """The fetched rows of a step."""
        first, rows = self._plan.first_row(number), self._plan.steps[number].rows
        return self._all(self._plan.rank).rows(first, rows)

    def pull(self) -> None:
        """Enqueue the pulls of all steps, with an event after each."""
        if self._side is None:
            return
        with torch.cuda.stream(self._side):
            for number, step in enumerate(self._plan.steps[1:], 1):
                _copy_rows(copies(step), self._owners(step), self._step(number))
                event = torch.cuda.Event()
                event.record(self._side)
                self._events.append(event)

    def _owners(self, step: Step) -> dict[int, KeyValues]:
        """The keys of the ranks that a step is fetched from."""
        return {owner: self._of(owner) for owner in step.ranks} if step.rows else {}

    def wait(self, step: int) -> KeyValues:
        """The keys and values of a step; the current stream waits until they have arrived."""
        if step == 0:
            return self._own
        torch.cuda.current_stream().wait_event(self._events[step - 1])
        return self._step(step)

    def pull_in_slices(self) -> RemoteKeys:
        """Enqueue the pulls in slices for the overlapped kernel; call it instead of `pull`.

        Nothing that this enqueues after the copy of the own keys needs a multiprocessor: the
        waiting blocks of the kernel may occupy all of them.
        """
        torch.cuda.current_stream().wait_event(self._copied)
        step = self._plan.steps[1]
        bits = _slice_bits(step.rows, _bytes(self._own, 1, self._own.k.dtype))
        epoch = self._epoch * MAX_SLICES
        with torch.cuda.stream(self._side):
            owners, target = self._owners(step), self._step(1)
            for number, segments in enumerate(slices(step, 1 << bits), 1):
                _copy_rows(segments, owners, target)
                write_flag(self._ready, 0, epoch + number)
        return RemoteKeys(self._all(self._plan.rank), self._ready, to_int32(epoch), bits, step.rows)

    def wait_all(self) -> None:
        """Make the current stream wait for all enqueued work; must be the last call."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        self._use.close()


def _copy_rows(
    segments: Sequence[tuple[int, int, int, int]],
    owners: Mapping[int, KeyValues],
    target: KeyValues,
) -> None:
    """Enqueue the copies (owner, row of the owner, row of the step, rows) of a step."""
    for owner, source, row, count in segments:
        target.rows(row, count).copy_(owners[owner].rows(source, count))


def _slice_bits(rows: int, row_size: int) -> int:
    """log2 of the rows of a slice, for `rows` rows of `row_size` bytes."""
    least = max(-(-rows // MAX_SLICES), -(-MIN_SLICE_BYTES // row_size), 1)
    return (least - 1).bit_length()


def remote_sums(
    plans: tuple[Plan, ...], rank: int, like: KeyValues, context: Context
) -> tuple[SymmetricBuffer, KeyValues]:
    """The symmetric buffer of dk and dv sums, and this rank's sums for all fetched rows."""
    room = max(plan.fetched for plan in plans)
    buffer = context.buffer(f"{OPERATOR}/sums", max(_bytes(like, room, torch.float32), 1))
    return buffer, _on(buffer, rank, like, plans[rank].fetched, room, torch.float32)


@dataclass(frozen=True)
class KeyGradientParts:
    """Gradients of this rank's keys: one float32 part from each rank whose queries attend to some.

    ``k`` and ``v`` are [ranks, rows, kv_heads, dim], in rank order; ``segments`` are the rows to
    pull from each rank: (remote row, local row, rows).
    """

    k: torch.Tensor
    v: torch.Tensor
    ranks: tuple[int, ...]
    segments: tuple[tuple[tuple[int, int, int], ...], ...]

    def part(self, index: int) -> KeyValues:
        """The part of one rank."""
        return KeyValues(self.k[index], self.v[index])


def allocate_parts(plans: tuple[Plan, ...], rank: int, like: KeyValues) -> KeyGradientParts:
    """Uninitialized parts of the gradients of a rank's keys; its own part, if any, is zeroed."""
    found = {peer: _fetched_from(plan, rank) for peer, plan in enumerate(plans)}
    direct = bool(plans[rank].steps[0].launches)
    ranks = tuple(peer for peer in found if found[peer] or (direct and peer == rank))
    k, v = (
        torch.empty((len(ranks), *t.shape), dtype=torch.float32, device=t.device)
        for t in (like.k, like.v)
    )
    parts = KeyGradientParts(k, v, ranks, tuple(found[peer] for peer in ranks))
    if direct:
        parts.part(ranks.index(rank)).zero_()
    return parts


def pull_parts(
    parts: KeyGradientParts,
    plans: tuple[Plan, ...],
    buffer: SymmetricBuffer,
    like: KeyValues,
    context: Context,
) -> torch.cuda.Stream:
    """Start to pull the gradients of this rank's keys from the sums of all ranks.

    Runs on the side stream, which waits for the current one, and returns that stream.

    Args:
        parts: the destination; this rank's own part is kept.
        plans: of all ranks.
        buffer: of the sums.
        like: k and v of this rank.
        context: provides the side stream.
    """
    room = max(plan.fetched for plan in plans)
    side = context.side_stream()
    with torch.cuda.stream(side):
        barrier(buffer)
        for index, (peer, segments) in enumerate(zip(parts.ranks, parts.segments, strict=True)):
            if not segments:
                continue
            here = parts.part(index)
            there = _on(buffer, peer, like, plans[peer].fetched, room, torch.float32)
            filled = 0
            for source, row, rows in segments:
                here.rows(filled, row - filled).zero_()
                here.rows(row, rows).copy_(there.rows(source, rows))
                filled = row + rows
            here.rows(filled, like.k.shape[0] - filled).zero_()
    return side


def _fetched_from(plan: Plan, owner: int) -> tuple[tuple[int, int, int], ...]:
    """The segments that a rank fetches from `owner`: (row there, row of the owner, rows)."""
    found = [
        (plan.first_row(number) + row, source, rows)
        for number, step in enumerate(plan.steps)
        if number
        for of, source, row, rows in copies(step)
        if of == owner
    ]
    return tuple(sorted(found, key=lambda segment: segment[1]))
