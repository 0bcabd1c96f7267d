"""Keys and values of other ranks, fetched while others are attended to; and their gradients back.

Forward and backward fetch alike, on the context's side stream:

1. a rank copies its k and v to a symmetric buffer, of which there are two that take turns;
2. a barrier: every rank has. The streams themselves raise flags and wait for them, so it needs no
   place on a GPU that kernels fill (a kernel does it while a CUDA graph is captured);
3. the copy engine pulls the chunks that the plan asks for, step after step, to rows before the own
   ones, with an event behind each step. The caller's stream attends to the rank's own keys
   meanwhile; or one kernel to all of them, whose blocks wait for what they need next: the pulls are
   cut into slices then, and a flag counts those that are there.

A rank may go on to the next call, and to the next but one, whose buffer is this one again: that
call writes it behind the barrier of the next call, and to that every rank comes with all its pulls
of this call done. So one barrier a call is enough.

In the backward a rank has sums of dk and dv for every row that it fetched, in float32, in a
symmetric buffer. Behind a second barrier, each owner pulls the shares of its own rows and adds them
in the order of the ranks. The next backward call clears the sums behind the barrier of its own
fetch, hence after all pulls.
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

__all__ = [
    "Fetch",
    "KeyGradientParts",
    "KeyValues",
    "RemoteKeys",
    "allocate_parts",
    "pull_parts",
    "remote_sums",
]

OPERATOR = "sequence_attention"
ALIGNMENT = 256
"""Bytes: where in a buffer a tensor may begin."""
MAX_SLICES = 8
"""Into how many parts the pulls for one kernel are cut; a power of two, for flags to go around."""
MIN_SLICE_BYTES = 1 << 22
"""Bytes: below that a copy takes longer to begin than to end."""


@dataclass(frozen=True)
class KeyValues:
    """K and v of some rows, or sums of their gradients: [rows, kv_heads, dim] each."""

    k: torch.Tensor
    v: torch.Tensor

    def rows(self, first: int, count: int) -> "KeyValues":
        """Some of the rows."""
        return KeyValues(self.k[first : first + count], self.v[first : first + count])

    def copy_(self, source: "KeyValues") -> None:
        """Enqueue copies from a pair of as many rows."""
        self.k.copy_(source.k, non_blocking=True)
        self.v.copy_(source.v, non_blocking=True)

    def zero_(self) -> None:
        """Enqueue zeros."""
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
    """The pair of `rows` rows that a peer has, in a buffer with room for `room` of them."""
    k = buffer.on(peer, (rows, *like.k.shape[1:]), dtype)
    v = buffer.on(peer, (rows, *like.v.shape[1:]), dtype, _size(like.k, room, dtype))
    return KeyValues(k, v)


@dataclass(frozen=True)
class RemoteKeys:
    """Keys for one kernel, some of which come while it runs: a memory of rows, and a flag.

    The first ``fetched`` rows come in slices of ``2 ** slice_bits`` rows, and slice n is there when
    ``ready[0]`` is at least ``epoch + n + 1``. What is behind them, own keys, is there.
    """

    keys: KeyValues
    ready: torch.Tensor
    epoch: int
    slice_bits: int
    fetched: int


class Fetch:
    """Keys and values of all ranks, as one rank gets to see them.

    Making it enqueues the copy and the barrier; `pull`, once, what comes behind them. Between the
    two belongs what needs no other rank's keys: so it begins early, and the barrier still has a
    place on the GPU.

    Attributes:
        may_wait: whether kernels may wait for a flag (`on_arrival`): not where a CUDA graph is
            captured, as an epoch is not the same when it is replayed.
    """

    def __init__(self, plans: Sequence[Plan], own: KeyValues, context: Context) -> None:
        """`plans` are those of all ranks, `own` k and v of this one."""
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
        met = context.flags(f"{OPERATOR}/met", context.world)
        self._use.enter_context(context.graph_barriers(self._buffer))
        self._side = context.side_stream()
        with torch.cuda.stream(self._side):
            self._of(context.rank).copy_(own)
            self._copied = torch.cuda.Event()
            self._copied.record(self._side)
            if context.capturing():
                barrier(self._buffer)
            else:
                barrier_without_kernel(met, epoch)

    def _all(self, rank: int) -> KeyValues:
        """What a rank fetches and behind it its own keys, in its symmetric memory.

        In this order: a tile that runs past the end of the own keys must not meet rows that nobody
        has written yet. Weights of zero do not hide what is no number there.
        """
        rows = self._plans[rank].fetched + self._plans[rank].rows_k
        return _on(self._buffer, rank, self._own, rows, self._room, self._own.k.dtype)

    def _of(self, rank: int) -> KeyValues:
        """The own keys of a rank in its symmetric memory."""
        return self._all(rank).rows(self._plans[rank].fetched, self._plans[rank].rows_k)

    def _step(self, number: int) -> KeyValues:
        """What is fetched in a step."""
        first, rows = self._plan.first_row(number), self._plan.steps[number].rows
        return self._all(self._plan.rank).rows(first, rows)

    def pull(self) -> None:
        """Enqueue the pulls of all steps, with an event behind each."""
        if self._side is None:
            return
        with torch.cuda.stream(self._side):
            for number, step in enumerate(self._plan.steps[1:], 1):
                _copy_rows(copies(step), self._owners(step), self._step(number))
                event = torch.cuda.Event()
                event.record(self._side)
                self._events.append(event)

    def _owners(self, step: Step) -> dict[int, KeyValues]:
        """The own keys of those that a step is fetched from."""
        return {owner: self._of(owner) for owner in step.ranks} if step.rows else {}

    def wait(self, step: int) -> KeyValues:
        """The keys and values of a step, for what is enqueued on the current stream from now on."""
        if step == 0:
            return self._own
        torch.cuda.current_stream().wait_event(self._events[step - 1])
        return self._step(step)

    def pull_in_slices(self) -> RemoteKeys:
        """All keys for one kernel, which waits for those that come; in the place of `pull`.

        Nothing that is enqueued for it from the copy of the own keys on needs a multiprocessor,
        for the kernel's blocks may hold all of them and wait.
        """
        torch.cuda.current_stream().wait_event(self._copied)
        step = self._plan.steps[1]
        bits = _slice_bits(step.rows, _bytes(self._own, 1, self._own.k.dtype))
        epoch = self._epoch * MAX_SLICES
        with torch.cuda.stream(self._side):
            owners, target = self._owners(step), self._step(1)
            for number, pieces in enumerate(slices(step, 1 << bits), 1):
                _copy_rows(pieces, owners, target)
                write_flag(self._ready, 0, epoch + number)
        return RemoteKeys(self._all(self._plan.rank), self._ready, to_int32(epoch), bits, step.rows)

    def wait_all(self) -> None:
        """Let the current stream wait for everything that was enqueued here; the last thing."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        self._use.close()


def _copy_rows(
    pieces: Sequence[tuple[int, int, int, int]], owners: Mapping[int, KeyValues], target: KeyValues
) -> None:
    """Enqueue the copies of pieces (as `copies` has them) to the memory of their step."""
    for owner, source, row, count in pieces:
        target.rows(row, count).copy_(owners[owner].rows(source, count))


def _slice_bits(rows: int, row_size: int) -> int:
    """The power of two that a slice has in rows, of so many rows of so many bytes."""
    least = max(-(-rows // MAX_SLICES), -(-MIN_SLICE_BYTES // row_size), 1)
    return (least - 1).bit_length()


def remote_sums(
    plans: tuple[Plan, ...], rank: int, like: KeyValues, context: Context
) -> tuple[SymmetricBuffer, KeyValues]:
    """The buffer of the sums of dk and dv, and those of this rank for all rows it fetched."""
    room = max(plan.fetched for plan in plans)
    buffer = context.buffer(f"{OPERATOR}/sums", max(_bytes(like, room, torch.float32), 1))
    return buffer, _on(buffer, rank, like, plans[rank].fetched, room, torch.float32)


@dataclass(frozen=True)
class KeyGradientParts:
    """Gradients of this rank's keys, a float32 share from each rank that has some of them seen.

    ``k`` and ``v`` are [sharers, rows, kv_heads, dim], in the order of ranks; ``pieces`` what to
    pull from each sharer: (row there, row here, rows).
    """

    k: torch.Tensor
    v: torch.Tensor
    ranks: tuple[int, ...]
    pieces: tuple[tuple[tuple[int, int, int], ...], ...]

    def of(self, place: int) -> KeyValues:
        """The share of one sharer."""
        return KeyValues(self.k[place], self.v[place])


def allocate_parts(plans: tuple[Plan, ...], rank: int, like: KeyValues) -> KeyGradientParts:
    """Room for the shares of a rank's keys, not filled; its own, if it has one, begins as zeros."""
    found = {peer: _fetched_from(plan, rank) for peer, plan in enumerate(plans)}
    direct = bool(plans[rank].steps[0].launches)
    ranks = tuple(peer for peer in found if found[peer] or (direct and peer == rank))
    k, v = (
        torch.empty((len(ranks), *t.shape), dtype=torch.float32, device=t.device)
        for t in (like.k, like.v)
    )
    shares = KeyGradientParts(k, v, ranks, tuple(found[peer] for peer in ranks))
    if direct:
        shares.of(ranks.index(rank)).zero_()
    return shares


def pull_parts(
    shares: KeyGradientParts,
    plans: tuple[Plan, ...],
    buffer: SymmetricBuffer,
    like: KeyValues,
    context: Context,
) -> torch.cuda.Stream:
    """Begin to pull the shares of this rank's keys from the sums of all ranks.

    On the side stream, which waits for what is enqueued on the current one, and is returned.

    Args:
        shares: to be filled; what its rank has added to its own share directly stays.
        plans: of all ranks.
        buffer: of the sums.
        like: k and v of this rank.
        context: whose side stream is used.
    """
    room = max(plan.fetched for plan in plans)
    side = context.side_stream()
    with torch.cuda.stream(side):
        barrier(buffer)
        for place, (peer, pieces) in enumerate(zip(shares.ranks, shares.pieces, strict=True)):
            if not pieces:
                continue
            here = shares.of(place)
            there = _on(buffer, peer, like, plans[peer].fetched, room, torch.float32)
            filled = 0
            for source, row, rows in pieces:
                here.rows(filled, row - filled).zero_()
                here.rows(row, rows).copy_(there.rows(source, rows))
                filled = row + rows
            here.rows(filled, like.k.shape[0] - filled).zero_()
    return side


def _fetched_from(plan: Plan, owner: int) -> tuple[tuple[int, int, int], ...]:
    """The pieces that a rank fetches from `owner`: (row there, row of the owner, rows)."""
    found = [
        (plan.first_row(number) + row, source, rows)
        for number, step in enumerate(plan.steps)
        if number
        for of, source, row, rows in copies(step)
        if of == owner
    ]
    return tuple(sorted(found, key=lambda piece: piece[1]))
