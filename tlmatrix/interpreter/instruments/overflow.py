"""Reports signed integer arithmetic whose result leaves its dtype.

Overflow of a signed integer is undefined in CUDA, and TileLang's simplifier assumes that there is
none: `n - w < i + 5` may become `n < w + i + 5`. Followed are scalars, such as offsets, tile bounds
and lengths, and values affine in the axes of a parallel loop; loaded elements are not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tlmatrix.interpreter.emit.instrument import Instrument
from tlmatrix.interpreter.emit.numbers import add, bits_of, times
from tlmatrix.interpreter.emit.values import literal

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.values import Val

    from .sites import SiteTable


class OverflowSanitizer(Instrument):
    """Writes a test of every result of which it is not known that it fits.

    It has the `watch` of the memory sanitizer, and its table of `sites`.
    """

    def __init__(self, sites: SiteTable) -> None:
        self._sites = sites

    def integer(self, e: Emitter, value: Val, wrapped: Val) -> Val:
        """Test a scalar where it is used; C computes integers of less than 32 bits as `int`."""
        bits = bits_of(wrapped.dtype)
        if bits < 32 or e.speculative:
            return wrapped
        mask = "" if e.mask is None else f", {e.mask.code}"
        report = f"watch.left({self._sites.arithmetic(e)}, fit, {bits}{mask})"
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
            arguments = f"{base}, ({''.join(terms)}), {self._sites.arithmetic(e)}"
            e.w.line(f"watch.overflows({arguments}, {e.mask_code})")
