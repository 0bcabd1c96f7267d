"""The memory layout of one sequence: the only difference between dense and packed attention.

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
"""

from dataclasses import dataclass, replace

import tilelang.language as T

LAYOUTS = ("bshd", "bhsd", "thd")
PADDING = 64
"""Rows of a block of the pre-pass, which writes the padded rows. Tiles of queries divide it, and it
is a multiple of the 16 bytes to which copies align.
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
