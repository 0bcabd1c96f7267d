"""Hints: causes of wrong elements, one sentence each.

Each hint is a function from the evidence to a text or None; the first text is used. It says no more
than the numbers show: if two causes give the same numbers, it names what they have in common.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.patterns import ranges
from tlmatrix.check.poison import poison_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tlmatrix.check.numeric import Deviation
    from tlmatrix.check.patterns import Pattern, Projection
    from tlmatrix.problem.model import Dim, Problem, Tensors

_MOST_PERMUTED = 64
_ENOUGH = 0.8
"""Fraction that counts as all rows wrong: a few may be right by chance."""

_SAME = 2e-3
"""Largest square of the relative difference of equal values, rounded to as little as 8 bits."""

_TILES = (8, 16, 32, 64, 128, 256)
"""Edges of tiles that are tried if the spec has none."""

_FACTORS = (
    (math.log2(math.e), "log2 instead of ln?"),
    (math.log(2), "ln instead of log2?"),
    (-1.0, "wrong sign?"),
    (2.0, "summed twice?"),
)


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

    @cached_property
    def wrong_values(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(expected, got) at the wrong elements, float64."""
        wrong = self.deviation.wrong
        return self.deviation.expected[wrong], self.deviation.got[wrong].double()

    @property
    def row_projection(self) -> Projection | None:
        """The dimension of query rows; None if the tensor has none."""
        if self.name not in ("out", "lse", "dq"):
            return None
        return next((side for side in self.pattern.projections if side.noun == "row"), None)

    def key_lengths(self, side: Projection) -> dict[int, int]:
        """Key length of each region of `side`; empty if the problem has no keys."""
        lengths = self.problem.names.get("seqlens_k")
        if lengths is None:
            return {}
        return {region: int(lengths[region]) for region in side.lengths if region < len(lengths)}


def hint(evidence: Evidence) -> str | None:
    """The first hint that the evidence supports."""
    hints = _HINTS if evidence.alone else tuple(ask for ask in _HINTS if ask not in _OF_ONE_RUN)
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
        return "every wrong element is 0"
    return None


def _no_visible_key(evidence: Evidence) -> str | None:
    lse = evidence.reference.get("lse")
    if lse is None or not bool(lse.isneginf().any()):
        return None
    expected, got = evidence.wrong_values
    empty = expected.isneginf() if evidence.name == "lse" else expected == 0
    if not bool(empty.all()):
        return None
    if evidence.name == "lse":
        return "rows with no visible key: their lse must be -inf"
    return "rows with no visible key must be 0" + (", not NaN" if bool(got.isnan().any()) else "")


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


def _permuted(evidence: Evidence) -> str | None:
    """Indices of a dimension (heads) that hold each other's values."""
    expected, got = evidence.deviation.expected, evidence.deviation.got
    for axis, side in enumerate(evidence.pattern.projections):
        dim = side.dim
        if dim.region is None or dim.starts is not None or not 1 < dim.size <= _MOST_PERMUTED:
            continue
        found = _matches(
            got.movedim(axis, 0).reshape(dim.size, -1),
            expected.movedim(axis, 0).reshape(dim.size, -1),
            [int(index) for index in side.indices],
        )
        if found:
            pairs = ", ".join(f"{at} holds {by}" for at, by in list(found.items())[:6])
            return f"{dim.name}s permuted? {pairs}"
    return None


def _matches(got: torch.Tensor, expected: torch.Tensor, wrong: list[int]) -> dict[int, int]:
    """The row of `expected` that each wrong row of `got` equals, if another one and only that."""
    rows, known = got[wrong].double(), expected.double()
    if not bool(rows.isfinite().all()):
        return {}
    known = torch.nan_to_num(known)
    size = known.square().sum(1)
    squared = rows.square().sum(1)[:, None] + size[None] - 2 * rows @ known.T
    same = (squared <= _SAME * size) & (size > 0)
    if not bool((same.sum(1) == 1).all()) or bool(same[range(len(wrong)), wrong].any()):
        return {}
    return dict(zip(wrong, same.int().argmax(1).tolist(), strict=True))


def _equal(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two tensors have the same values, not all 0, but for rounding."""
    got = got.double()  # PyTorch tests no float8
    if got.shape != expected.shape or not bool(got.isfinite().all() & expected.isfinite().all()):
        return False
    size = expected.double().square().sum()
    return bool(size > 0) and bool((got - expected).square().sum() <= _SAME * size)


def _transposed(evidence: Evidence) -> str | None:
    expected, got = evidence.deviation.expected, evidence.deviation.got
    if expected.ndim != 2 or expected.shape[0] != expected.shape[1] or expected.numel() < 4:
        return None
    same = _equal(got.T, expected) and not _equal(got, expected)
    return "transposed: the transpose matches" if same else None


def _uniform_factor(evidence: Evidence) -> str | None:
    expected, got = evidence.wrong_values
    if expected.numel() < 8 or not bool((expected != 0).any()):
        return None
    if not bool((got.isfinite() & expected.isfinite()).all()):
        return None
    factor = float((got * expected).sum() / expected.square().sum())
    error, left = got - expected, got - factor * expected
    # A factor near 0 leaves an error of the size of `got`.
    smaller = min(float(torch.linalg.vector_norm(each)) for each in (error, got))
    if float(torch.linalg.vector_norm(left)) > 0.35 * smaller:
        return None
    # A few large elements dominate the norms, so most elements must match as well.
    if float((left.abs() <= 0.5 * error.abs()).double().mean()) < _ENOUGH:
        return None
    known = [*_FACTORS, *_factors_of(evidence.problem)]
    causes = [words for value, words in known if abs(factor / value - 1) < 2e-3]
    why = f": {causes[0]}" if len(causes) == 1 else ""
    # Seventeen digits distinguish any two numbers.
    texts = (f"{factor:.{digits}g}" for digits in range(4, 18))
    shown = next((text for text in texts if float(text) != 1), None)
    return shown and f"a uniform factor: got is {shown} times expected{why}"


def _factors_of(problem: Problem) -> Iterator[tuple[float, str]]:
    """Factors that result if a number of the problem is applied twice or not at all."""
    for name in ("scale", "groups", "heads"):
        value = problem.names.get(name)
        if isinstance(value, int | float) and value not in (0, 1):
            yield float(value), f"{name} applied twice?"
            yield 1 / float(value), f"{name} not applied?"


def _constant_offset(evidence: Evidence) -> str | None:
    expected, got = evidence.wrong_values
    offset = (got - expected)[got.isfinite() & expected.isfinite()]
    if offset.numel() < 8:
        return None
    mean = float(offset.mean())
    if mean == 0 or float((offset - mean).abs().max()) > 0.02 * abs(mean):
        return None
    return f"a constant offset: got is expected {'+' if mean > 0 else '-'} {abs(mean):.4g}"


def _alignment(evidence: Evidence) -> str | None:
    side = evidence.row_projection
    if side is None or not evidence.problem.names.get("causal") or len(side.lengths) < 2:
        return None
    keys = evidence.key_lengths(side)
    unequal = {r for r, length in side.lengths.items() if length and keys.get(r) != length}
    equal = {r for r, length in side.lengths.items() if length > 1} - unequal
    if not equal or not unequal or set(side.regions) != unequal:
        return None
    for r in unequal:
        rows, length = set(side.regions[r]), side.lengths[r]
        # With fewer keys than queries, the last row attends to all keys in both alignments.
        last = length - 1 if keys.get(r, 0) < length else length
        if not _mostly(rows, last) or last in rows:
            return None
    words = ["top-left", "bottom-right"]
    if evidence.problem.names.get("alignment") == "top_left":
        words.reverse()
    return f"only sequences whose query and key lengths differ: {' instead of '.join(words)}?"


def _mask(evidence: Evidence) -> str | None:
    """A causal mask or window with one key too many or too few."""
    side, names = evidence.row_projection, evidence.problem.names
    if side is None or not names.get("causal") or names.get("alignment") == "top_left":
        return None
    keys = evidence.key_lengths(side)
    long = {r: length for r, length in side.lengths.items() if length >= 3}
    if not keys or not long:
        return None
    rows = {r: set(side.regions.get(r, ())) for r in long}
    window = names.get("window")
    if isinstance(window, int):
        for first, words in ((window, "too wide"), (window - 1, "one key too narrow")):
            start = {r: max(first - (keys[r] - length), 0) for r, length in long.items()}
            reached = {r for r in long if start[r] < long[r]}
            if reached and all(_from(rows[r], start[r], long[r]) for r in long) and first > 0:
                return f"the window of {window} is {words}: only rows that it limits are wrong"
    if all(
        length - 1 not in rows[r] and _mostly(rows[r], length - 1) for r, length in long.items()
    ):
        return (
            "rows attend to later keys than they may: only the last row, which may attend to all, "
            "is right"
        )
    if all(keys[r] == length for r, length in long.items()) and _first_row_is_empty(evidence, side):
        return "mask off by one? rows attend to one key too few: the first row attends to none"
    return None


def _from(rows: set[int], start: int, length: int) -> bool:
    """Whether row `start` and nearly all after it are wrong, and none before."""
    if start >= length:
        return not rows
    return min(rows, default=-1) == start and len(rows) >= _ENOUGH * (length - start)


def _mostly(rows: set[int], count: int) -> bool:
    return len(rows) >= _ENOUGH * count


def _first_row_is_empty(evidence: Evidence, side: Projection) -> bool:
    """Whether the first row of each region, and not the second, has no value but 0 or NaN."""
    if evidence.pattern.name != "everything":
        return False
    axis = evidence.pattern.projections.index(side)
    got = evidence.deviation.got.movedim(axis, 0)
    starts = [0] if side.dim.starts is None else [int(side.dim.starts[r]) for r in side.lengths]
    first = [
        start for start, length in zip(starts, side.lengths.values(), strict=True) if length > 1
    ]
    rows = got[first], got[[start + 1 for start in first]]
    empty, second = ((~each.isfinite() | (each == 0)).flatten(1).all(1) for each in rows)
    return bool(empty.all()) and not bool(second.any())


def _next_sequence(evidence: Evidence) -> str | None:
    """Wrong first rows, up to the end of the last tile of a previous sequence."""
    side = next((side for side in evidence.pattern.projections if side.segmented), None)
    if side is None or side.full:
        return None
    if not any(_is_overrun(side, tile) for tile in _tiles_of(side, side.regions)):
        return None
    region = side.dim.region_name
    return (
        f"the last tile of the previous {region} ends at the last wrong row of {region} "
        f"{ranges(sorted(side.regions))}: is its store bounded by the length?"
    )


def _is_overrun(side: Projection, tile: int) -> bool:
    """Whether the wrong rows of each region are all that the last tile before it overruns."""
    starts = side.dim.starts
    assert starts is not None
    for region, rows in side.regions.items():
        before = [r for r, length in side.lengths.items() if length and r < region]
        if not before:
            return False
        length = side.lengths[before[-1]]
        over = int(starts[before[-1]]) + -(-length // tile) * tile - int(starts[region])
        if over <= 0 or list(rows) != list(range(min(over, side.lengths[region]))):
            return False
    return True


def _tail(evidence: Evidence) -> str | None:
    """Wrong rows that are those of the partial last tiles of all regions."""
    for side in evidence.pattern.projections:
        regions = [r for r, length in side.lengths.items() if length]
        if not side.full and any(_is_tail(side, tile) for tile in _tiles_of(side, regions)):
            return "the wrong rows are those of the partial last tile: is it bounded by the length?"
    return None


def _is_tail(side: Projection, tile: int) -> bool:
    tails = {r: range(n - n % tile, n) for r, n in side.lengths.items() if n % tile}
    if set(tails) != set(side.regions) or sum(map(len, tails.values())) < 2:
        return False
    if all(side.lengths[r] < tile for r in tails):
        return False  # whole regions are wrong
    return all(
        set(side.regions[r]) <= set(rows) and len(side.regions[r]) >= _ENOUGH * len(rows)
        for r, rows in tails.items()
    )


def _tiles_of(side: Projection, regions: Collection[int]) -> Sequence[int]:
    """The edges of tiles to try: several only if there are regions of two lengths to agree on."""
    if side.dim.tile:
        return (side.dim.tile,)
    return _TILES if len({side.lengths[region] for region in regions}) > 1 else ()


def _some_nan(evidence: Evidence) -> str | None:
    _, got = evidence.wrong_values
    given = (each for each in evidence.problem.inputs.values() if each.is_floating_point())
    if not bool(got.isnan().any()) or any(bool(each.isnan().any()) for each in given):
        return None
    return "NaN although no input has any"


_HINTS: tuple[Callable[[Evidence], str | None], ...] = (
    _never_written,
    _rounded_operands,
    _no_visible_key,
    _tail,
    _all_zero,
    _of_another_rank,
    _mask,
    _alignment,
    _permuted,
    _transposed,
    _next_sequence,
    _uniform_factor,
    _constant_offset,
    _some_nan,
    _rounded_values,
)

_OF_ONE_RUN = frozenset(
    {
        _rounded_operands,
        _rounded_values,
        _all_zero,
        _mask,
        _alignment,
        _next_sequence,
        _tail,
        _no_visible_key,
    }
)
"""Hints about bounds and masks, which do not change between runs of a case."""
