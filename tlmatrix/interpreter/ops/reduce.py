"""Reductions and scans along a dimension of a tile, and reducers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.interpreter.analysis.expressions import is_true
from tlmatrix.interpreter.emit.access import access_at
from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.memory import buffer, emit_store
from tlmatrix.interpreter.emit.numbers import cast
from tlmatrix.interpreter.emit.tiles import TileOperation, checked_view, operand, region
from tlmatrix.interpreter.emit.values import Val, is_float, literal
from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import same

from .atomic import emit_atomic
from .copy import Copy
from .tables import Operations

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call, Region
    from tlmatrix.interpreter.runtime.codecs import Array, Codec
    from tlmatrix.interpreter.runtime.elements import Event, Tile


# `T.reduce_*` along one dimension -----------------------------------------------------------------


class Reduce(TileOperation):
    """`T.reduce_sum`, `max`, ... (src, dst, dim, clear)."""

    name = rule = "reduce"
    reads = ("src",)

    clear: Val

    def __init__(self, e: Emitter, call: Call) -> None:
        self.call = call
        self.src, self.dst = (region(e, arg, keep_units=True) for arg in call.args[:2])
        self.kind = str(call.args[2].value)
        if self.kind not in _COMBINE:
            raise e.refuse(f"T.reduce_{self.kind}")
        self.axis = int(call.args[3].value)
        self.clear = e.scalar(call.args[4], "clear")
        self.arguments = (str(self.axis), self.clear.code)

    @staticmethod
    def overwritten(call: Call) -> Region | None:
        """The destination, where it is cleared."""
        target: Region = call.args[1]
        return target if is_true(call.args[4]) else None

    def emit(self, e: Emitter) -> None:
        """Write the reduction."""
        src, dst = self.src.buf, self.dst.buf
        if dst.codec:
            raise e.refuse(f"T.reduce_{self.kind} into the global buffer {dst.name}")
        source, target = operand(e, self.src), checked_view(e, self.dst)
        if not is_float(src.dtype):
            e.w.line(
                f"reduce_int({self.kind!r}, {source}, {self.axis}, {target}, {self.clear.code})"
            )
            return
        propagates = self.kind in _PROPAGATE and bool(self.call.annotations.get("nan_propagate"))
        if propagates and dst.dtype not in ("float16", "bfloat16"):
            raise e.refuse(f"T.reduce_{self.kind} with nan_propagate into {dst.dtype}")
        if self._fills_all and target in e.fixed:
            along = f"{self.axis}, keepdims=True" if len(dst.shape) == len(src.shape) else self.axis
            if self.kind == "sum" and self.clear.lit:
                out = e.tensor(target)
                e.w.line(f"torch.sum({e.tensor(source)}, {along}, out={out})")
                return
            if self.kind in ("max", "min") and len(dst.shape) == 1 and not propagates:
                self._emit_extreme(e, source, target, str(along))
                return
        e.w.line(
            f"reduce_float({self.kind!r}, {e.tensor(source)}, {self.axis}, {target}, "
            f"{self.clear.code}, {dst.rounding}, {propagates})"
        )

    def _emit_extreme(self, e: Emitter, source: str, target: str, along: str) -> None:
        """Write a maximum or minimum of each row."""
        found = target
        if not self.clear.lit:
            found = e.prologue.fresh(f"{target}_found")
            e.prologue.line(f"{found} = np.empty_like({target})")
            e.fixed.add(found)
        e.w.line(f"torch.a{self.kind}({e.tensor(source)}, {along}, out={e.tensor(found)})")
        # A sum of squares is NaN if an element is; CUDA's fmaxf ignores NaN beside a number.
        with e.w.block(f"if (squares := {found}.dot({found})) != squares"):
            e.w.line(f"np.f{self.kind}.reduce({source}, {along}, out={found})")
        if not self.clear.lit:
            e.w.line(f"np.f{self.kind}({target}, {found}, out={target})")

    @property
    def _fills_all(self) -> bool:
        """Whether torch may write to all of a buffer what it computes."""
        src, dst = self.src.buf, self.dst.buf
        extents, written = (
            [d.extent.code for d in box.dims if d.extent is not None]
            for box in (self.src, self.dst)
        )
        reduced = extents.pop(self.axis)
        if len(written) > len(extents):
            extents.insert(self.axis, "1")
        return (
            self.clear.lit is not None
            and reduced != "0"
            and src.dtype == dst.dtype
            and not (src.codec or dst.rounding)
            and self.call.args[0].buffer.data is not self.call.args[1].buffer.data
            and self.dst.is_whole_local
            and written == extents
        )


_COMBINE: dict[str, Any] = {
    "sum": np.add,
    "abssum": np.add,
    "max": np.fmax,
    "absmax": np.fmax,
    "min": np.fmin,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
}

_PROPAGATE: dict[str, Any] = {"max": np.maximum, "absmax": np.maximum, "min": np.minimum}


def reduce_float(
    kind: str,
    src: torch.Tensor,
    axis: int,
    dst: Array,
    clear: Any,
    rounding: Codec | None,
    nan_propagate: bool = False,
) -> None:
    """`T.reduce_*` over `axis` of `src` into `dst`; without `clear` combined with what it holds.

    A maximum or minimum ignores NaN, unless `nan_propagate`.
    """
    if src.shape[axis] == 0:
        raise Unsupported(f"T.reduce_{kind} over an empty dimension")
    if kind in ("abssum", "absmax"):
        src = src.abs()
    combine = _PROPAGATE[kind] if nan_propagate else _COMBINE[kind]
    value: Any
    if combine is np.add:
        value = torch.sum(src, axis).numpy()
    else:
        value = (torch.amin if kind == "min" else torch.amax)(src, axis).numpy()
        if not nan_propagate and np.count_nonzero(np.isnan(value)):
            # CUDA's fmaxf and fminf ignore NaN beside a number.
            value = combine.reduce(src.numpy(), axis)
    if value.shape != dst.shape:
        value = value.reshape(dst.shape)
    if rounding is not None:
        value = value if clear else combine(dst, value)
        rounding.round_into(dst, np.ascontiguousarray(value, np.float32))
    elif clear:
        np.copyto(dst, value, casting="unsafe")
    else:
        combine(dst, value, out=dst, casting="unsafe")


def reduce_int(kind: str, src: Array, axis: int, dst: Array, clear: Any) -> None:
    """`reduce_float` of integers and booleans."""
    if src.shape[axis] == 0:
        raise Unsupported(f"T.reduce_{kind} over an empty dimension")
    if kind in ("abssum", "absmax"):
        src = np.abs(src)
    if kind in ("sum", "abssum"):
        value = np.add.reduce(src, axis, dtype=dst.dtype)
    else:
        value = _COMBINE[kind].reduce(src, axis)
    value = value.reshape(dst.shape)
    np.copyto(dst, value if clear else _COMBINE[kind](dst, value), casting="unsafe")


def _reduced(event: Event, write: Tile, hit: Array, read: Tile, number: int) -> Array:
    del number
    axis = int(event.extra[0])
    places, _ = write.inner(hit)
    rest = [size for k, size in enumerate(read.extent) if k != axis]
    flat = np.zeros(len(hit), np.int64)
    for place, size in zip(places, write.extent, strict=True):
        flat = flat * size + place
    spread = [p[:, None] for p in np.unravel_index(flat, rest)] if rest else []
    spread.insert(axis, np.arange(read.extent[axis])[None, :])
    return read.outer(spread)


# `T.cumsum` and `T.cummax` along one dimension ----------------------------------------------------


class Scan(TileOperation):
    """`T.cumsum(src, dst, dim, reverse)`, `T.cummax`."""

    name = rule = "scan"
    reads = ("src",)

    def __init__(self, e: Emitter, call: Call) -> None:
        self.call = call
        self.kind = call.op.removeprefix("tl.tileop.")
        self.src, self.dst = (region(e, arg, keep_units=True) for arg in call.args[:2])
        self.axis = int(call.args[2].value)
        self.reverse = e.scalar(call.args[3], "reverse")
        self.arguments = (str(self.axis), self.reverse.code)

    def emit(self, e: Emitter) -> None:
        """Write the scan."""
        dst = self.dst.buf
        if dst.codec:
            raise e.refuse(f"T.{self.kind} into the global buffer {dst.name}")
        source = operand(e, self.src)
        e.w.line(
            f"scan({self.kind!r}, {source}, {self.axis}, {self.reverse.code}, "
            f"{checked_view(e, self.dst)}, {dst.rounding})"
        )


def scan(
    kind: str, src: Array, axis: int, reverse: bool, dst: Array, rounding: Codec | None
) -> None:
    """`T.cumsum` and `T.cummax` along `axis`."""
    source = np.flip(src, axis) if reverse else src
    if kind == "cumsum":
        value = np.cumsum(source, axis, dtype=src.dtype)
    else:
        value = np.maximum.accumulate(source, axis)
    if reverse:
        value = np.flip(value, axis)
    if rounding is not None:
        value = rounding.round(np.ascontiguousarray(value))
    np.copyto(dst, value.reshape(dst.shape))


def _scanned(event: Event, write: Tile, hit: Array, read: Tile, number: int) -> Array:
    del number
    axis, backwards = int(event.extra[0]), bool(event.extra[1])
    places, _ = write.inner(hit)
    along = np.arange(read.extent[axis])[None, :]
    limit = places[axis][:, None]
    which, at = np.nonzero(along >= limit if backwards else along <= limit)
    spread = [p[which] for p in places]
    spread[axis] = at
    return read.outer(spread)


# Reducers: buffers to which iterations contribute and whose result exists when finalized ----------

# A reducer's operation: how contributions combine, and the node of a contribution by assignment.
_KINDS: dict[str, tuple[str, type | None]] = {
    "sum": ("add", ir.Add),
    "max": ("max", ir.Max),
    "min": ("min", ir.Min),
    "bitand": ("and", None),
    "bitor": ("or", None),
    "bitxor": ("xor", None),
}


class ReducerInit(TileOperation):
    """`T.reducer_init`: the identity, or one logical starting value."""

    name = "reducer_init"
    rule = "fill"

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        self.call = call
        self.dst = region(e, call.args[0])

    def emit(self, e: Emitter) -> None:
        """Write the fill."""
        buf = self.dst.buf
        if len(self.call.args) > 1:
            value = cast(e, e.scalar(self.call.args[1], "a start of a reducer"), buf.dtype)
        else:
            value = _identity(buf, e.reducers[buf.name])
        view = checked_view(e, self.dst)
        e.w.line(f"{view}.fill({value.code})" if self.dst.ranges else f"{view} = {value.code}")


class Finalize(TileOperation):
    """`T.finalize_reducer`: the contributions of all iterations are already in one buffer."""

    name = "finalize_reducer"
    reads = writes = ("region",)
    rule = "copy"

    def __init__(self, e: Emitter, call: ir.Call) -> None:
        self.call = call
        self.region = region(e, call.args[0])

    def emit(self, e: Emitter) -> None:
        """Write nothing."""


def _identity(buf: Buf, op: str) -> Val:
    if op in ("sum", "bitor", "bitxor"):
        return literal(0, buf.dtype)
    if op == "bitand":
        return literal(-1 if not buf.dtype.startswith("uint") else _limit(buf, 1), buf.dtype)
    return literal(_limit(buf, -1 if op == "max" else 1), buf.dtype)


def _limit(buf: Buf, sign: int) -> float | int:
    """The largest or smallest value of a dtype."""
    if is_float(buf.dtype):
        return math.inf * sign
    info = np.iinfo(buf.dtype)
    return info.max if sign > 0 else info.min


def _update(e: Emitter, call: ir.Call) -> None:
    """`T.reducer_update(acc[indices], value)`: a contribution of each iteration."""
    target = call.args[0]
    _contribute(e, buffer(e, target.buffer), target.indices, call.args[1])


def _contribute(e: Emitter, buf: Buf, nodes: Sequence[Any], value: Any) -> None:
    kind, _ = _KINDS[e.reducers[buf.name]]
    contribution = cast(e, e.expr(value), buf.dtype)
    emit_atomic(e, access_at(e, buf, nodes), contribution, kind, previous=False)


def _store(e: Emitter, node: ir.BufferStore) -> None:
    """A store; `acc[i] = acc[i] + value` of a reducer is a contribution."""
    op = e.reducers.get(node.buffer.name) if e.reducers else None
    if op is not None and type(node.value) is _KINDS[op][1]:
        assert isinstance(node.value, ir.Binary)
        a, b = node.value.a, node.value.b
        for old, new in ((a, b), (b, a)):
            if (
                isinstance(old, ir.BufferLoad)
                and old.buffer is node.buffer
                and same(old.indices, node.indices)
            ):
                _contribute(e, buffer(e, node.buffer), node.indices, new)
                return
    emit_store(e, node)


OPERATIONS = Operations(
    tiles={
        "tl.tileop.reduce": Reduce,
        "tl.tileop.cumsum": Scan,
        "tl.tileop.cummax": Scan,
        "tl.tileop.reducer_init": ReducerInit,
        "tl.tileop.finalize_reducer": Finalize,
        "tl.tileop.finalize_reducer_v2": Copy,
    },
    rules=Rules(statements={ir.BufferStore: _store}, effects={"tl.reducer_update": _update}),
    functions=(reduce_float, reduce_int, scan),
    slices={"reduce": _reduced, "scan": _scanned},
)
