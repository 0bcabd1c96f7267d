"""`T.gemm_blockscaled` into fragments, `T.mma_gemm_blockscaled`: factors of 4 bits with scales.

Each 16 elements along K have a scale, a float8_e4m3fn without its sign; a word of 32 bits has the
scales of 64 elements, the first lowest. The words of a factor are a matrix [rows, words along K]
in one of two orders (`sf_layout`):

- `rowmajor`: row r, from column `k_start / 64` on.
- `blockscaled_chunk_kmajor`: word k of row r is the one with number
  `k * rows + r % 32 * (rows / 32) + r / 32`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.emit.regions import checked_view, matrix, operand
from tlmatrix.interpreter.errors import InterpreterError
from tlmatrix.interpreter.runtime.codecs import CODECS

from .gemm import Gemm

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call
    from tlmatrix.interpreter.runtime.codecs import Array

__all__ = ["BlockScaledGemm", "gemm_blockscaled", "scales_of_words"]

_FACTOR = "float4_e2m1fn"
_PER_SCALE = 16
_PER_WORD = 4 * _PER_SCALE
_ROWS = 32
_ROWMAJOR, _KMAJOR = "rowmajor", "blockscaled_chunk_kmajor"


class BlockScaledGemm(Gemm):
    """`T.gemm_blockscaled(A, B, C, SFA, SFB, transpose_A, transpose_B, clear_accum, k_start)`."""

    name, rule = "gemm_blockscaled", ""
    reads = ("a", "b", "scales_a", "scales_b")

    def __init__(self, e: Emitter, call: Call) -> None:
        super().__init__(e, call)
        self.scales_a, self.scales_b = (matrix(e, call.args[k]) for k in (13, 14))
        self.k_start = e.scalar(call.args[15], "k_start").code
        self.layout = str(getattr(call.annotations.get("sf_layout"), "value", _ROWMAJOR))
        self.check(e)

    def check(self, e: Emitter) -> None:
        """Raise Unsupported for factors, scales and an accumulator that no instruction has."""
        a, b, c = self.a.buf, self.b.buf, self.c.buf
        per_scale = [self.call.annotations[f"sf_{x}_granularity_k"].value for x in "ab"]
        if c.scope == "shared.tmem":
            raise e.refuse(f"T.gemm_blockscaled into tensor memory ({c.name})")
        if (a.dtype, b.dtype, c.dtype) != (_FACTOR, _FACTOR, "float32"):
            raise e.refuse(f"T.gemm_blockscaled of {a.dtype} and {b.dtype} into {c.dtype}")
        if per_scale != [_PER_SCALE, _PER_SCALE] or self.layout not in (_ROWMAJOR, _KMAJOR):
            raise e.refuse(f"T.gemm_blockscaled with scales of {per_scale} in {self.layout}")

    def factors(self, e: Emitter) -> list[str]:
        """Both factors with their scales, [M, K] and [K, N]."""
        arguments = f"{self.k_start}, {self.layout == _KMAJOR}"
        scaled = []
        for box, words, columns_are_k in (
            (self.a, self.scales_a, self.transposes[0] == "False"),
            (self.b, self.scales_b, self.transposes[1] == "True"),
        ):
            name = e.temp("scaled")
            turned = "" if columns_are_k else ".T"
            factor, held = operand(e, box), operand(e, words)
            e.w.line(f"{name} = scaled_by_words({factor}{turned}, {held}, {arguments})")
            scaled.append(name)
        return [scaled[0], f"{scaled[1]}.T"]

    def emit(self, e: Emitter) -> None:
        """Write the product."""
        a, b = self.factors(e)
        clear = True if any(self.call is each for each in e.from_zero) else self.clear.code
        e.w.line(f"gemm_blockscaled({a}, {b}, {checked_view(e, self.c)}, {clear})")


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


def gemm_blockscaled(a: Array, b: Array, c: Array, clear: Any) -> None:
    """`c = a @ b` or `c += a @ b` of factors with their scales; the sum is rounded once."""
    product = torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.copyto(c, product if clear else c + product, casting="same_kind")


TILES = {"tl.tileop.gemm_blockscaled": BlockScaledGemm}
FUNCTIONS = (gemm_blockscaled, scaled_by_words)
