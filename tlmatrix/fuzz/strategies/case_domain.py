"""The domain of a spec's fuzz cases, built and checked before any case is generated.

There are three kinds of axes:

- packed lengths (`seqlens`): every case has its own; if they violate a constraint, a batch that the
  spec lists replaces them;
- *free* axes: every case has its own value. These are the axes in `fuzz.axes`, and those that do
  not change the compile key (values, scale, batch);
- *fixed* axes: kernels are compiled for them. A combination of their values is a *configuration*;
  most cases have a configuration of the tier, so that a few compiled kernels serve many cases.

Besides, cases have *optional* axes that the spec does not list: values, storage, maximum lengths
(`tlmatrix.problem.lint`). A case has one only if its value is not the default, except
`values`: its default depends on the case's seed, and would change while shrinking.

Constraints hold by construction: every constrained axis takes a value with which the other axes
can still satisfy all constraints (`tlmatrix.matrix.space` computes these).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from tlmatrix.fuzz.strategies.integers import AxisDomain, Span, axis_domain, edges_of
from tlmatrix.fuzz.strategies.lengths import Lengths, lengths_of
from tlmatrix.fuzz.strategies.traces import requests_of
from tlmatrix.matrix import expand
from tlmatrix.matrix.constraints import UNBOUND
from tlmatrix.matrix.space import Space
from tlmatrix.matrix.tiers import plan_of
from tlmatrix.problem import family_for
from tlmatrix.problem.distributions import usual_distributions
from tlmatrix.problem.lint import optional_axes, sharded_axes
from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.fields import FAMILIES
from tlmatrix.spec.model.fuzz import Fuzz, FuzzLengths
from tlmatrix.spec.model.packed import is_packed, packed_axes
from tlmatrix.spec.model.spec import WORLD
from tlmatrix.spec.values import canonical, label

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tlmatrix.matrix.tiers import Plan
    from tlmatrix.problem import Family
    from tlmatrix.spec.model.spec import ConstraintDecl, Spec
    from tlmatrix.spec.values import Value

_MOST_CASES = 512
"""Most cases of a tier that configurations are taken from."""
_MOST_TILES = 8
SIDES: Mapping[str, int] = {"max_seqlen_q": 0, "max_seqlen_k": 1}
"""The axes of maximum lengths, each with its index in a pair (queries, keys)."""

EXCESS = (Span(0, 130), *[Span(0, 0)] * 7, Span(1, 1), Span(1, 16), Span(1, 130))
"""Spans of the difference between a maximum length and the longest sequence; mostly 0."""


@dataclass(frozen=True)
class OptionalAxes:
    """Values of optional axes, the simplest first; empty for an axis that is not generated.

    `larger` are maximum lengths that may exceed the longest sequence. `raised` are those listed in
    the spec, which are raised to the longest generated sequence.
    """

    values: tuple[str, ...] = ()
    storage: tuple[str | None, ...] = ()
    larger: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class CaseDomain:
    """The domain of the fuzz cases of a spec and a tier.

    Attributes:
        spec: the spec.
        tier: the name of the tier.
        configurations: combinations of fixed axes, by their canonical text.
        fixed: the domains of axes that kernels are compiled for.
        free: the domains of all other axes except packed lengths.
        lengths: the domains of packed axes.
        space: the values of constrained axes that satisfy the constraints.
        optional: the domains of axes that the spec does not list.
        length_constraints: those that name packed axes; they are checked for each case.
        tiles: tiles at whose multiples sums and differences of `combined` axes are put.
        combined: free axes of integers, and packed axes, that can exceed a tile.
        shared: free axes of a length that ranks share, with the sizes of tiles along it.
        only: whether cases have no other combinations of fixed axes than `configurations`.
    """

    spec: Spec
    tier: str
    configurations: Mapping[str, Mapping[str, Value]]
    fixed: Mapping[str, AxisDomain]
    free: Mapping[str, AxisDomain]
    lengths: Mapping[str, Lengths]
    space: Space
    optional: OptionalAxes
    length_constraints: tuple[ConstraintDecl, ...] = ()
    tiles: tuple[int, ...] = ()
    combined: frozenset[str] = frozenset()
    shared: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    only: bool = False

    def sharing(self, cases: Sequence[Mapping[str, Value]]) -> CaseDomain:
        """The domain without values of free axes that need other kernels than all of these cases.

        Of the compile axes, those that depend on one free axis alone say which values do.
        """
        free = dict(self.free)
        for expression in self.spec.compile_axes:
            name = next(iter(expression.names), "")
            if expression.names == {name} and name in free:
                # A case of which it cannot be evaluated has a key of its own.
                with suppress(ExpressionError):
                    known = {canonical(expression.evaluate(values)) for values in cases}
                    free[name] = free[name].where(partial(_has, expression, name, known))
        values = {name: ({**self.fixed, **free})[name].values for name in self.space.names}
        return replace(self, free=free, space=Space(values, self.space.constraints))


def _has(expression: Expression, name: str, known: Collection[str], value: Value) -> bool:
    """Whether an expression of one axis has one of the known values, as canonical text."""
    return canonical(expression.evaluate({name: value})) in known


def case_domain(
    spec: Spec,
    tier: str = "quick",
    *,
    at_most: Mapping[str, int] | None = None,
) -> CaseDomain:
    """The domain of the fuzz cases of a tier; see `tlmatrix.fuzz.strategies.cases` for arguments.

    Raises:
        ValueError: the spec has no such tier.
        SpecError: a constraint cannot be solved, a maximum length cannot be raised, a trace is
            invalid, or the tier has no cases.
    """
    plan = plan_of(spec, tier)
    fuzz = spec.fuzz or Fuzz()
    family = family_for(spec)
    packed = _packed_axes(spec, fuzz)
    axes = {name: values for name, values in plan.axes.items() if name not in packed}
    sample = tier_sample(spec, tier)
    free_names = _free(spec, fuzz, family, axes, sample[0])
    tiles = _Tiles(spec, sample)
    domains = {
        name: axis_domain(values, fuzz.axes.get(name), tiles.of(name))
        for name, values in axes.items()
    }
    for name, most in (at_most or {}).items():
        if name in domains:
            domains[name] = domains[name].within(most) or domains[name]
    fixed = {name: domain for name, domain in domains.items() if name not in free_names}
    free = {name: domain for name, domain in domains.items() if name in free_names}
    if WORLD in free:  # which lengths of shards are relative to
        free = {WORLD: free[WORLD], **free}
    of_lengths = tuple(each for each in spec.constraints if each.expression.names & packed.keys())
    space = _space(plan, {**fixed, **free}, packed)
    if at_most and not space.extensible([UNBOUND] * len(space.names)):
        return case_domain(spec, tier)
    found = [{name: case[name] for name in fixed} for case in sample]
    lengths = {axis: _lengths(spec, axis, batches, tiles) for axis, batches in packed.items()}
    edges = _edges(fuzz, tiles, free, packed)
    return CaseDomain(
        spec,
        tier,
        {canonical(each): each for each in found if _possible(each, fixed, space)},
        fixed,
        free,
        lengths,
        space,
        _optional_axes(spec, fuzz, family, lengths.get("seqlens")),
        of_lengths,
        edges,
        _combined(free, lengths, edges),
        {name: tuple(tiles.of(name)) for name in sharded_axes(spec, family) if name in free},
    )


def tier_sample(spec: Spec, tier: str) -> list[Mapping[str, Value]]:
    """The values of the cases of a tier, or of some if there are many."""
    key = partial(family_for(spec).compile_key, spec)
    return [case.values for case in expand(spec, tier, key).some(_MOST_CASES)]


def _lengths(spec: Spec, axis: str, batches: FuzzLengths, tiles: _Tiles) -> Lengths:
    plain = not any(isinstance(value, Mapping) for value in spec.axes[axis])
    own = tiles.of(axis)
    return lengths_of(
        batches,
        [*own, *tiles.of("q")],
        [*own, *tiles.of("k")],
        requests_of(spec, batches),
        plain=plain and spec.problem not in FAMILIES,
    )


def _packed_axes(spec: Spec, fuzz: Fuzz) -> dict[str, FuzzLengths]:
    """The packed axes, each with its section of `fuzz`."""
    found = {axis: FuzzLengths() for axis in packed_axes(spec)}
    if any(map(is_packed, spec.axes.get("seqlens", ()))):
        found["seqlens"] = fuzz.seqlens
    found |= {axis: drawn.lengths for axis, drawn in fuzz.axes.items() if drawn.lengths is not None}
    return found


def _edges(
    fuzz: Fuzz, tiles: _Tiles, free: Collection[str], packed: Mapping[str, FuzzLengths]
) -> tuple[int, ...]:
    """The tiles and boundary numbers of free and packed axes."""
    sides = ("q", "k") if packed else ()
    around = [each for name, drawn in fuzz.axes.items() if name in free for each in drawn.around]
    around += [each for batches in packed.values() for each in batches.around]
    return edges_of(
        [*around, *(each for name in (*free, *packed, *sides) for each in tiles.of(name))]
    )


def _combined(
    free: Mapping[str, AxisDomain], lengths: Mapping[str, Lengths], edges: Sequence[int]
) -> frozenset[str]:
    """The axes whose numbers can reach the smallest tile."""
    found = {name for name, domain in free.items() if edges and domain.highest >= edges[0]}
    found |= {axis for axis, each in lengths.items() if edges and each.whole.high >= edges[0]}
    return frozenset(found)


def _free(
    spec: Spec,
    fuzz: Fuzz,
    family: Family,
    axes: Mapping[str, Sequence[Value]],
    base: Mapping[str, Value],
) -> frozenset[str]:
    """The names of the free axes."""
    found = {name for name in fuzz.axes if name in axes}
    for name, values in axes.items():
        if len({family.compile_key(spec, {**base, name: value}) for value in values}) == 1:
            found.add(name)
    return frozenset(found)


def _possible(values: Mapping[str, Value], fixed: Mapping[str, AxisDomain], space: Space) -> bool:
    """Whether a configuration has a value of every fixed axis and satisfies the constraints."""
    row = [UNBOUND] * len(space.names)
    for name, value in values.items():
        try:
            index = fixed[name].index_of(value)
        except ValueError:
            return False
        if name in space.axes:
            row[space.names.index(name)] = index
    return space.extensible(row)


def _space(plan: Plan, domains: Mapping[str, AxisDomain], packed: Collection[str]) -> Space:
    """The constrained axes with all their values."""
    constraints = tuple(each for each in plan.constraints if not {*each.names} & {*packed})
    named = {name for constraint in constraints for name in constraint.names}
    return Space({name: domains[name].values for name in domains if name in named}, constraints)


def _optional_axes(spec: Spec, fuzz: Fuzz, family: Family, lengths: Lengths | None) -> OptionalAxes:
    """The optional axes of a spec's cases.

    Raises:
        SpecError: a constraint names a maximum length that would have to be raised.
    """
    free = optional_axes(family) - spec.axes.keys()
    names = usual_distributions(getattr(family, "special_values", ()))
    longest = SIDES.keys() if lengths is not None else ()
    raised = tuple(axis for axis in longest if axis in spec.axes)
    if lengths is not None:
        _check_raised(spec, raised, lengths)
    return OptionalAxes(
        values=(*names[:1] * len(names), *names[1:]) if "values" in free else (),
        storage=(*[None] * 2 * len(fuzz.storage), *fuzz.storage) if "storage" in free else (),
        larger=tuple(axis for axis in longest if axis in free and not _fixed(axis, lengths)),
        raised=raised,
    )


def _fixed(axis: str, lengths: Lengths | None) -> bool:
    """Whether all sequences have the same number of queries."""
    return SIDES[axis] == 0 and lengths is not None and lengths.fixed is not None


def _check_raised(spec: Spec, raised: tuple[str, ...], lengths: Lengths) -> None:
    constrained = {name for constraint in spec.constraints for name in constraint.expression.names}
    for axis in raised:
        most = lengths.longest(SIDES[axis])
        for index, value in enumerate(spec.axes[axis]):
            if axis in constrained and isinstance(value, int) and value < most:
                message = (
                    f"{axis} is {value}, but 'fuzz' generates lengths up to {most}; it cannot be "
                    "raised because a constraint names it: list larger numbers, or generate "
                    "shorter lengths"
                )
                raise SpecError([spec.issue(("axes", axis, index), message)])


class _Tiles:
    """The sizes of a kernel's tiles; expressions are evaluated for a sample of cases."""

    def __init__(self, spec: Spec, cases: Sequence[Mapping[str, Value]]) -> None:
        self._spec = spec
        self._cases = cases

    def of(self, name: str) -> list[int]:
        """The tile sizes of an axis; `q` and `k` also apply to `seqlen_q` and `seqlen_k`."""
        size = self._spec.tile.get(name)
        if size is None and name in ("seqlen_q", "seqlen_k"):
            size = self._spec.tile.get(name[-1])
        if not isinstance(size, Expression):
            return [] if size is None else [size]
        found = dict.fromkeys(islice(self._evaluated(size), _MOST_CASES))
        return list(islice(found, _MOST_TILES))

    def _evaluated(self, size: Expression) -> Iterator[int]:
        for values in self._cases:
            try:
                edge = size.evaluate(values)
            except ExpressionError:
                continue  # it names values of the problem, which does not exist yet
            if type(edge) is int and edge > 0:
                yield edge


def summarize(domain: CaseDomain) -> Iterator[str]:
    """Yield a line for each of: lengths, free axes, and axes that kernels are compiled for."""
    for axis, lengths in domain.lengths.items():
        yield f"{axis}: {_length_words(lengths)}"
    parts = [f"{name} {_axis_words(each)}" for name, each in domain.free.items() if each.count > 1]
    if domain.optional.values:
        parts.append("values of all distributions")
    parts += [f"{name} larger than the longest" for name in domain.optional.larger]
    storage = [name for name in dict.fromkeys(domain.optional.storage) if name is not None]
    if storage:
        parts.append(f"storage {', '.join(storage)}")
    if parts:
        yield f"each time: {'; '.join(parts)}"
    if domain.fixed:
        many = len(domain.configurations)
        yield f"mostly as in the tier ({many}): {', '.join(domain.fixed)}"


def _length_words(lengths: Lengths) -> str:
    text = f"{_span_words(lengths.sequences)} sequences of {_span_words(lengths.whole)}"
    if lengths.separate_queries:
        text += f" keys, beside {_span_words(lengths.queries[0])} queries each"
    elif lengths.relation != "same":
        text += f", keys {lengths.relation}"
    if lengths.alone:
        text += f", or up to {lengths.alone[-1]} of the least length"
    count = len(lengths.requests)
    return f"{text}; half of them from {count} requests of a trace" if count else text


def _axis_words(axis: AxisDomain) -> str:
    named = [label(value) for value in axis.named]
    most = [f"alone up to {axis.alone[-1]}"] if axis.alone else []
    return ", ".join([*named, *(_span_words(span) for span in axis.spans[:1]), *most])


def _span_words(span: Span) -> str:
    return str(span.low) if span.low == span.high else f"{span.low}..{span.high}"
