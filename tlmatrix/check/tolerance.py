"""How far from the float64 reference a result may lie.

    |out - reference|      <= factor * max |lowp - reference| + floor_max     every element
    rms(out - reference)   <= factor * rms(lowp - reference)  + floor_rms     every region, and all

with max and rms over a region (a head of a sequence), and `lowp` the same mathematics in PyTorch
at the kernel's precision. In a large region the error of `lowp` is a good measure of what
rounding does there. In a small one (a sequence of one or two rows), or with values that happen
to be exact, it is next to nothing by luck; the floors keep the bound from collapsing then. They
are what rounding can do, not what a kernel may do: with u the unit roundoff of what is stored,
M = `magnitude` the sum of the sizes of the terms, S = `spread` the root of the sum of their
squares, and R the number of rows of the region that sum anything,

    floor_max = u * min(4 M, 2 |reference| + 6 S) + a M
    floor_rms = u * hypot(1.5 rms(reference), (0.5 + 2.5 / sqrt(R)) rms(S)) + a/2 rms(M)
    a = (64 + 8 X) * 2**-24

- 4 M: operands (P, dS), their partner (the delta of rounded outputs) and the result are each
  rounded once, by at most u of their size; no correct kernel is further off. With many terms this
  is far too wide: independent roundings add in quadrature, to at most u S / sqrt(3) each, so
  that 6 S is more than 7 sigma of two of them; 2 |reference| stands for roundings that all terms
  share (equal keys give equal P), which do not average out.
- The root mean square over R rows is far steadier than the largest element, so its floor is
  smaller: of many rows `lowp` is a fair sample, and u S / 2 in quadrature with 1.5 u of the result
  covers values whose roundings are alike; a single row, with its few roundings (one dS), need
  not be typical, and gets 3 u S.
- a M is what float32 arithmetic inside the kernel is worth: 64 units for sums in another order
  and exp2 good to 2 ulp; and where scores or an lse of size X are exponentiated, 8 X units, for
  exp turns the absolute error of its argument (the product, its scaling by log2(e), the
  maximum or lse taken off it, each rounded) into a relative one. X = 56 where it is not known.
  For the low dtypes a is a fraction of u, for float32 far below any error that means something.
  A float64 tensor gets as many units of 2**-53, an integer one none: it is exact. Where a problem
  knows that hardware sums in less than float32 (products of float8), it says so, and a is larger.
- Below the smallest normal number of the dtype, half a unit in the last place is added, and at
  least 2**-116: GPUs flush float32 below 2**-126 to zero (`ftz`, `ex2.approx`), in a probability
  too, which may then miss a partner of up to 2**10. A float64 tensor is not flushed.

What several ranks return of a result that is the sum of it was rounded once by each: u times the
sizes of these parts is added for an element, and u times the root of their squares in the mean.

A uniform error of 2 % is 5 u of bfloat16 and 41 u of float16. The error of `lowp` is about 0.6 u,
so the bound on the root mean square is 1.2 u + 1.8 u: such an error shows wherever the result
is as large as `spread`, that is, wherever its terms do not cancel.

The floors take several times the arithmetic of the error of `lowp`, and hardly a correct result
needs them: what is within `factor` times that error in every region is within the limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from tlmatrix.check.regions import Regions
from tlmatrix.check.survey import Measured, Survey, survey

if TYPE_CHECKING:
    from tlmatrix.problem.model import Dim, Problem, TensorInfo, Tensors
    from tlmatrix.spec.model.spec import Allowance, Tolerance

__all__ = ["Doubt", "Limits", "Yardstick", "limits"]

_UNITS = 64
_UNITS_PER_EXPONENT = 8
_USUAL_EXPONENT = 56.0
_FEW = 256
"""Elements whose errors say as much about a kernel as about luck."""
_FLUSHED = 2.0**-116
"""float32's smallest normal number, times a partner of 2**10."""


@dataclass(frozen=True)
class Limits:
    """The most that a tensor may be off.

    `element`, of the tensor's shape, bounds every element; `region` the root mean square over
    each region, and `whole` over the tensor. All float64.
    """

    element: torch.Tensor
    region: torch.Tensor
    whole: torch.Tensor
    regions: Regions


@dataclass(frozen=True)
class Doubt:
    """Why a result is not surely within its limits.

    `regions`, [regions], are those that are not, None where that is not known; `whole` says whether
    the root mean square over all of the tensor is not.
    """

    regions: np.ndarray | None = None
    whole: bool = True


def limits(
    info: TensorInfo,
    reference: torch.Tensor,
    lowp: torch.Tensor | None,
    allowance: Allowance,
    regions: Regions | None = None,
    parts: torch.Tensor | None = None,
) -> Limits:
    """The limits of one tensor, by the formulas of this module.

    reference: float64, of the tensor's shape. lowp: of the same shape, any dtype; without it
    only the floor counts. Elements where either is not finite allow nothing. regions: those of
    `info.dims`, where they are at hand. parts: [ranks, ...], of a sum of what ranks return.
    """
    regions = Regions(info.dims, reference.device) if regions is None else regions
    size = _finite(reference).abs_()
    # Temporaries of a tensor's size cost more than the arithmetic on them: one is reused.
    scratch = torch.empty_like(size)
    root = regions.rms(size, scratch)
    if allowance.floor == "auto":
        element, per_region, whole = _floors(info, size, root, regions, scratch)
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
    return Limits(element, per_region, whole, regions)


def _floors(
    info: TensorInfo,
    size: torch.Tensor,
    root: torch.Tensor,
    regions: Regions,
    scratch: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The floors of the elements, the regions and the whole tensor; overwrites `scratch`."""
    u = info.roundoff
    exponent = size.new_tensor(_USUAL_EXPONENT) if info.exponent is None else info.exponent()
    units = _UNITS + _UNITS_PER_EXPONENT * exponent.double()
    arithmetic = units * _unit(info)
    tiny = _underflow(info)
    if info.magnitude is None:
        # Where a region comes out as zero by cancellation, the others show the size of its terms.
        magnitude = size + 3 * regions.rms_of_all(root).clamp(min=regions.spread(root))
    else:
        magnitude = info.magnitude().double()
    # Rows that sum nothing (no visible key) say nothing about how steady the others are.
    rows = regions.rows(torch.sign(magnitude, out=scratch))
    if info.spread is not None:
        spread = info.spread().double()
    elif info.magnitude is None:
        spread = regions.spread(root).expand(size.shape)
    else:
        # n terms of random sign: the sum is about as large as their spread. Where they cancel
        # by construction it is not, but then a region of many rows has many terms.
        spread = torch.hypot(
            regions.spread(root), magnitude / regions.spread(rows.clamp_min(1).sqrt())
        )
    root_spread = regions.rms(spread, scratch)
    element = torch.add(2 * size, spread, alpha=6)
    torch.minimum(element, torch.mul(magnitude, 4, out=scratch), out=element)
    element.mul_(u).add_(tiny)
    element += torch.mul(magnitude, arithmetic, out=scratch)
    root_magnitude = regions.rms(scratch, scratch)

    def root_floor(
        size: torch.Tensor, spread: torch.Tensor, magnitude: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        rounding = torch.hypot(1.5 * size, (0.5 + 2.5 / rows.clamp_min(1).sqrt()) * spread)
        return u * rounding + magnitude / 2 + tiny

    whole = root_floor(
        regions.rms_of_all(root),
        regions.rms_of_all(root_spread),
        regions.rms_of_all(root_magnitude),
        rows.sum(),
    )
    return element, root_floor(root, root_spread, root_magnitude, rows), whole


def _underflow(info: TensorInfo) -> float:
    """What is lost of numbers too small for the dtype, or for the arithmetic before it."""
    if not info.dtype.is_floating_point:
        return 0.0
    stored = torch.finfo(info.dtype).smallest_normal * info.roundoff
    return stored if info.dtype == torch.float64 else max(stored, _FLUSHED)


def _unit(info: TensorInfo) -> float:
    """Of the arithmetic inside a kernel."""
    if not info.dtype.is_floating_point:
        return 0.0
    if info.arithmetic is not None:
        return info.arithmetic
    return 2.0**-53 if info.dtype == torch.float64 else 2.0**-24


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(values.double(), nan=0.0, posinf=0.0, neginf=0.0)


def _finite_in_place(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num_(values, nan=0.0, posinf=0.0, neginf=0.0)


class Yardstick:
    """What a problem's results are measured with; everything is computed once, when asked for."""

    def __init__(
        self,
        problem: Problem,
        tolerance: Tolerance,
        arch: str,
        like: Yardstick | None = None,
        parts: Tensors | None = None,
    ) -> None:
        """For a problem that has dims of `like`'s, what is known of their regions is shared.

        `parts`, [ranks, ...] by name, is what ranks returned of results that are the sum of it.
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
        # Whose identities are keys there.
        self._dims: list[tuple[Dim, ...]] = [] if like is None else like._dims  # noqa: SLF001
        self._limits: dict[str, Limits] = {}
        self._surveys: dict[str, tuple[Survey, slice]] = {}

    @cached_property
    def reference(self) -> dict[str, torch.Tensor]:
        """float64 values of every output and gradient."""
        return dict(self.problem.reference())

    @cached_property
    def lowp(self) -> dict[str, torch.Tensor]:
        """The same mathematics at the kernel's precision."""
        return dict(self.problem.lowp())

    def limits(self, name: str) -> Limits:
        """The limits of the output or gradient of that name."""
        if name not in self._limits:
            self._limits[name] = limits(
                self.problem.outputs[name],
                self.reference[name],
                self.lowp.get(name),
                self.allowance(name),
                self.regions(name),
                self._parts.get(name),
            )
        return self._limits[name]

    def allowance(self, name: str) -> Allowance:
        """What the spec allows the output or gradient of that name."""
        if name not in self._allowances:
            self._allowances[name] = self._tolerance.for_tensor(name, self._arch)
        return self._allowances[name]

    def regions(self, name: str) -> Regions:
        """The regions of the output or gradient of that name."""
        if name not in self._regions:
            dims = self.problem.outputs[name].dims
            # Two tensors whose dims have the same regions, as out and dq, share them.
            key = tuple(
                (True, id(dim)) if dim.region is not None else (False, dim.size) for dim in dims
            )
            if key not in self._regions_of:
                device = self.reference[name].device
                self._dims.append(dims)
                self._regions_of[key] = Regions(dims, device, self._regions_of.values())
            self._regions[name] = self._regions_of[key]
        return self._regions[name]

    def doubts(self, results: Tensors) -> dict[str, Doubt]:
        """The results that are not surely within their limits, and where.

        Sure is what is no further off than `lowp` allows, whatever the floor is.
        """
        found = {name: Doubt() for name in results if name not in self.lowp}
        measured = [
            Measured(name, got, self.lowp[name], self.reference[name], self.regions(name))
            for name, got in results.items()
            if name not in found and got.numel()
        ]
        if not measured:
            return found
        made = survey(measured)
        within = made.within([self.allowance(each.name).factor for each in measured])
        self._surveys |= {each.name: (made, place) for each, place in made.parts()}
        if within.all():
            return found
        for each, place in made.parts():
            if not within[place].all():
                mine, its = made.squares[:, place].sum(1)
                factor = self.allowance(each.name).factor
                found[each.name] = Doubt(~within[place], whole=not mine <= its * factor**2)
        return found

    def closeness(self) -> float | None:
        """How close to what is allowed results are that were found right, from 0 to 1: a score.

        The largest and the root mean square error over what low precision allows, of the worst
        tensor. Floors are not counted, and few elements, whose errors are luck, count less. None
        where nothing was measured.
        """
        worst = None
        for name, (made, place) in self._surveys.items():
            size = self.reference[name].numel()
            factor = self.allowance(name).factor
            of_low = (made.largest[1, place].max(initial=0), np.sqrt(made.squares[1, place].sum()))
            of_mine = (made.largest[0, place].max(initial=0), np.sqrt(made.squares[0, place].sum()))
            for mine, low in zip(of_mine, of_low, strict=True):
                share = float(mine / (low * factor)) if 0 < mine < low * factor else float(mine > 0)
                worst = max(share * size / (size + _FEW), worst or 0.0)
        return worst

    def least_by_element(self, name: str, times: float = 1) -> torch.Tensor:
        """For every element a value below its limit, times `times`, in the tensor's shape."""
        regions, reference = self.regions(name), self.reference[name]
        if name not in self._surveys:
            low = self.lowp.get(name)
            if low is None or not low.numel():
                return torch.zeros_like(reference)
            made = survey([Measured(name, low, low, reference, regions)])
            self._surveys[name] = made, slice(0, regions.count)
        made, place = self._surveys[name]
        finite = np.isfinite(made.squares[1, place])
        least = np.where(finite, made.largest[1, place], 0.0) * self.allowance(name).factor * times
        of_regions = torch.from_numpy(least).to(reference.device).view(regions.shape)
        return regions.spread(of_regions).expand(reference.shape)
