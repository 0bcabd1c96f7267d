"""Where the rows of one sequence lie: the only difference between dense and packed attention.

=======  ==================================  ===============================  ==================
layout   q, k, v, out and their gradients    lse, delta (float32)             a sequence's rows
=======  ==================================  ===============================  ==================
bshd     [batch, seqlen, heads, dim]         [batch, heads, seqlen_q]         a batch index
bhsd     [batch, heads, seqlen, dim]         [batch, heads, seqlen_q]         a batch index
thd      [total, heads, dim]                 [heads, total_q]                 from cu_seqlens[b]
=======  ==================================  ===============================  ==================

The backward keeps lse and delta once more in *padded rows*: every sequence begins at a multiple
of `PADDING` rows and owns all up to the next, so that a tile of them is one aligned copy that
never meets another sequence. Dense: [batch, heads, padded]; packed: [heads, padded], sequence b
from ``padded_start(cu_seqlens_q[b], b)``.

A tile that runs past the end of a tensor reads zeros there and stores nothing: TileLang guards
each dimension. Past the end of its own sequence, though, a packed tile is still inside the
tensor, among the rows of the next sequence: what it reads there must be masked by select, not by
arithmetic (it may be huge), and every store asks `holds` first.
"""

from dataclasses import dataclass, replace

import tilelang.language as T

__all__ = [
    "LAYOUTS",
    "PADDING",
    "Rows",
    "bind_rows",
    "matrix_shape",
    "padded_start",
    "statistic_shape",
]

LAYOUTS = ("bshd", "bhsd", "thd")
PADDING = 64
"""Rows: those of a block of the pre-pass, which writes them; a tile of queries divides them, and
they are far more than the 16 bytes that copies align to."""


def padded_start(start, sequence):
    """The padded row at which a packed sequence begins: there is room for all before it."""
    return (start + PADDING * sequence) // PADDING * PADDING


def matrix_shape(layout, batch, rows, heads, dim):
    """The shape of a q-like tensor; `rows` is the sequence length, or the packed total."""
    return {
        "bshd": (batch, rows, heads, dim),
        "bhsd": (batch, heads, rows, dim),
        "thd": (rows, heads, dim),
    }[layout]


def statistic_shape(layout, batch, rows, heads):
    """The shape of lse and delta: one float32 for each query row of each head."""
    return (heads, rows) if layout == "thd" else (batch, heads, rows)


@dataclass(frozen=True)
class Rows:
    """The rows of one sequence in the global tensors of one layout.

    ``sequence`` is the batch index, ``start`` the packed row at which the sequence begins (0 in
    a dense layout) and ``length`` its number of rows; ``total`` are the rows of a packed tensor.
    ``shortened`` if the tensor has rows past them that are the sequence's, but not this block's.
    """

    layout: str
    sequence: object
    start: object
    length: object
    total: object = None
    shortened: bool = False

    def without_last(self, rows):
        """The same but for its last `rows` rows: none are left where it has no more."""
        return replace(self, length=self.length - rows, shortened=True)

    @property
    def padded(self):
        """The first of the sequence's padded rows."""
        return padded_start(self.start, self.sequence) if self.layout == "thd" else 0

    @property
    def padded_length(self):
        """How many padded rows a packed sequence owns, up to the next."""
        return padded_start(self.start + self.length, self.sequence + 1) - self.padded

    def contains(self, row):
        """Whether `row`, counted from the start of the sequence, belongs to it."""
        return row < self.length

    def can_store_tile(self, row, rows):
        """Whether a tile of `rows` rows from `row` may be stored whole.

        A dense tile may: what is past the end of the sequence is outside of the tensor.
        """
        followed = self.layout == "thd" or self.shortened
        return row + rows <= self.length if followed else True

    def load_row(self, row):
        """The row that `tile` is to be asked for: this one, where rows are in one piece."""
        return row

    def tile(self, tensor, head, row, rows, width):
        """The region of `rows` rows from `row`, `width` wide, of one head."""
        here = slice(self.start + row, self.start + row + rows)
        wide = slice(0, width)
        if self.layout == "bshd":
            return tensor[self.sequence, here, head, wide]
        if self.layout == "bhsd":
            return tensor[self.sequence, head, here, wide]
        return tensor[here, head, wide]

    def index(self, head, row, column):
        """The index of one element of a q-like tensor."""
        if self.layout == "bshd":
            return (self.sequence, self.start + row, head, column)
        if self.layout == "bhsd":
            return (self.sequence, head, self.start + row, column)
        return (self.start + row, head, column)

    def statistic(self, head, row):
        """The index of one row's lse or delta."""
        if self.layout == "thd":
            return (head, self.start + row)
        return (self.sequence, head, self.start + row)

    def padded_statistic(self, head, row):
        """The index of one padded row's lse or delta."""
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
    """The same rows, with start and length held in variables of the running kernel.

    To be called inside the condition under which a block works, not before it: the compiler
    gives the warps that load and those that compute a copy each of such variables, and would
    leave the condition around both without.
    """
    start = rows.start
    length = rows.length
    if rows.layout == "thd":
        # The operator has checked cu_seqlens. Told so, the compiler leaves out a test of each row
        # against either end of the tensor, and so registers: without it kernels spill.
        T.assume(start >= 0)
        T.assume(start + length <= rows.total)
    return replace(rows, start=start, length=length)
