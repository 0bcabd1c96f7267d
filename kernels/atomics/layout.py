"""A sum by atomics into memory whose elements an annotated layout puts in another order.

parts [parts, rows, columns] are added up to total [rows, columns]: a block takes a tile of one
part to shared memory and adds it, so that as many blocks as there are parts meet at an element.
The sum lies in memory as `order` says; a second kernel with the same annotation reads it back.

=========  ==================================================================================
order      where element (i, j) lies
=========  ==================================================================================
rows       as usual
pitch      as usual, in rows that are 8 elements longer
swizzle    units of 8 columns exchanged within 64, by the row: what shared memory is spared
           bank conflicts with
quads      as tensor cores leave them: blocks of 16 rows and 8 columns, in which a thread has two
           columns of two rows (see `attention.reordered`)
=========  ==================================================================================

`form` is how the kernel says it: a `tile` at once, with `width` as a wish of the vectors' length;
an `element` at a time, where the compiler chooses it; or a `vector`, which says it itself. The
compiler may only put elements into one atomic that are neighbours in memory: up to four of
float32, on Hopper and later, and two of 16 bits. Tiles are 16 x 64 or parts of it, of 128 threads:
a block of `quads` and a unit of `swizzle` fit, and small sums have edges in both dimensions.
"""

import tilelang
import tilelang.language as T
import torch

from tlmatrix_kernels.alignment import ready
from tlmatrix_kernels.dtypes import dtype_name

__all__ = ["atomic_add_layout"]

ORDERS = ("rows", "pitch", "swizzle", "quads")
FORMS = ("tile", "element", "vector")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
THREADS = 128
# Rows and columns of the sum are rounded up to these, by which each order is whole.
ROWS, COLUMNS = 16, 64
PITCH = 8


def layout_of(order, shape):
    """The layout of a sum of that shape."""
    place = {
        "rows": lambda i, j: [i, j],
        "pitch": lambda i, j: [i, j],
        # Within 64 columns: of (j // 8 ^ i % 8) the compiler takes the next power of two of units
        # for the bound, and with 24 of them would lay rows out beyond what is allocated.
        "swizzle": lambda i, j: [i, j // 64, (j % 64 // 8 ^ i % 8) * 8 + j % 8],
        "quads": lambda i, j: [i // 16, j // 8, i % 8 * 4 + j % 8 // 2, i % 16 // 8 * 2 + j % 2],
    }[order]
    return T.Layout(shape, place)


def sum_shape(order, rows, columns):
    """The shape of the sum: whole tiles, and the longer rows of `pitch`."""
    shape = (-(-rows // ROWS) * ROWS, -(-columns // COLUMNS) * COLUMNS)
    return (shape[0], shape[1] + PITCH) if order == "pitch" else shape


@T.macro
def add_tile(total, tile, row, column, form, width):
    """Add a shared tile to the sum from `row` and `column` on."""
    rows, columns = tile.shape
    if form == "tile":
        T.atomic_add(
            total[row : row + rows, column : column + columns],
            tile,
            annotations={"coalesced_width": width},
        )
    elif form == "element":
        for i, j in T.Parallel(rows, columns):
            T.atomic_add(total[row + i, column + j], tile[i, j])
    elif width == 2:
        for i, j in T.Parallel(rows, columns // 2):
            T.atomic_addx2(total[row + i, column + j * 2], tile[i, j * 2])
    else:
        for i, j in T.Parallel(rows, columns // 4):
            T.atomic_addx4(total[row + i, column + j * 4], tile[i, j * 4])


@tilelang.jit
def add_parts(dtype, order, form, width, rows, columns, tile_rows, tile_columns):
    """Build the kernel that adds parts to the sum, which starts as zeros."""
    parts = T.dynamic("parts")
    shape = sum_shape(order, rows, columns)

    @T.prim_func
    def atomic_add_parts(x: T.Tensor((parts, rows, columns), dtype), total: T.Tensor(shape, dtype)):
        with T.Kernel(
            T.ceildiv(rows, tile_rows), T.ceildiv(columns, tile_columns), parts, threads=THREADS
        ) as (i, j, part):
            T.annotate_layout({total: layout_of(order, shape)})
            tile = T.alloc_shared([tile_rows, tile_columns], dtype)
            row, column = i * tile_rows, j * tile_columns
            T.copy(x[part, row : row + tile_rows, column : column + tile_columns], tile)
            add_tile(total, tile, row, column, form, width)

    return atomic_add_parts


@tilelang.jit
def read_sum(dtype, order, rows, columns):
    """Build the kernel that copies the sum to where its elements lie as usual."""
    shape = sum_shape(order, rows, columns)

    @T.prim_func
    def read_back(total: T.Tensor(shape, dtype), out: T.Tensor((rows, columns), dtype)):
        with T.Kernel(T.ceildiv(rows, ROWS), T.ceildiv(columns, COLUMNS), threads=THREADS) as (
            i,
            j,
        ):
            T.annotate_layout({total: layout_of(order, shape)})
            for a, b in T.Parallel(ROWS, COLUMNS):
                if T.And(i * ROWS + a < rows, j * COLUMNS + b < columns):
                    out[i * ROWS + a, j * COLUMNS + b] = total[i * ROWS + a, j * COLUMNS + b]

    return read_back


def atomic_add_layout(
    x: torch.Tensor,
    *,
    order: str = "rows",
    form: str = "tile",
    width: int = 4,
    tile: tuple[int, int] = (ROWS, COLUMNS),
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum over the first dimension, added up with atomics in memory of another order.

    Args:
        x: [parts, rows, columns]; float32, float16 or bfloat16.
        order: how the sum lies in memory: rows, pitch, swizzle or quads (see the module).
        form: what the kernel adds at a time: tile, element or vector.
        width: elements of a vector, 1, 2 or 4; `element` leaves it to the compiler.
        tile: rows and columns of a block: divisors of 16 and 64, so that no tile reaches out of
            the sum.

    Returns:
        total [rows, columns] in the dtype of x, in which it was added up; and the memory
        [elements] that it was added up in, in its order there.

    Raises:
        ValueError: naming the argument, the rule it breaks and the value it has.
    """
    _check(x, order, form, width, tile)
    _, rows, columns = x.shape
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    total = torch.zeros(sum_shape(order, rows, columns), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out, total.flatten()
    dtype = dtype_name(x.dtype)
    if x.numel():
        add_parts(dtype, order, form, width, rows, columns, *tile)(ready(x), total)
    read_sum(dtype, order, rows, columns)(total, out)
    return out, total.flatten()


def _check(x, order, form, width, tile) -> None:
    if x.dim() != 3:
        raise ValueError(f"x must be [parts, rows, columns], got shape {tuple(x.shape)}")
    if x.dtype not in DTYPES:
        raise ValueError(f"x must be float32, float16 or bfloat16, got {x.dtype}")
    for name, value, known in (("order", order, ORDERS), ("form", form, FORMS)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    if width not in (1, 2, 4):
        raise ValueError(f"width must be 1, 2 or 4, got {width!r}")
    if form == "vector" and width == 1:
        raise ValueError("width must be 2 or 4 where form is vector, got 1")
    if form == "vector" and width == 4 and order == "quads":
        raise ValueError("width must be 2 where vectors are added in quads: 4 are not neighbours")
    if len(tile) != 2 or ROWS % tile[0] or COLUMNS % tile[1]:
        raise ValueError(f"tile must divide ({ROWS}, {COLUMNS}), got {tuple(tile)}")
