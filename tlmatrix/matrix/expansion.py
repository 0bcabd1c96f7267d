"""Expands a tier of a spec into its cases, lazily, and counts what each constraint removes.

The order is fixed: regressions, extra cases, then the tier's own cases, each once.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from itertools import islice
from typing import TYPE_CHECKING

from tlmatrix.cache_files import FileCache, cache_folder
from tlmatrix.matrix.covering import FORMAT, compile_classes, covering_rows, uncovered
from tlmatrix.matrix.listed_cases import Case, listed_cases, same_id
from tlmatrix.matrix.space import Space
from tlmatrix.matrix.tiers import Plan, Strategy, plan_of
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.values import canonical, label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeAlias

    from tlmatrix.matrix.constraints import Row
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import ConstraintDecl, Spec
    from tlmatrix.spec.values import Value

    CompileKey: TypeAlias = Callable[[Mapping[str, Value]], str]

_DRAWS = 10
"""Rows drawn per row of a sample whose space cannot be counted; duplicates are dropped."""


@dataclass(frozen=True, eq=False)
class Expansion:
    """The cases of one tier of a spec, made on demand."""

    spec: Spec
    plan: Plan
    listed: tuple[Case, ...]
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
        """A new iterator over the cases, which makes each on demand."""
        yield from self.listed
        skip = self._listed_rows
        for row in self._space if self._rows is None else self._rows:
            if row not in skip:
                yield Case(self.spec.name, self._space.values(row))

    def __iter__(self) -> Iterator[Case]:
        return self.cases

    def count(self) -> int:
        """The number of cases, without making them; an upper bound if not `counted`."""
        own = self._space.count if self._rows is None else len(self._rows)
        if own is None:
            own = self._space.products
        return len(self.listed) + own - len(self._listed_rows)

    @property
    def counted(self) -> bool:
        """Whether `count` is exact: large constraints may leave too many cases to count."""
        return self._rows is not None or self._space.count is not None

    def some(self, most: int) -> list[Case]:
        """All cases if there are at most `most`, otherwise `most` of the tier's own, deterministic.

        Those of a product are a sample of it: its first cases hardly differ.
        """
        if self.count() <= most:
            return list(self)
        pick = random.Random(0)  # noqa: S311 - reproducible, not secret
        if self._rows is not None:
            rows = self._rows[:most]
        elif self._space.count is None:
            rows = tuple(islice(self._space.spread(pick), most))
        else:
            places = sorted(pick.sample(range(self._space.count), most))
            rows = tuple(self._space[at] for at in places)
        return [Case(self.spec.name, self._space.values(row)) for row in rows]

    @property
    def combinations(self) -> int:
        """The number of combinations before constraints: the product, or the rows of a zip."""
        if self.plan.strategy is Strategy.ZIP:
            return max(map(len, self.plan.axes.values()), default=1)
        return self._space.products

    @cached_property
    def removed(self) -> Mapping[ConstraintDecl, int | None]:
        """For each constraint alone, how many of the `combinations` it removes.

        Counts are independent of each other: a combination that violates two constraints is in
        both. None: too many to count.
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
        """Whether the expansion has the case."""
        row = self._by_value(case.values)
        return (row is not None and self._picks(row)) or case in self.listed

    @cached_property
    def _chosen(self) -> frozenset[Row]:
        return frozenset(self._rows or ())

    def _picks(self, row: Row) -> bool:
        return self._space.allows(row) if self._rows is None else row in self._chosen

    @cached_property
    def _by_value(self) -> _Index:
        return _Index(self._space, canonical)

    @cached_property
    def _listed_rows(self) -> frozenset[Row]:
        """The rows of the tier that are listed as regressions or extra cases."""
        rows = (self._by_value(case.values) for case in self.listed)
        return frozenset(row for row in rows if row is not None and self._picks(row))

    def same_id(self) -> tuple[Case, Case] | None:
        """A listed case and a different case of the tier with the same id, if there are any."""
        by_label = _Index(self._space, label)
        for case in self.listed:
            row = by_label(case.values)
            if row is not None and self._picks(row):
                other = Case(self.spec.name, self._space.values(row))
                if other != case:
                    return case, other
        return None


class _Index:
    """Finds the row of a space by the texts of its values."""

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


def expand(
    spec: Spec,
    tier: str = "quick",
    compile_key: CompileKey | None = None,
    *,
    seed: int | None = None,
) -> Expansion:
    """The cases of a tier of `spec`.

    Args:
        spec: the spec.
        tier: the name of the tier.
        compile_key: from axis values to the key of the kernels that they need; a covering array
            then has few different keys. Without it, all cases count as sharing their kernels.
        seed: replaces the tier's own seed, of a sample or a covering array. Otherwise the cases
            depend on the spec alone; the order of axes changes neither ids nor the choice of t-wise
            and sample.

    Raises:
        ValueError: the spec has no such tier.
        SpecError: no case is left, two cases have one id, a
            constraint excludes a listed case or cannot be evaluated for some values, or the
            strategy does not fit the axes.
    """
    plan = plan_of(spec, tier, seed)
    # Reordering axes must not change which rows are picked.
    ordered = plan.strategy in (Strategy.COVERING, Strategy.SAMPLE)
    names = sorted(plan.axes) if ordered else list(plan.axes)
    space = Space({name: plan.axes[name] for name in names}, plan.constraints)
    rows = _picked(spec, plan, space, compile_key)
    expansion = Expansion(spec, plan, listed_cases(spec), space, rows)
    if next(expansion.cases, None) is None:
        raise SpecError([_no_cases(expansion)])
    if same := expansion.same_id():
        raise SpecError([spec.issue(("axes",), same_id(*same))])
    return expansion


def _picked(
    spec: Spec, plan: Plan, space: Space, compile_key: CompileKey | None
) -> tuple[Row, ...] | None:
    """The rows of a tier; None for the whole product, which may be too large to list."""
    some = plan.strategy in (Strategy.FIRST, Strategy.SAMPLE)
    if some and space.count is not None and plan.size >= space.count:
        return None
    match plan.strategy:
        case Strategy.PRODUCT:
            return None
        case Strategy.FIRST:
            return tuple(islice(space, plan.size))
        case Strategy.ZIP:
            _check_zip(spec, plan)
            return tuple(dict.fromkeys(row for row in _zip_rows(space) if space.allows(row)))
        case Strategy.SAMPLE:
            return _sample(space, plan.size, plan.seed)
        case Strategy.COVERING:
            if plan.strength >= len(space.sizes):
                return None
            return _covering(spec, plan, space, compile_key)


def _covering(
    spec: Spec, plan: Plan, space: Space, compile_key: CompileKey | None
) -> tuple[Row, ...]:
    """The covering array of a tier, made once for all processes."""
    classes = None
    if compile_key is not None:
        listed = [case.values for case in listed_cases(spec)]
        classes = compile_classes(space, compile_key, listed)
    axes = {name: [canonical(value) for value in values] for name, values in space.axes.items()}
    depends = (
        FORMAT,
        metadata.version("covertable"),
        axes,
        sorted(rule.expression.text for rule in spec.constraints),
        plan.strength,
        plan.seed,
        classes and (classes.positions, classes.classes, classes.given),
    )
    cache = FileCache(cache_folder() / "covering")
    key = hashlib.sha256(repr(depends).encode()).hexdigest()
    rows = cache.find(key, tuple)
    if rows is None or uncovered(space, rows, plan.strength):
        rows = covering_rows(space, plan.strength, plan.seed, classes)
        cache.add(key, rows)
    return rows


def _zip_rows(space: Space) -> Iterator[Row]:
    """Rows of the first values of all axes, of the second, ...; a single value repeats."""
    for at in range(max(space.sizes, default=1)):
        yield tuple(0 if size == 1 else at for size in space.sizes)


def _check_zip(spec: Spec, plan: Plan) -> None:
    lengths = {name: len(values) for name, values in plan.axes.items() if len(values) != 1}
    if len(set(lengths.values())) > 1:
        lengths_text = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        message = f"zip needs axes of one length (or of one value, which repeats); {lengths_text}"
        raise SpecError([spec.issue(("tiers", plan.tier), message)])


def _sample(space: Space, size: int, seed: int) -> tuple[Row, ...]:
    """A sample of `size` rows, uniform if rows can be counted; a prefix of any larger sample."""
    generator = random.Random(seed)  # noqa: S311 - reproducible, not secret
    if space.count is None:
        found = islice(space.spread(generator), _DRAWS * size)
        return tuple(islice(dict.fromkeys(found), size))
    drawn: dict[int, None] = {}
    while len(drawn) < size:
        drawn[generator.randrange(space.count)] = None
    return tuple(space[index] for index in drawn)


def _no_cases(expansion: Expansion) -> Issue:
    """The error of an expansion without cases, with what each constraint removes."""
    spec, tier = expansion.spec, expansion.tier
    for name, values in expansion.plan.axes.items():
        if not values:
            return spec.issue(
                ("axes", name),
                f"the axis {name} has no value, so there is no case; list at least one",
            )
    removed = "; ".join(
        f"{rule.text!r}{rule.reason} removes {'some' if count is None else count}"
        for rule, count in expansion.removed.items()
        if count != 0
    )
    return spec.issue(
        ("constraints",),
        f"no case is left in the tier {tier}: of {expansion.combinations} combinations {removed}",
    )
