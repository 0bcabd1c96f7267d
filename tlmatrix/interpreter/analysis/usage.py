"""What a kernel does with each memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

if TYPE_CHECKING:
    from collections.abc import Mapping

Usage = dict[ir.Var, frozenset[str]]
"""By the data of a buffer: "read", "write", "atomic", and "ordered" where an access may order
blocks (an atomic load or store, an atomic whose old value is used, an address passed on)."""

_ORDERING = ("tl.atomic_load_elem_op", "tl.atomic_store_elem_op")


def kernel_usage(kernel: ir.Kernel) -> Usage:
    """What a kernel does with each memory."""
    found: dict[ir.Var, set[str]] = {}
    addressed: set[Any] = set()

    def note(load: Any, *actions: str) -> None:
        found.setdefault(load.buffer.data, set()).update(actions)

    for node in walk(kernel.body):
        if isinstance(node, ir.Call):
            atomic = "atomic" in node.op
            for k, argument in enumerate(node.args):
                if isinstance(argument, ir.Region):
                    addressed.add(argument)
                    if atomic and k == 1:
                        note(argument, "atomic")
                        continue
                    note(argument, *["read"] * argument.reads, *["write"] * argument.writes)
                elif atomic and k == 0 and _is_pointer(argument):
                    addressed.add(argument.args[0])
                    note(argument.args[0], "atomic", *["ordered"] * ("_ret_" in node.op))
            if node.op in _ORDERING:
                note(node.args[0].args[0], "ordered", "atomic")
            elif node.op == "tirx.address_of" and isinstance(node.args[0], ir.BufferLoad):
                addressed.add(node.args[0])
                note(node.args[0], "ordered")
        elif isinstance(node, ir.BufferStore):
            note(node, "write")
        elif isinstance(node, ir.BufferLoad) and node not in addressed:
            note(node, "read")
    return {data: frozenset(actions) for data, actions in found.items()}


def _is_pointer(node: Any) -> bool:
    return isinstance(node, ir.Call) and node.op == "tl.access_ptr"


def adds_in_any_order(kernel: ir.Kernel, usage: Mapping[ir.Var, frozenset[str]]) -> bool:
    """Whether blocks change floating-point numbers by atomics, and nothing may order the blocks."""
    if any("ordered" in actions for actions in usage.values()):
        return False
    return any(
        "atomic" in usage.get(buffer.data, ()) and "float" in buffer.dtype
        for buffer in kernel.buffer_map.values()
    )


def is_read_only(load: ir.BufferLoad, usage: Mapping[ir.Var, frozenset[str]]) -> bool:
    """Whether a load reads global memory that the kernel never writes."""
    return (
        load.buffer.scope == "global"
        and load.predicate is None
        and usage.get(load.buffer.data) == frozenset({"read"})
    )


def addressed_buffers(kernel: ir.Kernel) -> frozenset[ir.Buffer]:
    """Buffers that a tile operation or a pointer refers to."""
    found = set()
    for node in walk(kernel.body):
        if isinstance(node, ir.Region):
            found.add(node.buffer)
        elif _is_pointer(node) and isinstance(node.args[0], ir.BufferLoad):
            found.add(node.args[0].buffer)
    return frozenset(found)


def mixed_views(kernel: ir.Kernel, low_precision: Mapping[str, object]) -> frozenset[ir.Var]:
    """The data of memory that is accessed under several dtypes, one of them a low-precision one."""
    found: dict[ir.Var, set[str]] = {}
    for node in walk(kernel.body):
        buffers: tuple[ir.Buffer, ...] = ()
        if isinstance(node, ir.Block):
            buffers = node.alloc_buffers
        elif isinstance(node, (ir.BufferLoad, ir.BufferStore, ir.Region)):
            buffers = (node.buffer,)
        for buffer in buffers:
            found.setdefault(buffer.data, set()).add(buffer.dtype)
    return frozenset(
        data
        for data, dtypes in found.items()
        if len(dtypes) > 1 and any(dtype in low_precision for dtype in dtypes)
    )
