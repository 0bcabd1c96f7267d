"""The accumulator of dq whose order in memory lets atomics take four elements at once.

The tensor cores leave a product in registers in blocks of 16 rows and 8 columns. Of each, the
thread of lane n holds four elements: columns 2 (n % 4) and the next, of row n // 4 and of the row
8 further down. In a tensor that lies like q these are two pairs, a row's length and more apart,
and a warp's additions scatter over 16 rows. Here the four lie side by side and the lanes one after
the other, so that a thread's share is one atomic (`atom.global.add.v4.f32` on Hopper and later,
one element at a time before), and a warp's is 512 bytes in a row:

    [batch, heads, blocks of 16 rows, head_dim / 8, 32 lanes, 4 elements] float32      (dense)
           [heads, blocks of 16 rows, head_dim / 8, 32 lanes, 4 elements] float32      (packed)

Its rows are padded rows (see `rows`): every sequence begins at a block and owns whole tiles up to
the next. So a tile is added without a look at which of its rows exist, which no vector of four
could take, and nothing is ever outside of what is allocated, whatever the length. What is added
to rows beyond a sequence is 0, and nobody reads it.

The post-pass `restore_block` reads a tile back, scales it, and writes dq in the order of q.
"""

import tilelang.language as T

from tlmatrix_kernels.attention.rows import PADDING, bound, statistic_shape

__all__ = [
    "BLOCK_ROWS",
    "RESTORE_THREADS",
    "accumulator_shape",
    "add_tile",
    "block_shape",
    "restore_block",
]

BLOCK_ROWS = 16
BLOCK_COLUMNS = 8
LANES = 32
ELEMENTS = BLOCK_ROWS * BLOCK_COLUMNS // LANES

# One thread a lane of each of a tile's blocks of rows: four elements a step, 16 bytes.
RESTORE_THREADS = PADDING // BLOCK_ROWS * LANES

# Rows of the shared tile in `restore_block` begin four banks apart, so that of the rows that a warp
# writes at once no more than two lie in the same banks, and 16 bytes aligned.
SKEW = 8


def block_shape(head_dim):
    """The shape of one block of rows of the accumulator."""
    return (head_dim // BLOCK_COLUMNS, LANES, ELEMENTS)


def accumulator_shape(layout, batch, blocks, heads, head_dim):
    """The shape of the accumulator; `blocks` are the padded rows over `BLOCK_ROWS`."""
    return (*statistic_shape(layout, batch, blocks, heads), *block_shape(head_dim))


def block_index(queries, head, row, further=0):
    """The index of the block of 16 rows that holds `row`, or of one `further` on."""
    *outer, padded_row = queries.padded_statistic(head, row)
    return (*outer, padded_row // BLOCK_ROWS + further)


def place(row, column):
    """Where in its block of rows an element lies: block of columns, lane, element."""
    lane = row % 8 * 4 + column % BLOCK_COLUMNS // 2
    return column // BLOCK_COLUMNS, lane, row % BLOCK_ROWS // 8 * 2 + column % 2


@T.macro
def add_tile(dq_sum, tile, queries, head, query):
    """Add a tile [rows, width] of products, in registers, to the rows from `query`.

    Columns past head_dim are outside of the accumulator: TileLang skips them, block by block.
    """
    rows, width = tile.shape
    for i, d in T.Parallel(rows, width):
        here = (*block_index(queries, head, query + i), *place(i, d))
        T.atomic_add(dq_sum[here], tile[i, d])


@T.macro
def restore_block(dq_sum, dq, queries, head, query, scale, head_dim):
    """The post-pass of `PADDING` rows from `query`: dq = scale * dq_sum, in the order of q.

    Each thread takes the four elements of its lane of a block at a time; by way of shared memory,
    so that rows of dq are written as a whole.
    """
    queries = bound(queries)
    rows = PADDING
    tile = T.alloc_shared([rows, head_dim + SKEW], dq.dtype)
    blocks, columns = rows // BLOCK_ROWS, head_dim // BLOCK_COLUMNS
    for column, block, lane, n in T.Parallel(columns, blocks, LANES, ELEMENTS):
        i = block * BLOCK_ROWS + n // 2 * 8 + lane // 4
        d = column * BLOCK_COLUMNS + lane % 4 * 2 + n % 2
        here = block_index(queries, head, query, block)
        tile[i, d] = dq_sum[(*here, column, lane, n)] * scale
    for i, d in T.Parallel(rows, head_dim):
        if queries.holds(query + i):
            dq[queries.index(head, query + i, d)] = tile[i, d]
