"""`T.gemm`: `C = A @ B` or `C += A @ B`."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.analysis.constants import is_true
from tlmatrix.interpreter.emit.floats import round_into
from tlmatrix.interpreter.emit.regions import checked_view, matrix, operand
from tlmatrix.interpreter.emit.tiles import TileOperation
from tlmatrix.interpreter.emit.values import is_float, is_float8, is_int
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.runtime.elements import Tile

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.values import Val
    from tlmatrix.interpreter.ir.nodes import Call, Region
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.runtime.tracks import Event


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


def gemm_tf32(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    transpose_a: bool,
    transpose_b: bool,
    clear: Any,
) -> None:
    """`gemm` of factors of which tensor cores read 19 bits."""
    gemm(_tf32(a), _tf32(b), c, transpose_a, transpose_b, clear)


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


TILES = {"tl.tileop.gemm": Gemm}
FUNCTIONS = (gemm, gemm_float8, gemm_int, gemm_tf32)
SLICES = {"gemm": _multiplied}
