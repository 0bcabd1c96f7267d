"""Matrix products of factors with scales, and the scales in tensor memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.axis import cluster_of, rank_in_cluster
from tlmatrix.interpreter.emit.threads.roles import issue, together
from tlmatrix.interpreter.emit.tiles import (
    Effect,
    TileOperation,
    checked_view,
    matrix,
    operand,
    perform,
    region,
)
from tlmatrix.interpreter.emit.values import is_float8
from tlmatrix.interpreter.errors import InterpreterError
from tlmatrix.interpreter.gpu import WARP
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.runtime.codecs import CODECS

from .gemm import Gemm, of_one_block, pair_of, part_of
from .tables import Operations

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.sync.barriers import Cluster


# `T.gemm_blockscaled`: factors whose elements share a scale with others of their row --------------
#
# Into fragments (`T.mma_gemm_blockscaled`) the factors have 4 bits. Each 16 elements along K have a
# scale, a float8_e4m3fn without its sign; a word of 32 bits has the scales of 64 elements, the
# first lowest. The words of a factor are a matrix [rows, words along K] in one of two orders
# (`sf_layout`):
#
# - `rowmajor`: row r, from column `k_start / 64` on.
# - `blockscaled_chunk_kmajor`: word k of row r is the one with number
#   `k * rows + r % 32 * (rows / 32) + r / 32`.
#
# Into tensor memory (`T.tcgen05_gemm_blockscaled`) an element of the factors fills a byte. A row
# has one word of four scales, float8_e8m0fnu, in tensor memory as `scale_factors` puts it there; 32
# elements from k on take scale `k / granularity % 4` of it.

_FACTOR = "float4_e2m1fn"
_PER_SCALE = 16
_PER_WORD = 4 * _PER_SCALE
_ROWS = 32
_PER_EXPONENT = 32
_LANES = 128
_COLUMNS = 256
_ROWMAJOR, _KMAJOR = "rowmajor", "blockscaled_chunk_kmajor"


class BlockScaledGemm(Gemm):
    """`T.gemm_blockscaled(A, B, C, SFA, SFB, transpose_A, transpose_B, clear_accum, k_start)`."""

    name, rule = "gemm_blockscaled", ""
    reads = ("a", "b", "scales_a", "scales_b")

    def __init__(self, e: Emitter, call: Call) -> None:
        super().__init__(e, call)
        self.scales_a, self.scales_b = (matrix(e, call.args[k]) for k in (13, 14))
        self.k_start = e.scalar(call.args[15], "k_start").code
        layout = call.annotations.get("sf_layout", _ROWMAJOR)
        self.layout = str(getattr(layout, "value", layout))
        self.check(e)

    def check(self, e: Emitter) -> None:
        """Raise Unsupported for factors, scales and an accumulator that no instruction has."""
        a, b, c = self.a.buf, self.b.buf, self.c.buf
        self.granularity = [self.call.annotations[f"sf_{x}_granularity_k"].value for x in "ab"]
        self.in_tensor_memory = c.scope == "shared.tmem"
        if self.in_tensor_memory:
            known = _fills_byte(a) and _fills_byte(b) and self._fits()
            known = known and all(n % _PER_EXPONENT == 0 for n in self.granularity)
        else:
            known = a.dtype == b.dtype == _FACTOR and self.layout in (_ROWMAJOR, _KMAJOR)
            known = known and self.granularity == [_PER_SCALE, _PER_SCALE]
        if not known or c.dtype != "float32":
            raise e.refuse(
                f"T.gemm_blockscaled of {a.dtype} and {b.dtype} into {c.dtype} ({c.scope}) with "
                f"scales of {self.granularity} elements ({self.layout})"
            )

    def _fits(self) -> bool:
        """Whether one instruction has all rows and columns, whose scales it takes from column 0."""
        rows, columns = (d.extent.lit if d.extent else None for d in self.c.dims[-2:])
        return (
            rows == _LANES
            and columns is not None
            and columns <= _COLUMNS
            and all(s.buf.scope == "shared.tmem" for s in (self.scales_a, self.scales_b))
            and all(s.is_whole_local for s in (self.scales_a, self.scales_b))
        )

    def factors(self, e: Emitter) -> list[str]:
        """Both factors with their scales, [M, K] and [K, N]."""
        scaled = []
        for box, words, columns_are_k, granularity in (
            (self.a, self.scales_a, self.transposes[0] == "False", self.granularity[0]),
            (self.b, self.scales_b, self.transposes[1] == "True", self.granularity[1]),
        ):
            name = e.temp("scaled")
            turned = "" if columns_are_k else ".T"
            factor, held = operand(e, box), operand(e, words)
            how = ("by_words", self.layout == _KMAJOR)
            if self.in_tensor_memory:
                how = ("by_exponents", granularity)
            e.w.line(
                f"{name} = scaled_{how[0]}({factor}{turned}, {held}, {self.k_start}, {how[1]})"
            )
            scaled.append(name)
        return [scaled[0], f"{scaled[1]}.T"]

    def emit(self, e: Emitter) -> None:
        """Write the product."""
        a, b = self.factors(e)
        clear = True if any(self.call is each for each in e.from_zero) else self.clear.code
        e.w.line(f"gemm_blockscaled({a}, {b}, {checked_view(e, self.c)}, {clear})")


class PairBlockScaledGemm(BlockScaledGemm):
    """`T.tcgen05_gemm_blockscaled(use_2cta=True)`: each block has the scales of its factors."""

    def __init__(self, e: Emitter, call: Call) -> None:
        super().__init__(e, of_one_block(call))
        self._pair = pair_of(e)

    @property
    def effects(self) -> Sequence[Effect]:
        """Those of a product, in both blocks."""
        return [replace(effect, blocks=self._pair) for effect in super().effects]

    def emit(self, e: Emitter) -> None:
        """Write the product."""
        boxes = (self.a, self.b, self.c, self.scales_a, self.scales_b)
        operands = (f"({r.buf.code!r}, {r.dims_code})" for r in boxes)
        e.w.line(
            f"gemm_blockscaled_of_pair({cluster_of(e)}, {rank_in_cluster(e)}, "
            f"({', '.join(operands)}), {', '.join(self.transposes)}, {self.clear.code}, "
            f"{self.k_start}, {self.granularity})"
        )


def _fills_byte(buf: Buf) -> bool:
    """Whether each element of a factor has a byte of shared memory."""
    return is_float8(buf.dtype) or buf.dtype == "float4_e2m1_unpacked"


def scales_of_words(words: Array, shape: tuple[int, ...], k_start: int, kmajor: bool) -> Array:
    """The scales of a factor of shape [rows, K]: [rows, K / 16].

    Raises:
        InterpreterError: if the matrix of words has none for some of them.
    """
    rows, length = shape
    count = -(-length // _PER_WORD)
    first = 0 if kmajor else int(k_start) // _PER_WORD
    if words.shape[0] < rows or words.shape[1] < first + count or (kmajor and words.size % rows):
        raise InterpreterError(
            f"T.gemm_blockscaled: no scales for {rows} rows of {length} elements from {k_start} on "
            f"in {words.shape[0]} rows of {words.shape[1]} words"
        )
    if kmajor:
        groups = words[:rows].reshape(count, _ROWS, rows // _ROWS)
        words = groups.transpose(2, 1, 0).reshape(rows, count)
    else:
        words = words[:rows, first : first + count]
    codes = np.ascontiguousarray(words, "<u4").view(np.uint8)
    found: Array = CODECS["e4m3"].widen(codes & 0x7F)[:, : length // _PER_SCALE]
    return found


def scaled_by_words(factor: Array, words: Array, k_start: Any, kmajor: bool) -> Array:
    """A factor [rows, K] times the scale of each of its elements, in float64."""
    scales = scales_of_words(words, factor.shape, int(k_start), kmajor)
    return factor * np.repeat(scales.astype(np.float64), _PER_SCALE, axis=1)


def scaled_by_exponents(factor: Array, words: Array, k_start: Any, granularity: int) -> Array:
    """The same with the scales of tensor memory.

    Raises:
        InterpreterError: if tensor memory has no columns for some rows.
    """
    rows, length = factor.shape
    columns = -(-rows // _PER_EXPONENT)
    if columns > words.shape[1]:
        raise InterpreterError(
            f"T.tcgen05_gemm_blockscaled: scales of {rows} rows in {words.shape[1]} columns"
        )
    own = words[:_PER_EXPONENT, :columns].T.flatten()[:rows, None]
    which = (int(k_start) + np.arange(0, length, _PER_EXPONENT)) // granularity % 4
    scales = CODECS["e8m0"].widen(own.astype("<u4").view(np.uint8)[:, which])
    return factor * np.repeat(scales.astype(np.float64), _PER_EXPONENT, axis=1)[:, :length]


def gemm_blockscaled(a: Array, b: Array, c: Array, clear: Any) -> None:
    """`c = a @ b` or `c += a @ b` of factors with their scales; the sum is rounded once."""
    product = torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.copyto(c, product if clear else c + product, casting="same_kind")


def gemm_blockscaled_of_pair(
    cluster: Cluster,
    rank: int,
    operands: tuple[tuple[str, Any], ...],
    transpose_a: bool,
    transpose_b: bool,
    clear: Any,
    k_start: Any,
    granularity: tuple[int, int],
) -> None:
    """`gemm_blockscaled` of the block with a rank and its neighbour, which has half of B each."""
    pair = (rank & ~1, rank | 1)
    halves = [part_of(cluster, operands[1], block) for block in pair]
    right = np.concatenate(halves) if transpose_b else np.concatenate(halves, 1).T
    for block in pair:
        left, _, target, words_a, words_b = (part_of(cluster, o, block) for o in operands)
        left = left.T if transpose_a else left
        a = scaled_by_exponents(left, words_a, k_start, granularity[0])
        b = scaled_by_exponents(right, words_b, k_start, granularity[1])
        gemm_blockscaled(a, b.T, target, clear)


# Scales of `T.tcgen05_gemm_blockscaled`: `T.tcgen05_sf_warp_transpose`, `T.tcgen05_cp_warpx4` -----
#
# 128 words in shared memory, one for each row of a factor, become four columns of tensor memory.
# The transpose puts word `32 * j + i` at `4 * i + j`; the copy puts four words in a row of each of
# 32 lanes, and the same into the other lanes. So row r of the factor has its word in lane r % 32,
# column r / 32.

_TENSOR_LANES = 128


class CopyScales(TileOperation):
    """`T.tcgen05_cp_warpx4(words, tensor memory, column)`."""

    name = "tcgen05_cp_warpx4"
    reads = ("src",)

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        self.call = call
        self.src = region(e, call.args[0])
        target = next((key for key in e.buffers if key.data is call.args[1]), None)
        if target is None or target.scope != "shared.tmem":
            raise e.refuse("T.tcgen05_cp_warpx4 to no tensor memory")
        zero, lanes, columns = (ir.IntImm("int32", n) for n in (0, _TENSOR_LANES, 4))
        box = ir.Region(
            "handle", target, (zero, call.args[2]), (lanes, columns), reads=False, writes=True
        )
        buf = e.buffers[target]
        if {buf.dtype, self.src.buf.dtype} != {"uint32"} or buf.shape[0].lit != _TENSOR_LANES:
            raise e.refuse(f"T.tcgen05_cp_warpx4 to {buf.name} ({buf.dtype})")
        self.dst = region(e, box)
        self.of_pair = bool(call.annotations.get("use_2cta"))
        self._pair = pair_of(e) if self.of_pair else None

    @property
    def effects(self) -> Sequence[Effect]:
        """A read and a write, of one block or in both."""
        return [replace(effect, blocks=self._pair) for effect in super().effects]

    def emit(self, e: Emitter) -> None:
        """Write the copy."""
        source, target = checked_view(e, self.src), checked_view(e, self.dst)
        if not self.of_pair:
            e.w.line(f"copy_scales({source}, {target})")
            return
        operands = (f"({r.buf.code!r}, {r.dims_code})" for r in (self.src, self.dst))
        e.w.line(
            f"copy_scales_of_pair({cluster_of(e)}, {rank_in_cluster(e)}, {', '.join(operands)})"
        )


class TransposeScales(TileOperation):
    """`T.tcgen05_sf_warp_transpose(words)`."""

    name = "tcgen05_sf_warp_transpose"
    reads = writes = ("words",)

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        self.call = call
        self.words = region(e, call.args[0])
        if self.words.buf.dtype != "uint32":
            buf = self.words.buf
            raise e.refuse(f"T.tcgen05_sf_warp_transpose of {buf.name} ({buf.dtype})")

    def emit(self, e: Emitter) -> None:
        """Write the transpose."""
        e.w.line(f"transpose_scales({checked_view(e, self.words)})")


def _copy(e: Emitter, call: ir.Call) -> None:
    issue(e, "tcgen05 MMA", CopyScales(e, call), "ordered=True")


def _transpose(e: Emitter, call: ir.Call) -> None:
    t = threads_of(e, "T.tcgen05_sf_warp_transpose")
    low, high = t.intervals[t.role]
    if len(t.group) > 1 or high - low != WARP or (e.mask is not None and not e.mask.scalar):
        raise e.refuse("T.tcgen05_sf_warp_transpose by other threads than those of one warp")
    with t.without_threads(e):
        perform(e, TransposeScales(e, call))


def copy_scales(source: Array, target: Array) -> None:
    """Four words to each lane of a quarter of the lanes, the same to all quarters."""
    target[...] = np.tile(source.reshape(WARP, 4), (_TENSOR_LANES // WARP, 1))


def copy_scales_of_pair(
    cluster: Cluster, rank: int, source: tuple[str, Any], target: tuple[str, Any]
) -> None:
    """`copy_scales` in the block with a rank and in its neighbour."""
    for block in (rank & ~1, rank | 1):
        copy_scales(part_of(cluster, source, block), part_of(cluster, target, block))


def transpose_scales(words: Array) -> None:
    """Transpose 128 words, a matrix of 4 rows, in place."""
    words[...] = words.reshape(4, WARP).T.flatten()


OPERATIONS = Operations(
    tiles={"tl.tileop.gemm_blockscaled": BlockScaledGemm},
    of_threads=Rules(effects={"tl.ptx_tcgen05_sf_warp_transpose": _transpose}),
    asynchronous={"tl.ptx_tcgen05_cp_warpx4": together(_copy)},
    synchronizing=("tl.ptx_tcgen05_cp_warpx4", "tl.ptx_tcgen05_sf_warp_transpose"),
    functions=(
        gemm_blockscaled,
        gemm_blockscaled_of_pair,
        scaled_by_exponents,
        scaled_by_words,
        copy_scales,
        copy_scales_of_pair,
        transpose_scales,
    ),
)
