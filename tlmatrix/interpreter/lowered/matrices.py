"""Matrix instructions: `ldmatrix`, `stmatrix`, `mma` of a warp, `wgmma` of a warp group.

Fragments and layouts of shared memory are those of the PTX ISA, "Warp-level matrix instructions"
and "Asynchronous warpgroup level matrix instructions".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.errors import SynchronizationError
from tlmatrix.interpreter.gpu import WARP, WARP_GROUP

from .arithmetic import NOTHING, statement
from .copies import swizzled
from .values import Val, is_float

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.ir import nodes as ir
    from tlmatrix.interpreter.runtime.codecs import Array

    from .emit import Emitter
    from .machine import Machine
    from .memory import View

_MMA = re.compile(r"m16n8k(\d+)$")
_WGMMA = re.compile(r"m64n(\d+)k(\d+)$")
_NAMES = {
    "fp16": "float16",
    "float16": "float16",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "tf32": "tfloat32",
    "fp32": "float32",
    "e4m3": "float8_e4m3fn",
    "float8_e4m3": "float8_e4m3fn",
    "float8_e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "float8_e5m2": "float8_e5m2",
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
}
"""Dtypes that instructions name, as ours."""


def _ldmatrix(e: Emitter, call: ir.Call) -> Val:
    """`ptx_ldmatrix(transposed, matrices, rows in shared memory, fragment)`."""
    transposed, count = bool(call.args[0].value), int(call.args[1].value)
    source, dtype, index = e.pointer(call.args[2])
    target, kind, start = e.pointer(call.args[3])
    size = TILE_DTYPES[dtype].bytes
    if target.kind != "local" or not size or TILE_DTYPES[kind].bytes != size:
        raise e.refuse(f"ptx_ldmatrix of {dtype} to {target.name}")
    view = e.view(source, dtype)
    e.note_vector(dtype, 16 // size)
    code = f"ldmatrix(m, {view}, {index.code}, {count}, {transposed}, {e.mask}, {e.site()})"
    e.store_local(target, kind, start, count * 4 // size, Val(code, dtype))
    return NOTHING


def _stmatrix(e: Emitter, call: ir.Call) -> Val:
    """`ptx_stmatrix(transposed, matrices, rows in shared memory, values of 32 bits…)`."""
    transposed, count = bool(call.args[0].value), int(call.args[1].value)
    target, dtype, index = e.pointer(call.args[2])
    shape = getattr(call.args[-1], "value", "m8n8")
    if isinstance(shape, str) and shape != "m8n8":
        raise e.refuse(f"ptx_stmatrix of {shape}")
    values = [e.expr(each).code for each in call.args[3 : 3 + count]]
    view = e.view(target, dtype)
    e.note_vector(dtype, 16 // TILE_DTYPES[dtype].bytes)
    e.line(
        f"stmatrix(m, {view}, {index.code}, [{', '.join(values)}], {transposed}, {e.mask}, "
        f"{e.site()})"
    )
    return NOTHING


def _mma(e: Emitter, call: ir.Call) -> Val:
    """`ptx_mma(dtype, shape, row, col, dtypes…, a, start, b, start, c, start, saturate)`."""
    names = [str(each.value) for each in call.args[:6]]
    shape = names[0] if names[0].startswith("m") else names[1]
    found = _MMA.match(shape)
    first = next(k for k, each in enumerate(call.args) if type(each).__name__ in ("Var", "_Handle"))
    layouts = [str(each.value) for each in call.args[:first] if str(each.value) in ("row", "col")]
    if found is None or layouts != ["row", "col"] or len(call.args) > first + 7:
        raise e.refuse(f"ptx_mma {' '.join(names)}")
    types = [str(each.value) for each in call.args[first - 3 : first]]
    a, b, c = (e.place_of(call.args[first + k]) for k in (0, 2, 4))
    starts = [e.expr(call.args[first + k]).code for k in (1, 3, 5)]
    dtypes = [_NAMES.get(name, name) for name in types]
    if dtypes[0] not in TILE_DTYPES or (is_float(dtypes[0]) != is_float(dtypes[2])):
        raise e.refuse(f"ptx_mma of {types}")
    head = f"mma(m, {found[1]}, {dtypes[0]!r}, {dtypes[2]!r}, {a.code}, {b.code}, {c.code}, "
    e.gathered(head, f"({', '.join(starts)})", f", {e.mask})")
    return NOTHING


def _descriptor(e: Emitter, call: ir.Call) -> Val:
    """`initialize_wgmma_descriptor(descriptor, start, layout, leading, stride offsets)`."""
    load = call.args[0]
    place, dtype, index = e.pointer(call.args[1])
    layout, leading, stride = (int(each.value) for each in call.args[2:5])
    view = e.view(place, dtype)
    code = f"wgmma_descriptor({view}, {index.code}, {layout}, {leading}, {stride})"
    e.store(load.buffer, load.indices, Val(code, "uint64"))
    return NOTHING


def _increase(e: Emitter, call: ir.Call) -> Val:
    """`increase_descriptor_offset(descriptor, bytes)`."""
    load = call.args[0]
    before, more = e.load(load.buffer, load.indices), e.expr(call.args[1])
    e.store(load.buffer, load.indices, Val(f"({before.code} + ({more.code} >> 4))", "uint64"))
    return NOTHING


def _wgmma(e: Emitter, call: ir.Call) -> Val:
    """`ptx_wgmma_ss` and `ptx_wgmma_rs`: the first factor in shared memory, or in registers."""
    registers = call.op == "tl.ptx_wgmma_rs"
    shape = str(call.args[0].value)
    found = _WGMMA.match(shape)
    # `a` in registers is always row-major, so it has no flag.
    majors = [bool(each.value) for each in call.args[1 : 2 if registers else 3]]
    rest = call.args[2 if registers else 3 :]
    types = [_NAMES.get(str(each.value), str(each.value)) for each in rest[:3]]
    if found is None or any(name not in TILE_DTYPES for name in types):
        raise e.refuse(f"{call.op} {shape} of {types}")
    a, b, c = (e.place_of(rest[k]) for k in (3, 5, 7))
    starts = [e.expr(rest[k]).code for k in (4, 6, 8)]
    scales = [e.expr(each).code for each in rest[9:12]]
    e.note_vector(types[0], 16 // TILE_DTYPES[types[0]].bytes)
    first = f"({a.code}, {starts[0]})" if registers else f"{a.code}[0] + ({starts[0]})"
    used = [(c, starts[2], int(found[1]) // 2, True)]
    if registers:
        used.append((a, starts[0], int(found[2]) // 2, False))
    for place, start, count, writes in used:
        part = f"({start}, {start} + {count}, len({place.code}))"
        e.line(f"m.registers.started({place.name!r}, {part}, {writes}, {e.mask}, {e.site()})")
    e.line(
        f"wgmma(m, {int(found[1])}, {int(found[2])}, {tuple(types)}, {[True, *majors][-2:]}, "
        f"{first}, {b.code}[0] + ({starts[1]}), {c.code}, {starts[2]}, ({', '.join(scales)},), "
        f"{registers}, {e.mask}, {e.site()})"
    )
    return NOTHING


OPERATIONS: dict[str, Any] = {
    "tl.ptx_ldmatrix": _ldmatrix,
    "tl.ptx_stmatrix": _stmatrix,
    "tirx.ptx_mma": _mma,
    "tl.initialize_wgmma_descriptor": _descriptor,
    "tl.increase_descriptor_offset": _increase,
    "tl.ptx_wgmma_ss": _wgmma,
    "tl.ptx_wgmma_rs": _wgmma,
    "tl.warpgroup_arrive": statement("m.warp_groups_fenced({mask})"),
    "tl.warpgroup_commit_batch": statement("m.units.commit('products', {mask})"),
    **dict.fromkeys(
        ("tl.warpgroup_wait", "tl.wait_wgmma"),
        statement("m.units.wait('products', {count}, {mask})"),
    ),
}


# What generated source calls ----------------------------------------------------------------------


def ldmatrix(
    m: Machine, view: View, index: Any, matrices: int, transposed: bool, mask: Any, site: int
) -> Array:
    """Matrices of 8 rows of 16 bytes; lane i gives the address of row i: [elements, lanes]."""
    lane = m.lanes % WARP
    giving = lane < 8 * matrices
    on = giving if mask is None else giving & mask
    width = 16 // view.itemsize
    rows = view.load(index, width, on, site)
    m.warp_synchronized(mask)
    m.whole_warps(mask, "ldmatrix")
    part = width // 4
    found = rows.T.reshape(-1, WARP, width)[:, : 8 * matrices]
    # Lane 4 r + c has elements `part * c` and on of row r: [matrices, part, warps, rows, 4].
    if transposed:
        if width != 8:
            raise SynchronizationError("ldmatrix transposes elements of 16 bits")
        found = found.reshape(-1, matrices, 4, part, 8).transpose(1, 3, 0, 4, 2)
    else:
        found = found.reshape(-1, matrices, 8, 4, part).transpose(1, 4, 0, 2, 3)
    return found.reshape(matrices * part, -1)


def stmatrix(
    m: Machine,
    view: View,
    index: Any,
    values: Sequence[Any],
    transposed: bool,
    mask: Any,
    site: int,
) -> None:
    """The inverse of `ldmatrix`, of two elements of 16 bits in each value."""
    matrices = len(values)
    m.whole_warps(mask, "stmatrix")
    packed = np.stack([np.broadcast_to(np.asarray(v), (m.count,)) for v in values])
    halves = np.stack([packed & 0xFFFF, packed >> 16 & 0xFFFF])
    # [2, matrices, warps, 8 rows, 4] to [matrices, warps, row, column]
    found = halves.reshape(2, matrices, -1, 8, 4).transpose(1, 2, 3, 4, 0)
    found = found.reshape(matrices, -1, 8, 8)
    if transposed:
        found = found.swapaxes(-1, -2)
    # The row of lane 8 j + r is row r of matrix j.
    rows = np.zeros((8, m.count // WARP, WARP), np.int64)
    rows[:, :, : 8 * matrices] = found.transpose(3, 1, 0, 2).reshape(8, -1, 8 * matrices)
    giving = m.lanes % WARP < 8 * matrices
    on = giving if mask is None else giving & mask
    raw = rows.reshape(8, -1).astype(np.uint16).view(view.kind)
    view.store_raw(index, raw, 8, on, site)
    m.warp_synchronized(mask)


def mma(
    m: Machine,
    k: int,
    a_dtype: str,
    c_dtype: str,
    a: Array,
    b: Array,
    c: Array,
    tiles: Sequence[tuple[int, int, int]],
    mask: Any,
) -> None:
    """`c += a @ b` in every warp, of shape m16n8k`k`; fragments are [elements, lanes].

    `tiles` are the first elements of the fragments of each product. Those that are all products of
    some factors with some others, each for an accumulator of its own, are one.
    """
    rows, columns, sums = ({tile[k]: None for tile in tiles} for k in range(3))
    targets = {tile[:2]: tile[2] for tile in tiles}
    if not tiles or not len(rows) * len(columns) == len(targets) == len(sums) == len(tiles):
        for tile in tiles:
            mma(m, k, a_dtype, c_dtype, a, b, c, [tile], mask)
        return
    warps = m.whole_warps(mask, "mma")
    m.warp_synchronized(mask)
    part = 32 // TILE_DTYPES[a_dtype].bits
    left = _first_factor(_fragments(a, list(rows), k // 2, warps), part)
    # [factors, k / 4 elements, warps, 8 columns, 4] to [warps, k, columns]
    right = _fragments(b, list(columns), k // 4, warps).reshape(
        len(columns), -1, part, len(warps), 8, 4
    )
    right = right.transpose(3, 1, 5, 2, 0, 4).reshape(len(warps), k, -1)
    if a_dtype in ("tfloat32", "float32"):
        left, right = ((f.view(np.int32) & ~0x1FFF).view(np.float32) for f in (left, right))
    total = (left @ right).reshape(-1, len(rows), 2, 8, len(columns), 4, 2)
    added = total.transpose(1, 4, 2, 6, 0, 3, 5).reshape(-1, len(warps), WARP)
    places = _elements([targets[i, j] for i in rows for j in columns], 4)[:, None]
    target = c.reshape(len(c), -1, WARP)
    added = target[places, warps] + added
    if c_dtype == "float16":
        added = added.astype(np.float16).astype(np.float32)
    target[places, warps] = added


def _elements(starts: Sequence[int], count: int) -> Array:
    """The numbers of `count` elements from each start on."""
    found: Array = (np.array(starts)[:, None] + np.arange(count)).ravel()
    return found


def _fragments(memory: Array, starts: Sequence[int], count: int, warps: Array) -> Array:
    """Fragments of warps: [starts, count, warps, lanes]."""
    found = memory[_elements(starts, count)].reshape(len(starts), count, -1, WARP)
    return found if len(warps) == found.shape[2] else found[:, :, warps]


def _first_factor(fragments: Array, part: int) -> Array:
    """The first factor that fragments [n, k / 2, warps, lanes] hold: [warps, n * 16, k]."""
    n, half, warps, _ = fragments.shape
    found = fragments.reshape(n, -1, 2, part, warps, 8, 4).transpose(4, 0, 2, 5, 1, 6, 3)
    return found.reshape(warps, n * 16, 2 * half)


# Bits of a descriptor of a matrix in shared memory (PTX ISA, "Matrix Descriptor Format").
_LEADING, _STRIDE, _LAYOUT = 16, 32, 62
_MODES = {0: 0, 1: 3, 2: 2, 3: 1}
"""The swizzle of each layout type of `wgmma`: 1 is of 128 bytes, 3 of 32."""


def wgmma_descriptor(view: View, index: Any, layout: int, leading: int, stride: int) -> Array:
    """The descriptor of a matrix that begins at an element of shared memory: [lanes]."""
    address = (np.asarray(index, np.int64) * view.itemsize + view.offset) >> 4 & 0x3FFF
    fields = leading << _LEADING | stride << _STRIDE
    # The topmost bits make the number negative, as the bits of an int64.
    return address | fields | np.int64(np.uint64(layout << _LAYOUT).view(np.int64))


def _tile(descriptors: Array, lines: int, chunks: int, k_major: bool) -> Array:
    """Where matrices are in the arena: of each chunk of 16 bytes the first, [matrices, lines, …].

    Lines are rows of a matrix that is K-major, of others columns.
    """
    start = (descriptors & 0x3FFF) << 4
    leading = (descriptors >> _LEADING & 0x3FFF) << 4
    stride = (descriptors >> _STRIDE & 0x3FFF) << 4
    modes = np.unique(descriptors >> _LAYOUT & 3)
    if len(modes) != 1:
        raise SynchronizationError("warp groups multiply matrices of different layouts at once")
    mode = _MODES[int(modes[0])]
    if not (k_major or mode):  # then the offsets have each other's meaning
        leading, stride = stride, leading
    span = 16 << mode  # bytes of a row of the layout
    line, byte = np.arange(lines)[:, None], np.arange(chunks) * 16
    leading, stride, start = (each[:, None, None] for each in (leading, stride, start))
    offset = line // 8 * stride + line % 8 * span + byte % span + byte // span * leading
    return swizzled(start + offset, mode)


def wgmma(
    m: Machine,
    n: int,
    k: int,
    types: tuple[str, str, str],
    majors: Sequence[bool],
    first: Any,
    second: Any,
    c: Array,
    start: int,
    scales: tuple[Any, ...],
    registers: bool,
    mask: Any,
    site: int,
) -> None:
    """`c = a @ b + scale * c` of warp groups: a is [64, k], b is [k, n]."""
    lanes = np.ones(m.count, bool) if mask is None else np.broadcast_to(mask, (m.count,))
    by_group = lanes.reshape(-1, WARP_GROUP)
    if (by_group.any(1) != by_group.all(1)).any():
        raise SynchronizationError("wgmma by some threads of a warp group only")
    groups = np.flatnonzero(by_group[:, 0])
    if not len(groups):
        return
    leaders = groups * WARP_GROUP
    block = m.block[leaders]

    def matrix(descriptor: Any, rows: int, dtype: str, k_major: bool) -> Array:
        lines, elements = (rows, k) if k_major else (k, rows)
        chosen = np.broadcast_to(descriptor, (m.count,))[leaders]
        place = _tile(chosen, lines, elements * TILE_DTYPES[dtype].bytes // 16, k_major)
        found = m.arena_elements(place, block, leaders, dtype, site)
        return found if k_major else found.swapaxes(1, 2)

    if registers:
        fragment, at = first
        part = 32 // TILE_DTYPES[types[0]].bits
        warps = (leaders[:, None] // WARP + np.arange(4)).ravel()
        a = _first_factor(_fragments(fragment, [at], k // 2, warps), part)
        a = a.reshape(len(groups), 64, k)
    else:
        a = matrix(first, 64, types[0], majors[0])
    b = matrix(second, n, types[1], majors[1])
    if types[0] == "tfloat32":
        a, b = ((f.view(np.int32) & ~0x1FFF).view(np.float32) for f in (a, b))
    total: Array
    if a.dtype.kind == "i":
        total = a.astype(np.int64) @ b.astype(np.int64).swapaxes(1, 2)
    else:
        total = a @ b.swapaxes(1, 2)
    scale = scales[0]
    target = c[start : start + n // 2].reshape(n // 2, -1, WARP_GROUP)
    # total [groups, 64, n]: elements [n / 2, groups, 128].
    added = total.reshape(-1, 4, 2, 8, n // 8, 4, 2).transpose(4, 2, 6, 0, 1, 3, 5)
    added = added.reshape(n // 2, -1, WARP_GROUP)
    signs = [s for s in scales[1:] if not isinstance(s, np.ndarray)]
    if any(s == -1 for s in signs):
        added = added * np.prod(signs)
    if isinstance(scale, np.ndarray):
        kept = np.broadcast_to(scale, (m.count,))[leaders] != 0
        target[:, groups] = np.where(kept[:, None], target[:, groups], 0) + added
    else:
        target[:, groups] = target[:, groups] + added if scale else added


FUNCTIONS = (ldmatrix, stmatrix, mma, wgmma, wgmma_descriptor)
