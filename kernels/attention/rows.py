"""The memory layout of sequences: the only difference between dense and packed attention.

=======  ==================================  ===============================  ==================
layout   q, k, v, out and their gradients    lse, delta (float32)             a sequence's rows
=======  ==================================  ===============================  ==================
bshd     [batch, seqlen, heads, dim]         [batch, heads, seqlen_q]         a batch index
bhsd     [batch, heads, seqlen, dim]         [batch, heads, seqlen_q]         a batch index
thd      [total, heads, dim]                 [heads, total_q]                 from cu_seqlens[b]
=======  ==================================  ===============================  ==================

The backward copies lse and delta to *padded rows*: every sequence starts at a multiple of `PADDING`
rows and owns all rows up to the next sequence, so that a tile of statistics is one aligned copy
within one sequence. Dense: [batch, heads, padded]; packed: [heads, padded], with sequence b
starting at ``padded_start(cu_seqlens_q[b], b)``.

TileLang guards each dimension: past the end of a tensor a tile reads zeros and stores nothing. But
past the end of its sequence a packed tile is inside the tensor, in the rows of the next sequence.
What it reads there may be huge and must be masked by select, not by arithmetic; stores are guarded
by `contains`.

A `Batch` has the sequences of a launch: the parameters that a kernel has for them, and the `Rows`
of each.
"""

from dataclasses import dataclass, replace

import tilelang.language as T

from tlmatrix_kernels.attention.masks import Mask
from tlmatrix_kernels.parameters import absent, named

PADDING = 128
"""A sequence owns whole tiles of padded rows: tiles of queries that read or add to them divide it,
and so do the rows of a block of the pre-pass. It is a multiple of the 16 bytes to which copies
align.
"""


def padded_start(start, sequence):
    """The padded row at which a packed sequence starts."""
    return (start + PADDING * sequence) // PADDING * PADDING


def matrix_shape(layout, batch, rows, heads, dim):
    """The shape of a q-like tensor; `rows` is the sequence length, or the packed total."""
    return {
        "bshd": (batch, rows, heads, dim),
        "bhsd": (batch, heads, rows, dim),
        "thd": (rows, heads, dim),
    }[layout]


def statistic_shape(layout, batch, rows, heads):
    """The shape of lse and delta: one float32 per query row and head."""
    return (heads, rows) if layout == "thd" else (batch, heads, rows)


@dataclass(frozen=True)
class Rows:
    """The rows of one sequence in the global tensors of one layout.

    ``sequence`` is the batch index, ``start`` the packed row at which the sequence starts (0 in a
    dense layout), ``length`` its number of rows and ``total`` the number of rows of a packed
    tensor. ``shortened``: the tensor has rows after the last one that belong to other blocks of the
    sequence.
    """

    layout: str
    sequence: object
    start: object
    length: object
    total: object = None
    shortened: bool = False

    def without_last(self, rows):
        """The same without the last `rows` rows; the length may become zero or negative."""
        return replace(self, length=self.length - rows, shortened=True)

    @property
    def padded(self):
        """The first padded row of the sequence."""
        return padded_start(self.start, self.sequence) if self.layout == "thd" else 0

    @property
    def padded_length(self):
        """The number of padded rows that a packed sequence owns."""
        return padded_start(self.start + self.length, self.sequence + 1) - self.padded

    def contains(self, row):
        """Whether `row`, relative to the start of the sequence, is in the sequence."""
        return row < self.length

    def can_store_tile(self, row, rows):
        """Whether a tile of `rows` rows from `row` can be stored without row guards.

        A dense tile always can: past the end of the sequence it is outside of the tensor.
        """
        followed = self.layout == "thd" or self.shortened
        return row + rows <= self.length if followed else True

    def load_row(self, row):
        """The argument of `tile` that loads from `row`; `Rows` of several ranges override it."""
        return row

    def tile(self, tensor, head, row, rows, width, *outer):
        """The region of `rows` rows from `row` and `width` columns of one head.

        `outer` are indices of dimensions before those of the layout.
        """
        here = slice(self.start + row, self.start + row + rows)
        wide = slice(0, width)
        if self.layout == "bshd":
            return tensor[(*outer, self.sequence, here, head, wide)]
        if self.layout == "bhsd":
            return tensor[(*outer, self.sequence, head, here, wide)]
        return tensor[(*outer, here, head, wide)]

    def index(self, head, row, column):
        """The index of one element of a q-like tensor."""
        if self.layout == "bshd":
            return (self.sequence, self.start + row, head, column)
        if self.layout == "bhsd":
            return (self.sequence, head, self.start + row, column)
        return (self.start + row, head, column)

    def statistic(self, head, row):
        """The index of lse or delta of one row."""
        if self.layout == "thd":
            return (head, self.start + row)
        return (self.sequence, head, self.start + row)

    def padded_statistic(self, head, row):
        """The index of lse or delta of one padded row."""
        here = self.padded + row
        return (head, here) if self.layout == "thd" else (self.sequence, head, here)

    def padded_tile(self, statistic, head, row, rows):
        """The region of `rows` padded rows from `row`."""
        here = slice(self.padded + row, self.padded + row + rows)
        return (
            statistic[head, here] if self.layout == "thd" else statistic[self.sequence, head, here]
        )


class Batch:
    """The parameters that a kernel has for the sequences of a launch, in their layout.

    All sizes are symbolic: one compiled kernel serves every batch. A packed kernel also has
    ``cu_seqlens_q`` and ``cu_seqlens_k``, [sequences + 1] int32, and the length of the longest
    query or key sequence, which is the extent of its grid.
    """

    def __init__(self, layout):
        self.layout = layout
        self.packed = layout == "thd"
        self.heads, self.kv_heads = T.dynamic("heads, kv_heads")
        self._padded_q, self._blocks = T.dynamic("padded_q, blocks")
        if self.packed:
            self.rows_q, self.rows_k, self._bounds = T.dynamic("total_q, total_k, bounds")
            self.count = self._bounds - 1
        else:
            self.rows_q, self.rows_k, self.count = T.dynamic("seqlen_q, seqlen_k, batch")

    def named(self, kernel):
        """Decorator of a kernel: the name of the layout, then `kernel`."""
        return named(f"{'packed' if self.packed else 'dense'}_{kernel}")

    def like_q(self, dim, dtype):
        """A tensor with the rows and heads of q."""
        return T.Tensor(matrix_shape(self.layout, self.count, self.rows_q, self.heads, dim), dtype)

    def like_k(self, dim, dtype, *parts):
        """A tensor with the rows and heads of k, after dimensions `parts`."""
        shape = matrix_shape(self.layout, self.count, self.rows_k, self.kv_heads, dim)
        return T.Tensor((*parts, *shape), dtype)

    def statistic(self):
        """The tensor lse."""
        return self._statistic(self.rows_q)

    def padded_statistic(self):
        """A tensor of lse or delta in padded rows."""
        return self._statistic(self._padded_q)

    def blocks(self, shape):
        """A float32 tensor of row blocks (see `reordered`) of this shape."""
        return self._statistic(self._blocks, shape)

    def _statistic(self, rows, inner=()):
        shape = statistic_shape(self.layout, self.count, rows, self.heads)
        return T.Tensor((*shape, *inner), "float32")

    @property
    def cu_seqlens(self):
        """cu_seqlens_q or cu_seqlens_k."""
        return T.Tensor((self._bounds,), "int32") if self.packed else absent

    @property
    def max_seqlen(self):
        """The length of the longest query or key sequence."""
        return T.int32 if self.packed else absent

    def sequences(
        self, cu_seqlens_q=None, cu_seqlens_k=None, *, max_seqlen_q=None, max_seqlen_k=None
    ):
        """The sequences, in the body of a kernel with these parameters."""
        return Sequences(self, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)


@dataclass(frozen=True)
class Sequences:
    """The sequences of a launch, and the rows of each."""

    batch: Batch
    cu_seqlens_q: object
    cu_seqlens_k: object
    max_seqlen_q: object
    max_seqlen_k: object

    @property
    def longest_q(self):
        """The length of the longest query sequence."""
        return self.max_seqlen_q if self.batch.packed else self.batch.rows_q

    @property
    def longest_k(self):
        """The length of the longest key sequence."""
        return self.max_seqlen_k if self.batch.packed else self.batch.rows_k

    def queries(self, index):
        """The query rows of one sequence."""
        return self._rows(index, self.cu_seqlens_q, self.batch.rows_q)

    def keys(self, index):
        """The key rows of one sequence."""
        return self._rows(index, self.cu_seqlens_k, self.batch.rows_k)

    def _rows(self, index, cu_seqlens, rows):
        if not self.batch.packed:
            return Rows(self.batch.layout, index, 0, rows)
        start = cu_seqlens[index]
        return Rows("thd", index, start, cu_seqlens[index + 1] - start, rows)

    def mask(self, _index, cfg, queries, keys, window):
        """The mask of one sequence, of which a block uses these `queries` and `keys`."""
        return Mask(cfg.causal, cfg.windowed, queries.length, keys.length, window)


@T.macro
def bind_rows(rows):
    """The same rows, with start and length bound to kernel variables.

    Call it inside the condition under which the block works: TileLang copies such variables into
    the producer and the consumer branch, and would otherwise duplicate the condition too.
    """
    start = rows.start
    length = rows.length
    if rows.layout == "thd":
        # The operator has checked cu_seqlens. With these assumptions the compiler drops the bounds
        # checks of each row; without them the kernels spill registers.
        T.assume(start >= 0)
        T.assume(start + length <= rows.total)
    return replace(rows, start=start, length=length)


@T.macro
def bind_block(queries, keys, mask):
    """The same queries, keys and mask, with all that they have bound to kernel variables."""
    mask = mask.bound()
    queries, keys = bind_rows(queries), bind_rows(keys)
    return queries, keys, mask.with_lengths(queries.length, keys.length)
