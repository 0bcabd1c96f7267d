"""Matrix instructions of a warp: which lane holds which element, as PTX lays them out.

Fragments are arrays [elements, threads], one column a thread; threads come as whole warps. The
layouts are those of the PTX ISA, "Warp-level matrix instructions", for `mma.m16n8kK` and
`ldmatrix`: with `e` elements in a 32-bit register, lane `t` of a warp has in each register the
elements `e * (t % 4)` to `e * (t % 4) + e - 1` of row (or column) `t // 4`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.errors import InterpreterError

from .memory import outside
from .tiles import TF32, gemm_int

if TYPE_CHECKING:
    from .codecs import Array, Codec

__all__ = ["ldmatrix", "mma"]

_WARP = 32
_GROUP = np.arange(_WARP) // 4
_MEMBER = np.arange(_WARP) % 4


def _active_warps(mask: Any, threads: int, what: str) -> Any:
    """Which warps take part.

    Raises:
        InterpreterError: if only some lanes of a warp do.
    """
    if threads % _WARP:
        raise InterpreterError(f"{what} in a warp of {threads % _WARP} lanes")
    lanes = np.ones(threads, bool) if mask is None else np.broadcast_to(mask, (threads,))
    lanes = lanes.reshape(-1, _WARP)
    if (lanes.any(1) != lanes.all(1)).any():
        raise InterpreterError(f"{what} by some lanes of a warp only")
    return lanes[:, 0]


def ldmatrix(
    array: Array,
    index: tuple[Any, ...],
    out: Array,
    start: int,
    matrices: int,
    width: int,
    transposed: bool,
    mask: Any,
    threads: int,
    name: str,
) -> None:
    """`T.ptx_ldmatrix`: matrices of 8 rows of 16 bytes; lane i gives the address of row i.

    Args:
        array: shared memory.
        index: of the first element of each lane's row.
        out: the fragment [elements, threads]; matrix m goes to `width // 4` elements of it.
        start: the first element of the fragment.
        matrices: 1, 2 or 4.
        width: how many elements 16 bytes are.
        transposed: whether each matrix is transposed on the way (16-bit elements).
        mask: which lanes are switched on.
        threads: how many lanes there are.
        name: of the shared memory, for messages.

    Raises:
        InterpreterError: for a row outside, or a warp of which some lanes are switched off.
    """
    warps = np.flatnonzero(_active_warps(mask, threads, "T.ptx_ldmatrix"))
    if not warps.size:
        return
    rows = 8 * matrices
    at = [np.broadcast_to(i, (threads,)).reshape(-1, _WARP)[warps, :rows] for i in index]
    last = at[-1] + width - 1
    for i, n in zip((*at, last), (*array.shape, array.shape[-1]), strict=True):
        bad = (i < 0) | (i >= n)
        if bad.any():
            where = tuple(np.argwhere(bad)[0])
            row = [int(x[where]) for x in at]
            outside(name, (*row[:-1], (row[-1], width, 1)), array.shape)
    place = tuple(i[..., None] for i in at[:-1])
    found = array[(*place, at[-1][..., None] + np.arange(width))]
    found = found.reshape(len(warps), matrices, 8, width)
    if transposed:
        found = found.swapaxes(-1, -2)
    part = width // 4
    # [warps, matrices, 8 rows, 4 lanes, part] to [matrices, part, warps, lanes].
    found = found.reshape(len(warps), matrices, 8, 4, part).transpose(1, 4, 0, 2, 3)
    target = out.reshape(len(out), -1, _WARP)
    target[start : start + matrices * part, warps] = found.reshape(-1, len(warps), _WARP)


def _factor_a(k: int, part: int) -> tuple[Any, Any]:
    """Row and column of each element of the first factor [16, k]: [elements, lanes]."""
    element = np.arange(k // 2)[:, None]
    register = element // part
    row = _GROUP + 8 * (register % 2)
    column = _MEMBER * part + element % part + (register // 2) * (4 * part)
    return row, column


def _factor_b(k: int, part: int) -> tuple[Any, Any]:
    """Row and column of each element of the second factor [k, 8]."""
    element = np.arange(k // 4)[:, None]
    row = _MEMBER * part + element % part + (element // part) * (4 * part)
    return row, np.broadcast_to(_GROUP, row.shape)


def _accumulator() -> tuple[Any, Any]:
    """Row and column of each element of the accumulator [16, 8]."""
    element = np.arange(4)[:, None]
    return _GROUP + 8 * (element // 2), _MEMBER * 2 + element % 2


def mma(
    k: int,
    part: int,
    a: tuple[Array, int],
    b: tuple[Array, int],
    c: tuple[Array, int],
    rounding: Codec | None,
    mask: Any,
    threads: int,
) -> None:
    """`T.ptx_mma` of shape m16n8k`k`: `c += a @ b` in every warp.

    Args:
        k: the length of the sum.
        part: elements of a factor in 32 bits.
        a: the fragment [elements, threads] of the first factor, and its first element.
        b: of the second factor.
        c: of the accumulator.
        rounding: to the accumulator's dtype, where that is a low-precision one.
        mask: which lanes are switched on.
        threads: how many lanes there are.

    Raises:
        InterpreterError: for a warp of which some lanes are switched off.
    """
    warps = np.flatnonzero(_active_warps(mask, threads, "T.ptx_mma"))

    def matrices(fragment: tuple[Array, int], shape: tuple[int, int], place: Any) -> Any:
        array, start = fragment
        values = array[start : start + len(place[0])].reshape(len(place[0]), -1, _WARP)
        found = np.empty((len(warps), *shape), array.dtype)
        found[:, place[0], place[1]] = values[:, warps].swapaxes(0, 1)
        return found

    left = matrices(a, (16, k), _factor_a(k, part))
    right = matrices(b, (k, 8), _factor_b(k, part))
    place = _accumulator()
    total = matrices(c, (16, 8), place)
    if total.dtype.kind == "i":
        for x, y, z in zip(left, right, total, strict=True):
            gemm_int(x, y, z, transpose_a=False, transpose_b=False, clear=False)
    else:
        if TF32.get() and part == 1:
            left, right = ((f.view(np.int32) & ~0x1FFF).view(np.float32) for f in (left, right))
        total += left @ right
        if rounding is not None:
            rounding.round_into(total, total)
    array, start = c
    target = array.reshape(len(array), -1, _WARP)
    target[start : start + 4, warps] = total[:, place[0], place[1]].swapaxes(0, 1)
