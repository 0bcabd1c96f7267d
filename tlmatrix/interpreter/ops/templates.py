"""Functions of TileLang's templates and examples: DP4A, and decoding of packed elements.

Each thread calls them on its own memory, an array [elements, threads]. The decoding functions come
as source text with the kernel (`T.import_source`), so a name is taken for one of them only if the
text is TileLang's.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.values import Val, literal
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

from .atomic import pointed_to

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.runtime.codecs import Array

__all__ = ["CALLS", "FUNCTIONS", "decode", "dp4a"]

# By function: the elements of a call that names no number of them, the bits of an element, what is
# taken from it, and SHA-256 of the source without white space.
_INT4 = "731a0bb9301c78bd"
_INT2 = "20656c3e20d9d30f"
_DECODERS = {
    "decode_i4u_to_f16": (8, 4, 0, _INT4),
    "decode_i4s_to_f16": (8, 4, 8, _INT4),
    "decode_i2u_to_i8s": (16, 2, 0, _INT2),
    "decode_i2s_to_i8s": (16, 2, 2, _INT2),
    "decode_fp4_to_bf16_twiddling": (8, 0, 0, "d3c7d129fb2b474b"),
}


def _own(e: Emitter, pointer: Any, what: str) -> str:
    """Code of the memory of each thread that a pointer names, and of the first element."""
    threads = threads_of(e, what).thread_axis(e, what).extent.code
    target = pointed_to(e, pointer, what)
    buf = buffer(e, target.buffer)
    shape = buf.static_shape
    if not buf.private_axes or shape is None or buf.codec is not None:
        raise e.refuse(f"{what} on {buf.name}")
    indices = [e.scalar(index, "an element").code for index in target.indices]
    if len(shape) == 1:
        return f"{buf.code}, {indices[0]}"
    start = " + ".join(
        f"({index}) * {math.prod(shape[k + 1 :])}" for k, index in enumerate(indices)
    )
    return f"{buf.code}.reshape(-1, {threads}), {start}"


def _dp4a(e: Emitter, call: ir.Call) -> Val:
    operands = ", ".join(_own(e, pointer, "T.dp4a") for pointer in call.args[:3])
    e.w.line(f"dp4a({operands}, {e.mask_code})")
    return literal(0, "int32")


def _decode(e: Emitter, call: ir.Call) -> Val:
    name = call.op.removeprefix("tl.")
    count, bits, bias, digest = _DECODERS[name]
    sources = [
        str(node.annotations["pragma_import_c"])
        for node in walk(e.kernel.body)
        if isinstance(node, ir.Block) and "pragma_import_c" in node.annotations
    ]
    if digest not in map(_digest, sources):
        raise e.refuse(f"the function {name}, whose source is not TileLang's")
    operands = ", ".join(_own(e, pointer, name) for pointer in call.args[:2])
    if len(call.args) > 2:
        count = int(e.scalar(call.args[2], "a number of elements").code)
    e.w.line(f"decode({operands}, {count}, {bits}, {bias}, {e.mask_code})")
    return literal(0, "int32")


def _digest(source: str) -> str:
    return hashlib.sha256("".join(source.split()).encode()).hexdigest()[:16]


CALLS = {"tl.DP4A": _dp4a, **{f"tl.{name}": _decode for name in _DECODERS}}


def _words(array: Array, start: int, count: int) -> Array:
    """Words of 32 bits of the threads' bytes, from element `start` on."""
    data = array[start : start + 4 * count].astype(np.uint8).astype(np.uint32)
    data = data.reshape(count, 4, *data.shape[1:])
    return data[:, 0] | data[:, 1] << 8 | data[:, 2] << 16 | data[:, 3] << 24


def _put(out: Array, start: int, values: Array, mask: Any) -> None:
    target = out[start : start + len(values)]
    np.copyto(target, values.astype(out.dtype), where=True if mask is None else mask)


def dp4a(a: Array, i: int, b: Array, j: int, c: Array, k: int, mask: Any) -> None:
    """`T.dp4a`: `c[k]` plus the sum of four products of signed bytes; int32 wraps."""
    products = a[i : i + 4].astype(np.int32) * b[j : j + 4].astype(np.int32)
    _put(c, k, c[k : k + 1] + products.sum(0, dtype=np.int32)[None], mask)


def decode(
    packed: Array, i: int, out: Array, k: int, count: int, bits: int, bias: int, mask: Any
) -> None:
    """Take packed elements apart, in the order in which TileLang's functions expect them.

    Args:
        packed: bytes of each thread.
        i: the first byte.
        out: the elements of each thread.
        k: the first element.
        count: how many elements; of fp4, how many groups of eight.
        bits: of an integer, with an element in every `bits` bits of each part of a word; 0 for fp4.
        bias: what is taken from an integer.
        mask: which threads are switched on.
    """
    if not bits:
        _put(out, k, _fp4(_words(packed, i, count)), mask)
        return
    word = _words(packed, i, 1)[0]
    # A word decodes to registers of parts: two float16, or four int8.
    parts = 2 if bits == 4 else 4
    values = [
        (word >> np.uint32(bits * (n // parts) + 32 // parts * (n % parts)) & (1 << bits) - 1)
        for n in range(count)
    ]
    _put(out, k, np.stack(values).astype(np.int32) - bias, mask)


def _fp4(words: Array) -> Array:
    """Elements of e2m1 that lie twiddled in words: sign, exponent, mantissa in bits 15, 8-7, 6."""
    words = words.byteswap()
    found = [
        words & 0x81C081C0,
        words << 3 & 0x81C081C0,
        words << 6 & 0x81C081C0,
        words << 1 & 0x80008000 | words >> 3 & 0x01800180 | words >> 7 & 0x00400040,
    ]
    halves = np.stack([v >> 16 for v in found] + [v & 0xFFFF for v in found], 1)
    exponent, mantissa = (halves >> 7 & 3).astype(np.int32), (halves >> 6 & 1).astype(np.float32)
    size = np.where(exponent, np.ldexp(1 + mantissa / 2, exponent - 1), mantissa / 2)
    values = np.where(halves >> 15, -size, size)
    return values.reshape(-1, *values.shape[2:])


FUNCTIONS = (decode, dp4a)
