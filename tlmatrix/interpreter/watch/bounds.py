"""Parts of the monitor: indices outside a buffer, and iterations that store to one element.

`loose` are the dimensions that TileLang guards itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.runtime import memory
from tlmatrix.interpreter.runtime.elements import first_lane, lanes_inside, lanes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.runtime.masks import Dim

    from .monitor import Findings


class Bounds:
    """Reports accesses outside."""

    findings: Findings

    def outside(
        self,
        site: int,
        dims: Sequence[Dim],
        shape: tuple[int, ...],
        loose: tuple[int, ...],
        mask: Any,
    ) -> None:
        """A block that is not all inside is accessed."""
        if mask is not None and not np.any(mask):
            return
        for axis, (dim, n) in enumerate(zip(dims, shape, strict=True)):
            steps = np.arange(dim[1]) * dim[2] + dim[0] if isinstance(dim, tuple) else [dim]
            indices = np.asarray(steps)
            wrong = (indices < 0) | (indices >= n)
            if mask is not None and isinstance(dim, tuple) and wrong.any():
                wrong = wrong & _active_along(dims, axis, mask)
            if wrong.any():
                where = [d[0] if isinstance(d, tuple) else int(d) for d in dims]
                where[axis] = int(indices[wrong][0])
                self._report(site, tuple(where), axis, shape, guarded=axis in loose)

    def lanes_outside(
        self,
        site: int,
        index: tuple[Any, ...],
        shape: tuple[int, ...],
        loose: tuple[int, ...],
        mask: Any,
    ) -> None:
        """Lanes access one element each, any of which may be outside."""
        for axis, (i, n) in enumerate(zip(index, shape, strict=True)):
            wrong = (np.asarray(i) < 0) | (np.asarray(i) >= n)
            if wrong.any() and mask is not None:
                wrong = wrong & mask
            if wrong.any():
                self._report(site, first_lane(index, wrong), axis, shape, guarded=axis in loose)

    def one(
        self,
        site: int,
        index: tuple[int, ...],
        shape: tuple[int, ...],
        loose: tuple[int, ...],
        value: Any,
        mask: Any = None,
    ) -> Any:
        """A single element is read: `value`; nothing reads it if no iteration of `mask` is active.

        Reads of integers, which select other elements, have a sanitizer of their own.
        """
        if mask is not None and not np.any(mask):
            return value
        table = type(value) is int and "tables" in self.findings.sanitizers
        for axis, (i, n) in enumerate(zip(index, shape, strict=True)):
            if not 0 <= i < n:
                where = tuple(int(x) for x in index)
                guarded = axis in loose
                self._report(site, where, axis, shape, guarded=guarded, table=guarded and table)
        return value

    def _report(
        self,
        site: int,
        where: tuple[int, ...],
        axis: int,
        shape: tuple[int, ...],
        *,
        guarded: bool,
        table: bool = False,
    ) -> None:
        """Report an index outside; it is an error if no sanitizer of bounds is on."""
        findings = self.findings
        accessed = findings.sites[site]
        name = "fragments" if accessed.is_local else "bounds"
        if guarded:
            name = "tables" if table else "guarded"
        if not guarded and not findings.sanitizers & {"bounds", "fragments"}:
            memory.outside(accessed.buffer, where, shape)
        skipped = ", which TileLang's guard skips" if guarded else ""
        findings.report(
            name,
            site,
            where,
            f"index {where[axis]} of dimension {axis} of {{buffer}} is outside "
            f"0..{shape[axis] - 1}{skipped}",
            axis=axis,
        )


def _active_along(dims: Sequence[Dim], axis: int, mask: Any) -> Any:
    """Along one range of a block the indices that any active element has."""
    ranges = [k for k, d in enumerate(dims) if isinstance(d, tuple)]
    extents = tuple(d[1] for d in dims if isinstance(d, tuple))
    return np.broadcast_to(mask, extents).any(tuple(k for k, a in enumerate(ranges) if a != axis))


class Collisions:
    """Reports iterations of a parallel loop, or threads, that store to one element."""

    findings: Findings

    def lanes_twice(
        self, site: int, index: tuple[Any, ...], shape: tuple[int, ...], mask: Any, lanes: Any
    ) -> None:
        """Iterations store where the index is no block: no two may have the same element."""
        found = self._repeated(index, shape, mask, lanes)
        if found is not None:
            self._twice(site, found)

    def lanes_added(
        self, site: int, index: tuple[Any, ...], shape: tuple[int, ...], mask: Any, lanes: Any
    ) -> None:
        """Iterations add floating-point numbers: which have the same element."""
        found = self._repeated(index, shape, mask, lanes)
        if found is not None:
            message = "two threads of a block add to {buffer}, in any order"
            self.findings.report("atomics", site, tuple(int(i) for i in found), message)

    @staticmethod
    def _repeated(
        index: tuple[Any, ...], shape: tuple[int, ...], mask: Any, lanes: Any
    ) -> Any | None:
        """The first element that several active iterations have; None if there is none."""
        spread = np.broadcast_to(index[0], np.broadcast_shapes(np.shape(index[0]), lanes))
        place = lanes_of((spread, *index[1:]), mask, shape)
        if place is None:
            return None
        flat = np.ravel_multi_index(place[0], shape)
        written = np.zeros(int(np.prod(shape)), bool)
        written[flat] = True
        if np.count_nonzero(written) < flat.size:
            values, counts = np.unique(flat, return_counts=True)
            return np.unravel_index(int(values[counts > 1][0]), shape)
        return None

    def axes_twice(
        self,
        site: int,
        dims: Sequence[Dim],
        shape: tuple[int, ...],
        missing: tuple[int, ...],
        mask: Any,
        lanes: tuple[int, ...],
    ) -> None:
        """Iterations along `missing` axes store their own values to the same elements."""
        del shape
        active = np.ones(lanes, bool) if mask is None else np.broadcast_to(mask, lanes)
        if (active.sum(missing) > 1).any():
            self._twice(site, [d[0] if isinstance(d, tuple) else d for d in dims])

    def _twice(self, site: int, where: Sequence[Any]) -> None:
        message = (
            "two lanes of one parallel loop write one element of {buffer}: which store remains is "
            "undefined"
        )
        self.findings.report("lanes", site, tuple(int(i) for i in where), message)

    def threads_twice(
        self,
        site: int,
        index: tuple[Any, ...],
        shape: tuple[int, ...],
        mask: Any,
        lanes: tuple[int, ...],
        value: Any,
    ) -> None:
        """Threads store where several may have the same element: their values must be equal."""
        keep = lanes_inside(index, mask, shape, lanes)
        if not keep.any():
            return
        flat = np.ravel_multi_index([np.broadcast_to(i, keep.shape)[keep] for i in index], shape)
        values = np.broadcast_to(value, keep.shape)[keep]
        order = np.argsort(flat, kind="stable")
        flat, values = flat[order], values[order]
        one, other = values[1:], values[:-1]
        differ = (one != other) & ((one == one) | (other == other))  # noqa: PLR0124  # NaN
        bad = np.flatnonzero((flat[1:] == flat[:-1]) & differ)
        if bad.size:
            where = tuple(int(i) for i in np.unravel_index(int(flat[bad[0]]), shape))
            message = (
                "two threads write different values to {buffer} at once: which store remains is "
                "undefined"
            )
            self.findings.report("lanes", site, where, message)
