"""The dq accumulator in MMA fragment order, which allows atomics of four elements.

Tensor cores leave a product in registers in fragments of 16 rows and 8 columns. Of each fragment,
lane n holds four elements: columns 2 (n % 4) and the next, of row n // 4 and of row n // 4 + 8. In
the layout of q these are two pairs at least one row apart, and the additions of a warp scatter over
16 rows. Here the four elements are contiguous, and lanes are consecutive: a lane's additions are
one atomic (`atom.global.add.v4.f32` on Hopper and later, single elements before), and a warp's
cover 512 contiguous bytes:

    [batch, heads, blocks of 16 rows, head_dim / 8, 32 lanes, 4 elements] float32      (dense)
           [heads, blocks of 16 rows, head_dim / 8, 32 lanes, 4 elements] float32      (packed)

Rows are padded rows (see `rows`): every sequence starts at a block and owns whole tiles up to the
next sequence. A tile is therefore added without row guards, which a vector of four could not have,
and stays inside the allocation for any length. Rows past the end of a sequence receive 0 and are
never read.

The post-pass `restore_block` reads a tile, scales it, and writes dq in the layout of q.
"""

import tilelang.language as T

from tlmatrix_kernels.attention.rows import PADDING, bind_rows, statistic_shape

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

# One thread per lane of each row block of a tile: four elements (16 bytes) per iteration.
RESTORE_THREADS = PADDING // BLOCK_ROWS * LANES

# Row padding of the shared tile of `restore_block`, in elements: rows are 16-byte aligned and four
# banks apart, so that at most two of the rows that a warp writes at once share banks.
SKEW = 8


def block_shape(head_dim):
    """The shape of one block of `BLOCK_ROWS` rows of the accumulator."""
    return (head_dim // BLOCK_COLUMNS, LANES, ELEMENTS)


def accumulator_shape(layout, batch, blocks, heads, head_dim):
    """The shape of the accumulator, with `blocks` = padded rows / `BLOCK_ROWS`."""
    return (*statistic_shape(layout, batch, blocks, heads), *block_shape(head_dim))


def block_index(queries, head, row, further=0):
    """The index of the row block that contains `row`, or of the one `further` blocks after it."""
    *outer, padded_row = queries.padded_statistic(head, row)
    return (*outer, padded_row // BLOCK_ROWS + further)


def fragment_index(row, column):
    """(column block, lane, element) of an element within its row block."""
    lane = row % 8 * 4 + column % BLOCK_COLUMNS // 2
    return column // BLOCK_COLUMNS, lane, row % BLOCK_ROWS // 8 * 2 + column % 2


@T.macro
def add_tile(dq_sum, tile, queries, head, query):
    """Add a fragment [rows, width] to the rows from `query`.

    Columns past head_dim are outside of the accumulator; TileLang skips them.
    """
    rows, width = tile.shape
    for i, d in T.Parallel(rows, width):
        here = (*block_index(queries, head, query + i), *fragment_index(i, d))
        T.atomic_add(dq_sum[here], tile[i, d])


@T.macro
def restore_block(dq_sum, dq, queries, head, query, scale, head_dim):
    """The post-pass of `PADDING` rows from `query`: dq = scale * dq_sum, in the layout of q.

    Each thread reads the four elements of its lane at once; rows of dq are written through shared
    memory, coalesced.
    """
    queries = bind_rows(queries)
    rows = PADDING
    tile = T.alloc_shared([rows, head_dim + SKEW], dq.dtype)
    blocks, columns = rows // BLOCK_ROWS, head_dim // BLOCK_COLUMNS
    for column, block, lane, n in T.Parallel(columns, blocks, LANES, ELEMENTS):
        i = block * BLOCK_ROWS + n // 2 * 8 + lane // 4
        d = column * BLOCK_COLUMNS + lane % 4 * 2 + n % 2
        here = block_index(queries, head, query, block)
        tile[i, d] = dq_sum[(*here, column, lane, n)] * scale
    for i, d in T.Parallel(rows, head_dim):
        if queries.contains(query + i):
            dq[queries.index(head, query + i, d)] = tile[i, d]
