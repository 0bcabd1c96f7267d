"""Matrix instructions that the lanes of a warp do together: `T.ptx_ldmatrix` and `T.ptx_mma`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.values import Val, is_float, literal

from .atomic import pointed_to

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.buffers import Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call

__all__ = ["CALLS"]

_SHAPE = re.compile(r"m16n8k(\d+)$")
# The lengths of a sum that mma.m16n8kK has, by the bits of a factor's element (PTX ISA).
_LENGTHS = {8: (16, 32), 16: (8, 16), 32: (4, 8)}
_MATRICES = (1, 2, 4)
_BITS = re.compile(r"[a-z]+(\d+)")


def _bits(buf: Buf) -> int:
    found = _BITS.match(buf.dtype)
    return int(found.group(1)) if found is not None else 8


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
            f"me.touches({src.code!r}, ({', '.join(spread)},), {lanes}[:, None], "
            f"{src.code}.shape, write=False)"
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


CALLS = {"tl.ptx_ldmatrix": _ldmatrix, "tirx.ptx_mma": _mma}
