"""Traces where values stop being finite: looks at what every operation reads and writes.

A launch that ended with NaN or infinity is run again with it, to name the first operation that
made one of finite operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.emit.values import Val, is_float
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk
from tlmatrix.interpreter.runtime.elements import block_of, element_of, first_lane
from tlmatrix.interpreter.runtime.memory import load_block

from .observer import Watcher, is_followed, place_of, unless

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.access import Access, Buf
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.tiles import TileOperation
    from tlmatrix.interpreter.runtime.codecs import Array, Codec
    from tlmatrix.interpreter.runtime.elements import Place
    from tlmatrix.interpreter.runtime.masks import Dim


class NonfiniteTracer(Watcher):
    """Writes what reads saw and writes made, of floats; `Tracer` is its other half."""

    name = "traced"
    sees_values = True
    sees_writes = True

    def read(self, e: Emitter, access: Access) -> None:
        """Iterations are about to read."""
        buf = access.buf
        if _follows(buf):
            place = place_of(e, access, e.mask, f"{buf.code}.shape")
            e.w.line(f"watch.saw({buf.code}, {buf.codec}, {place})")

    def read_scalar(self, e: Emitter, access: Access, code: str) -> str:
        """A single element is read."""
        del e
        return f"watch.saw_one({code})" if _follows(access.buf) else code

    def read_variable(self, e: Emitter, buf: Buf, code: str) -> str:
        """A variable is read."""
        del e
        return f"watch.saw_one({code})" if is_float(buf.dtype) else code

    def before_assignment(self, e: Emitter, buf: Buf, result: Val) -> None:
        """A variable is about to be assigned."""
        if is_float(buf.dtype):
            site = self.sites.access(e, buf, "write")
            e.w.line(f"watch.born({site}, {result.code}, (), None, False, {_limit(buf)})")

    def before_write(self, e: Emitter, access: Access, result: Val, value: Any) -> None:
        """A value is about to be stored."""
        atomic = e.atomic.is_access
        self._born(e, access, result, "atomic" if atomic else "write", meant=_names_infinity(value))

    def before_atomic(self, e: Emitter, access: Access, result: Val, *, previous: bool) -> None:
        """An atomic is about to be done."""
        del previous
        self._born(e, access, result, "atomic", meant=False)

    def _born(self, e: Emitter, access: Access, result: Val, action: str, *, meant: bool) -> None:
        buf = access.buf
        if _follows(buf):
            site = self.sites.access(e, buf, action)
            e.w.line(
                f"watch.born({site}, {result.code}, {access.index_code}, {e.mask_code}, {meant}, "
                f"{_limit(buf)})"
            )

    def before_tile(self, e: Emitter, op: TileOperation) -> None:
        """A tile operation is about to read, or to add to what it holds."""
        for effect in op.effects:
            buf = effect.region.buf
            if effect.action != "write" and is_float(buf.dtype):
                with unless(e, effect):
                    place = f"block_of({effect.region.dims_code}, None, {buf.code}.shape)"
                    e.w.line(f"watch.saw({buf.code}, {buf.codec}, {place})")

    def after_tile(self, e: Emitter, op: TileOperation) -> None:
        """A tile operation has written what it made of what it read."""
        if all(effect.action == "write" for effect in op.effects):
            return
        for effect in op.effects:
            buf = effect.region.buf
            if effect.action != "read" and is_float(buf.dtype):
                site = self.sites.access(e, buf, "write")
                region = effect.region.dims_code
                e.w.line(f"watch.made({site}, {buf.code}, {buf.codec}, {region})")


def _follows(buf: Buf) -> bool:
    return is_float(buf.dtype) and is_followed(buf)


def _limit(buf: Buf) -> str:
    """From where on a value rounds to infinity in a buffer's dtype."""
    return "65520.0" if buf.dtype == "float16" else "INF"


def _names_infinity(value: Any) -> bool:
    """Whether an expression has an infinity of its own."""
    return any(
        abs(node.value) == float("inf")
        if isinstance(node, ir.FloatImm)
        else isinstance(node, ir.Call) and node.op in ("tl.infinity", "tirx.infinity")
        for node in walk(value)
    )


# The traced run ---------------------------------------------------------------------------


class Born(Exception):  # noqa: N818  # no error: it ends a traced run that has found its answer
    """The first value that is not finite was made of finite values.

    Attributes:
        site: number of the access that stored it.
        index: the element.
        block: the block's index in the grid.
        what: "NaN" or "an infinity".
    """

    def __init__(
        self, site: int, index: tuple[int, ...], block: tuple[int, ...], what: str
    ) -> None:
        super().__init__(what)
        self.site, self.index, self.block, self.what = site, index, block, what


class Tracer:
    """`watch` of one traced run: between two stores it notes what kinds of values were read.

    Attributes:
        sanitizers: none: the sanitized run before has reported what they find.
    """

    sanitizers: frozenset[str] = frozenset()
    traced = True

    def __init__(self) -> None:
        self._nan = False
        self._infinite = False
        self._block: tuple[int, ...] = ()

    def launch(self) -> None:
        """A grid starts."""

    def enter(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """A block starts; what `resume` takes to go on with it."""
        self._block = block
        return block

    def resume(self, running: tuple[int, ...]) -> None:
        """A block that has started before goes on, perhaps in other threads of it."""
        self._block = running
        self._nan = self._infinite = False

    def work_as(self, running: tuple[int, ...], *_: Any) -> None:
        """Operations from now on are an agent's of a block."""
        self.resume(running)

    # -- reads

    def _note(self, values: Any) -> None:
        if not np.isfinite(values).all():
            self._nan = self._nan or bool(np.isnan(values).any())
            self._infinite = self._infinite or bool(np.isinf(values).any())

    def saw(self, array: Array, codec: Codec | None, place: Place | None) -> None:
        """Elements were read."""
        if place is None:
            return
        memory, mask = place
        if not any(isinstance(m, (slice, np.ndarray)) for m in memory):
            memory = (*memory, None)
        part = array[memory]
        values = codec.widen(part) if codec is not None else part
        self._note(values if mask is None else values[np.broadcast_to(mask, values.shape)])

    def saw_one(self, value: Any) -> Any:
        """A single element was read: `value`."""
        self._note(np.asarray(value, np.float64))
        return value

    # -- writes

    def born(
        self, site: int, value: Any, index: tuple[Any, ...], mask: Any, meant: bool, limit: float
    ) -> None:
        """`value` is stored; values from `limit` on become infinite, `meant` if one is written."""
        values = np.asarray(value, np.float64)
        nan, infinite = np.isnan(values), np.abs(values) >= limit
        if mask is not None:
            nan, infinite = nan & mask, infinite & mask
        self._judge(site, nan, infinite, partial(first_lane, index), meant=meant)

    def made(self, site: int, array: Array, codec: Codec | None, dims: Sequence[Dim]) -> None:
        """A tile operation has written a region."""
        values = np.asarray(load_block(array, codec, dims, 0, "", guard=True), np.float64)
        whole = tuple((max(d[0], 0), *d[1:]) if isinstance(d, tuple) else d for d in dims)
        place = block_of(whole, None, array.shape)
        if place is None:
            self._nan = self._infinite = False
        else:
            found = partial(element_of, place)
            self._judge(site, np.isnan(values), np.isinf(values), found)

    def _judge(
        self,
        site: int,
        nan: Any,
        infinite: Any,
        element: Callable[[Any], tuple[int, ...]],
        *,
        meant: bool = False,
    ) -> None:
        """End the run if what is written is not finite, and nothing that was read explains it."""
        read_nan, read_infinite = self._nan, self._infinite
        self._nan = self._infinite = False
        if not read_nan and nan.any():
            raise Born(site, element(nan), self._block, "NaN")
        if not (read_nan or read_infinite or meant) and infinite.any():
            raise Born(site, element(infinite), self._block, "an infinity")
