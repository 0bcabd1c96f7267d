"""The forward kernel that begins with the rank's own keys and waits for others when it needs them.

Rows and runs are as in `kernels`; the keys of both ranges are rows of one memory. A row of the
table, [count, 8] int32, has for the blocks of one run

======  =========================================================================================
column  meaning
======  =========================================================================================
0 to 2  its queries, as in `kernels`
3 to 5  its own keys: the first row, how many there are, and the offset of the diagonal
6, 7    those that come: the first row, and how many there are; every query sees all of them
======  =========================================================================================

A block walks over tiles of own keys, then over tiles of the others, in one loop, so that the next
tile is always on its way while one is computed. Its positions are those of the loop: the others
begin at the first whole tile behind the own ones that the block sees. The others come in slices of
the memory; before a tile of them is loaded that reaches into another slice, it waits for the flag
with which the stream of the pulls counts the slices that are there.

(How TileLang 0.1.15 assembles it for sm_90a: the threads that load wait, the others do not, and no
register spills. A diagonal among the keys that come would take registers that are not there.)
"""

from dataclasses import dataclass, replace

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention import forward as fwd
from tlmatrix_kernels.attention.masks import Mask, block_order, tile_and_head
from tlmatrix_kernels.attention.options import PASS_CONFIGS
from tlmatrix_kernels.attention.rows import Rows, bind_rows
from tlmatrix_kernels.attention.softmax import InitialState
from tlmatrix_kernels.attention.tiles import tiles_for
from tlmatrix_kernels.distributed import signals
from tlmatrix_kernels.distributed.attention.kernels import (
    RangeMask,
    Run,
    query_tile,
    unchanged_rows,
)

__all__ = ["COLUMNS", "overlapped_forward"]

COLUMNS = 8
_EVERYTHING = 1 << 30
"""An offset that hides nothing."""


@dataclass(frozen=True)
class LocalThenRemoteRows(Rows):
    """Own keys, then others from position `first` on: `own` and `others` are the rows of each.

    ``ready`` is [1] int32. The first ``fetched`` rows of the memory come in slices of
    ``2 ** slice_bits`` rows; slice n is there when the flag is at least ``epoch + n + 1``.
    """

    own: object = None
    others: object = None
    first: object = 0
    ready: object = None
    epoch: object = 0
    slice_bits: object = 0
    fetched: object = 0
    columns: int = 1

    def load_row(self, row):
        """The row of the memory at which the tile lies; that of the others once they are there."""
        tile, first = row // self.columns, self.first // self.columns
        start = T.if_then_else(tile < first, self.own.start, self.others.start - self.first)
        slices = self._slices(start + row + self.columns)
        # The tile before has waited for what it shares with this one.
        further = T.Or(tile == first, slices != self._slices(start + row))
        waits = T.And(tile >= first, further)
        return signals.given(self.ready, 0, self.epoch + slices, start, waits) + row

    def _slices(self, end):
        """How many slices hold the rows before `end`; behind those that come are the own ones."""
        return T.shift_right(T.min(end, self.fetched) - 1, self.slice_bits) + 1


@dataclass(frozen=True)
class _Diagonal(RangeMask):
    """The causal mask of one tile of keys.

    It does not ask whether a query is one of the run: others see what they like, as nothing of them
    is stored. With that question the registers do not suffice.
    """

    def visible(self, query, key):
        """Whether `query` sees `key`."""
        return T.And(key < self.seqlen_k, key <= query + self.offset)

    def needs_mask(self, query, _queries, key, keys):
        """Whether some pair of the tiles from `query` and from `key` is masked."""
        return T.Or(key + keys > self.seqlen_k, key + keys - 1 > query + self.offset)


@dataclass(frozen=True)
class LocalThenRemoteMask(Mask):
    """The mask of a run over both: `own` that of its own keys, and `others` how many come."""

    own: object = None
    others: object = 0
    first: object = 0
    columns: int = 1

    def with_lengths(self, _seqlen_q, _seqlen_k):
        """The same: it knows the lengths of both ranges."""
        return self

    def for_key_tile(self, key):
        """The mask of one tile, which has keys of one range."""
        is_own, end = key // self.columns < self.first // self.columns, self.first + self.others
        if not self.causal:
            return replace(self.own, seqlen_k=T.if_then_else(is_own, self.own.seqlen_k, end))
        # The diagonal ends with the own keys, so behind them nothing is seen.
        length = T.if_then_else(is_own, _EVERYTHING, end)
        offset = T.if_then_else(is_own, self.own.diagonal_offset, _EVERYTHING)
        return _Diagonal(True, False, self.own.seqlen_q, length, 0, offset)

    def key_tiles(self, _query, _queries, keys):
        """All tiles of both."""
        return 0, self.first // keys + T.ceildiv(self.others, keys)


@T.macro
def _walk(q, k, v, ranges, place, initial, out, lse, queries, query, head, coming, scale, cfg):
    """What a block does that sees some key; inside, what it reads of its row is in variables."""
    dims, causal, tiles, groups = cfg
    queries = bind_rows(queries)
    own = bind_rows(Rows("thd", 0, ranges[place, 3], ranges[place, 4], k.shape[0]))
    others = bind_rows(Rows("thd", 0, ranges[place, 6], ranges[place, 7], k.shape[0]))
    offset = ranges[place, 5]
    diagonal = RangeMask(causal, False, queries.length, own.length, 0, offset)
    first = T.max(diagonal.key_tiles(query, tiles.queries, tiles.keys)[1], 0) * tiles.keys
    keys = LocalThenRemoteRows(
        "thd", 0, 0, 0, k.shape[0], False, own, others, first, *coming, tiles.keys
    )
    mask = LocalThenRemoteMask(
        causal, False, queries.length, 0, 0, diagonal, others.length, first, tiles.keys
    )
    fwd.forward_block(
        q, k, v, initial, out, lse, queries, keys, mask, query, head, head // groups,
        scale, dims, tiles,
    )  # fmt: skip


@tilelang.jit(pass_configs=PASS_CONFIGS)
def overlapped_forward(dtype, groups, head_dim, head_dim_v, causal, tiles=None):
    """Build the kernel: q, k, v, the table and what is said of those that come to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=False).forward
    total_q, total_k, count = T.dynamic("total_q, total_k, count")
    heads, kv_heads = T.dynamic("heads, kv_heads")
    cfg = (head_dim, head_dim_v), causal, tiles, groups

    @T.prim_func
    def sequence_forward(
        q: T.Tensor((total_q, heads, head_dim), dtype),
        k: T.Tensor((total_k, kv_heads, head_dim), dtype),
        v: T.Tensor((total_k, kv_heads, head_dim_v), dtype),
        ranges: T.Tensor((count, COLUMNS), "int32"),
        ready: T.Tensor((1,), "int32"),
        out: T.Tensor((total_q, heads, head_dim_v), dtype),
        lse: T.Tensor((heads, total_q), "float32"),
        epoch: T.int32,
        slice_bits: T.int32,
        fetched: T.int32,
        longest_run: T.int32,
        scale: T.float32,
    ):
        tile_count = T.ceildiv(longest_run, tiles.queries)
        with T.Kernel(*block_order(causal, tile_count, heads), count, threads=tiles.threads) as (
            one,
            two,
            place,
        ):
            T.annotate_restrict_buffers(k, v)
            T.import_source(signals.source(tiles.threads))
            tile, head = tile_and_head(causal, one, two)
            queries = Run(
                "thd", 0, ranges[place, 0], ranges[place, 1], total_q, first_padded=ranges[place, 2]
            )
            query, queries = query_tile(causal, tile, tiles.queries, queries)
            own = RangeMask(causal, False, queries.length, ranges[place, 4], 0, ranges[place, 5])
            nothing = -T.infinity("float32")
            initial = InitialState(m=nothing, l=0, lse=nothing)
            sees_own = own.any_key_visible(query, tiles.queries, tiles.keys)
            sees_others = T.And(query < queries.length, ranges[place, 7] > 0)
            if T.Or(sees_own, sees_others):
                _walk(
                    q, k, v, ranges, place, initial, out, lse, queries, query, head,
                    (ready, epoch, slice_bits, fetched), scale, cfg,
                )  # fmt: skip
            else:
                unchanged_rows(None, out, lse, queries, query, head, head_dim_v, tiles.queries)

    return sequence_forward
