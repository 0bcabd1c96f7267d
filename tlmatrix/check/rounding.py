"""Results that are not rounded to nearest, though each is within its error bound.

Systematic errors (`biases`) are means of signed errors that rounding to nearest does not have.
Rounding errors have no preferred sign. With N(0, 1) inputs those of different rows are independent,
so their sum stays near the root of the sum of their squares, while errors of one sign add up: a
store that truncates, a scale or a weight in few bits. Such an error is within the bound of every
element and of the root mean square of a region, and far beyond that of a mean.

A group of independent errors e, with r the reference and weights w, has a systematic error if both
hold:

    |sum w e| > 8 sqrt(sum (w e)**2)
    |sum w e| > max(u / 4 * sum |w r|, factor |sum w (lowp - r)|) + a sum |w| M
    w         = r / s**2 for errors in proportion to the result, 1 / s for an offset
    s**2      = the mean of r**2 + ((lowp - r) / u)**2 over the row, so that rows count alike

The first is improbable without one: a sum of n errors of random sign over the root of its squares
exceeds t with a probability of at most 2 exp(-t**2 / 2) (Hoeffding 1963), 3e-14 for 8, and never
if n is less than 65. Rows whose reference is equal (one query, or a softmax of equal scores, gives
all keys the same gradient of v) share their errors, and count as one. The second is the size that
counts; u, a, M, `lowp` and `factor` are those of `tlmatrix.check.tolerance`.

Errors that elements share (`shared`): a factor of a row that a kernel keeps in 16 bits moves all
elements of the row in proportion, by up to one unit roundoff, which the bounds accept. Let d be the
difference from the correctly rounded reference, which is 0 nearly everywhere if the kernel computes
in float32. The elements of the groups along an axis (rows, or the columns of each sequence) share
errors if both hold, over the G groups with such differences:

    sum z**2 > G + 2 sqrt(32 G) + 64,    z = sum sign(r d) / sqrt(number of d != 0)
    rms(x) > max(u / 8, factor * rms(x of lowp)),    x = (|sum r d| - a sum |r| M) / sum r**2

The first is improbable if the signs of d are random (e**-32; Hsu, Kakade and Zhang 2012), and never
holds with less than 77 differences. What the reference computes in 16 bits a kernel may compute so.
Elements with equal references count as one. Results to which matrix products contribute are not
tested: a rounded row of an operand moves a row of the product.

Truncated results (`one_sided`) are rounded toward zero, or away from it, instead of to the nearest
value.
Each error is at most one step of the dtype, which bounds of 16 bits and a `floor: 1` of integers
accept. But rounding to nearest errs by more than half a step only where arithmetic moved the value
before, and then in both directions. With errors in steps of the dtype, a result is rounded in one
direction (toward zero, or away from it) if

    at least 1/4 of the elements err by more than 0.55 steps in that direction, and

    no element errs by more than 1.05 steps, or by more than 0.05 in the other direction,

for elements with small and with large significands, in two binades; of integers, for those of both
signs, of unsigned ones for each quarter of the tensor. Elements may share errors (a factor or an
offset that a kernel rounds to 16 bits moves all of them), so only this pattern counts, and no mean:
a shared factor moves elements with a large significand up to twice as far as others, and an offset
those of another binade, or sign. A factor of few bits hardly moves small integers: those from 1 to
16 are tested, of unsigned ones up to 64, as fewer of them are small. A zero point in 16 bits moves
all codes of a group one way, and those of another group the other way.

At most 4096 elements of a result are tested, evenly spaced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.numeric import Deviation
from tlmatrix.check.tolerance import arithmetic_error
from tlmatrix.problem.tensors import on_cpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.check.tolerance import ReferenceBounds
    from tlmatrix.problem.model import Dim, Problem, TensorInfo, Tensors

_SIGMAS = 8.0
_ROUNDOFFS = 0.25
_FEWEST = 65
_EQUAL = 1e-9
"""The relative difference up to which references are equal: sums of float64 in another order."""


def biases(results: Tensors, bounds: ReferenceBounds) -> dict[str, Deviation]:
    """The systematic errors of outputs and gradients that are within their error bounds, by name.

    Of problems with N(0, 1) inputs, and tensors of 16 bits whose rounding errors are known to be
    independent (`TensorInfo.independent_errors`).
    """
    found = {}
    for name, got in results.items():
        info = bounds.problem.outputs[name]
        if _applies(info, bounds.problem) and bounds.tolerance_of(name).floor == "auto":
            deviation = _Bias(name, got, bounds).deviation()
            if deviation is not None:
                found[name] = deviation
    return found


def _applies(info: TensorInfo, problem: Problem) -> bool:
    shape = info.shape[:-1] if info.independent_errors == "rows" else info.shape
    return (
        info.independent_errors is not None
        and math.prod(shape) >= _FEWEST
        and problem.distribution == "normal"
        and info.dtype in (torch.float16, torch.bfloat16)
        # Hardware that sums in less than float32 truncates; a coarser roundoff is of operands.
        and info.arithmetic is None
        and info.roundoff == torch.finfo(info.dtype).eps / 2
    )


class _Bias:
    """The signed errors of one result, as [heads, rows, columns].

    The last dim of the tensor are the columns, dims with a region for each index are heads, and
    all others rows.
    """

    def __init__(self, name: str, got: torch.Tensor, bounds: ReferenceBounds) -> None:
        self._name, self._got, self._bounds = name, got, bounds
        self._info, self._reference = bounds.problem.outputs[name], bounds.reference[name]
        dims = self._info.dims
        axes = range(len(dims) - 1)
        heads = [axis for axis in axes if dims[axis].region == range(dims[axis].size)]
        self._order = [*heads, *(axis for axis in axes if axis not in heads), len(axes)]
        self._heads = len(heads)
        self._expected = self._arranged(self._reference)
        self._error = self._arranged(got.detach()) - self._expected
        low = self._arranged(bounds.lowp.get(name, self._reference))
        self._low = low - self._expected

    def deviation(self) -> Deviation | None:
        """The systematic error of the largest group that has one."""
        reference, low = (
            torch.linalg.vector_norm(each, dim=2, keepdim=True)
            for each in (self._expected, self._low)
        )
        size = torch.hypot(reference, low / self._info.roundoff) / self._error.shape[2] ** 0.5
        inverse = torch.where(size > 0, 1 / size, 0.0)
        weights = {
            "of the reference": self._expected * inverse.square(),
            "of the size of the reference, an offset": inverse,
        }
        # Both at once: few launches on a GPU, and one wait for it.
        values = torch.stack([self._error * weight for weight in weights.values()])
        large = [
            _is_no_chance(sums, squares).flatten(1).any(1) for sums, squares in self._sums(values)
        ]
        for (what, weight), suspected in zip(
            weights.items(), torch.stack(large).any(0).tolist(), strict=True
        ):
            deviation = self._mean(what, weight) if suspected else None
            if deviation is not None:
                return deviation
        return None

    def _mean(self, what: str, weight: torch.Tensor) -> Deviation | None:
        if not math.isfinite(float(self._error.sum())):
            return None  # infinities that the reference has too
        values = self._error * weight
        groups = list(self._sums(values))
        significant = [_is_no_chance(sums, squares) for sums, squares in groups]
        for squares_of in (self._squares_of_shared, self._squares_of_equal):
            # One wait for a GPU instead of three.
            if not bool(torch.cat([each.flatten() for each in significant]).any()):
                return None
            significant = [
                mask & _is_no_chance(sums, squares)
                for (sums, _), squares, mask in zip(
                    groups, squares_of(values), significant, strict=True
                )
            ]
        limits = self._limits(weight)
        for (sums, _), mask, (size, limit) in zip(groups, significant, limits, strict=True):
            ratio = torch.where(mask, sums.abs() / limit, 0.0)
            if bool((ratio > 1).any()):
                return self._described(what, ratio, sums / size)
        return None

    def _arranged(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.float16:
            tensor = tensor.float()  # PyTorch vectorizes this, but not float16 to float64
        moved = tensor.double().permute(self._order)
        return moved.reshape(moved.shape[: self._heads].numel(), -1, moved.shape[-1])

    def _sums(self, values: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The sum and the sum of squares of independent values: of all, heads, and columns.

        Of each of the last three dims, [..., heads, rows, columns].
        """
        rows = values if self._info.independent_errors == "elements" else values.sum(-1, True)
        sums, squares = rows.sum((-2, -1), True), rows.square().sum((-2, -1), True)
        yield sums.sum(-3, True), squares.sum(-3, True)
        yield sums, squares
        yield values.sum(-2, True), values.square().sum(-2, True)

    def _squares_of_shared(self, values: torch.Tensor) -> Iterator[torch.Tensor]:
        """The sums of squares as by `_sums`, where several rows of a region share one error.

        A sum of n errors that r rows each share has r times the squares of n r independent ones.
        """
        if self._info.independent is None:
            yield from (squares for _, squares in self._sums(values))
            return
        regions = self._bounds.regions(self._name)
        rows = regions.rows(torch.ones_like(self._reference))
        errors = regions.largest(self._info.independent().double().expand(self._reference.shape))
        sharing = regions.spread(rows / torch.minimum(rows, errors).clamp_min(1))
        sharing = self._arranged(sharing.expand(self._reference.shape))
        yield from (squares for _, squares in self._sums(values * sharing.sqrt()))

    def _squares_of_equal(self, values: torch.Tensor) -> Iterator[torch.Tensor]:
        """The sums of squares as by `_sums`, with values of equal references added up before."""
        if self._info.independent_errors == "elements":
            rows, keys = values.flatten(1).unsqueeze(2), self._expected.flatten(1).unsqueeze(2)
        else:
            rows, keys = values.sum(2, True), self._expected.sum(2, True)
        yield _clustered_squares(rows.reshape(1, -1, 1), keys.reshape(1, -1, 1))
        yield _clustered_squares(rows, keys)
        yield _clustered_squares(values, self._expected)

    def _limits(self, weight: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The size that the sum of a group is compared with, and the largest accepted sum."""
        arithmetic = self._arranged(arithmetic_error(self._info, self._reference))
        factor = self._bounds.tolerance_of(self._name).factor
        for (lows, _), (room, _), (size, _) in zip(
            self._sums(self._low * weight),
            self._sums(arithmetic * weight.abs()),
            self._sums((self._expected * weight).abs()),
            strict=True,
        ):
            rounding = size * (_ROUNDOFFS * self._info.roundoff)
            yield size, torch.maximum(rounding, factor * lows.abs()) + room

    def _described(self, what: str, ratio: torch.Tensor, relative: torch.Tensor) -> Deviation:
        worst = int(ratio.argmax())
        mean = float(relative.flatten()[worst])
        wrong = (ratio > 1).expand(self._error.shape)
        size = torch.where(wrong, self._error.abs(), -1.0)
        shape = [self._info.shape[axis] for axis in self._order]
        inverse = [self._order.index(axis) for axis in range(len(shape))]
        wrong, size = (each.reshape(shape).permute(inverse) for each in (wrong, size))
        return Deviation(
            self._reference,
            self._got,
            wrong.contiguous(),
            float(ratio.max()),
            int(size.contiguous().argmax()),
            "mean",
            f"every element is within its error bound; on average the errors are {mean:+.2g} "
            f"{what}, {abs(mean) / self._info.roundoff:.2g} times the unit roundoff, where "
            "rounding to nearest has no preferred sign: truncation, or a factor in few bits?",
        )


def _is_no_chance(sums: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Whether sums of errors are larger than by random signs, given the sums of their squares."""
    return sums.abs() > _SIGMAS * squares.sqrt()


def _clustered_squares(values: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The sum of squares [a, 1, c] over dim 1 of sums of the values [a, b, c] with equal keys."""
    keys, order = keys.sort(1)
    first = torch.ones_like(keys, dtype=torch.bool)
    first[:, 1:] = keys.diff(dim=1) > _EQUAL * keys[:, 1:].abs()
    sums = torch.zeros_like(values).scatter_add_(1, first.cumsum(1) - 1, values.gather(1, order))
    return sums.square_().sum(1, True)


# Errors that elements share ----------------------------------------------------------------------

_GROUP = 8
"""The fewest elements of a group."""
_SHARED = 0.125
"""The accepted root mean square of shared errors, in unit roundoffs."""
_EXPONENT = 32.0
"""The negative logarithm of the probability of sums by chance."""
_FEWEST_MOVED = 77


def shared(results: Tensors, bounds: ReferenceBounds) -> dict[str, Deviation]:
    """The results with groups that share an error, of those within their error bounds, by name.

    Of tensors of 16 bits, of problems that do not know which of their errors are independent.
    """
    found = {}
    for name, got in results.items():
        info = bounds.problem.outputs[name]
        if (
            info.dtype in _BITS
            and info.independent_errors is None
            and info.arithmetic is None
            and info.roundoff == torch.finfo(info.dtype).eps / 2
            and bounds.tolerance_of(name).floor == "auto"
            and got.numel() >= _FEWEST_MOVED
        ):
            deviation = _shared_error(name, got.detach(), bounds)
            if deviation is not None:
                found[name] = deviation
    return found


def _shared_error(name: str, got: torch.Tensor, bounds: ReferenceBounds) -> Deviation | None:
    info, reference = bounds.problem.outputs[name], bounds.reference[name]
    nearest = reference.to(info.dtype).double()
    moved = (got.double() - nearest).nan_to_num_(0.0, 0.0, 0.0)
    if int(moved.count_nonzero()) < _FEWEST_MOVED or not _is_elementwise(info):
        return None
    low = (bounds.lowp.get(name, nearest).double() - nearest).nan_to_num_(0.0, 0.0, 0.0)
    exact = reference.nan_to_num(0.0, 0.0, 0.0)
    room = arithmetic_error(info, exact) * exact.abs()
    factor = bounds.tolerance_of(name).factor
    for axis, dim in enumerate(info.dims):
        groups = _Groups.of(axis, dim, reference.device)
        sizes = groups.sum(exact.square())
        tested = (groups.sum(torch.ones_like(exact)) >= _GROUP) & (sizes > 0)
        signs = torch.sign(exact * moved)
        squares = groups.squares(signs, exact)
        scores = torch.where(tested & (squares > 0), groups.sum(signs).square() / squares, 0.0)
        count = int((scores > 0).sum())
        chance = count + 2 * (_EXPONENT * count) ** 0.5 + 2 * _EXPONENT
        if float(scores.sum()) <= chance:
            continue
        moves = groups.sum(exact * moved).abs_() - groups.sum(room)
        parts = moves.clamp_min_(0.0), groups.sum(exact * low)
        error, of_lowp = (float((each / sizes)[tested].square().mean().sqrt()) for each in parts)
        ratio = error / max(_SHARED * info.roundoff, factor * of_lowp)
        if ratio > 1:
            wrong = groups.spread(scores > 1) & (moved != 0)
            return _described_share(name, got, bounds, wrong, ratio, error / info.roundoff, axis)
    return None


def _is_elementwise(info: TensorInfo) -> bool:
    """Whether no matrix products contribute to a result."""
    return info.carried is None or not bool(info.carried().any())


@dataclass(frozen=True)
class _Groups:
    """The groups of elements along one axis: all of it, or its regions."""

    axis: int
    index: torch.Tensor
    count: int

    @classmethod
    def of(cls, axis: int, dim: Dim, device: torch.device) -> _Groups:
        """The groups along a dimension."""
        if dim.region is None:
            return cls(axis, torch.zeros(dim.size, dtype=torch.int64, device=device), 1)
        index = torch.tensor(list(dim.region), dtype=torch.int64, device=device)
        return cls(axis, index, int(index.max()) + 1 if dim.size else 1)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over each group."""
        shape = list(values.shape)
        shape[self.axis] = self.count
        return values.new_zeros(shape).index_add_(self.axis, self.index, values)

    def spread(self, per_group: torch.Tensor) -> torch.Tensor:
        """The value of the group of each element."""
        return per_group.index_select(self.axis, self.index)

    def squares(self, values: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """The sum of squares over each group, after values with equal keys are added up."""
        values, keys = (each.movedim(self.axis, 0) for each in (values, keys))
        found, others = [], values.shape[1:]
        for group in range(self.count):
            inside = self.index == group
            shape = (1, int(inside.sum()), others.numel())  # a sequence may be empty
            of_group = [each[inside].reshape(shape) for each in (values, keys)]
            found.append(_clustered_squares(*of_group).view(others))
        return torch.stack(found).movedim(0, self.axis)


def _described_share(
    name: str,
    got: torch.Tensor,
    bounds: ReferenceBounds,
    wrong: torch.Tensor,
    ratio: float,
    units: float,
    axis: int,
) -> Deviation:
    info, reference = bounds.problem.outputs[name], bounds.reference[name]
    size = torch.where(wrong, (got.double() - reference).abs_().nan_to_num_(0.0), -1.0)
    return Deviation(
        reference,
        got,
        wrong,
        ratio,
        int(size.argmax()),
        "mean",
        f"every element is within its error bound; those along {info.dims[axis].name} share an "
        f"error in proportion to the reference, {units:.2g} times the unit roundoff, where "
        "a result that is rounded once has none: a factor kept in 16 bits, or of a sum that lacks "
        "a term? If the first is meant, the reference rounds it, too",
    )


# Truncated results -------------------------------------------------------------------------------

_SAMPLES = 4096
_FEWEST_OF_CLASS = 16
"""The least number of elements in each of the classes that must all be rounded in one direction."""
_SHARE = 0.25
_HALF, _SLACK = 0.55, 0.05
_LARGEST, _LARGEST_UNSIGNED = 16, 64
_MEAN = 0.125
"""The accepted mean of errors in steps, for the error ratio: as for `biases`."""
_BITS = {torch.float16: (11, -24), torch.bfloat16: (8, -133)}
"""Bits of the significand, and the exponent of the smallest subnormal."""


def one_sided(results: Tensors, bounds: ReferenceBounds) -> dict[str, Deviation]:
    """The results that are rounded in one direction, of those within their error bounds, by name.

    Of integers with a floor of at least 1, and of tensors of 16 bits.
    """
    tested = [
        (name, tensor.flatten()[:: -(-got.numel() // _SAMPLES)])
        for name, got in results.items()
        if got.numel() >= 2 * _FEWEST_OF_CLASS
        and _may_truncate(bounds.problem.outputs[name], bounds.tolerance_of(name).floor)
        for tensor in (got.detach(), bounds.reference[name])
    ]
    # So few elements take a CPU less time than launches take a GPU.
    samples = on_cpu([sample for _, sample in tested])
    found = {}
    for (name, _), got, exact in zip(tested[::2], samples[::2], samples[1::2], strict=True):
        info = bounds.problem.outputs[name]
        truncation = _truncation(info, got, exact)
        if truncation is not None:
            result, reference = results[name].detach(), bounds.reference[name]
            found[name] = _described_truncation(info, result, reference, *truncation)
    return found


def _may_truncate(info: TensorInfo, floor: float | str) -> bool:
    if info.dtype in _BITS:
        # Hardware that sums in less than float32 truncates.
        return info.arithmetic is None
    integer = not info.dtype.is_floating_point and info.dtype != torch.bool
    return integer and not isinstance(floor, str) and floor >= 1


@dataclass(frozen=True)
class _Errors:
    """Errors of elements in steps of the dtype, outward (away from zero), and classes of elements.

    Each class is a mask; if an element is in none, it is not tested.
    """

    outward: torch.Tensor
    classes: tuple[torch.Tensor, ...]


def _truncation(
    info: TensorInfo, some: torch.Tensor, exact: torch.Tensor
) -> tuple[str, float] | None:
    """The direction in which elements are rounded, and the share of those by more than half."""
    outward = _outward(info, some, exact)
    if int((outward.abs() > _HALF).sum()) < _SHARE * 2 * _FEWEST_OF_CLASS:
        return None
    if info.dtype in _BITS:
        tested = outward[outward.isfinite() & (exact != 0)]
        if len(tested) and float(tested.min()) < -_SLACK and float(tested.max()) > _SLACK:
            return None  # rounded both ways
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
            return direction, float(far[tested].double().mean())
    return None


def _all_rounded(far: torch.Tensor, within: torch.Tensor, where: torch.Tensor) -> bool:
    """Whether the elements of a class are enough, and rounded in the direction of `far`."""
    count = int(where.sum())
    enough = count >= _FEWEST_OF_CLASS and int(far[where].sum()) >= _SHARE * count
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
        if info.dtype.is_signed:
            tested = (size >= 1) & (size <= _LARGEST)
            return _Errors(outward, (tested & (reference > 0), tested & (reference < 0)))
        tested = (size >= 1) & (size <= _LARGEST_UNSIGNED)
        quarter = torch.arange(len(size), device=size.device) * 4 // len(size)
        return _Errors(outward, tuple(tested & (quarter == each) for each in range(4)))
    significand, exponent = torch.frexp(size)
    tested = outward.isfinite() & (size > 0)
    large = significand > 0.5**0.5
    # The two binades with the most elements.
    values, counts = torch.unique(exponent[tested], return_counts=True)
    common = [exponent == values[at] for at in counts.argsort(descending=True)[:2]]
    common += [torch.zeros_like(tested)] * (2 - len(common))
    return _Errors(outward, (tested & large, tested & ~large, *(tested & each for each in common)))


def _described_truncation(
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
