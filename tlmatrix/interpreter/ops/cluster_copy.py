"""Copies in a cluster: a load into several blocks, `T.copy_cluster` to memory of another block."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import size_in_bits
from tlmatrix.interpreter.emit.regions import checked_view
from tlmatrix.interpreter.emit.threads.clusters import (
    blocks_of_cluster,
    cluster_of,
    has_cluster,
    rank_in_cluster,
    refuse_sanitizers,
)
from tlmatrix.interpreter.emit.threads.issue import arrives_at, barrier_code, issue, together
from tlmatrix.interpreter.emit.tiles import perform
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.copies import MULTICAST, TMA_MULTICAST, TO_BLOCK

from .copy import Copy
from .gemm_pair import part_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.sync.clusters import Cluster

_BULK = 16
"""A bulk copy has a multiple of so many bytes in a row."""


class _Multicast(Copy):
    """A load of one block into the same memory of others."""

    name, rule = "copy_multicast", ""

    def __init__(self, e: Emitter, call: ir.Call, blocks: Sequence[int]) -> None:
        super().__init__(e, call)
        self.blocks = tuple(blocks)

    def emit(self, e: Emitter) -> None:
        """Write the load into this block, and the copies of it."""
        super().emit(e)
        tile = f"({self.dst.buf.code!r}, {self.dst.dims_code})"
        e.w.line(f"share_tile({cluster_of(e)}, {rank_in_cluster(e)}, {tile}, {self.blocks})")


def _multicast(e: Emitter, call: ir.Call) -> None:
    """The first block of the mask loads for all of the mask, others for themselves."""
    _refuse(e, f"{_NAMES[call.op]} with cluster_mask")
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
    writes = ()  # of this block's memory
    predicated = ()

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        super().__init__(e, call)
        self.block = e.scalar(call.args[2], "a block of a cluster").code
        src, dst = self.src.buf, self.dst.buf
        scopes = src.scope.startswith("shared") and dst.scope.startswith("shared")
        if not scopes or src.dtype != dst.dtype or src.codec or dst.codec:
            raise e.refuse(f"T.copy with dst_block from {src.name} to {dst.name}")

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
    _refuse(e, "T.copy with dst_block")
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


def _refuse(e: Emitter, what: str) -> None:
    if not has_cluster(e):
        raise e.refuse(f"{what} outside of a cluster")
    refuse_sanitizers(e, what)


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
ASYNCHRONOUS = {
    MULTICAST: together(_multicast),
    TMA_MULTICAST: together(_multicast),
    TO_BLOCK: together(_to_block),
}
EFFECTS = ASYNCHRONOUS
FUNCTIONS = (copy_to_block, share_tile)
