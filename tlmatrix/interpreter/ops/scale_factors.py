"""Scales of `T.tcgen05_gemm_blockscaled`: `T.tcgen05_sf_warp_transpose`, `T.tcgen05_cp_warpx4`.

128 words in shared memory, one for each row of a factor, become four columns of tensor memory. The
transpose puts word `32 * j + i` at `4 * i + j`; the copy puts four words in a row of each of 32
lanes, and the same into the other lanes. So row r of the factor has its word in lane r % 32, column
r / 32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.emit.regions import checked_view, region
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.clusters import (
    cluster_of,
    rank_in_cluster,
    refuse_sanitizers,
)
from tlmatrix.interpreter.emit.threads.issue import issue, together
from tlmatrix.interpreter.emit.tiles import TileOperation, perform
from tlmatrix.interpreter.ir import nodes as ir

from .gemm_pair import part_of

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.sync.clusters import Cluster

_WARP = 32
_LANES = 128


class CopyScales(TileOperation):
    """`T.tcgen05_cp_warpx4(words, tensor memory, column)`."""

    name = "tcgen05_cp_warpx4"
    reads = ("src",)

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        self.call = call
        self.src = region(e, call.args[0])
        target = next((key for key in e.buffers if key.data is call.args[1]), None)
        if target is None or target.scope != "shared.tmem":
            raise e.refuse("T.tcgen05_cp_warpx4 to no tensor memory")
        zero, lanes, columns = (ir.IntImm("int32", n) for n in (0, _LANES, 4))
        box = ir.Region(
            "handle", target, (zero, call.args[2]), (lanes, columns), reads=False, writes=True
        )
        buf = e.buffers[target]
        if {buf.dtype, self.src.buf.dtype} != {"uint32"} or buf.shape[0].lit != _LANES:
            raise e.refuse(f"T.tcgen05_cp_warpx4 to {buf.name} ({buf.dtype})")
        self.dst = region(e, box)
        self.of_pair = bool(call.annotations.get("use_2cta"))
        if self.of_pair:
            refuse_sanitizers(e, "T.tcgen05_cp_warpx4 over two blocks (use_2cta)")

    def emit(self, e: Emitter) -> None:
        """Write the copy."""
        source, target = checked_view(e, self.src), checked_view(e, self.dst)
        if not self.of_pair:
            e.w.line(f"copy_scales({source}, {target})")
            return
        operands = (f"({r.buf.code!r}, {r.dims_code})" for r in (self.src, self.dst))
        e.w.line(
            f"copy_scales_of_pair({cluster_of(e)}, {rank_in_cluster(e)}, {', '.join(operands)})"
        )


class TransposeScales(TileOperation):
    """`T.tcgen05_sf_warp_transpose(words)`."""

    name = "tcgen05_sf_warp_transpose"
    reads = writes = ("words",)

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        self.call = call
        self.words = region(e, call.args[0])
        if self.words.buf.dtype != "uint32":
            buf = self.words.buf
            raise e.refuse(f"T.tcgen05_sf_warp_transpose of {buf.name} ({buf.dtype})")

    def emit(self, e: Emitter) -> None:
        """Write the transpose."""
        e.w.line(f"transpose_scales({checked_view(e, self.words)})")


def _copy(e: Emitter, call: ir.Call) -> None:
    issue(e, "tcgen05 MMA", CopyScales(e, call), "ordered=True")


def _transpose(e: Emitter, call: ir.Call) -> None:
    t = threads_of(e, "T.tcgen05_sf_warp_transpose")
    low, high = t.intervals[t.role]
    if len(t.group) > 1 or high - low != _WARP or (e.mask is not None and not e.mask.scalar):
        raise e.refuse("T.tcgen05_sf_warp_transpose by other threads than those of one warp")
    with t.without_threads(e):
        perform(e, TransposeScales(e, call))


def copy_scales(source: Array, target: Array) -> None:
    """Four words to each lane of a quarter of the lanes, the same to all quarters."""
    target[...] = np.tile(source.reshape(_WARP, 4), (_LANES // _WARP, 1))


def copy_scales_of_pair(
    cluster: Cluster, rank: int, source: tuple[str, Any], target: tuple[str, Any]
) -> None:
    """`copy_scales` in the block with a rank and in its neighbour."""
    for block in (rank & ~1, rank | 1):
        copy_scales(part_of(cluster, source, block), part_of(cluster, target, block))


def transpose_scales(words: Array) -> None:
    """Transpose 128 words, a matrix of 4 rows, in place."""
    words[...] = words.reshape(4, _WARP).T.flatten()


ASYNCHRONOUS = {"tl.ptx_tcgen05_cp_warpx4": together(_copy)}
EFFECTS = {**ASYNCHRONOUS, "tl.ptx_tcgen05_sf_warp_transpose": _transpose}
SYNCHRONIZING = frozenset(EFFECTS)
FUNCTIONS = (copy_scales, copy_scales_of_pair, transpose_scales)
