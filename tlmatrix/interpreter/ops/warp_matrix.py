"""Matrix instructions that the lanes of a warp do together: `T.ptx_ldmatrix` and `T.ptx_mma`.

Fragments are arrays [elements, threads], one column a thread; threads come as whole warps. The
layouts are those of the PTX ISA, "Warp-level matrix instructions", for `mma.m16n8kK` and
`ldmatrix`: with `e` elements in a 32-bit register, lane `t` of a warp has in each register the
elements `e * (t % 4)` to `e * (t % 4) + e - 1` of row (or column) `t // 4`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.values import Val, is_float, literal
from tlmatrix.interpreter.errors import InterpreterError
from tlmatrix.interpreter.runtime.memory import outside

from .atomic import pointed_to
from .gemm import TF32, gemm_int
from .tables import Operations

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call
    from tlmatrix.interpreter.runtime.codecs import Array, Codec

_SHAPE = re.compile(r"m16n8k(\d+)$")
# The lengths of a sum that mma.m16n8kK has, by the bits of a factor's element (PTX ISA).
_LENGTHS = {8: (16, 32), 16: (8, 16), 32: (4, 8)}
_MATRICES = (1, 2, 4)


def _bits(buf: Buf) -> int:
    return TILE_DTYPES[buf.dtype].bits


def _nothing(call: Call) -> Val:
    return literal(0, "int32" if call.dtype == "handle" else call.dtype)


def _ldmatrix(e: Emitter, call: Call) -> Val:
    """`T.ptx_ldmatrix(transposed, matrices, rows in shared memory, fragment)`."""
    t = threads_of(e, "T.ptx_ldmatrix")
    axis = t.thread_axis(e, "T.ptx_ldmatrix")
    transposed, matrices = bool(call.args[0].value), int(call.args[1].value)
    source = pointed_to(e, call.args[2], "T.ptx_ldmatrix")
    target = pointed_to(e, call.args[3], "T.ptx_ldmatrix")
    src, dst = buffer(e, source.buffer), buffer(e, target.buffer)
    bits = _bits(src)
    if (
        not src.scope.startswith("shared")
        or src.dtype != dst.dtype
        or matrices not in _MATRICES
        or (transposed and bits != 16)
    ):
        raise e.refuse(f"T.ptx_ldmatrix from {src.name} ({src.dtype}) to {dst.name}")
    rows = [e.expr(i).code for i in source.indices]
    _check_fragment(e, dst)
    start = e.scalar(target.indices[0], "a fragment").code
    width, threads = 128 // bits, axis.extent.code
    if t.can_race(e, src):
        # Only as many lanes as there are rows give an address.
        lanes = f"(np.arange({threads}) % 32 < {8 * matrices})"
        lanes = f"({lanes} & {e.mask.code})" if e.mask is not None else lanes
        spread = [f"np.asarray({row})[..., None]" for row in rows]
        spread[-1] += f" + np.arange({width})"
        e.w.line(
            f"me.watched and me.access({src.code!r}, cells_of(({', '.join(spread)},), "
            f"{lanes}[:, None], {src.code}.shape), {src.code}.shape)"
        )
    e.w.line(
        f"ldmatrix({src.code}, ({', '.join(rows)},), {dst.code}, {start}, {matrices}, {width}, "
        f"{transposed}, {e.mask_code}, {threads}, {src.name!r})"
    )
    return _nothing(call)


def _mma(e: Emitter, call: Call) -> Val:
    """`T.ptx_mma` with fragments in memory of the lanes."""
    axis = threads_of(e, "T.ptx_mma").thread_axis(e, "T.ptx_mma")
    shape, left, right = (str(a.value) for a in call.args[:3])
    a, b, c = (_fragment(e, call.args[k]) for k in (6, 8, 10))
    match, bits = _SHAPE.match(shape), _bits(a)
    if (
        match is None
        or (left, right) != ("row", "col")
        or int(match.group(1)) not in _LENGTHS.get(bits, ())
        or _bits(b) != bits
        or is_float(c.dtype) != is_float(a.dtype)
        or int(call.args[12].value)
        or len(call.args) > 13
    ):
        raise e.refuse(
            f"T.ptx_mma {shape} of {a.dtype} ({left}) and {b.dtype} ({right}) into {c.dtype}"
        )
    parts = [
        f"({buf.code}, {e.scalar(call.args[k], 'a fragment').code})"
        for buf, k in ((a, 7), (b, 9), (c, 11))
    ]
    e.w.line(
        f"mma({match.group(1)}, {32 // bits}, {', '.join(parts)}, {c.rounding}, {e.mask_code}, "
        f"{axis.extent.code})"
    )
    return _nothing(call)


def _fragment(e: Emitter, data: Any) -> Buf:
    for key in list(e.buffers):
        if key.data is data:
            return _check_fragment(e, buffer(e, key))
    raise e.refuse(f"T.ptx_mma of {data.name}")


def _check_fragment(e: Emitter, buf: Buf) -> Buf:
    """A fragment: one-dimensional memory of which every lane has its own."""
    if not buf.private_axes or len(buf.shape) != 1 or buf.scope != "local":
        raise e.refuse(f"a matrix instruction on {buf.name}")
    return buf


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


def factor_a(k: int, part: int) -> tuple[Any, Any]:
    """Row and column of each element of the first factor [16, k]: [elements, lanes]."""
    element = np.arange(k // 2)[:, None]
    register = element // part
    row = _GROUP + 8 * (register % 2)
    column = _MEMBER * part + element % part + (register // 2) * (4 * part)
    return row, column


def factor_b(k: int, part: int) -> tuple[Any, Any]:
    """Row and column of each element of the second factor [k, 8]."""
    element = np.arange(k // 4)[:, None]
    row = _MEMBER * part + element % part + (element // part) * (4 * part)
    return row, np.broadcast_to(_GROUP, row.shape)


def accumulator() -> tuple[Any, Any]:
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

    left = matrices(a, (16, k), factor_a(k, part))
    right = matrices(b, (k, 8), factor_b(k, part))
    place = accumulator()
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


OPERATIONS = Operations(
    of_threads=Rules(calls={"tl.ptx_ldmatrix": _ldmatrix, "tirx.ptx_mma": _mma}),
    functions=(ldmatrix, mma),
)
