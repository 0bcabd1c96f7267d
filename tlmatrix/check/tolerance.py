"""Error bounds: the largest accepted difference between a result and its float64 reference.

    |out - reference|      <= factor * max |lowp - reference| + floor_max     every element
    rms(out - reference)   <= factor * rms(lowp - reference)  + floor_rms     every region, and all

with max and rms over a region (a head of a sequence), and `lowp` the same mathematics in PyTorch
at the kernel's precision. In a large region, the error of `lowp` is a good estimate of rounding
errors. In a small one (a sequence of one or two rows), or with values that happen to be exact, it
may be close to 0 by chance; the floors are lower limits of the bound for that case. They estimate
rounding: with u the unit roundoff of the stored dtype, M = `magnitude` the sum of the absolute
terms, S = `spread` the root of the sum of their squares, and R the number of rows of the region
whose sums are not empty, or of the rounding errors that they share if those are fewer
(`independent`: all rows of dk have the same error of the delta of one query),

    floor_max = u * min(4 M, 2 |reference| + 6 S) + a M
    floor_rms = u * hypot(1.5 rms(reference), (0.5 + 2.5 / sqrt(R)) rms(S)) + a/2 rms(M)
    a = (64 + 8 X) * 2**-24

- 4 M: operands (P, dS), their partner (the delta of rounded outputs) and the result are each
  rounded once, by at most u of their size; no correct kernel has a larger error. With many terms
  this is far too wide: independent rounding errors add in quadrature, to at most u S / sqrt(3)
  each, so that 6 S is more than 7 sigma of two of them; 2 |reference| covers rounding errors that
  all terms share (equal keys give equal P), which do not average out.
- The root mean square over R rows varies far less than the largest element, so its floor is
  smaller: with many rows `lowp` is a fair sample, and u S / 2 in quadrature with 1.5 u of the
  result covers correlated rounding errors; a single row has few rounding errors (one dS), may not
  be typical, and gets 3 u S.
- a M covers float32 arithmetic inside the kernel: 64 units for another order of summation and
  exp2 with 2 ulp; and 8 X units for the exponential of scores or an lse of size X, because exp
  turns the absolute error of its argument (the product, its scaling by log2(e), the subtracted
  maximum or lse, each rounded) into a relative one. X = 56 if unknown. For low-precision dtypes a
  is a fraction of u, for float32 it is far below any relevant error. A float64 tensor gets as many
  units of 2**-53, an integer one none: it is exact. A problem whose hardware sums in less than
  float32 (products of float8) sets a larger unit (`TensorInfo.arithmetic`).
- Below the smallest normal number of the dtype, half a unit in the last place is added, and at
  least 2**-126 A: GPUs flush float32 below 2**-126 to zero (`ftz`, `ex2.approx`), also in
  intermediate values. A is what they are multiplied by in all (`TensorInfo.amplification`): for dq
  of attention, scale * keys * max |k| * 2 max |do| max |v|, which large values make large; at least
  2**10. A float64 tensor is not flushed.

If a result is the sum of what several ranks return, each rank rounded its part once: u times the
sum of the sizes of the parts is added for an element, and u times the root of the sum of their
squares for the root mean square.

Values that the kernel rounds on the way carry errors into a result (`TensorInfo.carried`): they are
added to the bound of an element, and (0.6 + 2.5 / sqrt(R)) times the root mean square of their
spread to that of a region. The bound of a region of n elements is at least the largest of an
element / sqrt(n), so that one element within its bound does not fail its region.

A uniform error of 2 % is 5 u of bfloat16 and 41 u of float16. The error of `lowp` is about 0.6 u,
so the bound on the root mean square is 1.2 u + 1.8 u: such an error is detected if the result is
as large as `spread`, that is, if its terms do not cancel.

Floors need several times the arithmetic of the error of `lowp`, and few correct results need them:
an error within `factor` times that of `lowp` in every region is within the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from tlmatrix.check.error_stats import Comparison, ErrorStats, Regions, measure_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.model import Dim, OtherOption, Problem, TensorInfo, Tensors
    from tlmatrix.spec.model.spec import Allowance, Tolerance

_UNITS = 64
_UNITS_PER_EXPONENT = 8
_USUAL_EXPONENT = 56.0
_FEW = 256
"""Number of elements below which error ratios are mostly noise."""
_SMALLEST_NORMAL = 2.0**-126
"""Float32 of less may be flushed to zero."""
_AMPLIFICATION = 2.0**10
"""The least factor of flushed values."""


@dataclass(frozen=True)
class ErrorBound:
    """The error bound of a tensor, in float64.

    `element`, of the tensor's shape, bounds the error of every element, `region` the root mean
    square over each region, and `whole` that over the tensor.
    """

    element: torch.Tensor
    region: torch.Tensor
    whole: torch.Tensor
    regions: Regions


def error_bound(
    info: TensorInfo,
    reference: torch.Tensor,
    lowp: torch.Tensor | None,
    allowance: Allowance,
    regions: Regions | None = None,
    parts: torch.Tensor | None = None,
    *,
    lower: bool = False,
) -> ErrorBound:
    """The error bound of a tensor, by the formulas of this module; 0 for elements not finite.

    Args:
        info: describes the tensor.
        reference: float64, of the tensor's shape.
        lowp: of the same shape, any dtype; without it only the floor counts.
        allowance: the factor and floor of the spec.
        regions: those of `info.dims`, to save computing them.
        parts: [ranks, ...], if the tensor is the sum of what ranks return.
        lower: whether the sizes of `info` are lower bounds (`TensorInfo.of_regions`), so that the
            error bound shall be one, too.
    """
    regions = Regions(info.dims, reference.device) if regions is None else regions
    size = _finite(reference).abs_()
    # Allocating temporaries costs more than the arithmetic on them: one is reused.
    scratch = torch.empty_like(size)
    root = regions.rms(size, scratch)
    if allowance.floor == "auto":
        element, per_region, whole = _floors(info, size, root, regions, scratch, lower=lower)
    else:
        element = torch.full_like(size, float(allowance.floor))
        per_region = torch.full_like(root, float(allowance.floor))
        whole = per_region.new_tensor(float(allowance.floor))
    if lowp is not None:
        scratch.copy_(lowp)
        error = _finite_in_place(scratch.sub_(reference)).abs_()
        element += regions.spread(regions.largest(error)) * allowance.factor
        error_rms = regions.rms(error, scratch)
        per_region = per_region + error_rms * allowance.factor
        whole = whole + regions.rms_of_all(error_rms) * allowance.factor
    if parts is not None and allowance.floor == "auto":
        sizes = _finite(parts).abs_() * info.roundoff
        element += sizes.sum(0)
        root = regions.rms(sizes.square_().sum(0).sqrt_())
        per_region = per_region + root
        whole = whole + regions.rms_of_all(root)
    if size.numel():
        # An element within its bound must not fail its region, if the others are exact.
        largest = regions.largest(element)
        per_region = torch.maximum(per_region, largest / regions.elements.clamp_min(1).sqrt())
        whole = torch.maximum(whole, largest.max() / size.numel() ** 0.5)
    return ErrorBound(element, per_region, whole, regions)


def _floors(
    info: TensorInfo,
    size: torch.Tensor,
    root: torch.Tensor,
    regions: Regions,
    scratch: torch.Tensor,
    *,
    lower: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The floors of the elements, the regions and the whole tensor; overwrites `scratch`."""
    u = info.roundoff
    arithmetic = _relative_arithmetic_error(info, size)
    tiny = _underflow(info)
    if info.magnitude is None:
        # If the terms of a region cancel, other regions show their size.
        magnitude = size + 3 * regions.rms_of_all(root).clamp(min=regions.spread(root))
    else:
        magnitude = info.magnitude().double()
    # Rows with an empty sum (no visible key) do not count.
    rows = regions.rows(torch.sign(magnitude, out=scratch))
    if info.independent is not None:
        shared = info.independent().double().expand(size.shape)
        rows = torch.minimum(rows, regions.largest(shared))
    if info.spread is not None:
        spread = info.spread().double()
    elif info.magnitude is None:
        spread = regions.spread(root).expand(size.shape)
    else:
        # The sum of n terms of random sign is about as large as their spread. If they cancel by
        # construction it is not, but then a region of many rows has many terms.
        spread = torch.hypot(
            regions.spread(root), magnitude / regions.spread(rows.clamp_min(1).sqrt())
        )
    root_spread = regions.rms(spread, scratch)
    element = torch.add(2 * size, spread, alpha=6)
    torch.minimum(element, torch.mul(magnitude, 4, out=scratch), out=element)
    element.mul_(u).add_(tiny)
    element += torch.mul(magnitude, arithmetic, out=scratch)
    root_magnitude = regions.rms(scratch, scratch)
    root_carried = torch.zeros_like(root)
    if info.carried is not None and info.carried_spread is not None:
        element += info.carried()
        root_carried = regions.rms(info.carried_spread().double().expand(size.shape))

    # Where sizes are too low, fewer rows would count, and each for more.
    all_rows = regions.rows(torch.ones_like(scratch)).sum() if lower else rows.sum()
    # Those of the regions and, at the end, that of the whole tensor: few launches on a GPU.
    roots = torch.stack([root, root_spread, root_magnitude, root_carried])
    root, root_spread, root_magnitude, root_carried = torch.cat(
        [roots.reshape(4, -1), regions.rms_of_all(roots)[:, None]], 1
    )
    few = 2.5 / torch.cat([rows.flatten(), all_rows[None]]).clamp_min_(1).sqrt_()
    rounding = u * torch.hypot(1.5 * root, (0.5 + few) * root_spread)
    floors = rounding + root_magnitude / 2 + (0.6 + few) * root_carried + tiny
    return element, floors[:-1].view(regions.shape), floors[-1]


def arithmetic_error(info: TensorInfo, reference: torch.Tensor) -> torch.Tensor:
    """A M of this module: how far float32 arithmetic may move each element."""
    size = reference.abs() if info.magnitude is None else info.magnitude().double()
    return _relative_arithmetic_error(info, size) * size


def _relative_arithmetic_error(info: TensorInfo, like: torch.Tensor) -> torch.Tensor:
    exponent = like.new_tensor(_USUAL_EXPONENT) if info.exponent is None else info.exponent()
    return (_UNITS + _UNITS_PER_EXPONENT * exponent.double()) * _unit(info)


def _underflow(info: TensorInfo) -> float:
    """The error of numbers too small for the dtype, or for the arithmetic before it."""
    if not info.dtype.is_floating_point:
        return 0.0
    stored = torch.finfo(info.dtype).smallest_normal * info.roundoff
    if info.dtype == torch.float64:
        return max(stored, 2.0**-1073)  # half a subnormal unit is no float64
    amplification = 0.0 if info.amplification is None else info.amplification()
    return max(stored, _SMALLEST_NORMAL * max(_AMPLIFICATION, amplification))


def _unit(info: TensorInfo) -> float:
    """The unit roundoff of the arithmetic inside a kernel."""
    if not info.dtype.is_floating_point:
        return 0.0
    if info.arithmetic is not None:
        return info.arithmetic
    return 2.0**-53 if info.dtype == torch.float64 else 2.0**-24


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(values.double(), nan=0.0, posinf=0.0, neginf=0.0)


def _finite_in_place(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num_(values, nan=0.0, posinf=0.0, neginf=0.0)


class ReferenceBounds:
    """The reference values of a problem and the error bounds around them, computed lazily."""

    def __init__(
        self,
        problem: Problem,
        tolerance: Tolerance,
        arch: str,
        like: ReferenceBounds | None = None,
        parts: Tensors | None = None,
    ) -> None:
        """Share regions with `like`, whose problem may have the same dims.

        `parts`, [ranks, ...] by name, are what ranks returned of results that are sums.
        """
        self.problem = problem
        self._parts = parts or {}
        self._tolerance = tolerance
        self._arch = arch
        self._allowances: dict[str, Allowance] = {}
        self._regions: dict[str, Regions] = {}
        self._regions_of: dict[tuple[tuple[bool, int], ...], Regions] = (
            {} if like is None else like._regions_of  # noqa: SLF001 - its own kind
        )
        # Keeps the dims alive whose identities are keys of `_regions_of`.
        self._dims: list[tuple[Dim, ...]] = [] if like is None else like._dims  # noqa: SLF001
        self._error_bounds: dict[str, ErrorBound] = {}
        self._stats: dict[str, tuple[ErrorStats, slice]] = {}
        self._suspected: dict[str, np.ndarray] = {}

    @cached_property
    def reference(self) -> dict[str, torch.Tensor]:
        """The float64 values of all outputs and gradients."""
        return dict(self.problem.reference())

    @cached_property
    def lowp(self) -> dict[str, torch.Tensor]:
        """The same mathematics at the kernel's precision."""
        return dict(self.problem.lowp())

    def error_bound(self, name: str) -> ErrorBound:
        """The error bound of an output or gradient."""
        if name not in self._error_bounds:
            self._error_bounds[name] = error_bound(
                self.problem.outputs[name],
                self.reference[name],
                self.lowp.get(name),
                self.tolerance_of(name),
                self.regions(name),
                self._parts.get(name),
            )
        return self._error_bounds[name]

    def error_bounds(self, name: str) -> Iterator[ErrorBound]:
        """Lower bounds of the error bound of a result, the cheaper first, and the bound itself.

        Most results that the fast test suspects (`suspects`) are within the first of them.
        """
        info, allowance = self.problem.outputs[name], self.tolerance_of(name)
        known = name in self._error_bounds or name in self._parts or name not in self._suspected
        if info.of_regions is not None and allowance.floor == "auto" and not known:
            suspected = self._suspected[name]
            values = self.reference[name], self.lowp[name], allowance, self.regions(name)
            for mask in (np.zeros_like(suspected), suspected):
                yield error_bound(info.of_regions(mask), *values, lower=True)
        yield self.error_bound(name)

    @cached_property
    def of_other_options(self) -> list[tuple[OtherOption, ReferenceBounds]]:
        """The references of the problem with other values of single options, and their bounds."""
        return [
            (other, ReferenceBounds(other.problem, self._tolerance, self._arch, self))
            for other in self.problem.other_options()
        ]

    def of_rounded_operands(self, name: str) -> Iterator[tuple[str, ErrorBound]]:
        """The error bound of a result of more than 16 bits if the kernel rounds its operands.

        With the dtype of the operands, as a spec writes it.
        """
        if self.problem.outputs[name].roundoff < torch.finfo(torch.float16).eps / 2:
            for dtype, make in self.problem.with_operands.items():
                own = ReferenceBounds(make(), self._tolerance, self._arch, self)
                yield dtype, own.error_bound(name)

    def of_rounded_values(self, name: str) -> Iterator[tuple[torch.dtype, str, ErrorBound]]:
        """The error bound of a result if the kernel rounds the values behind it to 16 bits.

        With the dtype, which is coarser than the result's, and an input that has it.
        """
        info = self.problem.outputs[name]
        for dtype, given in self.problem.narrow.items():
            coarser = replace(info, roundoff=torch.finfo(dtype).eps / 2)
            if info.roundoff < coarser.roundoff:
                allowance, regions = self.tolerance_of(name), self.regions(name)
                low = self.lowp.get(name)
                yield (
                    dtype,
                    given,
                    error_bound(coarser, self.reference[name], low, allowance, regions),
                )

    def tolerance_of(self, name: str) -> Allowance:
        """The tolerance that the spec sets for an output or gradient."""
        if name not in self._allowances:
            self._allowances[name] = self._tolerance.for_tensor(name, self._arch)
        return self._allowances[name]

    def regions(self, name: str) -> Regions:
        """The regions of an output or gradient."""
        if name not in self._regions:
            dims = self.problem.outputs[name].dims
            # Tensors whose dims have the same regions, such as out and dq, share them.
            key = tuple(
                (True, id(dim)) if dim.region is not None else (False, dim.size) for dim in dims
            )
            if key not in self._regions_of:
                device = self.reference[name].device
                self._dims.append(dims)
                self._regions_of[key] = Regions(dims, device, self._regions_of.values())
            self._regions[name] = self._regions_of[key]
        return self._regions[name]

    def suspects(self, results: Tensors) -> set[str]:
        """The results that a fast test, without floors, does not show to be within their bounds."""
        found = {name for name in results if name not in self.lowp}
        comparisons = [
            Comparison(name, got, self.lowp[name], self.reference[name], self.regions(name))
            for name, got in results.items()
            if name not in found and got.numel()
        ]
        if not comparisons:
            return found
        stats = measure_errors(comparisons)
        within = stats.within([self.tolerance_of(each.name).factor for each in comparisons])
        for each, part in stats.parts():
            self._stats[each.name] = stats, part
            suspected = ~within[part]
            if suspected.any():
                found.add(each.name)
                self._suspected[each.name] = suspected.reshape(each.regions.shape)
        return found

    def error_ratio(self) -> float | None:
        """The error ratio (error / error bound) of correct results, from 0 to 1, as a score.

        The largest error and the root mean square of the worst tensor, over the bounds without
        floors. Tensors with few elements, whose errors are noisy, count less. None if nothing was
        measured.
        """
        worst = None
        for name, (stats, part) in self._stats.items():
            size = self.reference[name].numel()
            factor = self.tolerance_of(name).factor
            lows = (stats.largest[1, part].max(initial=0), np.sqrt(stats.squares[1, part].sum()))
            errors = (stats.largest[0, part].max(initial=0), np.sqrt(stats.squares[0, part].sum()))
            for error, low in zip(errors, lows, strict=True):
                bound = low * factor
                ratio = float(error / bound) if 0 < error < bound else float(error > 0)
                worst = max(ratio * size / (size + _FEW), worst or 0.0)
        return worst

    def limits_of_two_runs(self, name: str) -> Iterator[torch.Tensor]:
        """Limits of the difference of two results: a cheap lower bound, then both error bounds."""
        yield self.lower_limit_of_two_runs(name)
        yield 2 * self.error_bound(name).element

    def lower_limit_of_two_runs(self, name: str) -> torch.Tensor:
        """A lower bound of twice the error bound of every element; cheap to compute."""
        regions, reference = self.regions(name), self.reference[name]
        if name not in self._stats:
            low = self.lowp.get(name)
            if low is None or not low.numel():
                return torch.zeros_like(reference)
            own = measure_errors([Comparison(name, low, low, reference, regions)])
            self._stats[name] = own, slice(0, regions.count)
        stats, part = self._stats[name]
        finite = np.isfinite(stats.squares[1, part])
        factor = self.tolerance_of(name).factor
        least = np.where(finite, stats.largest[1, part], 0.0) * factor * 2
        of_regions = torch.from_numpy(least).to(reference.device).view(regions.shape)
        return regions.spread(of_regions).expand(reference.shape)
