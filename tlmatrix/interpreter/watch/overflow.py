"""Reports signed integer arithmetic whose result leaves its dtype.

Overflow of a signed integer is undefined in CUDA, and TileLang's simplifier assumes that there is
none: `n - w < i + 5` may become `n < w + i + 5`. Followed are scalars, such as offsets, tile bounds
and lengths, and values affine in the axes of a parallel loop; loaded elements are not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tlmatrix.interpreter.emit.numbers import add, bits_of, times
from tlmatrix.interpreter.emit.values import literal
from tlmatrix.interpreter.runtime.mathematics import wrap

from .observer import Observer

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.values import Val
    from tlmatrix.interpreter.program import Options
    from tlmatrix.interpreter.runtime.codecs import Array

    from .monitor import Findings


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
