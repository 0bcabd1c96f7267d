"""Traces NaN and infinity: finds the operation that made the first one of finite operands."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .indices import block_of, element_of, first_lane, lanes_of
from .memory import load_block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .codecs import Array, Codec
    from .masks import Dim

__all__ = ["Born", "Tracer"]


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
