"""Hints: causes of wrong elements, one sentence each.

Each hint is a function from the evidence to a text or None; the first text is used. It says no more
than the numbers show: of a cause, it needs numbers that no other known cause gives. A factor must
explain the elements better than an offset does, permuted heads better than their own values, and a
partial tile must be wrong in all heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.memory import poison_mask
from tlmatrix.check.patterns import ranges
from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tlmatrix.check.numeric import Deviation
    from tlmatrix.check.patterns import Pattern, Projection
    from tlmatrix.problem.model import Dim, OtherOption, Problem, Tensors

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
)

_FEW = 8
"""Elements of which a factor or an offset may fit all by chance."""

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

    @property
    def compared_options(self) -> bool:
        """Whether the results are not those of another value of an option, such as the mask."""
        return self.problem.other_options is not tuple

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
        return "every wrong element is 0"
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
        if found and evidence.explained(_moved(expected, axis, found)):
            pairs = ", ".join(f"{at} holds {by}" for at, by in list(found.items())[:6])
            what = "permuted?" if sorted(found) == sorted(found.values()) else "of others?"
            return f"{dim.name}s {what} {pairs}"
    return None


def _moved(expected: torch.Tensor, axis: int, found: dict[int, int]) -> torch.Tensor:
    """The values of which each index in `found` holds those of another one."""
    indices = torch.arange(expected.shape[axis], device=expected.device)
    for at, by in found.items():
        indices[at] = by
    return expected.index_select(axis, indices)


def _matches(got: torch.Tensor, expected: torch.Tensor, wrong: list[int]) -> dict[int, int]:
    """The row of `expected` that each wrong row of `got` equals, if another one and only that.

    Rows may be alike, such as the lse of heads: one must be far nearer than all others.
    """
    rows, known = got[wrong].double(), expected.double()
    if not bool(rows.isfinite().all()):
        return {}
    known = torch.nan_to_num(known)
    size = known.square().sum(1)
    # Differences of squares would cancel.
    squared = torch.cdist(rows, known, compute_mode="donot_use_mm_for_euclid_dist").square()
    nearest, at = squared.min(1)
    others = squared.scatter(1, at[:, None], torch.inf).amin(1)
    same = (squared <= _SAME * size) & (size > 0) & (squared == nearest[:, None])
    if bool((nearest > _SAME * others).any()):
        return {}
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
    few = expected.numel() < _FEW
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
    # Alike values, such as those of lse, fit an offset as well.
    shifted = float(torch.linalg.vector_norm(error - error.mean()))
    if not few and float(torch.linalg.vector_norm(left)) > _SINGLED_OUT * shifted:
        return None
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
    if few and not why:
        return None  # a factor fits few values by chance, if it is no known one
    # Seventeen digits distinguish any two numbers.
    texts = (f"{factor:.{digits}g}" for digits in range(4, 18))
    shown = next((text for text in texts if float(text) != 1), None)
    return shown and f"a uniform factor: got is {shown} times expected{why}"


def _roundoff(dtype: torch.dtype) -> float:
    """The distance of 1 to the next number of a dtype; 0 for integers."""
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def _factors_of(problem: Problem) -> Iterator[tuple[float, str]]:
    """Factors that a number of the problem gives if it is applied too often or not at all."""
    value, width = problem.names.get("scale"), problem.names.get("head_dim")
    if value is None and isinstance(width, int) and width > 0:
        value = width**-0.5  # the default
    if isinstance(value, int | float) and value not in (0, 1):
        yield float(value), "that is the scale"
        yield 1 / float(value), "that is 1 / scale"


def _constant_offset(evidence: Evidence) -> str | None:
    expected, got = evidence.wrong_values
    offset = (got - expected)[got.isfinite() & expected.isfinite()]
    if offset.numel() < _FEW:
        return None
    mean = float(offset.mean())
    if mean == 0 or float((offset - mean).abs().max()) > 0.02 * abs(mean):
        return None
    if not evidence.explained(evidence.deviation.expected + mean):
        return None
    finite = expected[got.isfinite() & expected.isfinite()]
    size = finite.square().sum()
    factor = (offset * finite).sum() / size if float(size) else 0.0
    scaled = float(torch.linalg.vector_norm(offset - factor * finite))
    if float(torch.linalg.vector_norm(offset - mean)) > _SINGLED_OUT * scaled:
        return None  # alike values fit a factor as well
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
    if evidence.compared_options:
        return "only sequences whose query and key lengths differ are wrong"
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
        for first, words in ((window, "too wide, or a tile late"), (window - 1, "too narrow")):
            start = {r: max(first - (keys[r] - length), 0) for r, length in long.items()}
            reached = {r for r in long if start[r] < long[r]}
            if reached and all(_from(rows[r], start[r], long[r]) for r in long) and first > 0:
                return f"only rows that the window of {window} limits are wrong: is it {words}?"
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
    if all(len(rows) == side.lengths[region] for region, rows in side.regions.items()):
        return None  # whole sequences may be wrong for any reason
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
    """Wrong rows that are those of the partial last tiles of all regions.

    A partial tile is wrong in every head, and a value that overflows in some.
    """
    expected, got = evidence.wrong_values
    if bool((got.isinf() & expected.isfinite()).any()):
        return None
    sides = evidence.pattern.projections
    for side in sides:
        if any(not other.full for other in sides if other is not side):
            continue
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


_HINTS: tuple[tuple[Callable[[Evidence], str | None], bool], ...] = (
    (_never_written, True),
    (_rounded_operands, False),
    (_other_option, False),
    (_no_visible_key, False),
    (_tail, False),
    (_all_zero, False),
    (_of_another_rank, True),
    (_mask, False),
    (_alignment, False),
    (_permuted, True),
    (_transposed, True),
    (_next_sequence, False),
    (_uniform_factor, True),
    (_constant_offset, True),
    (_some_nan, True),
    (_rounded_values, False),
)
"""Hints in their order, and whether they explain the difference of two runs of a case, too: bounds
and masks do not change between them."""
