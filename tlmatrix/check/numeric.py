"""Compare a result with its float64 reference: outputs and gradients alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from tlmatrix.check.excerpt import excerpt
from tlmatrix.check.survey import PIECE
from tlmatrix.check.tolerance import limits

if TYPE_CHECKING:
    from tlmatrix.check.tolerance import Doubt, Limits, Yardstick
    from tlmatrix.problem.model import TensorInfo, Tensors

__all__ = ["Deviation", "compare", "describe_mismatch", "deviations", "difference"]


_PART = 0.25
"""Of a region that is off as a whole, elements off by more than this part of its limit count as
wrong: a uniform error is there in small elements too, where it is small."""


@dataclass(frozen=True)
class Deviation:
    """A result outside its limits.

    `wrong` marks the elements that are outside and `ratio` is the worst error as a multiple of
    what is allowed, of the distance that `distance` names (infinite where nothing is allowed, or
    where a value that must be finite is not). `worst` is the flat index of the worst element.
    """

    expected: torch.Tensor = field(repr=False)
    got: torch.Tensor = field(repr=False)
    wrong: torch.Tensor = field(repr=False)
    ratio: float
    worst: int
    distance: Literal["element", "rms"]


def describe_mismatch(name: str, info: TensorInfo, got: torch.Tensor | None) -> str | None:
    """Why `got` cannot be compared at all: missing, or another shape or dtype; None if it can."""
    if got is None:
        return f"{name} is missing from what the entry returned"
    if tuple(got.shape) != info.shape:
        words = ", ".join(f"{dim.name} {dim.size}" for dim in info.dims)
        return f"{name} has shape {list(got.shape)}, expected {list(info.shape)} ({words})"
    if got.dtype != info.dtype:
        return f"{name} is {_dtype(got.dtype)}, expected {_dtype(info.dtype)}"
    return None


def deviations(results: Tensors, yardstick: Yardstick) -> dict[str, Deviation]:
    """What `compare` says of outputs and gradients, of those outside their limits."""
    found = {}
    doubts = yardstick.doubts(results)
    for name, got in results.items():
        if name in doubts and not _dispelled(name, got, doubts[name], yardstick):
            deviation = compare(got, yardstick.reference[name], yardstick.limits(name))
            if deviation is not None:
                found[name] = deviation
    return found


def _dispelled(name: str, got: torch.Tensor, doubt: Doubt, yardstick: Yardstick) -> bool:
    """Whether the regions in doubt are within their limits after all, where that is soon said."""
    info = yardstick.problem.outputs[name]
    if doubt.whole or doubt.regions is None or info.magnitude is None:
        return False
    part = excerpt(info, yardstick.regions(name), doubt.regions)
    if 2 * math.prod(part.shape) > got.numel():
        return False
    reference, low = part.of(yardstick.reference[name]), part.of(yardstick.lowp[name])
    allowed = limits(part.info, reference, low, yardstick.allowance(name))
    return compare(part.of(got), reference, allowed) is None


def compare(got: torch.Tensor, reference: torch.Tensor, limits: Limits) -> Deviation | None:
    """Where `got` is outside the limits around the float64 reference; None where nowhere.

    NaN passes only where the reference is NaN, an infinity only where the reference is the same
    one or lies outside the range of `got`'s dtype.
    """
    if got.numel() == 0:
        return None
    error = (got.double() - reference).abs_()
    regions = limits.regions
    root = regions.rms(error)
    if bool(_within(error, root, limits)):
        return None
    # The long way: -inf minus -inf is NaN above, and a NaN spoils the mean of its region.
    error = _error(got, reference)
    finite = error.isfinite()
    root = regions.rms(torch.where(finite, error, 0.0))
    if bool(_within(error, root, limits)):
        return None
    wrong = error > limits.element
    if bool(wrong.any()):
        ratio = _ratio(error, limits.element)
        largest, worst = float(ratio.max()), int(ratio.argmax())
        # A region that is off without the elements above is off as a whole; of one that is off
        # because of them, the others are right.
        root = regions.rms(torch.where(finite & ~wrong, error, 0.0))
        wrong = wrong | (_beyond(error, root, limits) > _PART)
        return Deviation(reference, got, wrong, largest, worst, "element")
    ratio = _beyond(error, root, limits)
    whole = float(_ratio(regions.rms_of_all(root), limits.whole))
    widest = max(float(_ratio(root, limits.region).max()), whole)
    return Deviation(reference, got, ratio > _PART, widest, int(ratio.argmax()), "rms")


def difference(left: torch.Tensor, right: torch.Tensor, limit: torch.Tensor) -> Deviation | None:
    """Where two results that should agree differ by more than |limit|, element by element.

    The same NaN or infinity on both sides agrees.
    """
    if left.numel() == 0 or _agree(left, right, limit):
        return None
    limit = limit.abs()
    expected = right.double()
    error = _error(left, expected)
    wrong = error > limit
    if not bool(wrong.any()):
        return None
    ratio = torch.where(wrong, _ratio(error, limit), 0.0)
    return Deviation(expected, left, wrong, float(ratio.max()), int(ratio.argmax()), "element")


def _agree(left: torch.Tensor, right: torch.Tensor, limit: torch.Tensor) -> bool:
    """Whether all differences are numbers within |limit|; on a CPU in pieces, as a survey goes."""
    if left.device.type != "cpu":
        return bool(((left.double() - right).abs_() <= limit.abs()).all())
    while left.ndim > 1 and len(left) == 1:
        left, right, limit = left[0], right[0], limit[0]
    if left.ndim == 0:
        left, right, limit = left[None], right[None], limit[None]
    rows = max(1, PIECE * len(left) // left.numel())
    parts = (tensor.split(rows) for tensor in (left, right, limit))  # type: ignore[no-untyped-call]
    return all(
        bool(((one.double() - other).abs_() <= most.abs()).all())
        for one, other, most in zip(*parts, strict=True)
    )


def _within(error: torch.Tensor, root: torch.Tensor, limits: Limits) -> torch.Tensor:
    whole = limits.regions.rms_of_all(root)
    return (error <= limits.element).all() & (root <= limits.region).all() & (whole <= limits.whole)


def _beyond(error: torch.Tensor, root: torch.Tensor, limits: Limits) -> torch.Tensor:
    """Each element's error over the limit of its region, where the region is off, else 0.

    Where every region is within its limit and only the tensor is off, over that of the tensor.
    """
    regions = limits.regions
    failing = root > limits.region
    if bool(failing.any()) or bool(regions.rms_of_all(root) <= limits.whole):
        return _ratio(error, regions.spread(limits.region)) * regions.spread(failing)
    return _ratio(error, limits.whole)


def _error(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Distance |got - expected|: 0 for the same NaN or infinity, infinite if only one is finite.

    A value too large for `got`'s dtype is expected as what it rounds to, an infinity.
    """
    same = (got == expected) | (got == expected.to(got.dtype)) | (got.isnan() & expected.isnan())
    error = torch.where(same, 0.0, (got.double() - expected).abs_())
    return torch.where(error.isnan(), torch.inf, error)


def _ratio(error: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """The quotient error / limit, where 0 / 0 is 0."""
    return torch.where(error > 0, error / limit, 0.0)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
