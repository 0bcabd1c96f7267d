"""Results that are truncated, or rounded away from zero, instead of to the nearest value.

Each error is at most one step of the dtype, which bounds of 16 bits and a `floor: 1` of integers
accept. But rounding to nearest errs by more than half a step only where arithmetic moved the value
before, and then in both directions. With errors in steps of the dtype, a result is rounded in one
direction (toward zero, or away from it) if

    at least 1/4 of the elements err by more than 0.55 steps in that direction, and

    no element errs by more than 1.05 steps, or by more than 0.05 in the other direction,

for elements with small and with large significands, in two binades; of integers, for those of both
signs. Elements may share errors (a factor or an offset that a kernel rounds to 16 bits moves all of
them), so only this pattern counts, and no mean: a shared factor moves elements with a large
significand up to twice as far as others, and an offset those of another binade, or sign. A factor
of few bits hardly moves small integers: those from 1 to 16 are tested.

At most 4096 elements of a result are tested, evenly spaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.numeric import Deviation

if TYPE_CHECKING:
    from tlmatrix.check.tolerance import ReferenceBounds
    from tlmatrix.problem.model import TensorInfo, Tensors

_SAMPLES = 4096
_FEWEST = 16
"""The least number of elements in each of the classes that must all be rounded in one direction."""
_SHARE = 0.25
_HALF, _SLACK = 0.55, 0.05
_LARGEST = 16
_MEAN = 0.125
"""The accepted mean of errors in steps, for the error ratio: as in `tlmatrix.check.bias`."""
_BITS = {torch.float16: (11, -24), torch.bfloat16: (8, -133)}
"""Bits of the significand, and the exponent of the smallest subnormal."""


def one_sided(results: Tensors, bounds: ReferenceBounds) -> dict[str, Deviation]:
    """The results that are rounded in one direction, of those within their error bounds, by name.

    Of signed integers with a floor of at least 1, and of tensors of 16 bits.
    """
    found = {}
    for name, got in results.items():
        info = bounds.problem.outputs[name]
        if got.numel() < 2 * _FEWEST or not _applies(info, bounds.tolerance_of(name).floor):
            continue
        deviation = _deviation(info, got.detach(), bounds.reference[name])
        if deviation is not None:
            found[name] = deviation
    return found


def _applies(info: TensorInfo, floor: float | str) -> bool:
    if info.dtype in _BITS:
        # Hardware that sums in less than float32 truncates.
        return info.arithmetic is None
    integer = not info.dtype.is_floating_point and info.dtype.is_signed
    return integer and not isinstance(floor, str) and floor >= 1


@dataclass(frozen=True)
class _Errors:
    """Errors of elements in steps of the dtype, outward (away from zero), and classes of elements.

    Each class is a mask; if an element is in none, it is not tested.
    """

    outward: torch.Tensor
    classes: tuple[torch.Tensor, ...]


def _deviation(info: TensorInfo, got: torch.Tensor, reference: torch.Tensor) -> Deviation | None:
    stride = -(-got.numel() // _SAMPLES)
    some, exact = got.flatten()[::stride], reference.flatten()[::stride]
    if int((_outward(info, some, exact).abs_() > _HALF).sum()) < _SHARE * 2 * _FEWEST:
        return None
    if info.dtype in _BITS:
        # Equal values have equal errors, and count once.
        exact, order = exact.sort()
        distinct = torch.ones_like(exact, dtype=torch.bool)
        distinct[1:] = exact.diff() != 0
        some, exact = some[order][distinct], exact[distinct]
    errors = _errors(info, some, exact)
    for direction, sign in (("toward zero", -1), ("away from zero", 1)):
        outward = sign * errors.outward
        far = outward > _HALF
        within = (outward >= -_SLACK) & (outward <= 1 + _SLACK)
        if all(_all_rounded(far, within, each) for each in errors.classes):
            tested = torch.stack(errors.classes).any(0)
            return _described(info, got, reference, direction, float(far[tested].double().mean()))
    return None


def _all_rounded(far: torch.Tensor, within: torch.Tensor, where: torch.Tensor) -> bool:
    """Whether the elements of a class are enough, and rounded in the direction of `far`."""
    count = int(where.sum())
    enough = count >= _FEWEST and int(far[where].sum()) >= _SHARE * count
    return enough and bool(within[where].all())


def _outward(info: TensorInfo, got: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The errors in steps of the dtype; positive if away from zero."""
    outward = (got.double() - reference).mul_(reference.sign())
    if info.dtype not in _BITS:
        return outward
    bits, lowest = _BITS[info.dtype]
    exponent = torch.frexp(reference).exponent
    return outward.ldexp_((bits - exponent).clamp_max_(-lowest))


def _errors(info: TensorInfo, got: torch.Tensor, reference: torch.Tensor) -> _Errors:
    outward, size = _outward(info, got, reference), reference.abs()
    if info.dtype not in _BITS:
        tested = (size >= 1) & (size <= _LARGEST)
        return _Errors(outward, (tested & (reference > 0), tested & (reference < 0)))
    significand, exponent = torch.frexp(size)
    tested = outward.isfinite() & (size > 0)
    large = significand > 0.5**0.5
    # The two binades with the most elements.
    values, counts = torch.unique(exponent[tested], return_counts=True)
    common = [exponent == values[at] for at in counts.argsort(descending=True)[:2]]
    common += [torch.zeros_like(tested)] * (2 - len(common))
    return _Errors(outward, (tested & large, tested & ~large, *(tested & each for each in common)))


def _described(
    info: TensorInfo, got: torch.Tensor, reference: torch.Tensor, direction: str, share: float
) -> Deviation:
    size = _outward(info, got, reference).abs_().nan_to_num_(0.0)
    mean = float(size.mean())
    amount = "more than half a step" if info.dtype in _BITS else "one"
    return Deviation(
        reference,
        got,
        size > _HALF,
        mean / _MEAN,
        int(size.argmax()),
        "mean",
        f"every element is within its error bound; {share:.0%} are rounded {direction} by "
        f"{amount}, and none the other way, where rounding to nearest errs by at most half a step, "
        "both ways: truncation?",
    )
