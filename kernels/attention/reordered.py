"""The dq accumulator in the order of registers, which allows atomics of four elements.

A product of tensor cores is spread over the registers of a warp. In the layout of q, the elements
of a lane are pairs, or the lanes of a warp are rows, so the additions of a warp scatter. Here four
elements of a lane are contiguous, and lanes are consecutive: a lane's additions are one atomic
(`atom.global.add.v4.f32` on Hopper and later, single elements before), and a warp's cover 512
contiguous bytes:

    [batch, heads, row blocks, head_dim / columns, 32 lanes, 4 elements] float32      (dense)
           [heads, row blocks, head_dim / columns, 32 lanes, 4 elements] float32      (packed)

where a block is what a warp holds in four registers per lane:

=========  ============  =======================================================================
order      block         element of lane n
=========  ============  =======================================================================
`mma`      16 rows x 8   columns 2 (n % 4) and the next, of rows n // 4 and n // 4 + 8: a
                         fragment of `mma` and `wgmma`
`tmem`     32 rows x 4   all columns of row n: tensor memory, of which a warp reads 32 lanes
=========  ============  =======================================================================

Rows are padded rows (see `rows`): every sequence starts at a block and owns whole blocks up to the
next sequence. A tile is therefore added without row guards, which a vector of four could not have;
blocks past the end of a dense accumulator are outside of its shape, and TileLang skips them. Rows
past the end of a sequence receive 0 and are never read.

The post-pass `restore_block` reads a tile, scales it, and writes dq in the layout of q.
"""

from collections.abc import Callable
from dataclasses import dataclass

import tilelang.language as T

from tlmatrix_kernels.attention.rows import bind_rows
from tlmatrix_kernels.attention.tiles import PASS_ROWS

LANES = 32
ELEMENTS = 4


@dataclass(frozen=True)
class Order:
    """The order of the elements of a block of `rows` rows and `columns` columns.

    `position(row, column)` is the (lane, element) that holds an element of the block, `place(lane,
    element)` its inverse.
    """

    rows: int
    columns: int
    position: Callable
    place: Callable


def _mma_position(row, column):
    return row % 8 * 4 + column // 2, row // 8 * 2 + column % 2


def _mma_place(lane, element):
    return element // 2 * 8 + lane // 4, lane % 4 * 2 + element % 2


def _tmem_position(row, column):
    return row, column


ORDERS = {
    "mma": Order(16, 8, _mma_position, _mma_place),
    "tmem": Order(32, 4, _tmem_position, _tmem_position),
}

# Each thread reads the four elements (16 bytes) of a lane in each iteration.
RESTORE_THREADS = 128

# Row padding of the shared tile of `restore_block`, in elements: rows are 16-byte aligned and four
# banks apart, so that at most two of the rows that a warp writes at once share banks.
SKEW = 8


def block_shape(order, head_dim):
    """The shape of one row block of the accumulator."""
    return (head_dim // ORDERS[order].columns, LANES, ELEMENTS)


def block_index(order, queries, head, row, further=0):
    """The index of the row block that contains `row`, or of the one `further` blocks after it."""
    *outer, padded_row = queries.padded_statistic(head, row)
    return (*outer, padded_row // ORDERS[order].rows + further)


@T.macro
def add_tile(dq_sum, tile, order, queries, head, query, column=0):
    """Add a fragment [rows, width] to the rows from `query` and the columns from `column`.

    Columns past head_dim are outside of the accumulator; TileLang skips them.
    """
    rows, width = tile.shape
    block = ORDERS[order]
    for i, d in T.Parallel(rows, width):
        here = block.position(i % block.rows, d % block.columns)
        row_block = block_index(order, queries, head, query + i)
        T.atomic_add(dq_sum[(*row_block, (column + d) // block.columns, *here)], tile[i, d])


@T.macro
def restore_block(dq_sum, dq, order, queries, head, query, scale, head_dim):
    """The post-pass of `PASS_ROWS` rows from `query`: dq = scale * dq_sum, in the layout of q.

    Each thread reads the four elements of its lane at once; rows of dq are written through shared
    memory, coalesced.
    """
    queries = bind_rows(queries)
    rows = PASS_ROWS
    tile = T.alloc_shared([rows, head_dim + SKEW], dq.dtype)
    size = ORDERS[order]
    blocks, columns = rows // size.rows, head_dim // size.columns
    for column, block, lane, n in T.Parallel(columns, blocks, LANES, ELEMENTS):
        i, d = size.place(lane, n)
        here = block_index(order, queries, head, query, block)
        tile[block * size.rows + i, column * size.columns + d] = (
            dq_sum[(*here, column, lane, n)] * scale
        )
    for i, d in T.Parallel(rows, head_dim):
        if queries.contains(query + i):
            dq[queries.index(head, query + i, d)] = tile[i, d]
