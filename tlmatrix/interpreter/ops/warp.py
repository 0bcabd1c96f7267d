"""Operations of a warp or block on a value of each thread, and matrix instructions of a warp."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.emit.emitter import Rules, Stored
from tlmatrix.interpreter.emit.instrument import Instrument
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.numbers import as_scalar, named, rounded
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.statements import emit_attribute
from tlmatrix.interpreter.emit.values import Val, expression, is_float, literal, numpy_name
from tlmatrix.interpreter.errors import InterpreterError
from tlmatrix.interpreter.gpu import WARP
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.runtime.memory import outside

from .atomic import pointed_to
from .gemm import TF32, gemm_int
from .tables import Operations

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call
    from tlmatrix.interpreter.runtime.codecs import Array, Codec


SHUFFLES = {
    "tl.shfl_xor_sync": "xor",
    "tl.shfl_down_sync": "down",
    "tl.shfl_up_sync": "up",
    "tl.shfl_sync": "idx",
    "tirx.tvm_warp_shuffle": "idx",
    "tirx.tvm_warp_shuffle_up": "up",
    "tirx.tvm_warp_shuffle_down": "down",
}
# By operation: what it asks, the position of its value, whether it asks the whole block.
_VOTES = {
    "tl.any_sync": ("any", 1, False),
    "tl.all_sync": ("all", 1, False),
    "tl.syncthreads_count": ("count", 0, True),
    "tl.syncthreads_and": ("all", 0, True),
    "tl.syncthreads_or": ("any", 0, True),
}
_REDUCTIONS = tuple(f"tl.warp_reduce_{kind}" for kind in ("sum", "max", "min", "bitand", "bitor"))
_INDICES = ("tl.get_lane_idx", "tl.get_warp_idx", "tl.get_warp_idx_sync", "tl.get_warp_group_idx")


def _index(e: Emitter, call: Call) -> Val:
    """The number of the lane in its warp, of the warp, of the warp group."""
    linear = threads_of(e, call.op).linear_index(e)
    sizes = [int(a.value) for a in call.args]
    size = sizes[0] if sizes else 32
    if call.op == "tl.get_warp_group_idx":
        size *= sizes[1] if sizes[1:] else 4
    symbol = "%" if call.op == "tl.get_lane_idx" else "//"
    hi = size - 1 if symbol == "%" else None
    code = expression(f"({{}} {symbol} {size})", linear)
    return Val(code, "int32", linear.axes, lo=0, hi=hi)


def _of_each_thread(e: Emitter, code: str, dtype: str) -> Val:
    """A value of each thread, from a runtime function of the mask and the number of threads."""
    axis = threads_of(e, "an operation of a warp").thread_axis(e, "an operation of a warp")
    name = e.temp("lanes")
    e.w.line(f"{name} = {code.format(f'{e.mask_code}, {axis.extent.code}')}")
    return Val(name, dtype, axis.iota.axes, owned=True)


def _array(value: Val) -> str:
    if value.scalar:
        code = as_scalar(value) if is_float(value.dtype) else value.code
        return f"np.asarray({code}, np.{numpy_name(value.dtype)})"
    return value.code


def _shuffle(e: Emitter, call: Call) -> Val:
    axis = threads_of(e, call.op).thread_axis(e, call.op)
    kind = SHUFFLES[call.op]
    delta = e.expr(call.args[2])
    width = e.scalar(call.args[3], "the width of a shuffle").code
    stored = None
    if kind == "idx" and delta.scalar:
        # The values of other threads have no effect.
        code = f"({axis.iota.code} % {width} == {delta.code} % {width})"
        stored = Stored("", Val(code, "bool", axis.iota.axes))
    with e.inside(stored=stored):
        value = e.expr(call.args[1])
    code = f"shuffle({kind!r}, {_array(value)}, {delta.code}, {width}, {{}})"
    return _of_each_thread(e, code, value.dtype)


def _vote(e: Emitter, call: Call) -> Val:
    kind, position, whole = _VOTES[call.op]
    t = threads_of(e, call.op)
    axis = t.thread_axis(e, call.op)
    if whole and len(t.intervals) > 1:
        raise e.refuse(f"{call.op} in a block of several roles")
    value = e.expr(call.args[position])
    code = f"vote({kind!r}, {value.code}, {e.mask_code}, {axis.extent.code}, {whole})"
    return named(e, code, "int32", (axis.iota,))


def _reduce(e: Emitter, call: Call) -> Val:
    threads_of(e, call.op).thread_axis(e, call.op)
    value = e.expr(call.args[0])
    kind = call.op.removeprefix("tl.warp_reduce_")
    found = _of_each_thread(e, f"warp_reduce({kind!r}, {_array(value)}, {{}})", value.dtype)
    return rounded(e, replace(found, exact=False))


def _ballot(e: Emitter, call: Call) -> Val:
    threads_of(e, call.op).thread_axis(e, call.op)
    if call.op.endswith("activemask"):
        return _of_each_thread(e, "ballot(True, {})", call.dtype)
    return _of_each_thread(e, f"ballot({e.expr(call.args[-1]).code}, {{}})", "uint64")


def _match(e: Emitter, call: Call) -> Val:
    value = e.expr(call.args[1])
    kind = "any" if "any" in call.op else "all"
    return _of_each_thread(e, f"match_lanes({kind!r}, {value.code}, {{}})", "uint32")


def _elect(e: Emitter, call: Call) -> Val:
    t = threads_of(e, "T.shuffle_elect")
    size = int(call.args[0].value) or t.index.count
    axis = t.thread_axis(e, "T.shuffle_elect")
    low = t.intervals[t.role][0]
    return named(e, f"elect({size}, {low}, {axis.extent.code})", "bool", (axis.iota,))


# `T.tvm_thread_allreduce`: combines a value of threads in some dimensions of the block ------------

_COMBINERS = {ir.Add: "add", ir.Mul: "multiply", ir.Max: "fmax", ir.Min: "fmin"}


def _attribute(e: Emitter, node: ir.AttrStmt) -> None:
    """The attribute around a reduction says how it combines values."""
    if node.attr_key != "reduce_scope":
        emit_attribute(e, node)
        return
    kind = node.node.combiner
    if kind not in _COMBINERS:
        raise e.refuse(f"a reduction over threads by {kind.__name__}")
    t = threads_of(e, "a reduction over threads")
    outer, t.combiner = t.combiner, _COMBINERS[kind]
    e.stmt(node.body)
    t.combiner = outer


def _allreduce(e: Emitter, call: ir.Call) -> None:
    """The reduction of one value."""
    t = threads_of(e, "T.tvm_thread_allreduce")
    axis = t.thread_axis(e, "T.tvm_thread_allreduce")
    if not t.combiner or int(call.args[0].value) != 1 or len(t.intervals) > 1:
        raise e.refuse("T.tvm_thread_allreduce of several values or in a role")
    value = e.expr(call.args[1])
    reduced = {t.index.axis_of(v) for v in call.args[4:] if t.index.is_axis(v)}
    load = call.args[3]
    buf = buffer(e, load.buffer)
    if not buf.private_axes:
        raise e.refuse(f"T.tvm_thread_allreduce into {buf.name}")
    index = ", ".join(e.scalar(i, "an index").code for i in load.indices)
    groups = e.prologue.fresh("groups")
    x, y, _ = t.index.extents
    linear = f"np.arange({t.index.count})"
    parts = [f"{linear} % {x}", f"{linear} // {x} % {y}", f"{linear} // {x * y}"]
    kept = [k for k in range(3) if k not in reduced]
    key = " + ".join(f"({parts[k]}) * {t.index.count**n}" for n, k in enumerate(kept))
    e.prologue.line(f"{groups} = np.unique({key or '0 * ' + linear}, return_inverse=True)[1]")
    code = value.code
    if value.scalar:
        code = f"np.full({axis.extent.code}, {value.code}, np.{numpy_name(value.dtype)})"
    e.w.line(f"{buf.code}[{index}] = over_threads(np.{t.combiner}, {code}, {groups})")
    e.notify(Instrument.overwritten, buf)


# Matrix instructions that the lanes of a warp do together: `T.ptx_ldmatrix` and `T.ptx_mma` -------
#
# Fragments are arrays [elements, threads], one column a thread; threads come as whole warps. The
# layouts are those of the PTX ISA, "Warp-level matrix instructions", for `mma.m16n8kK` and
# `ldmatrix`: with `e` elements in a 32-bit register, lane `t` of a warp has in each register the
# elements `e * (t % 4)` to `e * (t % 4) + e - 1` of row (or column) `t // 4`.


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


_GROUP = np.arange(WARP) // 4
_MEMBER = np.arange(WARP) % 4


def _active_warps(mask: Any, threads: int, what: str) -> Any:
    """Which warps take part.

    Raises:
        InterpreterError: if only some lanes of a warp do.
    """
    if threads % WARP:
        raise InterpreterError(f"{what} in a warp of {threads % WARP} lanes")
    lanes = np.ones(threads, bool) if mask is None else np.broadcast_to(mask, (threads,))
    lanes = lanes.reshape(-1, WARP)
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
    at = [np.broadcast_to(i, (threads,)).reshape(-1, WARP)[warps, :rows] for i in index]
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
    target = out.reshape(len(out), -1, WARP)
    target[start : start + matrices * part, warps] = found.reshape(-1, len(warps), WARP)


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
        values = array[start : start + len(place[0])].reshape(len(place[0]), -1, WARP)
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
    target = array.reshape(len(array), -1, WARP)
    target[start : start + 4, warps] = total[:, place[0], place[1]].swapaxes(0, 1)


OPERATIONS = Operations(
    of_threads=Rules(
        statements={ir.AttrStmt: _attribute},
        calls={
            **dict.fromkeys(_INDICES, _index),
            **dict.fromkeys(SHUFFLES, _shuffle),
            **dict.fromkeys(_VOTES, _vote),
            **dict.fromkeys(_REDUCTIONS, _reduce),
            **dict.fromkeys(
                ("tl.ballot", "tl.ballot_sync", "tl.activemask", "tirx.tvm_warp_activemask"),
                _ballot,
            ),
            **dict.fromkeys(("tl.match_any_sync", "tl.match_all_sync"), _match),
            "tl.tl_shuffle_elect": _elect,
            "tl.ptx_ldmatrix": _ldmatrix,
            "tirx.ptx_mma": _mma,
        },
        effects={"tirx.tvm_thread_allreduce": _allreduce},
    ),
    functions=(ldmatrix, mma),
)
