"""Loads and stores of 32 to 256 bits by address (`T.ldg64`, `T.sts128`).

They become vector loads and stores of the same memory seen as words of 32 bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import transform, walk

from .vectors import bits_of_dtype

CHECKED_INDEX = "tlmatrix.checked_index"
"""The operation (index, extent, name) of an index that nothing guards, checked when it is used."""

_LOADS = {f"tl.ld{kind}{32 * n}": n for kind in "gs" for n in (1, 2, 4, 8)}
_STORES = {f"tl.st{kind}{32 * n}": n for kind in "gs" for n in (1, 2, 4, 8)}
_WORD = "uint32"


def without_words(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel without loads and stores of words by address.

    Raises:
        Unsupported: for memory with strides, or elements that do not fill words.
    """
    if not any(
        isinstance(n, ir.Call) and (n.op in _LOADS or n.op in _STORES) for n in walk(kernel.body)
    ):
        return kernel
    buffers = {buffer.data: buffer for buffer in kernel.buffer_map.values()}
    for node in walk(kernel.body):
        if isinstance(node, ir.Block):
            buffers |= {buffer.data: buffer for buffer in node.alloc_buffers}
    views: dict[ir.Var, ir.Buffer] = {}

    def words(call: ir.Call, lanes: int) -> tuple[ir.Buffer, ir.Expr]:
        """The memory as words, and the index of the first one."""
        _, data, offset, *_ = call.args[0].args
        buffer = buffers[data]
        bits = bits_of_dtype(buffer.dtype)
        if 32 % bits or not _is_compact(buffer):
            raise Unsupported(f"the interpreter does not model {call.op} of {buffer.name}")
        per_word = 32 // bits
        if data not in views:
            shape = (_floor(_product(buffer.shape), per_word),)
            views[data] = ir.Buffer(
                buffer.name, data, _WORD, shape, (), None, buffer.scope, buffer.location
            )
        first = _floor(offset, per_word)
        index = ir.Ramp(f"int32x{lanes}", first, _int(1), lanes) if lanes > 1 else first
        name = ir.StringImm("string", buffer.name)
        return views[data], ir.Call(
            index.dtype, CHECKED_INDEX, (index, views[data].shape[0], name), {}
        )

    def rewritten(node: Any) -> Any:
        if isinstance(node, ir.Call) and node.op in _LOADS:
            return load(node, _LOADS[node.op])
        if isinstance(node, ir.Evaluate) and isinstance(node.value, ir.Call):
            lanes = _STORES.get(node.value.op)
            return None if lanes is None else store(node, node.value, lanes)
        return None

    def load(call: ir.Call, lanes: int) -> ir.Expr:
        buffer, index = words(call, lanes)
        dtype = _WORD if lanes == 1 else f"{_WORD}x{lanes}"
        value: ir.Expr = ir.BufferLoad(dtype, buffer, (index,))
        if len(call.args) == 1:
            return value
        zero: ir.Expr = ir.IntImm(_WORD, 0)
        if lanes > 1:
            zero = ir.Broadcast(dtype, zero, lanes)
        return ir.Call(dtype, "tirx.if_then_else", (call.args[1], value, zero), {})

    def store(node: ir.Evaluate, call: ir.Call, lanes: int) -> ir.Stmt:
        buffer, index = words(call, lanes)
        stored = ir.BufferStore(node.location, buffer, call.args[1], (index,))
        if len(call.args) == 2:
            return stored
        return ir.IfThenElse(node.location, call.args[2], stored, None)

    return replace(kernel, body=transform(kernel.body, rewritten))


def _int(value: int) -> ir.IntImm:
    return ir.IntImm("int32", value)


def _product(factors: tuple[ir.Expr, ...]) -> ir.Expr:
    found: ir.Expr = _int(1)
    for factor in factors:
        if isinstance(found, ir.IntImm) and isinstance(factor, ir.IntImm):
            found = _int(found.value * factor.value)
        else:
            found = ir.Mul("int32", found, factor)
    return found


def _floor(value: ir.Expr, divisor: int) -> ir.Expr:
    if isinstance(value, ir.IntImm):
        return _int(value.value // divisor)
    return value if divisor == 1 else ir.FloorDiv("int32", value, _int(divisor))


def _is_compact(buffer: ir.Buffer) -> bool:
    """Whether the elements of a buffer lie without gaps."""
    for k, stride in enumerate(buffer.strides):
        compact = _product(buffer.shape[k + 1 :])
        if not (isinstance(stride, ir.IntImm) and isinstance(compact, ir.IntImm)):
            continue
        if stride.value != compact.value:
            return False
    return True
