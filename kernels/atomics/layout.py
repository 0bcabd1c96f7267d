"""Reduction by atomics into global memory with an annotated layout.

`add_parts` reduces x [parts, rows, columns] to total [rows, columns]: each block loads a tile of
one part into shared memory and adds it atomically, so `parts` blocks contend for each element.
total is stored in the layout `order`; a second kernel with the same annotation copies it to
row-major memory.

=========  ==================================================================================
order      layout of element (i, j)
=========  ==================================================================================
rows       row-major
pitch      row-major, with rows padded by 8 elements
swizzle    units of 8 columns XOR-swizzled within 64 columns by i % 8, as in shared memory
           without bank conflicts
quads      the accumulator fragments of mma.m16n8: blocks of 16 rows and 8 columns, in which a
           thread holds two columns of two rows (see `attention.reordered`)
=========  ==================================================================================

`form` is what one `T.atomic_add` covers: a whole `tile` in shared memory, or a `fragment` of
registers, with `width` as a hint for the vector width; an `element`, where the compiler chooses the
vector width; or a `vector` of `width` elements.
One atomic can only cover elements that are contiguous in memory: up to four float32 on Hopper and
later, and two of 16 bits. Tiles are 16 x 64 or a divisor of it, with 128 threads: a tile then holds
whole blocks of `quads` and units of `swizzle`, and small sums have partial tiles in both
dimensions.
"""

import tilelang
import tilelang.language as T
import torch

from tlmatrix_kernels.alignment import aligned
from tlmatrix_kernels.dtypes import dtype_name

ORDERS = ("rows", "pitch", "swizzle", "quads")
FORMS = ("tile", "fragment", "element", "vector")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
THREADS = 128
# Rows and columns of the sum are padded to multiples of these, for which every layout is complete.
ROWS, COLUMNS = 16, 64
PITCH = 8


def layout_of(order, shape):
    """The `T.Layout` of a sum of the shape."""
    place = {
        "rows": lambda i, j: [i, j],
        "pitch": lambda i, j: [i, j],
        # Swizzled within 64 columns: the compiler bounds (j // 8 ^ i % 8) by the next power of two,
        # so with 24 units in a row the layout would exceed the allocation.
        "swizzle": lambda i, j: [i, j // 64, (j % 64 // 8 ^ i % 8) * 8 + j % 8],
        "quads": lambda i, j: [i // 16, j // 8, i % 8 * 4 + j % 8 // 2, i % 16 // 8 * 2 + j % 2],
    }[order]
    return T.Layout(shape, place)


def sum_shape(order, rows, columns):
    """The padded shape of the sum in memory, including the longer rows of `pitch`."""
    shape = (-(-rows // ROWS) * ROWS, -(-columns // COLUMNS) * COLUMNS)
    return (shape[0], shape[1] + PITCH) if order == "pitch" else shape


@T.macro
def add_tile(total, tile, row, column, form, width):
    """Atomically add a tile, shared or a fragment, to `total` at [row, column]."""
    rows, columns = tile.shape
    if form in ("tile", "fragment"):
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
    """Build the kernel that reduces x [parts, rows, columns] to total, which must be zero."""
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
            if form == "fragment":
                held = T.alloc_fragment([tile_rows, tile_columns], dtype)
                T.copy(tile, held)
                add_tile(total, held, row, column, form, width)
            else:
                add_tile(total, tile, row, column, form, width)

    return atomic_add_parts


@tilelang.jit
def read_sum(dtype, order, rows, columns):
    """Build the kernel that copies total from its layout to row-major out [rows, columns]."""
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
    """Sum over the first dimension, reduced by atomics in memory of the given layout.

    Args:
        x: [parts, rows, columns]; float32, float16 or bfloat16.
        order: layout of the sum in memory: rows, pitch, swizzle or quads (see the module).
        form: what one atomic add covers: tile, fragment, element or vector.
        width: vector width in elements, 1, 2 or 4; ignored for `element`.
        tile: rows and columns of a block's tile, divisors of 16 and 64, so that no tile exceeds the
            padded sum; for `vector` at least `width` columns.

    Returns:
        total [rows, columns] in the dtype of x, which is also the accumulator's; and the
        accumulator [elements] in its memory order.

    Raises:
        ValueError: an invalid argument; the message names it, the rule and the value.
    """
    _check(x, order, form, width, tile)
    _, rows, columns = x.shape
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    total = torch.zeros(sum_shape(order, rows, columns), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out, total.flatten()
    dtype = dtype_name(x.dtype)
    if x.numel():
        add_parts(dtype, order, form, width, rows, columns, *tile)(aligned(x), total)
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
        raise ValueError("width must be 2 or 4 for form vector, got 1")
    if form == "vector" and width == 4 and order == "quads":
        raise ValueError("width must be 2 for form vector in order quads, got 4: not contiguous")
    if len(tile) != 2 or min(tile) < 1 or ROWS % tile[0] or COLUMNS % tile[1]:
        raise ValueError(f"tile must divide ({ROWS}, {COLUMNS}), got {tuple(tile)}")
    if form == "vector" and tile[1] % width:
        raise ValueError(
            f"tile must have at least width={width} columns for form vector, got {tuple(tile)}: "
            "a vector must fit the columns of a tile"
        )
