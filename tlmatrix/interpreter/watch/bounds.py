"""Parts of the monitor: indices outside a buffer, and iterations that store to one element.

`loose` are the dimensions that TileLang guards itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmatrix.interpreter.emit.numbers import add, bits_of, times
from tlmatrix.interpreter.emit.values import literal
from tlmatrix.interpreter.runtime import memory
from tlmatrix.interpreter.runtime.elements import first_lane, lanes_inside, lanes_of
from tlmatrix.interpreter.runtime.mathematics import wrap

from .observer import Observer

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.values import Val
    from tlmatrix.interpreter.program import Options
    from tlmatrix.interpreter.runtime.codecs import Array
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

    def partial_barrier(self, site: int, mask: Any) -> None:
        """Threads come to a barrier of the whole block: all of them, or none."""
        reached, threads = int(np.count_nonzero(mask)), np.size(mask)
        if 0 < reached < threads:
            message = (
                f"{reached} of {threads} threads come to T.sync_threads(), which waits for all "
                "threads of the block"
            )
            hint = "move it out of the branch or loop that only some threads run"
            self.findings.report("barriers", site, (), message, hint=hint)


# Signed integer arithmetic whose result leaves its dtype ------------------------------------------
#
# Overflow of a signed integer is undefined in CUDA, and TileLang's simplifier assumes that there is
# none: `n - w < i + 5` may become `n < w + i + 5`. Followed are scalars, such as offsets, tile
# bounds and lengths, and values affine in the axes of a parallel loop; loaded elements are not.


class OverflowSanitizer(Observer):
    """Writes a test of every result of which it is not known that it fits."""

    @classmethod
    def wanted(cls, options: Options) -> bool:
        """Beside the memory sanitizer, whose `watch` it calls."""
        return "overflow" in options.sanitizers and "traced" not in options.observers

    def integer(self, e: Emitter, value: Val, wrapped: Val) -> Val:
        """Test a scalar where it is used; C computes integers of less than 32 bits as `int`."""
        bits = bits_of(wrapped.dtype)
        if bits < 32 or e.speculative:
            return wrapped
        mask = "" if e.mask is None else f", {e.mask.code}"
        report = f"watch.left({self.sites.arithmetic(e)}, fit, {bits}{mask})"
        least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        test = f"{least} <= (fit := {value.code}) <= {most}"
        return replace(wrapped, code=f"(fit if {test} else {report})")

    def integers(self, e: Emitter, value: Val) -> None:
        """Test the ends of an affine value, and if they are outside the iterations of the mask."""
        if value.affine is None or e.speculative:
            return
        low = high = literal(0, "int32")
        terms = []
        for position, step in value.affine.coefficients:
            axis = e.axis_at(position)
            span = times(add(axis.extent, literal(-1, "int32")), step)
            low, high = (low, add(high, span)) if step > 0 else (add(low, span), high)
            terms.append(f"({axis.iota.code}, {step}), ")
        base = value.affine.base.code
        test = f"-2147483648 - {low.code} <= {base} <= 2147483647 - {high.code}"
        with e.w.block(f"if not {test}"):
            arguments = f"{base}, ({''.join(terms)}), {self.sites.arithmetic(e)}"
            e.w.line(f"watch.overflows({arguments}, {e.mask_code})")


class Overflows:
    """The part of the monitor that reports values outside their dtype."""

    findings: Findings

    def left(self, site: int, value: int, bits: int, mask: Array | bool = True) -> int:
        """Report a value outside a signed integer of so many bits; the value in two's complement.

        Iterations outside the mask do not compute it.
        """
        if np.any(mask):
            self.findings.report("overflow", site, (), _overflow(value, bits))
        return wrap(value, bits, True)

    def overflows(
        self, base: int, terms: tuple[tuple[Array, int], ...], site: int, mask: Array | None
    ) -> None:
        """Report iterations whose int32 value `base + sum(index * step)` is outside."""
        exact = np.asarray(base, np.int64)
        for index, step in terms:
            exact = exact + index.astype(np.int64) * step
        outside = (exact < -(1 << 31)) | (exact >= 1 << 31)
        places = np.broadcast_to(outside if mask is None else outside & mask, exact.shape)
        if places.any():
            self.findings.report("overflow", site, (), _overflow(int(exact[places][0]), 32))


def _overflow(value: int, bits: int) -> str:
    limit = f"2**{bits - 1}"
    return f"int{bits} arithmetic gives {value}, outside its range of -{limit} to {limit} - 1"
