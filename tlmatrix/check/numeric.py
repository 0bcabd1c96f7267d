"""Compares outputs and gradients with their float64 reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from tlmatrix.check.error_stats import CHUNK
from tlmatrix.problem.tensors import comparable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tlmatrix.check.tolerance import ErrorBound, ReferenceBounds
    from tlmatrix.problem.model import TensorInfo, Tensors

_PART = 0.25
"""In a region beyond its bound, an element counts as wrong if its error exceeds this part of the
region's bound; a uniform error is smaller in small elements."""


@dataclass(frozen=True)
class Deviation:
    """A result beyond its error bound.

    `wrong` is the mask of wrong elements. `ratio` is the largest error ratio, of elements or of the
    root mean square as `distance` says, or of the mean of signed errors; infinite if the bound is 0
    or only one value is finite. `worst` is the flat index of the worst element, and `note` says
    what `ratio` is, if it is not of an element.
    """

    expected: torch.Tensor = field(repr=False)
    got: torch.Tensor = field(repr=False)
    wrong: torch.Tensor = field(repr=False)
    ratio: float
    worst: int
    distance: Literal["element", "rms", "mean"]
    note: str | None = None

    @classmethod
    def of_elements(
        cls,
        expected: torch.Tensor,
        got: torch.Tensor,
        wrong: torch.Tensor,
        note: str | None = None,
    ) -> Deviation:
        """The deviation of elements that are wrong whatever their error; some are."""
        worst = int(wrong.flatten().int().argmax())
        return cls(expected, got, wrong, float("inf"), worst, "element", note)


def describe_mismatch(name: str, info: TensorInfo, got: torch.Tensor | None) -> str | None:
    """Why `got` cannot be compared (missing, wrong shape, wrong dtype); None if it can."""
    if got is None:
        return f"{name} is missing from what the entry returned"
    if tuple(got.shape) != info.shape:
        words = ", ".join(f"{dim.name} {dim.size}" for dim in info.dims)
        return f"{name} has shape {list(got.shape)}, expected {list(info.shape)} ({words})"
    if got.dtype != info.dtype:
        remedy = (
            f", as inputs are; to declare it: outputs: {{{name}: {{dtype: {_dtype(got.dtype)}}}}}"
        )
        words = f"{name} is {_dtype(got.dtype)}, expected {_dtype(info.dtype)}"
        return words + remedy * info.undeclared
    return None


def deviations(results: Tensors, bounds: ReferenceBounds) -> dict[str, Deviation]:
    """The deviations of outputs and gradients beyond their error bounds, by name."""
    found = {}
    suspects = bounds.suspects(results)
    for name, got in results.items():
        if name not in suspects:
            continue
        reference = bounds.reference[name]
        compared = (compare(got, reference, bound) for bound in bounds.error_bounds(name))
        deviation = None
        for deviation in compared:
            if deviation is None:
                break
        if deviation is not None:
            found[name] = deviation
    return found


def compare(got: torch.Tensor, reference: torch.Tensor, bound: ErrorBound) -> Deviation | None:
    """The deviation of `got` from the float64 reference, if beyond the error bound.

    NaN equals only NaN. An infinity equals the same one, and values beyond the range of `got`'s
    dtype.
    """
    if got.numel() == 0:
        return None
    error = (got.double() - reference).abs_()
    regions = bound.regions
    root = regions.rms(error)
    if bool(_within(error, root, bound)):
        return None
    # The slow path: above, -inf minus -inf is NaN, which propagates to the mean of its region.
    error, got = _error(got, reference), comparable(got)
    finite = error.isfinite()
    root = regions.rms(torch.where(finite, error, 0.0))
    if bool(_within(error, root, bound)):
        return None
    wrong = error > bound.element
    if bool(wrong.any()):
        ratio = _ratio(error, bound.element)
        largest, worst = float(ratio.max()), int(ratio.argmax())
        # A region still beyond its bound without these elements is wrong as a whole.
        root = regions.rms(torch.where(finite & ~wrong, error, 0.0))
        wrong = wrong | (_region_ratio(error, root, bound) > _PART)
        return Deviation(reference, got, wrong, largest, worst, "element")
    ratio = _region_ratio(error, root, bound)
    whole = float(_ratio(regions.rms_of_all(root), bound.whole))
    widest = max(float(_ratio(root, bound.region).max()), whole)
    note = "every element is within its error bound; the root mean square of a region is not"
    return Deviation(reference, got, ratio > _PART, widest, int(ratio.argmax()), "rms", note)


def _difference(left: torch.Tensor, right: torch.Tensor, limit: torch.Tensor) -> Deviation | None:
    """The deviation of `left` from `right`, if any element differs by more than |limit|.

    NaN equals NaN, and an infinity equals the same one.
    """
    if left.numel() == 0 or _agree(left, right, limit):
        return None
    limit = limit.abs()
    expected = right.double()
    error, left = _error(left, expected), comparable(left)
    wrong = error > limit
    if not bool(wrong.any()):
        return None
    ratio = torch.where(wrong, _ratio(error, limit), 0.0)
    return Deviation(expected, left, wrong, float(ratio.max()), int(ratio.argmax()), "element")


def beyond_limits(
    got: torch.Tensor, expected: torch.Tensor, limits: Iterable[torch.Tensor]
) -> Deviation | None:
    """The deviation of `got` from `expected` if beyond each of the limits, cheaper ones first."""
    deviation = None
    for limit in limits:
        deviation = _difference(got, expected, limit)
        if deviation is None:
            break
    return deviation


def _agree(left: torch.Tensor, right: torch.Tensor, limit: torch.Tensor) -> bool:
    """Whether all differences are finite and within |limit|; in chunks on a CPU."""
    if left.device.type != "cpu":
        return bool(((left.double() - right).abs_() <= limit.abs()).all())
    while left.ndim > 1 and len(left) == 1:
        left, right, limit = left[0], right[0], limit[0]
    if left.ndim == 0:
        left, right, limit = left[None], right[None], limit[None]
    rows = max(1, CHUNK * len(left) // left.numel())
    parts = (tensor.split(rows) for tensor in (left, right, limit))  # type: ignore[no-untyped-call]
    return all(
        bool(((one.double() - other).abs_() <= most.abs()).all())
        for one, other, most in zip(*parts, strict=True)
    )


def _within(error: torch.Tensor, root: torch.Tensor, bound: ErrorBound) -> torch.Tensor:
    whole = bound.regions.rms_of_all(root)
    return (error <= bound.element).all() & (root <= bound.region).all() & (whole <= bound.whole)


def _region_ratio(error: torch.Tensor, root: torch.Tensor, bound: ErrorBound) -> torch.Tensor:
    """Each element's error / bound of its region, if that region is beyond its bound, else 0.

    If only the whole tensor is beyond its bound: each element's error / that bound.
    """
    regions = bound.regions
    failing = root > bound.region
    if bool(failing.any()) or bool(regions.rms_of_all(root) <= bound.whole):
        return _ratio(error, regions.spread(bound.region)) * regions.spread(failing)
    return _ratio(error, bound.whole)


def _error(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """|got - expected|: 0 for two NaN or equal infinities, infinite if only one is finite.

    An expected value beyond the range of `got`'s dtype counts as the infinity that it rounds to.
    """
    rounded, got = comparable(expected.to(got.dtype)), comparable(got)
    same = (got == expected) | (got == rounded) | (got.isnan() & expected.isnan())
    error = torch.where(same, 0.0, (got.double() - expected).abs_())
    return torch.where(error.isnan(), torch.inf, error)


def _ratio(error: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """The quotient error / limit, where 0 / 0 is 0."""
    return torch.where(error > 0, error / limit, 0.0)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
