"""The overlapped forward kernel: local keys first, then remote keys as they arrive.

Rows and runs are as in `kernels`; local and remote keys are rows of one buffer. A row of the table
`ranges`, [count, 8] int32, describes the blocks of one run:

======  =========================================================================================
column  meaning
======  =========================================================================================
0 to 2  the queries of the run, as in `kernels`
3 to 5  local keys: first row, number of rows, and the offset of the causal diagonal
6, 7    remote keys: first row, number of rows; visible to every query of the run
======  =========================================================================================

A block iterates over tiles of local keys and then over tiles of remote keys in one loop, so that
loads are pipelined across both. Key positions are those of the loop: remote keys start at the first
whole tile after the visible local keys. Remote keys arrive in slices of the buffer; before loading
a tile that reaches into a new slice, the block waits for the flag that counts the slices that have
arrived.

(In TileLang 0.1.15 for sm_90a only the producer warps wait, and no register spills; a causal
diagonal among the remote keys would.)
"""

from dataclasses import dataclass, replace
from functools import partial

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention import forward as fwd
from tlmatrix_kernels.attention.launch import Config
from tlmatrix_kernels.attention.masks import (
    TOP_LEFT,
    Mask,
    block_order,
    query_tile,
    tile_and_head,
)
from tlmatrix_kernels.attention.options import PASS_CONFIGS
from tlmatrix_kernels.attention.rows import Rows, bind_rows
from tlmatrix_kernels.attention.tiles import tiles_for
from tlmatrix_kernels.distributed import signals
from tlmatrix_kernels.distributed.attention.kernels import (
    RangeMask,
    RunBatch,
    continued,
    unchanged_rows,
)

COLUMNS = 8
_EVERYTHING = 1 << 30
"""A diagonal offset with which every key is visible."""


@dataclass(frozen=True)
class LocalThenRemoteRows(Rows):
    """Local keys, then remote keys from loop position ``first``.

    ``local`` and ``remote`` are their rows. ``ready`` is [1] int32. The first ``fetched`` rows of
    the buffer arrive in slices of ``2 ** slice_bits`` rows; slice n has arrived when the flag is at
    least ``epoch + n + 1``.
    """

    local: object = None
    remote: object = None
    first: object = 0
    ready: object = None
    epoch: object = 0
    slice_bits: object = 0
    fetched: object = 0
    columns: int = 1

    def load_row(self, row):
        """The buffer row of the tile at position `row`; waits until a remote tile has arrived."""
        tile, first = row // self.columns, self.first // self.columns
        start = T.if_then_else(tile < first, self.local.start, self.remote.start - self.first)
        slices = self._slices(start + row + self.columns)
        # The previous tile has already waited for slices that both need.
        new_slice = T.Or(tile == first, slices != self._slices(start + row))
        waits = T.And(tile >= first, new_slice)
        return signals.given(self.ready, 0, self.epoch + slices, start, waits) + row

    def _slices(self, end):
        """The number of slices with rows before `end`; local rows follow the fetched ones."""
        return T.shift_right(T.min(end, self.fetched) - 1, self.slice_bits) + 1


@dataclass(frozen=True)
class _Diagonal(RangeMask):
    """The causal mask of one tile of keys."""

    def needs_mask(self, query, _queries, key, keys):
        """Whether the tiles from `query` and from `key` contain a masked pair."""
        return T.Or(key + keys > self.seqlen_k, key + keys - 1 > query + self.offset)


@dataclass(frozen=True)
class LocalThenRemoteMask(Mask):
    """The mask of a run: `local` is that of its local keys, `remote` the number of remote keys."""

    local: object = None
    remote: object = 0
    first: object = 0
    columns: int = 1

    def with_lengths(self, _seqlen_q, _seqlen_k):
        """Returns self, which has the lengths of both ranges."""
        return self

    def for_key_tile(self, key):
        """The mask of one tile, whose keys are all local or all remote."""
        is_local, end = key // self.columns < self.first // self.columns, self.first + self.remote
        if not self.causal:
            return replace(self.local, seqlen_k=T.if_then_else(is_local, self.local.seqlen_k, end))
        # The diagonal ends within the local keys, so no key past them is visible.
        length = T.if_then_else(is_local, _EVERYTHING, end)
        offset = T.if_then_else(is_local, self.local.diagonal_offset, _EVERYTHING)
        return _Diagonal(True, False, self.local.seqlen_q, length, 0, offset)

    def key_tiles(self, _query, _queries, keys):
        """All tiles of both ranges."""
        return 0, self.first // keys + T.ceildiv(self.remote, keys)


@T.macro
def _run_block(
    q, k, v, initial_of, out, lse, scale, cfg, ranges, entry, arrival, queries, query, head
):
    """The work of a block with visible keys; `arrival` is (ready, epoch, slice_bits, fetched).

    Inside the condition, the table entries are bound to kernel variables (see `rows.bind_rows`).
    """
    tiles = cfg.tiles
    queries = bind_rows(queries)
    local = bind_rows(Rows("thd", 0, ranges[entry, 3], ranges[entry, 4], k.shape[0]))
    remote = bind_rows(Rows("thd", 0, ranges[entry, 6], ranges[entry, 7], k.shape[0]))
    offset = ranges[entry, 5]
    diagonal = RangeMask(cfg.causal, False, queries.length, local.length, 0, offset)
    first = T.max(diagonal.key_tiles(query, tiles.queries, tiles.keys)[1], 0) * tiles.keys
    keys = LocalThenRemoteRows(
        "thd", 0, 0, 0, k.shape[0], False, local, remote, first, *arrival, tiles.keys
    )
    mask = LocalThenRemoteMask(
        cfg.causal, False, queries.length, 0, 0, diagonal, remote.length, first, tiles.keys
    )
    fwd.forward_block(
        q, k, v, initial_of, out, lse, scale, cfg, queries, keys, mask, query, head,
        head // cfg.groups,
    )  # fmt: skip


@tilelang.jit(pass_configs=PASS_CONFIGS)
def overlapped_forward(dtype, groups, head_dim, head_dim_v, causal, tiles=None):
    """Build the kernel: q, k, v, `ranges` and the arrival state of remote keys to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=False).forward
    cfg = Config(groups, (head_dim, head_dim_v), causal and TOP_LEFT, False, tiles)
    batch = RunBatch(COLUMNS)

    @T.prim_func
    def sequence_forward(
        q: batch.like_q(head_dim, dtype),
        k: batch.like_k(head_dim, dtype),
        v: batch.like_k(head_dim_v, dtype),
        ranges: batch.ranges,
        ready: T.Tensor((1,), "int32"),
        out: batch.like_q(head_dim_v, dtype),
        lse: batch.statistic(),
        epoch: T.int32,
        slice_bits: T.int32,
        fetched: T.int32,
        longest_run: T.int32,
        scale: T.float32,
    ):
        tile_count = T.ceildiv(longest_run, tiles.queries)
        with T.Kernel(
            *block_order(causal, tile_count, batch.heads), batch.count, threads=tiles.threads
        ) as (one, two, entry):
            T.annotate_restrict_buffers(k, v)
            T.import_source(signals.source(tiles.threads))
            tile, head = tile_and_head(causal, one, two)
            runs = batch.runs(ranges)
            query, queries, keys = query_tile(
                cfg.causal, tile, tiles.queries, runs.queries(entry), runs.keys(entry)
            )
            local = runs.mask(entry, cfg, queries, keys, None)
            local_visible = local.any_key_visible(query, tiles.queries, tiles.keys)
            remote_visible = T.And(query < queries.length, ranges[entry, 7] > 0)
            if T.Or(local_visible, remote_visible):
                _run_block(
                    q, k, v, partial(continued, None), out, lse, scale, cfg, ranges, entry,
                    (ready, epoch, slice_bits, fetched), queries, query, head,
                )  # fmt: skip
            else:
                unchanged_rows(None, out, lse, cfg, queries, query, head)

    return sequence_forward
