"""Spec -> cases: what a tier holds, lazily, with the count of what each rule removed.

The order is fixed: regressions first (what failed before fails first), then the extra cases,
then the tier's own, none of them twice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from tlmatrix.matrix.cache import cached_covering_rows
from tlmatrix.matrix.case import Case
from tlmatrix.matrix.fixed import fixed_cases, same_id
from tlmatrix.matrix.space import Space
from tlmatrix.matrix.tiers import Plan, Strategy, plan_of
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.values import canonical, label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tlmatrix.matrix.proof import Proof
    from tlmatrix.matrix.rules import Row
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import ConstraintDecl, Spec
    from tlmatrix.spec.values import Value

__all__ = ["Expansion", "expand"]

_DRAWS = 10
"""Draws for each row of a sample whose rows cannot be counted; some come twice."""


@dataclass(frozen=True, eq=False)
class Expansion:
    """The cases of one tier of a spec, not yet made.

    `proof` accounts for every tuple of a t-wise tier, and is None for other strategies.
    """

    spec: Spec
    plan: Plan
    fixed: tuple[Case, ...]
    proof: Proof | None
    _space: Space
    _rows: tuple[Row, ...] | None  # None: every row of the space, which may be millions

    @property
    def tier(self) -> str:
        """The name of the tier."""
        return self.plan.tier

    @property
    def strategy(self) -> str:
        """The strategy as the spec writes it."""
        return self.plan.text

    @property
    def cases(self) -> Iterator[Case]:
        """A fresh iterator over the cases; each is made when it is asked for."""
        yield from self.fixed
        skip = self._fixed_rows
        for row in self._space if self._rows is None else self._rows:
            if row not in skip:
                yield Case(self.spec.name, self._space.values(row))

    def __iter__(self) -> Iterator[Case]:
        return self.cases

    def count(self) -> int:
        """How many cases there are, without making them; at most so many where not `counted`."""
        own = self._space.most if self._rows is None else len(self._rows)
        return len(self.fixed) + own - len(self._fixed_rows)

    @property
    def counted(self) -> bool:
        """Whether `count` is exact: large rules can leave too many cases to count."""
        return self._rows is not None or self._space.counts

    def some(self, most: int) -> list[Case]:
        """All cases if there are at most `most`, else as many of the tier's own; always the same.

        A product's are spread over all of it: its first ones hardly differ.
        """
        if self.count() <= most:
            return list(self)
        pick = random.Random(0)  # noqa: S311 - reproducible, not secret
        if self._rows is not None:
            rows = self._rows[:most]
        elif not self._space.counts:
            rows = tuple(islice(self._space.spread(pick), most))
        else:
            places = sorted(pick.sample(range(self._space.count), most))
            rows = tuple(self._space[at] for at in places)
        return [Case(self.spec.name, self._space.values(row)) for row in rows]

    @property
    def combinations(self) -> int:
        """How many combinations the rules were applied to: the product, or the rows of a zip."""
        if self.plan.strategy is Strategy.ZIP:
            return max(map(len, self.plan.axes.values()), default=1)
        return self._space.products

    @cached_property
    def removed(self) -> Mapping[ConstraintDecl, int | None]:
        """For each constraint alone, how many of the `combinations` it removes.

        Each count is as if there were no other rule: a combination that two rules forbid is
        counted by both, so the sum may exceed what is missing. Exact, and found from the few axes
        that a rule names times the sizes of the rest; None: too many to count.
        """
        counts: list[int | None]
        if self.plan.strategy is Strategy.ZIP:
            failing = [self._space.failing(row) for row in _zip_rows(self._space)]
            counts = [
                sum(at in each for each in failing) for at in range(len(self.spec.constraints))
            ]
        else:
            counts = list(self._space.removed())
        return dict(zip(self.spec.constraints, counts, strict=True))

    def holds(self, case: Case) -> bool:
        """Whether the case is one of this expansion's."""
        row = self._by_value(case.values)
        return (row is not None and self._picks(row)) or case in self.fixed

    @cached_property
    def _chosen(self) -> frozenset[Row]:
        return frozenset(self._rows or ())

    def _picks(self, row: Row) -> bool:
        return self._space.allows(row) if self._rows is None else row in self._chosen

    @cached_property
    def _by_value(self) -> _Index:
        return _Index(self._space, canonical)

    @cached_property
    def _fixed_rows(self) -> frozenset[Row]:
        """The rows that a regression or an extra case is in place of."""
        rows = (self._by_value(case.values) for case in self.fixed)
        return frozenset(row for row in rows if row is not None and self._picks(row))

    def same_id(self) -> tuple[Case, Case] | None:
        """A written case and a case of the tier that differ and yet read the same."""
        by_label = _Index(self._space, label)
        for case in self.fixed:
            row = by_label(case.values)
            if row is not None and self._picks(row):
                other = Case(self.spec.name, self._space.values(row))
                if other != case:
                    return case, other
        return None


class _Index:
    """Finds the row of a space whose values read the same, if the axes have them."""

    def __init__(self, space: Space, text: Callable[[Value], str]) -> None:
        self._text = text
        self._places = {
            name: {text(value): index for index, value in enumerate(values)}
            for name, values in space.axes.items()
        }

    def __call__(self, values: Mapping[str, Value]) -> Row | None:
        if values.keys() != self._places.keys():
            return None
        found = [at.get(self._text(values[name])) for name, at in self._places.items()]
        row = tuple(index for index in found if index is not None)
        return row if len(row) == len(found) else None


def expand(spec: Spec, tier: str = "quick", *, seed: int | None = None) -> Expansion:
    """The cases of a tier of `spec`.

    `seed` replaces the tier's own, which a sample and t-wise draw with. Everything else about the
    cases depends on the spec alone, so that two expansions are equal; the order of the axes
    changes neither ids nor what t-wise and sample pick.

    Raises:
        ValueError: the spec has no such tier.
        SpecError: no case is left, two cases have one id, a written case is excluded by a rule, a
            rule has no answer for some values, or the strategy cannot be applied to the axes.
    """
    plan = plan_of(spec, tier, seed)
    # Reordering axes must not change what is picked; of a product only the order is at stake.
    ordered = plan.strategy in (Strategy.COVERING, Strategy.SAMPLE)
    names = sorted(plan.axes) if ordered else list(plan.axes)
    space = Space({name: plan.axes[name] for name in names}, plan.constraints)
    rows, proof = _picked(spec, plan, space)
    expansion = Expansion(spec, plan, fixed_cases(spec), proof, space, rows)
    if next(expansion.cases, None) is None:
        raise SpecError([_nothing_left(expansion)])
    if same := expansion.same_id():
        raise SpecError([spec.issue(("axes",), same_id(*same))])
    return expansion


def _picked(spec: Spec, plan: Plan, space: Space) -> tuple[tuple[Row, ...] | None, Proof | None]:
    some = plan.strategy in (Strategy.FIRST, Strategy.SAMPLE)
    if some and space.counts and plan.size >= space.count:
        return None, None  # the product itself, which may be too large to be made at once
    match plan.strategy:
        case Strategy.PRODUCT:
            return None, None
        case Strategy.FIRST:
            return tuple(islice(space, plan.size)), None
        case Strategy.ZIP:
            _check_zip(spec, plan)
            return tuple(dict.fromkeys(row for row in _zip_rows(space) if space.allows(row))), None
        case Strategy.SAMPLE:
            return _sample(space, plan.size, plan.seed), None
        case Strategy.COVERING:
            if plan.strength >= len(space.sizes):
                return None, None  # the product itself, where nothing needs a proof
            return cached_covering_rows(space, plan.strength, plan.seed)


def _zip_rows(space: Space) -> Iterator[Row]:
    """The first value of every axis, then the second, ...; an axis of one value repeats it."""
    for at in range(max(space.sizes, default=1)):
        yield tuple(0 if size == 1 else at for size in space.sizes)


def _check_zip(spec: Spec, plan: Plan) -> None:
    lengths = {name: len(values) for name, values in plan.axes.items() if len(values) != 1}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        message = f"zip needs axes of one length (or of one value, which repeats); {told}"
        raise SpecError([spec.issue(("tiers", plan.tier), message)])


def _sample(space: Space, size: int, seed: int) -> tuple[Row, ...]:
    """`size` rows of more; uniform if they can be counted, and a larger one begins with this."""
    generator = random.Random(seed)  # noqa: S311 - reproducible, not secret
    if not space.counts:
        found = islice(space.spread(generator), _DRAWS * size)
        return tuple(islice(dict.fromkeys(found), size))
    drawn: dict[int, None] = {}
    while len(drawn) < size:
        drawn[generator.randrange(space.count)] = None
    return tuple(space[index] for index in drawn)


def _nothing_left(expansion: Expansion) -> Issue:
    """The error of an expansion without cases, with what emptied it."""
    spec, tier = expansion.spec, expansion.tier
    for name, values in expansion.plan.axes.items():
        if not values:
            return spec.issue(("axes", name), f"the axis {name} has no value, so there is no case")
    told = "; ".join(
        f"{rule.text!r}{rule.reason} removes {'some' if count is None else count}"
        for rule, count in expansion.removed.items()
        if count != 0
    )
    return spec.issue(
        ("constraints",),
        f"no case is left in the tier {tier}: of {expansion.combinations} combinations {told}",
    )
