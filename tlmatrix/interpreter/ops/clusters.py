"""Clusters: ranks and barriers, copies to other blocks, launch control."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import size_in_bits
from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.axis import (
    blocks_of_cluster,
    cluster_of,
    grid_of_clusters,
    has_cluster,
    rank_in_cluster,
)
from tlmatrix.interpreter.emit.threads.roles import (
    arrives_at,
    barrier_code,
    by_active_threads,
    issue,
    together,
)
from tlmatrix.interpreter.emit.tiles import Effect, TileOperation, checked_view, perform, region
from tlmatrix.interpreter.emit.values import Val
from tlmatrix.interpreter.errors import SynchronizationError
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.memory import MULTICAST, TMA_MULTICAST, TO_BLOCK

from .copy import Copy
from .gemm import part_of
from .tables import Operations

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.sync.barriers import Cluster
    from tlmatrix.interpreter.sync.launches import Block


# Clusters: the rank of a block, barriers of all threads, arrivals at another block's mbarrier -----


def _rank(e: Emitter, call: ir.Call) -> Val:
    threads_of(e, "T.block_rank_in_cluster")
    return Val(rank_in_cluster(e), call.dtype, lo=0)


def _barrier(e: Emitter, call: ir.Call) -> None:
    """`T.cluster_sync`, or one half of it: every thread of the cluster arrives, then waits."""
    if e.mask is not None and not e.mask.scalar:
        raise e.refuse("a barrier of a cluster by some threads")
    cluster = cluster_of(e)
    if call.op != "tl.cluster_wait":
        e.w.line(f"me.cluster_arrive({cluster})")
    if call.op in ("tl.cluster_wait", "tl.cluster_sync"):
        e.w.line("yield me.cluster_wait()")


def _arrive(e: Emitter, call: ir.Call) -> None:
    """`T.mbarrier_arrive(barrier, block)` at the mbarrier of a block of the cluster."""
    load = call.args[0]
    if not isinstance(load, ir.BufferLoad):
        raise e.refuse("a barrier of a cluster given by its address")
    code = buffer(e, load.buffer).code
    index, rank = (e.scalar(n, "a barrier").code for n in (load.indices[0], call.args[1]))
    arrives_at(e, f"{code}[{index}]")
    threads = threads_of(e, "an arrival").active_threads(e)
    e.w.line(f"me.arrive({code}.of_block({rank})[{index}], {threads})")
    e.w.line("yield")


_BARRIERS = ("tl.cluster_sync", "tl.cluster_arrive", "tl.cluster_arrive_relaxed", "tl.cluster_wait")


# Copies in a cluster: a load into several blocks, `T.copy_cluster` to memory of another block -----

_BULK = 16
"""A bulk copy has a multiple of so many bytes in a row."""


class _Multicast(Copy):
    """A load of one block into the same memory of others."""

    name, rule = "copy_multicast", ""

    def __init__(self, e: Emitter, call: ir.Call, blocks: Sequence[int]) -> None:
        super().__init__(e, call)
        self.blocks = tuple(blocks)

    @property
    def effects(self) -> Sequence[Effect]:
        """Those of a copy, the write in all blocks."""
        read, write = super().effects
        return read, replace(write, blocks=repr(self.blocks))

    def emit(self, e: Emitter) -> None:
        """Write the load into this block, and the copies of it."""
        super().emit(e)
        tile = f"({self.dst.buf.code!r}, {self.dst.dims_code})"
        e.w.line(f"share_tile({cluster_of(e)}, {rank_in_cluster(e)}, {tile}, {self.blocks})")


def _multicast(e: Emitter, call: ir.Call) -> None:
    """The first block of the mask loads for all of the mask, others for themselves."""
    _check_cluster(e, f"{_NAMES[call.op]} with cluster_mask")
    mask = int(call.args[2].value)
    blocks = [rank for rank in range(blocks_of_cluster(e)) if mask >> rank & 1]
    op, alone = _Multicast(e, call, blocks), Copy(e, call)
    dst = op.dst.buf
    loads = op.src.buf.is_global and dst.scope.startswith("shared")
    if not loads or not blocks or mask >> blocks_of_cluster(e):
        raise e.refuse(f"{_NAMES[call.op]} with cluster_mask from {op.src.buf.name} to {dst.name}")
    extents = " * ".join(d.extent.code for d in op.dst.ranges if d.extent) or "1"
    size = f"{extents} * {size_in_bits(dst.dtype)} // 8"
    waits = call.op == MULTICAST
    if waits:
        # TileLang adds a barrier of its own.
        name = e.temp("come")
        label = f"the barrier of T.copy_cluster into {dst.name} at {e.w.location}"
        e.w.line(f"{name} = me.block.mbarriers_of({cluster_of(e)}, {label!r}, 1)")
        e.w.line(f"{name}_parity = {name}[0].phase & 1")
        barrier = f"{name}[0]"
    else:
        barrier = barrier_code(e, call.args[3])
        if not _is_plain_barrier(call.args[3]):
            raise e.refuse("T.tma_copy with cluster_mask and a barrier of the cluster")
    e.w.line(f"me.expect({barrier}, {size})")
    rank = rank_in_cluster(e)
    allocation, _, index = barrier.partition("[")
    with e.w.block(f"if {rank} == {blocks[0]}"):
        bars = e.temp("bars")
        e.w.line(f"{bars} = [{allocation}.of_block(r)[{index} for r in {tuple(blocks)}]")
        e.w.line(f"yield me.until_expected({bars}, {size})")
        issue(e, "TMA load", op, f"delivers={bars}, size={size}")
    with e.w.block(f"elif {rank} not in {tuple(blocks)}"):
        issue(e, "TMA load", alone, f"delivers=({barrier},), size={size}")
    if waits:
        e.w.line(f"me.arrive({barrier}, 1)")
        e.w.line(f"yield me.wait({barrier}, {name}_parity)")


class _ToBlock(Copy):
    """A copy of shared memory to that of a block of the cluster."""

    name, rule = "copy_to_block", ""
    predicated = ()

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        super().__init__(e, call)
        self.block = e.scalar(call.args[2], "a block of a cluster").code
        src, dst = self.src.buf, self.dst.buf
        scopes = src.scope.startswith("shared") and dst.scope.startswith("shared")
        if not scopes or src.dtype != dst.dtype or src.codec or dst.codec:
            raise e.refuse(f"T.copy with dst_block from {src.name} to {dst.name}")

    @property
    def moves(self) -> None:
        """Nothing: what is unwritten here counts as written there."""

    @property
    def effects(self) -> Sequence[Effect]:
        """A read here, a write there."""
        return Effect(self.src, "read"), Effect(self.dst, "write", blocks=f"({self.block},)")

    @property
    def is_bulk(self) -> bool:
        """Whether TileLang makes bulk copies of it."""
        last, shape = self.src.dims[-1].extent, self.src.buf.static_shape
        row = last.lit if last is not None else 1
        if row is None or shape is None:
            return False
        count = math.prod(shape) if self.src.is_whole_local else int(row)
        return count * size_in_bits(self.src.buf.dtype) // 8 % _BULK == 0

    def emit(self, e: Emitter) -> None:
        """Write the copy."""
        source, _ = checked_view(e, self.src), checked_view(e, self.dst)
        target = f"({self.dst.buf.code!r}, {self.dst.dims_code})"
        e.w.line(f"copy_to_block({cluster_of(e)}, {self.block}, {source}, {target})")


def _to_block(e: Emitter, call: ir.Call) -> None:
    """With a barrier, that of the other block gets one arrival when all has come."""
    _check_cluster(e, "T.copy with dst_block")
    op = _ToBlock(e, call)
    if len(call.args) < 4:
        perform(e, op)
        return
    code = barrier_code(e, call.args[3])
    arrives_at(e, code)
    allocation, _, index = code.partition("[")
    barrier = f"{allocation}.of_block({op.block})[{index}"
    if op.is_bulk:
        issue(e, "bulk copy", op, f"arrive={barrier}")
    else:
        perform(e, op)
        e.w.line(f"me.arrive({barrier}, 1)")
        e.w.line("yield")


def _check_cluster(e: Emitter, what: str) -> None:
    if not has_cluster(e):
        raise e.refuse(f"{what} outside of a cluster")


def _is_plain_barrier(barrier: Any) -> bool:
    return isinstance(barrier, ir.BufferLoad) and barrier.buffer.scope == "shared.barrier"


def share_tile(cluster: Cluster, rank: int, tile: tuple[str, Any], blocks: Sequence[int]) -> None:
    """Copy a tile of the block with a rank to the same memory of other blocks."""
    source = part_of(cluster, tile, rank)
    for block in blocks:
        if block != rank:
            part_of(cluster, tile, block)[...] = source


def copy_to_block(cluster: Cluster, block: int, source: Array, target: tuple[str, Any]) -> None:
    """Copy to memory of a block of the cluster."""
    found = part_of(cluster, target, block)
    found[...] = source.reshape(found.shape)


_NAMES = {MULTICAST: "T.copy", TMA_MULTICAST: "T.tma_copy"}


# Cluster launch control: a running block takes over a cluster that has not started ----------------
#
# The response has 16 bytes in shared memory. Their encoding is not documented, so here they are the
# index of the first block (x, y, z) and whether a cluster was canceled; kernels decode them by
# `T.clc_is_canceled` and `T.clc_get_first_ctaid_x`.

_BYTES = 16
_FIELDS = {"tl.clc_is_canceled": 3} | {
    f"tl.clc_get_first_ctaid_{axis}": k for k, axis in enumerate("xyz")
}


class _Request(TileOperation):
    """`T.clc_try_cancel(response, mbarrier)`."""

    name = "clc_try_cancel"
    writes = ("response",)

    def __init__(self, e: Emitter, call: Call) -> None:
        self.call = call
        self.response = region(e, call.args[0])
        self.for_all = call.op.endswith("multicast") and blocks_of_cluster(e) > 1
        self._ranks = f"tuple(range({blocks_of_cluster(e)}))" if self.for_all else None

    @property
    def effects(self) -> Sequence[Effect]:
        """A write, in all blocks of the cluster or in this one."""
        return (Effect(self.response, "write", blocks=self._ranks),)

    def emit(self, e: Emitter) -> None:
        """Write the request."""
        grid = grid_of_clusters(e)
        extents = tuple(n for _, n in grid)
        axes = tuple("xyz".index(axis) for axis, _ in grid)
        view = checked_view(e, self.response)
        if self.for_all:
            response = f"({self.response.buf.code!r}, {self.response.dims_code})"
            e.w.line(f"cancel_launch_for_all(cta, {extents}, {axes}, {cluster_of(e)}, {response})")
        else:
            e.w.line(f"cancel_launch(cta, {extents}, {axes}, {view})")


def _try_cancel(e: Emitter, call: Call) -> None:
    t = threads_of(e, "T.clc_try_cancel")
    e.w.line(f"check_one_thread({t.active_threads(e)})")
    with t.without_threads(e):
        request = _Request(e, call)
        code = barrier_code(e, call.args[1])
        barriers = f"({code},)"
        if request.for_all:
            allocation, _, index = code.partition("[")
            ranks = f"range({blocks_of_cluster(e)})"
            barriers = f"[{allocation}.of_block(r)[{index} for r in {ranks}]"
        issue(e, "launch control", request, f"delivers={barriers}, size={_BYTES}")


class _Response(TileOperation):
    """A field of the response, as the value of `code`."""

    name = "clc_response"
    reads, writes = ("response",), ()

    def __init__(self, e: Emitter, call: Call) -> None:
        self.call = call
        self.response = region(e, call.args[0])
        self.code = e.temp("field")

    def emit(self, e: Emitter) -> None:
        """Write the read."""
        e.w.line(f"{self.code} = {checked_view(e, self.response)}.item({_FIELDS[self.call.op]})")


def _field(e: Emitter, call: Call) -> Val:
    response = _Response(e, call)
    e.w.line(f"{response.code} = 0")
    with threads_of(e, "a response of launch control").without_threads(e):
        perform(e, response)
    return Val(response.code, call.dtype, lo=0)


def check_one_thread(threads: int) -> None:
    """Raise where several threads ask for a cluster each."""
    if threads != 1:
        raise SynchronizationError(
            f"T.clc_try_cancel by {threads} threads, each of which cancels a cluster: one should"
        )


def cancel_launch(
    block: Block, extents: tuple[int, ...], axes: Sequence[int], *responses: Array
) -> None:
    """Cancel a cluster that has not started, and write the response.

    Args:
        block: that runs.
        extents: how many blocks of a cluster there are along each dim of the grid.
        axes: for each dim of the grid 0, 1 or 2 for x, y or z.
        responses: where the response goes.
    """
    first = block.launch.cancel(extents)
    words = [0, 0, 0, first is not None]
    for axis, index in zip(axes, first or (), strict=False):
        words[axis] = index
    for response in responses:
        response[...] = words


def cancel_launch_for_all(
    block: Block,
    extents: tuple[int, ...],
    axes: Sequence[int],
    cluster: Cluster,
    response: tuple[str, Any],
) -> None:
    """`cancel_launch` with the response in every block of the cluster."""
    responses = [part_of(cluster, response, rank) for rank in range(cluster.size)]
    cancel_launch(block, extents, axes, *responses)


_CANCEL = ("tl.clc_try_cancel", "tl.clc_try_cancel_multicast")
OPERATIONS = Operations(
    of_threads=Rules(
        calls={"tl.block_rank_in_cluster": _rank, **dict.fromkeys(_FIELDS, _field)},
        effects={
            **dict.fromkeys(_BARRIERS, _barrier),
            "tl.ptx_arrive_cluster_barrier": by_active_threads(_arrive),
        },
    ),
    asynchronous={
        MULTICAST: together(_multicast),
        TMA_MULTICAST: together(_multicast),
        TO_BLOCK: together(_to_block),
        **dict.fromkeys(_CANCEL, by_active_threads(_try_cancel)),
    },
    synchronizing=(*_BARRIERS, "tl.ptx_arrive_cluster_barrier", *_CANCEL),
    functions=(copy_to_block, share_tile, cancel_launch, cancel_launch_for_all, check_one_thread),
)
