"""What a traced program calls: it finds the operation that made the first NaN or infinity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .memory import load_block
from .shadows import block_of, element, lanes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .codecs import Array, Codec
    from .masks import Dim

__all__ = ["Born", "Tracer"]


class Born(Exception):  # noqa: N818  # no error: it ends a traced run that has found its answer
    """The first value that is not finite was made from values that are.

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
    """One traced run. Between two stores it notes what kinds of values were read.

    Attributes:
        sanitizers: none: what a traced run may find has been found by the watched one.
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
        """Go on with a block that has started before, in other threads of it perhaps."""
        self._block = running
        self._nan = self._infinite = False

    def work_as(self, running: tuple[int, ...], *_: Any) -> None:
        """What follows is done by an agent of a block."""
        self.resume(running)

    def _note(self, values: Any) -> None:
        if not np.isfinite(values).all():
            self._nan = self._nan or bool(np.isnan(values).any())
            self._infinite = self._infinite or bool(np.isinf(values).any())

    def saw(self, array: Array, codec: Codec | None, dims: Sequence[Dim], mask: Any) -> None:
        """A block was read."""
        place = block_of(dims, mask, array.shape)
        if place is None:
            return
        memory, mask = place
        if not any(isinstance(m, slice) for m in memory):
            memory = (*memory, None)
        part = array[memory]
        values = codec.widen(part) if codec is not None else part
        self._note(values if mask is None else values[np.broadcast_to(mask, values.shape)])

    def saw_lanes(
        self, array: Array, codec: Codec | None, index: tuple[Any, ...], mask: Any
    ) -> None:
        """Lanes have read."""
        place = lanes_of(index, mask, array.shape)
        if place is not None:
            part = array[place[0]]
            self._note(codec.widen(part) if codec is not None else part)

    def saw_one(self, value: Any) -> Any:
        """A single element was read: `value`."""
        self._note(np.asarray(value, np.float64))
        return value

    def born(
        self, site: int, value: Any, index: tuple[Any, ...], mask: Any, meant: bool, limit: float
    ) -> None:
        """`value` is stored; values from `limit` on become infinite, `meant` if one is written."""
        values = np.asarray(value, np.float64)
        nan, infinite = np.isnan(values), np.abs(values) >= limit
        if mask is not None:
            nan, infinite = nan & mask, infinite & mask
        self._judge(site, nan, infinite, index, meant=meant)

    def _judge(
        self, site: int, nan: Any, infinite: Any, index: tuple[Any, ...], *, meant: bool
    ) -> None:
        what = ""
        wrong = nan
        if not self._nan and nan.any():
            what = "NaN"
        elif not (self._nan or self._infinite or meant) and infinite.any():
            what, wrong = "an infinity", infinite
        self._nan = self._infinite = False
        if what:
            full = np.broadcast_shapes(wrong.shape, *(np.shape(i) for i in index))
            lane = tuple(np.argwhere(np.broadcast_to(wrong, full))[0])
            where = tuple(int(np.broadcast_to(i, full)[lane]) for i in index)
            raise Born(site, where, self._block, what)

    def made(self, site: int, array: Array, codec: Codec | None, dims: Sequence[Dim]) -> None:
        """A tile operation has written a region."""
        values = np.asarray(load_block(array, codec, dims, 0, "", guard=True), np.float64)
        place = block_of(dims, None, array.shape)
        nan, infinite = np.isnan(values), np.isinf(values)
        bad, what = nan, ""
        if not self._nan and nan.any():
            what = "NaN"
        elif not (self._nan or self._infinite) and infinite.any():
            what, bad = "an infinity", infinite
        self._nan = self._infinite = False
        if what and place is not None:
            whole = tuple((max(d[0], 0), d[1], d[2]) if isinstance(d, tuple) else d for d in dims)
            found = block_of(whole, None, array.shape)
            raise Born(site, element(found or place, bad), self._block, what)
