"""Shadow memory of sanitized programs: which elements have been written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .indices import block_of, element_of, lanes_of
from .memory import clip, load_block, store_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .codecs import Array
    from .findings import Findings
    from .indices import Place
    from .masks import Dim

__all__ = ["LocalShadow", "Shadow"]

NEVER_WRITTEN = "{buffer} is read, never written"


class Shadow:
    """The shadow of a buffer, with the methods that generated source calls beside accesses.

    Attributes:
        known: which elements have been written; None if no sanitizer asks.
        name: the user's name of the buffer.
        shape: its shape.
    """

    __slots__ = ("_findings", "known", "name", "shape")
    known: Array | None

    def __init__(self, findings: Findings, name: str, shape: tuple[int, ...]) -> None:
        self._findings = findings
        self.name = name
        self.shape = shape

    def write(self, site: int, dims: Sequence[Dim], mask: Any) -> None:
        """A block is stored."""
        place = block_of(dims, mask, self.shape)
        if place is not None:
            self._write(site, place)

    def write_lanes(self, site: int, index: tuple[Any, ...], mask: Any) -> None:
        """Lanes store."""
        place = lanes_of(index, mask, self.shape)
        if place is not None:
            self._write(site, place)

    def read(self, site: int, dims: Sequence[Dim], mask: Any) -> None:
        """A block is read."""
        place = block_of(dims, mask, self.shape)
        if place is not None:
            self._read(site, place)

    def read_lanes(self, site: int, index: tuple[Any, ...], mask: Any) -> None:
        """Lanes read."""
        place = lanes_of(index, mask, self.shape)
        if place is not None:
            self._read(site, place)

    def atomic(self, site: int, dims: Sequence[Dim], mask: Any) -> None:
        """A block is updated atomically."""
        place = block_of(dims, mask, self.shape)
        if place is not None:
            self._atomic(site, place)

    def atomic_lanes(self, site: int, index: tuple[Any, ...], mask: Any) -> None:
        """Lanes do atomics."""
        place = lanes_of(index, mask, self.shape)
        if place is not None:
            self._atomic(site, place)

    def _write(self, site: int, place: Place) -> None:
        raise NotImplementedError

    def _read(self, site: int, place: Place) -> None:
        raise NotImplementedError

    def _atomic(self, site: int, place: Place) -> None:
        raise NotImplementedError

    def _mark(self, place: Place) -> None:
        """Elements are written."""
        if self.known is None:
            return
        memory, mask = place
        if mask is None:
            self.known[memory] = True
        else:
            self.known[memory] |= mask

    def _check_known(self, site: int, place: Place, message: str = NEVER_WRITTEN) -> None:
        """Report elements that have never been written."""
        memory, mask = place
        assert self.known is not None
        unknown = ~np.asarray(self.known[memory])
        if mask is not None:
            unknown = unknown & mask
        if np.count_nonzero(unknown):
            self._findings.report("uninitialised", site, element_of(place, unknown), message)

    def _known_tile(self, dims: Sequence[Dim], target_dims: Sequence[Dim]) -> Array:
        """Which elements of a block are written, in the extents of the block it is copied to."""
        assert self.known is not None
        known = load_block(self.known, None, dims, True, self.name, guard=True)
        return np.asarray(known).reshape([d[1] for d in target_dims if isinstance(d, tuple)])


class LocalShadow(Shadow):
    """Which elements of a block's buffer have been written.

    Attributes:
        full: whether all have been.
    """

    __slots__ = ("_dirty", "_viewed", "full")
    known: Array
    full: bool

    def __init__(self, findings: Findings, name: str, shape: tuple[int, ...]) -> None:
        super().__init__(findings, name, shape)
        self.known = np.zeros(shape, bool)
        self._dirty = False
        self._viewed = False
        self.full = False

    def clear(self) -> None:
        """A new block: nothing is written."""
        self.full = False
        if self._dirty:
            self.known.fill(False)
            self._dirty = self._viewed

    def reshaped(self, shape: tuple[int, ...]) -> LocalShadow:
        """The shadow of a view of the same memory."""
        self._dirty = self._viewed = True
        return _View(self, shape)

    def _write(self, site: int, place: Place) -> None:
        del site
        self._dirty = True
        self._mark(place)

    def _read(self, site: int, place: Place) -> None:
        if not self.full:
            self._check_known(site, place)

    def _atomic(self, site: int, place: Place) -> None:
        self._read(site, place)
        self._write(site, place)

    def one(self, site: int, index: tuple[int, ...], value: Any) -> Any:
        """A single element is read: `value`."""
        if not self.full and not self.known[index]:
            self._findings.report("uninitialised", site, index, NEVER_WRITTEN)
        return value

    def copied(
        self,
        site: int,
        dims: Sequence[Dim],
        target: Shadow | None,
        target_dims: Sequence[Dim],
        target_shape: tuple[int, ...],
    ) -> None:
        """A tile is copied: what is unwritten here is unwritten there; outputs must be written."""
        if self.full:
            if isinstance(target, LocalShadow):
                target.write(site, target_dims, None)
            return
        known = self._known_tile(dims, target_dims)
        if isinstance(target, LocalShadow):
            target.receive(target_dims, known)
            return
        some, _, tile, _ = clip(target_dims, target_shape)
        if some and not known[tile].all():
            self.read(site, dims, None)

    def receive(self, dims: Sequence[Dim], known: Array) -> None:
        """A block is overwritten by one of which `known` elements are written."""
        store_block(self.known, None, dims, known, None, self.name, guard=True)
        self._dirty = True
        self.full = bool(self.known.all())


class _View(LocalShadow):
    """A view of another shadow's memory: writing all of it fills this view alone."""

    __slots__ = ("_base",)

    def __init__(self, base: LocalShadow, shape: tuple[int, ...]) -> None:
        self._base = base
        super().__init__(base._findings, base.name, shape)  # noqa: SLF001  # of its own class
        self.known = base.known.reshape(shape)

    @property
    def full(self) -> bool:
        """Whether all elements have been written."""
        return self._base.full or bool(self.known.all())

    @full.setter
    def full(self, value: bool) -> None:
        if value:
            self.known.fill(True)
