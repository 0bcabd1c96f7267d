"""Functions called by their C names: CUDA's own, and those of TileLang's sources.

Each becomes what does the same in TileLang. A function that has a model of the user's
(`model_extern`) stays a call of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls, transform, walk

from .vectors import bits_of_dtype, element_at

# CUDA's own functions, called by their C names (`T.call_extern("int32", "__popc", x)`) ------------

HALF_TOWARD_ZERO = "__float2half_rz"

# Operations of the same arguments.
_SAME = {
    "__match_any_sync": "tl.match_any_sync",
    "__any_sync": "tl.any_sync",
    "__all_sync": "tl.all_sync",
    "__ballot_sync": "tl.ballot_sync",
    "__activemask": "tl.activemask",
    "__syncthreads_count": "tl.syncthreads_count",
    "__syncthreads_and": "tl.syncthreads_and",
    "__syncthreads_or": "tl.syncthreads_or",
    "__popc": "tirx.popcount",
    "__popcll": "tirx.popcount",
    "__clz": "tirx.clz",
    "__clzll": "tirx.clz",
    "__ffs": "tl.__ffs",
    "__ffsll": "tl.__ffs",
    "__fns": "tl.__fns",
    "fmaf": "tl.ieee_fmaf",
    "__fmaf_rn": "tl.ieee_fmaf",
    "__fadd_rn": "tl.ieee_add",
    "__fsub_rn": "tl.ieee_sub",
    "__fmul_rn": "tl.ieee_mul",
    "__fdiv_rn": "tl.ieee_fdiv",
    "__fdividef": "tl.ieee_fdiv",
    "__frcp_rn": "tl.ieee_frcp",
    "__fsqrt_rn": "tl.ieee_fsqrt",
    "__frsqrt_rn": "tl.ieee_frsqrt",
    **{f"{name}f": f"tirx.{name}" for name in ("exp", "exp2", "exp10", "log", "log2", "log10")},
    **{f"{name}f": f"tirx.{name}" for name in ("log1p", "sqrt", "rsqrt", "tanh", "erf", "pow")},
    **{f"{name}f": f"tirx.{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "atan2")},
    **{f"{name}f": f"tirx.{name}" for name in ("fabs", "floor", "ceil", "trunc", "fmod")},
    **{f"{name}f": f"tirx.{name}" for name in ("copysign", "hypot", "ldexp")},
    **{f"__{name}f": f"tirx.{name}" for name in ("exp", "exp10", "log", "log2", "log10")},
    **{f"__{name}f": f"tirx.{name}" for name in ("sin", "cos", "tan", "pow")},
    "fabsf": "tirx.fabs",
    "rintf": "tirx.nearbyint",
    "nearbyintf": "tirx.nearbyint",
    "roundf": "tl.round_ties_away_from_zero",
}
_SHUFFLES = {f"__shfl{kind}_sync": f"tl.shfl{kind}_sync" for kind in ("", "_xor", "_down", "_up")}
_BITS = {
    f"__{source}_as_{target}"
    for one, other in (("float", "int"), ("float", "uint"), ("half", "short"), ("half", "ushort"))
    for source, target in ((one, other), (other, one))
}
_CASTS = frozenset(
    {"__float2half", "__float2half_rn", "__half2float", "__float2bfloat16", "__bfloat162float"}
    | {"__float2bfloat16_rn", "__int2float_rn", "__uint2float_rn", "__float2int_rz"}
    | {"__float2uint_rz", "__float2ll_rz"}
)
# Ways to round to an integer: what is done before the cast.
_ROUNDED = {"rn": "tirx.nearbyint", "rd": "tirx.floor", "ru": "tirx.ceil"}


def extern_name(call: ir.Call) -> str:
    """The function that `T.call_extern` calls."""
    return str(getattr(call.args[0], "value", call.args[0]))


def without_builtins(kernel: ir.Kernel, is_modelled: Callable[[str], bool]) -> ir.Kernel:
    """The kernel without calls of CUDA's own functions by name."""
    if not calls(kernel.body, "tirx.call_extern"):
        return kernel

    def replaced(node: Any) -> Any:
        if not isinstance(node, ir.Call) or node.op != "tirx.call_extern":
            return None
        name = extern_name(node).removeprefix("::")
        return None if is_modelled(name) else _operation_of(name, node)

    return replace(kernel, body=transform(kernel.body, replaced))


def _operation_of(name: str, call: ir.Call) -> ir.Expr | None:
    """The operation that a call stands for; None for any other function."""
    dtype, arguments = call.dtype, call.args[1:]
    if name == "__syncwarp":
        return ir.Call("void", "tl.sync_warp", (), {})
    if name == "__syncthreads":
        return ir.Call("void", "tirx.tvm_storage_sync", (ir.StringImm("handle", "shared"),), {})
    if name == "__nanosleep":
        return ir.IntImm("int32", 0)  # there is no time
    if name in _SAME:
        return _operation(_SAME[name], dtype, arguments)
    if name in _SHUFFLES:
        width = () if len(arguments) == 4 else (ir.IntImm("int32", 32),)
        return _operation(_SHUFFLES[name], dtype, (*arguments, *width))
    if name in _BITS:
        return _operation("tirx.reinterpret", dtype, arguments)
    if name in _CASTS:
        return _cast(dtype, arguments[0])
    if name in ("fmaxf", "fminf", "max", "min") and len(arguments) == 2:
        extreme = ir.Max if "max" in name else ir.Min
        return extreme(arguments[0].dtype, *arguments)
    if name.startswith(("__float2int_", "__float2uint_", "__float2ll_")):
        before = _ROUNDED.get(name.rpartition("_")[2])
        if before is not None:
            return _cast(dtype, _operation(before, "float32", arguments))
    return None


def _operation(name: str, dtype: str, arguments: tuple[Any, ...]) -> ir.Expr:
    # TileLang's ballots have 64 bits, CUDA's have 32.
    made = "uint64" if name in ("tl.ballot_sync", "tl.activemask") else dtype
    return _cast(dtype, ir.Call(made, name, arguments, {}))


def _cast(dtype: str, value: ir.Expr) -> ir.Expr:
    return value if value.dtype == dtype else ir.Cast(dtype, value)


# Functions of TileLang's own CUDA sources, called by name: fast dequantization and DP4A -----------
#
# `T.call_extern("handle", "decode_i4u_to_f16", packed, unpacked)` becomes the stores that the
# function does. A decoder comes with the kernel (`T.import_source`): one whose source has not the
# constants that are modelled here stays a call of the user's own function.


@dataclass(frozen=True)
class _Decoder:
    """A function `(packed, unpacked, count)`.

    Attributes:
        count: the default of its last argument.
        elements: how many elements it makes of a word of 32 bits.
        counts_words: whether the count is one of words; else of the elements of one word.
        evidence: what its source contains.
        element: element `k` of a word, given as an unsigned integer.
    """

    count: int
    elements: int
    counts_words: bool
    evidence: tuple[str, ...]
    element: Callable[[ir.Expr, int], ir.Expr]


def without_templates(kernel: ir.Kernel, is_modelled: Callable[[str], bool]) -> ir.Kernel:
    """The kernel with stores in place of calls of TileLang's functions."""
    if not calls(kernel.body, "tirx.call_extern"):
        return kernel
    sources = "".join(_imported(kernel))
    buffers = {
        node.buffer.data: node.buffer
        for node in walk(kernel.body)
        if isinstance(node, (ir.AllocBuffer, ir.DeclBuffer, ir.BufferLoad, ir.BufferStore))
    }

    def rewritten(node: Any) -> Any:
        call = node.value if isinstance(node, ir.Evaluate) else None
        if not isinstance(call, ir.Call) or call.op != "tirx.call_extern":
            return None
        name = extern_name(call)
        call = replace(call, args=(*(_with_element(each, buffers) for each in call.args),))
        if is_modelled(name) or not all(map(_is_pointer, call.args[1:3])):
            return None
        if name == "DP4A" and len(call.args) == 4 and _is_pointer(call.args[3]):
            return _dot_product(node, call)
        decoder = _DECODERS.get(name)
        if decoder is None or not all(part in sources for part in decoder.evidence):
            return None
        return _decoded(node, call, decoder)

    return replace(kernel, body=transform(kernel.body, rewritten))


_SOURCE = "pragma_import_c"


def _imported(kernel: ir.Kernel) -> Iterator[str]:
    """CUDA sources of a kernel, as it is traced or lowered."""
    for node in walk(kernel.body):
        if isinstance(node, ir.Block) and _SOURCE in node.annotations:
            found = node.annotations[_SOURCE]
        elif isinstance(node, ir.AttrStmt) and node.attr_key == _SOURCE:
            found = node.value
        else:
            continue
        yield str(getattr(found, "value", "")) or str(found)


def _with_element(pointer: Any, buffers: dict[ir.Var, ir.Buffer]) -> Any:
    """The access pointer of lowered code as one to an element of its buffer."""
    if not isinstance(pointer, ir.Call) or pointer.op != "tirx.tvm_access_ptr":
        return pointer
    kind, data, offset = pointer.args[:3]
    buffer = buffers.get(data)
    if buffer is None or buffer.dtype != kind.dtype or len(buffer.shape) != 1:
        return pointer
    load = ir.BufferLoad(buffer.dtype, buffer, (offset,))
    return replace(pointer, op="tirx.address_of", args=(load,))


def _is_pointer(node: Any) -> bool:
    return (
        isinstance(node, ir.Call)
        and node.op in ("tl.access_ptr", "tirx.address_of")
        and isinstance(node.args[0], ir.BufferLoad)
    )


def _at(pointer: Any, offset: int) -> ir.BufferLoad:
    return element_at(pointer.args[0], ir.IntImm("int32", offset))


def _store(node: ir.Stmt, pointer: Any, offset: int, value: ir.Expr) -> ir.Stmt:
    at = _at(pointer, offset)
    value = value if value.dtype == at.buffer.dtype else ir.Cast(at.buffer.dtype, value)
    return ir.BufferStore(node.location, at.buffer, value, at.indices)


def _dot_product(node: ir.Stmt, call: ir.Call) -> ir.Stmt:
    """`*c = __dp4a(*a, *b, *c)`."""
    a, b, c = call.args[1:]
    total: ir.Expr = _at(c, 0)
    for k in range(4):
        factors = (ir.Cast("int32", _at(pointer, k)) for pointer in (a, b))
        total = ir.Add("int32", total, ir.Mul("int32", *factors))
    return _store(node, c, 0, total)


def _decoded(node: ir.Stmt, call: ir.Call, decoder: _Decoder) -> ir.Stmt | None:
    source, target = call.args[1:3]
    given = call.args[3] if len(call.args) > 3 else ir.IntImm("int32", decoder.count)
    bits = bits_of_dtype(source.args[0].buffer.dtype)
    if not isinstance(given, ir.IntImm) or len(call.args) > 4 or bits not in (8, 16, 32):
        return None
    statements: list[ir.Stmt] = []
    for number in range(given.value if decoder.counts_words else 1):
        word = ir.Var("uint32", "word")
        statements.append(ir.Bind(node.location, word, _word(source, number, bits)))
        count = decoder.elements if decoder.counts_words else given.value
        for k in range(min(count, decoder.elements)):
            value = decoder.element(word, k)
            statements.append(_store(node, target, number * decoder.elements + k, value))
    return ir.SeqStmt(node.location, tuple(statements))


def _word(source: Any, number: int, bits: int) -> ir.Expr:
    """A word of 32 bits of memory of `bits`-bit elements."""
    count = 32 // bits
    word: ir.Expr | None = None
    for k in range(count):
        element = ir.Cast("uint32", ir.Cast(f"uint{bits}", _at(source, number * count + k)))
        part = _call("shift_left", element, k * bits) if k else element
        word = part if word is None else ir.Call("uint32", "tirx.bitwise_or", (word, part), {})
    assert word is not None
    return word


def _call(operation: str, value: ir.Expr, number: int) -> ir.Expr:
    return ir.Call("uint32", f"tirx.{operation}", (value, ir.IntImm("uint32", number)), {})


def _bits(word: ir.Expr, first: int, count: int) -> ir.Expr:
    shifted = _call("shift_right", word, first) if first else word
    return _call("bitwise_and", shifted, (1 << count) - 1)


def _i4(word: ir.Expr, k: int, offset: int = 0) -> ir.Expr:
    """Of halves interleaved by pairs: nibble k / 2 of the lower or upper half word."""
    value = ir.Cast("int32", _bits(word, 4 * (k // 2) + 16 * (k % 2), 4))
    return ir.Cast("float16", ir.Sub("int32", value, ir.IntImm("int32", offset)))


def _i2(word: ir.Expr, k: int, offset: int = 0) -> ir.Expr:
    """Bits 2 * (k / 4) of byte k % 4."""
    value = ir.Cast("int32", _bits(word, 2 * (k // 4) + 8 * (k % 4), 2))
    return ir.Cast("int8", ir.Sub("int32", value, ir.IntImm("int32", offset)))


def _e2m1(word: ir.Expr, k: int) -> ir.Expr:
    """Sign, two bits of exponent and one of mantissa, as Triton interleaves them in a word.

    The word is read with its first byte at the top; elements 0 to 3 lie in its upper half. Three
    of four are 9 bits `s......eem` at steps of 3, the last one's bits lie between them.
    """
    half = 16 if k < 4 else 0
    place = k % 4

    def bit(position: int) -> ir.Expr:
        """A bit of the word whose bytes are swapped."""
        position += half
        return _bits(word, 8 * (3 - position // 8) + position % 8, 1)

    # Positions of the sign, the exponent's two bits and the mantissa's.
    positions = [(15, 8, 7, 6), (12, 5, 4, 3), (9, 2, 1, 0), (14, 11, 10, 13)][place]
    fields = zip(positions, (15, 8, 7, 6), strict=True)
    found: ir.Expr = ir.IntImm("uint32", 0)
    for position, target in fields:
        moved = _call("shift_left", bit(position), target)
        found = ir.Call("uint32", "tirx.bitwise_or", (found, moved), {})
    value = ir.Call("bfloat16", "tirx.reinterpret", (ir.Cast("uint16", found),), {})
    return ir.Mul("bfloat16", value, ir.FloatImm("bfloat16", 2.0**126))


_I4 = ("0x000f000f", "isSigned ? 0x64086408 : 0x64006400", "i4s >> (4 * i)")
_I2 = ("0x03030303", "i2b >> (2 * i)", "0x02020202")
_TWIDDLED = ("prmt.b32 %13, %4, 0, 0x0123", "0b10000001110000001000000111000000", "0x7e807e80")


_DECODERS = {
    "decode_i4u_to_f16": _Decoder(8, 8, False, _I4, _i4),
    "decode_i4s_to_f16": _Decoder(8, 8, False, _I4, lambda w, k: _i4(w, k, 8)),
    "decode_i2u_to_i8s": _Decoder(16, 16, False, _I2, _i2),
    "decode_i2s_to_i8s": _Decoder(16, 16, False, _I2, lambda w, k: _i2(w, k, 2)),
    "decode_fp4_to_bf16_twiddling": _Decoder(8, 8, True, _TWIDDLED, _e2m1),
}
