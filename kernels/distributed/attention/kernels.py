"""The kernels of one step of sequence-parallel attention: runs of queries against ranges of keys.

Rows are packed (layout thd, see `tlmatrix_kernels.attention.rows`), for dense batches too: q, out
and do are [total_q, heads, dim], k and v [total_k, kv_heads, dim] the keys of one step, lse and
delta [heads, total_q]. The table `ranges`, [count, 6] int32, has one row for the blocks of one run,
the longest first:

======  =========================================================================================
column  meaning
======  =========================================================================================
0       the first row of the queries
1       the number of queries
2       the first of their padded rows (backward)
3       the first row of the keys
4       the number of keys; 0 if the run attends to none in this launch
5       offset: query i of the run attends to the keys j <= i + offset (if `causal`)
======  =========================================================================================

(Everything that a block needs is in one row at constant columns: nested table lookups would double
the compile time.)

The algorithm of one block is in `tlmatrix_kernels.attention.forward` and `backward`. Forward
launches of the steps run in order over the same rows: all but the last store out in float32, and
all but the first continue from it. The backward adds to zero-initialized float32 sums: at most two
blocks add to a key, those of the two runs of its sequence, so the result does not depend on their
order.
"""

from dataclasses import dataclass, replace
from functools import partial

import tilelang
import tilelang.language as T

from tlmatrix_kernels.attention import backward as bwd
from tlmatrix_kernels.attention import forward as fwd
from tlmatrix_kernels.attention.launch import Config, key_blocks, query_blocks
from tlmatrix_kernels.attention.masks import TOP_LEFT, Mask
from tlmatrix_kernels.attention.options import PASS_CONFIGS, SPECIALIZED_CONFIGS
from tlmatrix_kernels.attention.rows import Batch, Rows, Sequences
from tlmatrix_kernels.attention.softmax import InitialState
from tlmatrix_kernels.attention.tiles import tiles_for
from tlmatrix_kernels.distributed.attention.specialized import specialized_block, specialized_tiles
from tlmatrix_kernels.parameters import absent, named

COLUMNS = 6


@T.macro
def _bound_offset(mask):
    offset = mask.diagonal_offset
    return replace(mask, diagonal_offset=offset)


@dataclass(frozen=True)
class RangeMask(Mask):
    """The mask of a run and a range of keys, with an explicit diagonal offset."""

    diagonal_offset: object = 0

    @property
    def ends_on_diagonal(self):
        """False: the diagonal may leave the range at its end."""
        return False

    @property
    def offset(self):
        """The key position aligned with query 0, relative to the start of the range."""
        return self.diagonal_offset

    def bound(self):
        """The same mask, with its offset bound to a kernel variable."""
        return _bound_offset(self)


@dataclass(frozen=True)
class Run(Rows):
    """The rows of one run of queries, with an explicit first padded row."""

    first_padded: object = 0

    @property
    def padded(self):
        """The first padded row of the run."""
        return self.first_padded


class RunBatch(Batch):
    """The parameters of a launch over runs: packed tensors, and a table of ranges."""

    def __init__(self, columns=COLUMNS):
        super().__init__("thd")
        self.count, self._columns = T.dynamic("count"), columns

    @property
    def ranges(self):
        """The table; see the module."""
        return T.Tensor((self.count, self._columns), "int32")

    def runs(self, ranges, *, longest_run=None, longest_range=None):
        """The runs, in the body of a kernel with these parameters."""
        return Runs(self, ranges, ranges, longest_run, longest_range)


@dataclass(frozen=True)
class Runs(Sequences):
    """The rows of each entry of a table: the queries of a run, and its range of keys.

    The diagonal of a range is explicit, so that a block has all of its keys, as if it were aligned
    at the first of them: `causal` is `TOP_LEFT`.
    """

    def queries(self, index):
        """The run of an entry."""
        row, length, padded = (self.cu_seqlens_q[index, column] for column in range(3))
        return Run("thd", 0, row, length, self.batch.rows_q, first_padded=padded)

    def keys(self, index):
        """The range of an entry."""
        row, length = (self.cu_seqlens_k[index, column] for column in (3, 4))
        return Rows("thd", 0, row, length, self.batch.rows_k)

    def mask(self, index, cfg, queries, keys, _window):
        """The mask of an entry."""
        offset = self.cu_seqlens_k[index, 5]
        return RangeMask(cfg.causal, False, queries.length, keys.length, 0, offset)


def continued(before, _head, _scale):
    """The initial state after the previous launch with its (out, lse), or of the first for None."""
    nothing = -T.infinity("float32")
    return InitialState(m=nothing, l=0, lse=nothing, before=before)


@T.macro
def unchanged_rows(before, out, lse, cfg, queries, query, head):
    """Copy the previous out and lse of a tile with no visible key in this launch, or 0 and -inf."""
    rows, head_dim_v = cfg.tiles.queries, cfg.dims[1]
    for i, d in T.Parallel(rows, head_dim_v):
        if queries.contains(query + i):
            here = queries.index(head, query + i, d)
            out[here] = 0 if before is None else before[0][here]
    for i in T.Parallel(rows):
        if queries.contains(query + i):
            row = queries.statistic(head, query + i)
            lse[row] = -T.infinity("float32") if before is None else before[1][row]


def _forward(name, block, tiles, dtype, out_dtype, groups, dims, causal, again=False):
    """A forward kernel; `again` if it continues from the out and lse of the previous launch."""
    cfg = Config(groups, dims, causal and TOP_LEFT, False, tiles)
    batch = RunBatch()
    head_dim, head_dim_v = dims

    @T.prim_func
    @named(name)
    def forward(
        q: batch.like_q(head_dim, dtype),
        k: batch.like_k(head_dim, dtype),
        v: batch.like_k(head_dim_v, dtype),
        ranges: batch.ranges,
        out_before: batch.like_q(head_dim_v, "float32") if again else absent,
        lse_before: batch.statistic() if again else absent,
        out: batch.like_q(head_dim_v, out_dtype),
        lse: batch.statistic(),
        longest_run: T.int32,
        scale: T.float32,
    ):
        before = (out_before, lse_before) if again else None
        query_blocks(
            batch.runs(ranges, longest_run=longest_run), 0, cfg,
            partial(block, q, k, v, partial(continued, before), out, lse, scale, cfg),
            partial(unchanged_rows, before, out, lse, cfg),
        )  # fmt: skip

    return forward


@tilelang.jit(pass_configs=PASS_CONFIGS)
def forward(dtype, out_dtype, groups, head_dim, head_dim_v, causal, tiles=None):
    """Build the kernel of the first launch: q, k and v to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=False).forward
    dims = head_dim, head_dim_v
    return _forward(
        "sequence_forward", fwd.forward_block, tiles, dtype, out_dtype, groups, dims, causal
    )


@tilelang.jit(pass_configs=SPECIALIZED_CONFIGS)
def forward_specialized(dtype, out_dtype, groups, head_dim, head_dim_v, causal):
    """Build the kernel of the first launch with explicit warp specialization, for sm_90a."""
    dims = head_dim, head_dim_v
    return _forward(
        "sequence_forward_specialized", specialized_block, specialized_tiles(*dims), dtype,
        out_dtype, groups, dims, causal,
    )  # fmt: skip


@tilelang.jit(pass_configs=PASS_CONFIGS)
def forward_continued(dtype, out_dtype, groups, head_dim, head_dim_v, causal, tiles=None):
    """Build the kernel of later launches: q, k, v and the previous out and lse to out and lse."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=False).forward
    return _forward(
        "sequence_forward_again", fwd.forward_block, tiles, dtype, out_dtype, groups,
        (head_dim, head_dim_v), causal, again=True,
    )  # fmt: skip


@tilelang.jit(pass_configs=PASS_CONFIGS)
def key_sums(dtype, groups, head_dim, head_dim_v, causal, tiles=None):
    """Build the key blocks of one launch, which add to dk and dv of the keys of the step.

    A block iterates over all query heads of its kv head, like those of strategy `grouped`.
    """
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=False).key_block
    cfg = Config(groups, (head_dim, head_dim_v), causal and TOP_LEFT, False, tiles)
    batch = RunBatch()

    @T.prim_func
    def sequence_key_sums(
        q: batch.like_q(head_dim, dtype),
        k: batch.like_k(head_dim, dtype),
        v: batch.like_k(head_dim_v, dtype),
        do: batch.like_q(head_dim_v, dtype),
        row_lse: batch.padded_statistic(),
        row_delta: batch.padded_statistic(),
        ranges: batch.ranges,
        dk_sum: batch.like_k(head_dim, "float32"),
        dv_sum: batch.like_k(head_dim_v, "float32"),
        longest_range: T.int32,
        scale: T.float32,
    ):
        key_blocks(
            batch.runs(ranges, longest_range=longest_range), 0, cfg,
            bwd.KeyGradients(dk_sum, dv_sum, batch.kv_heads, groups),
            partial(bwd.key_block, q, k, v, do, row_lse, row_delta, scale, cfg),
            None,
        )  # fmt: skip

    return sequence_key_sums


@tilelang.jit(pass_configs=PASS_CONFIGS)
def query_sums(dtype, groups, head_dim, head_dim_v, causal, tiles=None):
    """Build the query blocks of one launch, which add to dq."""
    tiles = tiles or tiles_for(head_dim, head_dim_v, windowed=False).query_block
    cfg = Config(groups, (head_dim, head_dim_v), causal and TOP_LEFT, False, tiles)
    batch = RunBatch()

    @T.prim_func
    def sequence_query_sums(
        q: batch.like_q(head_dim, dtype),
        k: batch.like_k(head_dim, dtype),
        v: batch.like_k(head_dim_v, dtype),
        do: batch.like_q(head_dim_v, dtype),
        row_lse: batch.padded_statistic(),
        row_delta: batch.padded_statistic(),
        ranges: batch.ranges,
        dq_sum: batch.like_q(head_dim, "float32"),
        longest_run: T.int32,
        scale: T.float32,
    ):
        query_blocks(
            batch.runs(ranges, longest_run=longest_run), 0, cfg,
            partial(bwd.query_block, q, k, v, do, row_lse, row_delta, dq_sum, scale, cfg),
            None,
        )  # fmt: skip

    return sequence_query_sums
