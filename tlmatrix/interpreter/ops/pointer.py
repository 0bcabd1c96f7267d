"""Memory at an address (`T.make_tensor` of a number, `T.ptr`), and words of memory by address."""

from __future__ import annotations

import ctypes
import gc
import math
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.emit.access import Buf
from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.statements import emit_bind
from tlmatrix.interpreter.emit.values import LOW_PRECISION, is_float, memory_name
from tlmatrix.interpreter.errors import InterpreterError
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.memory import CHECKED_INDEX
from tlmatrix.interpreter.ir.walk import walk

from .tables import Operations

if TYPE_CHECKING:
    import torch

    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.values import Val
    from tlmatrix.interpreter.ir.nodes import Call
    from tlmatrix.interpreter.runtime.codecs import Array


# Memory at an address: `T.make_tensor` of a number that the kernel has loaded (`T.ptr`) -----------
#
#     Src = memory_at(src_ptrs[bx], (8,), 'float16', 'Src')
#
# The address has to lie in a tensor that PyTorch has, for all elements that `T.make_tensor`
# declares.


def _bind(e: Emitter, node: ir.Bind) -> None:
    value = node.value
    if not (
        node.var.dtype == "handle" and isinstance(value, ir.Call) and value.op == "tirx.reinterpret"
    ):
        emit_bind(e, node)
        return
    if any(instrument.argument == "watch" for instrument in e.instruments):
        raise e.refuse(f"sanitizers of memory at an address ({node.var.name})")
    address = e.scalar(value.args[0], "an address").code
    buffers = {
        child.buffer
        for child in walk(e.kernel.body)
        if isinstance(child, (ir.BufferLoad, ir.BufferStore, ir.Region))
        and child.buffer.data is node.var
    }
    for buffer in sorted(buffers, key=lambda b: str(b.name)):
        shape = tuple(e.scalar(n, "a buffer shape") for n in buffer.shape)
        low = LOW_PRECISION.get(buffer.dtype)
        code = e.w.fresh(str(buffer.name))
        buf = Buf(str(buffer.name), code, buffer.dtype, shape, "global", codec=low)
        if is_float(buffer.dtype) and buffer.dtype != "float64":
            buf.safe = "F32(0)"
        e.buffers[buffer] = buf
        held = memory_name(buffer.dtype) if low else buffer.dtype
        extents = "".join(f"{n.code}, " for n in shape)
        e.w.line(f"{code} = memory_at({address}, ({extents}), {held!r}, {buf.name!r})")


_tensors: dict[int, weakref.ref[torch.Tensor]] = {}
"""By address a tensor that holds it, as long as there is one."""


def memory_at(address: int, shape: tuple[int, ...], dtype: str, name: str) -> Array:
    """An array over memory of a tensor.

    Raises:
        InterpreterError: if no tensor holds all of it.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if tensor_at(address, size) is None:
        raise InterpreterError(
            f"{name} is {size} bytes at address {address:#x}, which no tensor holds"
        )
    memory = (ctypes.c_char * size).from_address(address)
    found: Array = np.frombuffer(memoryview(memory), dtype).reshape(shape)
    return found


def tensor_at(address: int, size: int) -> torch.Tensor | None:
    """A tensor of PyTorch whose memory has all of `size` bytes at an address."""
    known = _tensors.get(address)
    tensor = known() if known is not None else None
    if tensor is None or not _holds(tensor, address, size):
        tensor = _search(address, size)
        if tensor is not None:
            _tensors[address] = weakref.ref(tensor)
    return tensor


def _search(address: int, size: int) -> torch.Tensor | None:
    from torch import _C, Tensor

    with _C.DisableTorchFunction():
        for thing in gc.get_objects():
            if issubclass(type(thing), Tensor) and _holds(thing, address, size):
                found: Tensor = thing
                return found
    return None


def _holds(tensor: torch.Tensor, address: int, size: int) -> bool:
    if tensor.device.type != "cpu":
        return False
    storage = tensor.untyped_storage()
    first = storage.data_ptr()
    return first <= address and address + size <= first + storage.nbytes()


# Indices of loads and stores by address, which nothing guards (`T.ldg64`, `T.sts128`) -------------


def _checked_index(e: Emitter, call: Call) -> Val:
    index, extent, name = e.expr(call.args[0]), e.expr(call.args[1]), call.args[2].value
    e.w.line(f"check_word({index.code}, {extent.code}, {e.mask_code}, {name!r})")
    return index


def check_word(index: Any, extent: int, mask: Any, name: str) -> None:
    """Raise where an active iteration accesses words outside of a buffer."""
    outside = (np.asarray(index) < 0) | (np.asarray(index) >= extent)
    if mask is not None:
        outside = outside & mask
    if outside.any():
        at = int(np.broadcast_to(index, outside.shape)[outside].flat[0])
        raise InterpreterError(
            f"index out of bounds: {name} has {extent} words of 32 bits, "
            f"and word {at} is accessed by its address"
        )


OPERATIONS = Operations(
    rules=Rules(statements={ir.Bind: _bind}, calls={CHECKED_INDEX: _checked_index}),
    functions=(memory_at, check_word),
)
