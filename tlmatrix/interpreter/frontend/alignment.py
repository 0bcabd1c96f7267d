"""Alignment that TileLang's lowered code needs from tensor arguments.

TileLang vectorizes an access if the index is provably a multiple of the vector width, and assumes
that the tensor begins at such a multiple: nothing checks `data_ptr()` at a call. The widths depend
on layouts, casts, conditions and pass options, so TileLang's own passes decide them here. Lowering
takes seconds, so it is done only for a launch with an argument that some width would not suit, and
not for rows whose length may be odd: no width provably divides the indices of consecutive ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.accesses import accesses_of
from tlmatrix.interpreter.analysis.expressions import number
from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.read import read_all, saved
from tlmatrix.interpreter.ir.walk import walk

from .lowered import positions
from .programs import kept, lowered, lowered_key

if TYPE_CHECKING:
    import torch

    from tlmatrix.interpreter.analysis.accesses import Access
    from tlmatrix.interpreter.lowered.lowering import Lowered
    from tlmatrix.interpreter.program import Parameter

TMA_BYTES = 16
"""Alignment of the address and of the strides of a tensor that TMA copies (CUDA driver API,
`cuTensorMapEncodeTiled`), and of an address that `cp.async.bulk` copies (PTX ISA)."""

_FIRST_OF_256_BITS = 100
"""The first architecture with accesses of 256 bits; before it the widest have 128 bits."""


@dataclass(frozen=True)
class Requirements:
    """What the lowered code of a kernel needs.

    Attributes:
        bytes: by position of a parameter the widest access: its bytes, and what does it.
        strides: by position the strides in bytes of its TMA descriptors, without the innermost,
            as TVM expressions of the symbolic dimensions.
        unused: positions of the parameters that no kernel on the device takes, as TileLang
            removed every access of them.
    """

    bytes: Mapping[int, tuple[int, str]]
    strides: Mapping[int, tuple[Any, ...]]
    unused: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Misaligned:
    """An argument that does not suit an access of the lowered code; `message` says how."""

    name: str
    tensor: torch.Tensor
    message: str


def unaligned(
    arch: str,
    parameters: Sequence[Parameter],
    values: Sequence[Any],
    packed: frozenset[int] = frozenset(),
) -> tuple[set[int], set[int]]:
    """Positions of the arguments that some accesses of `arch` do not suit.

    First those whose address does not suit the widest access, then those whose symbolic strides
    do not suit TMA. Strides of the parameters `packed` follow from the shape: those of a tensor
    may be others where an extent is 1.
    """
    starts, rows = set(), set()
    widest = _widest_access(arch)
    for k, value in _tensors(values):
        if value.data_ptr() % widest:
            starts.add(k)
        if parameters[k].has_symbolic_rows:
            size, steps = value.element_size(), value.stride()[:-1]
            if k in packed:
                steps = tuple(prod(value.shape[d:]) for d in range(1, value.ndim))
            if any(step * size % TMA_BYTES for step in steps):
                rows.add(k)
    return starts, rows


@cache
def _widest_access(arch: str) -> int:
    """Bytes of the widest access of an architecture; of any, if its name is not known."""
    known = re.match(r"sm_(\d+)", arch)
    return 16 if known is not None and int(known[1]) < _FIRST_OF_256_BITS else 32


def _tensors(values: Sequence[Any]) -> Iterator[tuple[int, torch.Tensor]]:
    import torch

    for k, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.numel():
            yield k, value


def in_vectors(func: Any) -> frozenset[int]:
    """Positions of the parameters that vector accesses of threads may touch.

    A tile operation or an index of a parallel loop accesses them, and not by rows that may begin
    anywhere. What TMA copies is for `may_be_described` to say.
    """
    kernel: ir.Kernel = read_all(saved(func))
    parameters = {b.data: k for k, p in enumerate(kernel.params) if (b := kernel.buffer_map.get(p))}
    try:
        accesses = accesses_of(kernel)
    except Unsupported:
        return frozenset(parameters.values())

    def is_vectorized(access: Access) -> bool:
        axes = {each.var for each in access.ranges if each.kind in ("parallel", "tile")}
        if not access.operation and not any(node in axes for node in walk(*access.index)):
            return False
        return bool(accesses.claims) or not _has_odd_rows(access)

    found = {access.buffer.data for access in accesses.found if is_vectorized(access)}
    return frozenset(k for data, k in parameters.items() if data in found)


def _has_odd_rows(access: Access) -> bool:
    """Whether a copy, load or store takes consecutive rows whose length may be odd.

    Of two elements of a column one is then at an odd index, so that no pass of TileLang can prove
    the multiple of a width that a vector needs.
    """
    if access.kind == "atomic" or access.operation not in ("", "copy"):
        return False
    extents = {
        each.var: each.extent
        for each in access.ranges
        if each.extent is not None and number(each.extent) != 1
    }
    steps = access.buffer.strides or access.buffer.shape[1:]
    for d, index in enumerate(access.index[:-1]):
        step = steps[d : d + 1] if access.buffer.strides else steps[d:]
        rows = extents.keys() & set(_terms(index))
        if all(map(_may_be_odd, step)) and any(not _is_fixed(row, access) for row in rows):
            return True
    return False


def _terms(index: ir.Expr) -> Iterator[ir.Expr]:
    """What an index is the sum of."""
    if isinstance(index, ir.Add):
        yield from _terms(index.a)
        yield from _terms(index.b)
    else:
        yield index


def _may_be_odd(extent: ir.Expr) -> bool:
    if isinstance(extent, ir.Mul):
        return _may_be_odd(extent.a) and _may_be_odd(extent.b)
    value = number(extent)
    return isinstance(extent, ir.Var) if value is None else value % 2 == 1


def _is_fixed(row: ir.Expr, access: Access) -> bool:
    """Whether conditions may admit one value of a variable alone, or each second one."""
    own = {each.var for each in access.ranges}
    for condition in access.path:
        nodes = list(walk(condition))
        if any(isinstance(each, (ir.FloorDiv, ir.FloorMod, ir.Call)) for each in nodes):
            return True
        if any(isinstance(each, ir.Compare) and each.symbol == "==" for each in nodes):
            return True
        # Beside sizes and lengths, it stays inside of a tensor.
        free = any(
            isinstance(n, ir.BufferLoad) or (type(n) is ir.Var and n not in own) for n in nodes
        )
        if row in nodes and not free:
            return True
    return False


def requirements(func: Any, arch: str, configs: Mapping[str, Any]) -> Requirements:
    """What the lowered code of a PrimFunc needs from its arguments; kept on disk.

    Nothing for a kernel that TileLang cannot lower, which other checks report.
    """

    def needed() -> Requirements:
        try:
            return _needed(lowered(func, arch, configs))
        except Unsupported:
            return Requirements({}, {})

    return kept(lambda: lowered_key(saved(func), arch, configs), Requirements, needed)


def _needed(code: Lowered) -> Requirements:
    """What the lowered code of a PrimFunc needs from its arguments."""
    from tilelang import tvm

    tir, func = tvm.tirx, code.func
    widths: dict[str, tuple[int, str]] = {}

    def need(name: str, size: int, what: str) -> None:
        if size > widths.get(name, (1, ""))[0]:
            widths[name] = size, what

    def visit(node: Any) -> None:
        if isinstance(node, (tir.BufferLoad, tir.BufferStore)):
            lanes = max((_lanes(index) for index in node.indices), default=1)
            if lanes > 1 and str(node.buffer.scope()) == "global":
                kind = "load" if isinstance(node, tir.BufferLoad) else "store"
                size = lanes * _bits(node.buffer.dtype) // 8
                need(node.buffer.data.name, size, f"a vector {kind} of {lanes} elements")
        elif isinstance(node, tir.Call):
            for name, size, what in _of_call(tir, node):
                need(name, size, what)

    for function in code.device.functions.values():
        tvm.tirx.stmt_functor.post_order_visit(function.body, visit)
    named = {str(func.buffer_map[p].data.name): k for k, p in _buffers(func)}
    strides: dict[int, tuple[Any, ...]] = {}
    for arguments in code.descriptors:
        rank = int(arguments[3])
        for k in positions(func, [arguments[4]]):
            strides[k] = (*strides.get(k, ()), *arguments[5 + rank + 1 : 5 + 2 * rank])
            name = str(func.buffer_map[func.params[k]].data.name)
            need(name, TMA_BYTES, "a TMA descriptor")
    found = {named[name]: need for name, need in widths.items() if name in named}
    taken = {str(p.name) for function in code.device.functions.values() for p in function.params}
    unused = frozenset(k for name, k in named.items() if name not in taken)
    return Requirements(found, strides, unused)


def _buffers(func: Any) -> Iterator[tuple[int, Any]]:
    return ((k, p) for k, p in enumerate(func.params) if p in func.buffer_map)


def _lanes(index: Any) -> int:
    return int(getattr(index, "lanes", 1)) if type(index).__name__ == "Ramp" else 1


def _bits(dtype: Any) -> int:
    from tilelang import tvm

    kind = tvm.DataType(str(dtype))
    return int(kind.bits) * int(kind.lanes)


def _of_call(tir: Any, call: Any) -> Iterator[tuple[str, int, str]]:
    """The global pointers of an asynchronous copy or vector atomic, and the bytes they need."""
    name = str(getattr(call.op, "name", ""))
    pointers = [a for a in call.args if isinstance(a, tir.Call) and _is_pointer(a)]
    if name.endswith("ptx_cp_async"):
        count = int(call.args[2])
        for pointer in pointers:
            size = count if name.startswith("tir") else count * _pointed(pointer)[1] // 8
            yield _pointed(pointer)[0], size, f"cp.async of {size} bytes"
    elif name in ("tl.tma_load", "tl.tma_store"):
        for pointer in pointers:
            yield _pointed(pointer)[0], TMA_BYTES, "cp.async.bulk"
    elif match := re.fullmatch(r"tl\.atomic_addx(\d)\w*", name):
        lanes = int(match[1])
        for pointer in pointers[:1]:
            target, bits = _pointed(pointer)
            yield target, lanes * bits // 8, f"an atomic of {lanes} elements"


def _is_pointer(call: Any) -> bool:
    return str(getattr(call.op, "name", "")).endswith(("access_ptr", "address_of"))


def _pointed(pointer: Any) -> tuple[str, int]:
    """The variable that a pointer argument is based on, and the bits of an element."""
    first = pointer.args[0]
    if hasattr(first, "buffer"):
        return str(first.buffer.data.name), _bits(first.buffer.dtype)
    return str(getattr(pointer.args[1], "name", "")), _bits(first.dtype)


def misaligned(
    found: Requirements,
    parameters: Sequence[Parameter],
    values: Sequence[Any],
    symbols: Mapping[str, int],
) -> list[Misaligned]:
    """The arguments that do not have the alignment that the lowered code needs."""
    faults = []
    for k, value in _tensors(values):
        name = parameters[k].name
        size, what = found.bytes.get(k, (1, ""))
        if value.data_ptr() % size:
            faults.append(
                Misaligned(
                    name,
                    value,
                    f"{name} begins {value.data_ptr() % size} bytes after a multiple of {size}, "
                    f"which {what} needs",
                )
            )
        odd = [n for n in (_evaluated(s, symbols) for s in found.strides.get(k, ())) if n % 16]
        if odd:
            faults.append(
                Misaligned(
                    name,
                    value,
                    f"{name} has a stride of {odd[0]} bytes, which is no multiple of the "
                    f"{TMA_BYTES} that a TMA descriptor needs",
                )
            )
    return faults


def _evaluated(expression: Any, symbols: Mapping[str, int]) -> int:
    """The value of a stride; 0 if it depends on more than the symbolic dimensions."""
    from tilelang import tvm

    if isinstance(expression, int):
        return expression
    known: dict[Any, Any] = {}

    def note(node: Any) -> None:
        if isinstance(node, tvm.tirx.Var) and node.name in symbols:
            known[node] = tvm.tirx.IntImm(str(node.dtype), symbols[node.name])

    tvm.tirx.stmt_functor.post_order_visit(expression, note)
    value = tvm.arith.Analyzer().simplify(tvm.tirx.stmt_functor.substitute(expression, known))
    return int(getattr(value, "value", 0))
