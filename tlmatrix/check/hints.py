"""Hints: causes of wrong elements, one sentence each.

Each hint is a function from the evidence to a text or None; the first text is used. It says no more
than the numbers show: of a cause, it needs numbers that no other known cause gives. A factor must
explain the elements better than an offset does. Which rows are wrong is no evidence of a mask, a
bound or exchanged heads: `tlmatrix.run.origin` finds the inputs on which these depend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.memory import poison_mask
from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tlmatrix.check.numeric import Deviation
    from tlmatrix.check.patterns import Pattern
    from tlmatrix.problem.model import Dim, OtherOption, Problem, Tensors

_ENOUGH = 0.8
"""Fraction that counts as all rows wrong: a few may be right by chance."""

_SAME = 2e-3
"""Largest square of the relative difference of equal values, rounded to as little as 8 bits."""

_FACTORS = (
    (math.log2(math.e), "log2 instead of ln?"),
    (math.log(2), "ln instead of log2?"),
    (-1.0, "wrong sign?"),
)

_FEW = 8
"""Rows or elements of which a factor may fit all by chance."""

ALL_ZERO = "every wrong element is 0"
SOME_NAN = "NaN although no input has any"
FACTOR = "a uniform factor"
"""Begins the hint that wrong elements are multiples of those expected."""

_NEARLY_ALL = 0.95
"""Fraction of the wrong elements that a cause must explain."""

_SINGLED_OUT = 0.3
"""Most of the error of another explanation that the one that a hint gives may leave."""


@dataclass(frozen=True)
class Evidence:
    """The facts about a wrong tensor that hints use.

    `dims` describe the compared tensor; `reference` has the float64 values of all tensors.
    """

    name: str
    dims: Sequence[Dim]
    deviation: Deviation
    pattern: Pattern
    problem: Problem
    reference: Tensors
    alone: bool = True
    """Whether a run is compared with the reference. In a comparison of two runs the first was
    right, so wrong bounds and masks explain nothing."""
    rounded_operands: Callable[[], str | None] = lambda: None
    """Returns the dtype of operands, as a spec writes it, whose rounding explains the deviation."""
    rounded_values: Callable[[], tuple[str, str] | None] = lambda: None
    """Returns the dtype of values whose rounding explains the deviation, and an input of it."""
    other_options: Callable[[], tuple[Sequence[OtherOption], bool]] = lambda: ((), True)
    """Returns other values of options that explain the deviation, and whether in all elements."""

    limit: Callable[[], torch.Tensor | None] = lambda: None
    """Returns the error bound of each element, of the tensor's shape; None if it has none."""

    @property
    def special(self) -> bool:
        """Whether the inputs have special values, of which other results may be multiples."""
        return self.problem.distribution not in ("", "normal")

    @property
    def rows(self) -> int:
        """The number of rows, along the last dimension, with a wrong element."""
        wrong = self.deviation.wrong
        columns = wrong.ndim > 1 and self.pattern.projections[-1].noun != "row"
        return int((wrong.any(-1) if columns else wrong).sum())

    def explained(self, expected: torch.Tensor, size: float = 1.0) -> bool:
        """Whether nearly all wrong elements are `expected`, but for errors of `size` times bounds.

        True if there are no bounds.
        """
        limit, wrong = self.limit(), self.deviation.wrong
        if limit is None:
            return True
        got = self.deviation.got[wrong].double()
        rounding = 4 * _roundoff(self.deviation.got.dtype) * got.abs()
        within = (got - expected[wrong]).abs() <= 2 * max(size, 1.0) * limit[wrong] + rounding
        return float(within.double().mean()) >= _NEARLY_ALL

    @cached_property
    def wrong_values(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(expected, got) at the wrong elements, float64."""
        wrong = self.deviation.wrong
        return self.deviation.expected[wrong], self.deviation.got[wrong].double()


def hint(evidence: Evidence) -> str | None:
    """The first hint that the evidence supports."""
    hints = (ask for ask, of_two_runs in _HINTS if evidence.alone or of_two_runs)
    return next((words for ask in hints if (words := ask(evidence))), None)


def _never_written(evidence: Evidence) -> str | None:
    mask = poison_mask(evidence.deviation.got)
    if mask is None or not bool((mask & evidence.deviation.wrong).any()):
        return None
    count = int((mask & evidence.deviation.wrong).sum())
    return f"never written: {count} elements still hold the poison of fresh memory"


def _rounded_operands(evidence: Evidence) -> str | None:
    dtype = evidence.rounded_operands()
    if dtype is None:
        return None
    return (
        f"within what rounding the operands of products to {dtype} does, as for tensor cores; if "
        f"that is intended, write `reference: {{function: …, operands: {dtype}}}`"
    )


def _rounded_values(evidence: Evidence) -> str | None:
    found = evidence.rounded_values()
    if found is None:
        return None
    dtype, given = found
    return (
        f"within what rounding a value to {dtype} on the way does; if the kernel is meant to, "
        f"round that value in the reference: `value.to({given}.dtype).to(value.dtype)`"
    )


def _all_zero(evidence: Evidence) -> str | None:
    expected, got = evidence.wrong_values
    if bool((got == 0).all()) and bool((expected != 0).any()) and got.numel() > 1:
        return ALL_ZERO
    return None


def _other_option(evidence: Evidence) -> str | None:
    """An option that the code takes another value of."""
    found, everywhere = evidence.other_options()
    names = {other.option for other in found}
    if len(names) != 1:
        return None  # several options have the same effect here
    option, own = found[0].option, found[0].own
    values = " or ".join(label(other.value) for other in found[:3])
    instead = "" if own is None and option not in evidence.problem.values else f", not {label(own)}"
    where = "" if everywhere else "in the wrong elements "
    return f"{where}the results are those of {option}={values}{instead}"


def _no_visible_key(evidence: Evidence) -> str | None:
    lse = evidence.reference.get("lse")
    if evidence.name not in ("out", "lse", "dq"):
        return None  # rows of keys
    if lse is None or not bool(lse.isneginf().any()):
        return None
    expected, got = evidence.wrong_values
    empty = expected.isneginf() if evidence.name == "lse" else expected == 0
    # dq of a row that sees one key is 0, too.
    if not bool(empty.all()) or not _of_empty_rows(evidence, lse):
        return None
    if evidence.name == "lse":
        return "rows with no visible key: their lse must be -inf"
    return "rows with no visible key must be 0" + (", not NaN" if bool(got.isnan().any()) else "")


def _of_empty_rows(evidence: Evidence, lse: torch.Tensor) -> bool:
    """Whether the lse of each wrong element's row is -inf; dimensions have the same names."""
    info = evidence.problem.outputs.get("lse")
    names = [dim.name for dim in evidence.dims]
    own = [dim.name for dim in info.dims] if info is not None else []
    if not own or not set(own) <= set(names) or len(set(own)) != len(own):
        return False
    ordered = sorted(range(len(own)), key=lambda axis: names.index(own[axis]))
    empty = lse.isneginf().permute(ordered)
    for axis, name in enumerate(names):
        if name not in own:
            empty = empty.unsqueeze(axis)
    wrong = evidence.deviation.wrong
    return bool(empty.expand(wrong.shape)[wrong].all())


def _of_another_rank(evidence: Evidence) -> str | None:
    """Ranks that return the shard of another rank."""
    for axis, side in enumerate(evidence.pattern.projections):
        if not side.whole_ranks:
            continue
        owner = torch.tensor(side.dim.owner, device=evidence.deviation.got.device)

        def rows(
            tensor: torch.Tensor, rank: int, owner: torch.Tensor = owner, axis: int = axis
        ) -> torch.Tensor:
            return tensor.movedim(axis, 0)[owner == rank].double()

        found = {}
        for rank in side.ranks:
            got = rows(evidence.deviation.got, rank)
            if _equal(got, rows(evidence.deviation.expected, rank)):
                break
            others = sorted(set(side.dim.owner or ()) - {rank})
            same = [
                other for other in others if _equal(got, rows(evidence.deviation.expected, other))
            ]
            if len(same) == 1:
                found[rank] = same[0]
        if len(found) == len(side.ranks):
            pairs = ", ".join(f"rank {r} has the shard of rank {o}" for r, o in found.items())
            return f"{pairs}: the offset of another rank?"
    return None


def _equal(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two tensors have the same values, not all 0, but for rounding."""
    got = got.double()  # PyTorch tests no float8
    if got.shape != expected.shape or not bool(got.isfinite().all() & expected.isfinite().all()):
        return False
    size = expected.double().square().sum()
    return bool(size > 0) and bool((got - expected).square().sum() <= _SAME * size)


def _uniform_factor(evidence: Evidence) -> str | None:
    expected, got = evidence.wrong_values
    if expected.numel() < 2 or not bool((expected != 0).any()):
        return None
    if not bool((got.isfinite() & expected.isfinite()).all()):
        return None
    factor = float((got * expected).sum() / expected.square().sum())
    error, left = got - expected, got - factor * expected
    if factor == 0 or abs(factor - 1) <= 2 * _roundoff(evidence.deviation.got.dtype):
        return None
    if not evidence.explained(factor * evidence.deviation.expected, abs(factor)):
        return None
    why = cause_of_factor(factor, evidence.problem)
    # One row of attention has one weight, and special values have special sums.
    if not why and (evidence.special or evidence.rows < _FEW or expected.numel() < _FEW):
        return None
    # Alike values, such as those of lse, fit an offset as well.
    shifted = float(torch.linalg.vector_norm(error - error.mean()))
    few = expected.numel() < _FEW
    if not few and float(torch.linalg.vector_norm(left)) > _SINGLED_OUT * shifted:
        return None
    # A factor near 0 leaves an error of the size of `got`.
    smaller = min(float(torch.linalg.vector_norm(each)) for each in (error, got))
    if float(torch.linalg.vector_norm(left)) > 0.35 * smaller:
        return None
    # A few large elements dominate the norms, so most elements must match as well.
    if float((left.abs() <= 0.5 * error.abs()).double().mean()) < _ENOUGH:
        return None
    # Seventeen digits distinguish any two numbers.
    texts = (f"{factor:.{digits}g}" for digits in range(4, 18))
    shown = next((text for text in texts if float(text) != 1), None)
    return shown and f"{FACTOR}: got is {shown} times expected{why}"


def _roundoff(dtype: torch.dtype) -> float:
    """The distance of 1 to the next number of a dtype; 0 for integers."""
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def cause_of_factor(factor: float, problem: Problem) -> str:
    """`: that is the scale`, of a number of the problem that gives the factor; empty if none."""
    known = [*_FACTORS, *_factors_of(problem)]
    causes = [words for value, words in known if abs(factor / value - 1) < 2e-3]
    return f": {causes[0]}" if len(causes) == 1 else ""


def _factors_of(problem: Problem) -> Iterator[tuple[float, str]]:
    """Factors that a number of the problem gives if it is applied too often or not at all."""
    value, width = problem.names.get("scale"), problem.names.get("head_dim")
    if value is None and isinstance(width, int) and width > 0:
        value = width**-0.5  # the default
    if isinstance(value, int | float) and value not in (0, 1):
        yield float(value), "that is the scale"
        yield 1 / float(value), "that is 1 / scale"
    if isinstance(value, int | float) and value and isinstance(width, int) and width > 0:
        default = width**-0.5
        if abs(value / default - 1) > _SAME:
            yield default / float(value), "that is the default scale / scale"


def _some_nan(evidence: Evidence) -> str | None:
    _, got = evidence.wrong_values
    given = (each for each in evidence.problem.inputs.values() if each.is_floating_point())
    if not bool(got.isnan().any()) or any(bool(each.isnan().any()) for each in given):
        return None
    return SOME_NAN


_HINTS: tuple[tuple[Callable[[Evidence], str | None], bool], ...] = (
    (_never_written, True),
    (_rounded_operands, False),
    (_other_option, False),
    (_no_visible_key, False),
    (_of_another_rank, True),
    (_uniform_factor, True),
    (_all_zero, False),
    (_some_nan, True),
    (_rounded_values, False),
)
"""Hints in their order, and whether they explain the difference of two runs of a case, too: bounds
and masks do not change between them."""
