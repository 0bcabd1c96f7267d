"""Matrix products of one block, of sparse factors, of two blocks of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.analysis.expressions import is_true
from tlmatrix.interpreter.emit.numbers import round_into
from tlmatrix.interpreter.emit.threads.axis import cluster_of, rank_in_cluster
from tlmatrix.interpreter.emit.tiles import Effect, TileOperation, checked_view, matrix, operand
from tlmatrix.interpreter.emit.values import is_float, is_float8, is_int
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.runtime.elements import Tile

from .tables import Operations

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.values import Val
    from tlmatrix.interpreter.ir.nodes import Call, Region
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.runtime.elements import Event
    from tlmatrix.interpreter.sync.barriers import Cluster


# `T.gemm`: `C = A @ B` or `C += A @ B` ------------------------------------------------------------


class Gemm(TileOperation):
    """`T.gemm(A, B, C, transpose_A, transpose_B, clear_accum)`.

    Attributes:
        barrier: the mbarrier at which it arrives when it is done, if it names one.
    """

    name = rule = "gemm"
    reads: tuple[str, ...] = ("a", "b")
    writes = ("c",)

    clear: Val

    def __init__(self, e: Emitter, call: Call) -> None:
        self.call = call
        if call.annotations.get("use_2cta"):
            raise e.refuse("T.gemm over two blocks (use_2cta)")
        self.a, self.b, self.c = (matrix(e, arg) for arg in call.args[:3])
        self.transposes = [e.scalar(call.args[k], "a transposition").code for k in (3, 4)]
        self.clear = e.scalar(call.args[9], "clear_accum")
        self.arguments = (*self.transposes, self.clear.code)
        self.barrier = barrier_of(call)

    @staticmethod
    def overwritten(call: Call) -> Region | None:
        """The accumulator, where it is cleared."""
        target: Region = call.args[2]
        return target if is_true(call.args[9]) else None

    def factors(self, e: Emitter) -> list[str]:
        """Codes of the arrays to multiply."""
        return [operand(e, self.a), operand(e, self.b)]

    def emit(self, e: Emitter) -> None:
        """Write the product."""
        c = self.c.buf
        operands = self.factors(e)
        if c.codec:
            raise e.refuse(f"T.gemm into the global buffer {c.name}")
        target = checked_view(e, self.c)
        clear = True if any(self.call is each for each in e.from_zero) else self.clear.code
        dtypes = self.a.buf.dtype, self.b.buf.dtype
        if is_int(c.dtype) or (c.dtype == "float32" and all(map(is_float8, dtypes))):
            function = "gemm_int" if is_int(c.dtype) else "gemm_float8"
            e.w.line(
                f"{function}({', '.join(operands)}, {target}, {', '.join(self.transposes)}, "
                f"{clear})"
            )
            return
        if c.dtype == "float64":
            operands = [f"np.asarray({code}, np.float64)" for code in operands]
        elif "float64" in dtypes or not all(map(is_float, dtypes)):
            raise e.refuse(f"T.gemm of {dtypes[0]} and {dtypes[1]} into {c.dtype}")
        product = "gemm_tf32" if "tfloat32" in dtypes else "gemm"
        factors, transposes = [], list(self.transposes)
        for k, code in enumerate(operands):
            transposed = e.transposed(code) if transposes[k] == "True" else None
            transposes[k] = "False" if transposed is not None else transposes[k]
            factors.append(transposed or e.tensor(code))
        into = e.tensor(target)
        plain = not {"float32", "tfloat32"} & {*dtypes} and transposes == ["False", "False"]
        if plain and str(clear) == "False":
            e.w.line(f"{into}.addmm_({', '.join(factors)})")
        else:
            e.w.line(f"{product}({', '.join(factors)}, {into}, {', '.join(transposes)}, {clear})")
        if c.rounding:
            round_into(e, c.rounding, target, target)


def barrier_of(call: Call) -> Any:
    """The mbarrier that a product names; None if it names none."""
    named = call.args[10] if len(call.args) > 10 else None
    return None if named is None or isinstance(named, ir.IntImm) else named


# Whether float32 factors of a product are cut to TF32; per thread, set for a launch.
TF32: ContextVar[bool] = ContextVar("tlmatrix_tf32", default=False)


# Bits that the tensor cores keep of sums of float8 products; None for all. Set as TF32 is.
FLOAT8_BITS: ContextVar[int | None] = ContextVar("tlmatrix_float8_bits", default=None)
_FLOAT8_GROUP = 32
"""Products that the tensor cores add at once."""


def _tf32(factor: torch.Tensor) -> torch.Tensor:
    """Float32 without its last 13 bits, which the tensor cores do not read."""
    if factor.dtype != torch.float32:
        return factor
    return (factor.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    transpose_a: bool,
    transpose_b: bool,
    clear: Any,
) -> None:
    """`c = a @ b` or `c += a @ b` in the precision of `c`."""
    if transpose_a:
        a = a.t()
    if transpose_b:
        b = b.t()
    if TF32.get():
        # Other dtypes travel as float32 and have no more bits than TF32 keeps.
        a, b = _tf32(a), _tf32(b)
    if clear:
        torch.mm(a, b, out=c)
    else:
        c.addmm_(a, b)


def gemm_tf32(a: torch.Tensor, b: torch.Tensor, *rest: Any) -> None:
    """`gemm` of factors of which tensor cores read 19 bits."""
    gemm(_tf32(a), _tf32(b), *rest)


def gemm_float8(
    a: Array, b: Array, c: Array, transpose_a: bool, transpose_b: bool, clear: Any
) -> None:
    """`gemm` of float8 factors as the tensor cores add their products.

    Those of Hopper align 32 products and the sum so far to the largest of them, cut off what lies
    below its 14th bit, and add what is left: measured on an H200 (docs/results, GEMM).
    DeepSeek-V3, arXiv:2412.19437, section 3.3.2, also reports about 14 bits.
    """
    bits = FLOAT8_BITS.get()
    left, right = a.T if transpose_a else a, b.T if transpose_b else b
    total = np.zeros_like(c) if clear else c.copy()
    if bits is None:
        np.add(total, left @ right, out=c)
        return
    for start in range(0, left.shape[1], _FLOAT8_GROUP):
        group = slice(start, start + _FLOAT8_GROUP)
        # [products, rows, columns] in float64, which scales each by a power of two exactly.
        products = np.multiply(
            left[:, group].T[:, :, None], right[group, None, :], dtype=np.float64
        )
        largest = np.maximum(np.abs(products).max(axis=0), np.abs(total))
        finite = np.isfinite(largest)
        # NaN and infinity have no exponent to align to.
        other = None if finite.all() else (total + products.sum(axis=0)).astype(total.dtype)
        # largest = fraction * 2**exponent with a fraction from 1/2 to 1.
        shift = bits - np.frexp(largest)[1]
        scale = np.ldexp(1.0, shift)
        products *= scale
        kept = np.trunc(products, out=products).sum(axis=0) + np.trunc(total * scale)
        total = (kept / scale).astype(total.dtype)
        if other is not None:
            total = np.where(finite, total, other)
    np.copyto(c, total)


def gemm_int(
    a: Array, b: Array, c: Array, transpose_a: bool, transpose_b: bool, clear: Any
) -> None:
    """`gemm` of integers, exact and wrapping in the width of `c`."""
    # Exact below 2^53: products of 8-bit integers never come near it.
    left, right = a.astype(np.float64), b.astype(np.float64)
    product = (left.T if transpose_a else left) @ (right.T if transpose_b else right)
    total = product.astype(np.int64) + (0 if clear else c.astype(np.int64))
    np.copyto(c, total.astype(c.dtype))


def _multiplied(event: Event, write: Tile, hit: Array, read: Tile, number: int) -> Array:
    turned_a, turned_b, _, zeros, strange = event.extra
    (rows, columns), _ = write.inner(hit)
    a, b = event.reads[0][1], event.reads[1][1]
    assert isinstance(a, Tile)
    assert isinstance(b, Tile)
    height, width = a.extent
    depth = height if turned_a else width
    inner = np.arange(depth)[None, :]
    if number == 0:
        places = [inner, rows[:, None]] if turned_a else [rows[:, None], inner]
        return read.outer(places)
    zero = np.unpackbits(zeros, count=height * width).reshape(height, width).astype(bool)
    shape = b.extent
    odd = np.unpackbits(strange, count=shape[0] * shape[1]).reshape(shape).astype(bool)
    live = ~(zero.T if turned_a else zero)[rows] | (odd if turned_b else odd.T)[columns]
    which, at = np.nonzero(live)
    of = columns[which]
    return read.outer([of, at] if turned_b else [at, of])


# `T.gemm_sp`: a product whose left factor is stored without its zeros -----------------------------
#
# Of four neighbours along K two are stored, of two of 32 bits one. The metadata have 4 bits for
# each group, the first group lowest: where the first and the second stored element stand (2 bits
# each).


class SparseGemm(Gemm):
    """`T.gemm_sp(A, E, B, C, transpose_A, transpose_E, transpose_B, clear_accum)`."""

    name, rule = "gemm_sp", ""
    reads = ("metadata", "a", "b")

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        a, metadata, b, c, turn_a, turn_e, turn_b = call.args[:7]
        rest = (a, b, c, turn_a, turn_b, *call.args[7:12])
        super().__init__(e, ir.Call(call.dtype, call.op, rest, call.annotations))
        self.call = call
        self.metadata = matrix(e, metadata)
        self._turns = [e.scalar(turn, "a transposition").code for turn in (turn_a, turn_e)]

    @staticmethod
    def overwritten(call: ir.Call) -> ir.Region | None:
        """The accumulator, where it is cleared."""
        target: ir.Region = call.args[3]
        return target if is_true(call.args[11]) else None

    def factors(self, e: Emitter) -> list[str]:
        """The left factor with its zeros, not transposed, and the right one."""
        wide = self.a.buf.dtype.endswith("32")
        dense = e.temp("dense")
        e.w.line(
            f"{dense} = with_zeros({operand(e, self.a)}, {operand(e, self.metadata)}, "
            f"{', '.join(self._turns)}, {wide})"
        )
        self.transposes[0] = "False"
        return [dense, operand(e, self.b)]


def with_zeros(
    stored: Array, metadata: Array, turn_stored: Any, turn_metadata: Any, wide: bool
) -> Array:
    """A sparse matrix with its zeros, rows first; `wide` for elements of 32 bits."""
    stored = stored.T if turn_stored else stored
    metadata = np.ascontiguousarray(metadata.T if turn_metadata else metadata)
    group, kept = (2, 1) if wide else (4, 2)
    rows, count = stored.shape
    nibbles = metadata.view(np.uint8).reshape(rows, -1, 1) >> np.array([0, 4], np.uint8) & 15
    nibbles = nibbles.reshape(rows, -1)[:, : count // kept, None]
    places = nibbles >> np.array([0, 2], np.uint8)[:kept] & 3
    if wide:
        places = places >> 1
    dense = np.zeros((rows, count // kept, group), stored.dtype)
    np.put_along_axis(dense, places.astype(np.intp), stored.reshape(rows, -1, kept), axis=2)
    return dense.reshape(rows, -1)


# `T.tcgen05_gemm(use_2cta=True)`: one product of two blocks of a cluster --------------------------
#
# Each block has its rows of A, half of the columns of B, and its rows of C. The first block issues
# the product for both.


class PairGemm(Gemm):
    """A product of two blocks."""

    name, rule = "gemm", ""

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        super().__init__(e, of_one_block(call))
        self._pair = pair_of(e)
        operands = (self.a.buf, self.b.buf, self.c.buf)
        if any(buf.codec for buf in operands) or self.c.buf.dtype != "float32":
            names = ", ".join(f"{buf.name} ({buf.dtype})" for buf in operands)
            raise e.refuse(f"T.gemm over two blocks (use_2cta) of {names}")

    @property
    def effects(self) -> Sequence[Effect]:
        """Those of a product, in both blocks."""
        return [replace(effect, blocks=self._pair) for effect in super().effects]

    def emit(self, e: Emitter) -> None:
        """Write the product."""
        operands = (f"({r.buf.code!r}, {r.dims_code})" for r in (self.a, self.b, self.c))
        e.w.line(
            f"gemm_of_pair({cluster_of(e)}, {rank_in_cluster(e)}, {', '.join(operands)}, "
            f"{', '.join(self.transposes)}, {self.clear.code})"
        )


def of_one_block(call: ir.Call) -> ir.Call:
    """The product of two blocks as one of one block with the same operands."""
    alone = {k: v for k, v in call.annotations.items() if k != "use_2cta"}
    return replace(call, annotations=alone)


def pair_of(e: Emitter) -> str:
    """Code of the ranks of the two blocks that work together."""
    rank = rank_in_cluster(e)
    return f"({rank} & ~1, {rank} | 1)"


def part_of(cluster: Cluster, operand: tuple[str, Any], block: int) -> Array:
    """A region, given by its array's name and its dims, of a block of the cluster."""
    name, dims = operand
    index = (slice(d[0], d[0] + d[1] * d[2], d[2]) if isinstance(d, tuple) else d for d in dims)
    found: Array = cluster.array(name, block)[tuple(index)]
    return found


def gemm_of_pair(
    cluster: Cluster,
    rank: int,
    a: tuple[str, Any],
    b: tuple[str, Any],
    c: tuple[str, Any],
    transpose_a: bool,
    transpose_b: bool,
    clear: Any,
) -> None:
    """`c = a @ b` or `c += a @ b` of the block with a rank and its neighbour."""
    pair = (rank & ~1, rank | 1)

    right = np.concatenate([part_of(cluster, b, block) for block in pair], 0 if transpose_b else 1)
    factor = torch.from_numpy(right.T if transpose_b else right)
    for block in pair:
        left, target = (part_of(cluster, operand, block) for operand in (a, c))
        left = np.ascontiguousarray(left.T if transpose_a else left)
        product = torch.mm(torch.from_numpy(left), factor).numpy()
        np.copyto(target, product if clear else target + product)


OPERATIONS = Operations(
    tiles={"tl.tileop.gemm": Gemm, "tl.tileop.gemm_sp": SparseGemm},
    functions=(gemm, gemm_float8, gemm_int, gemm_tf32, with_zeros, gemm_of_pair),
    slices={"gemm": _multiplied},
)
