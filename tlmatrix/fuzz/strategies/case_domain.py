"""What a spec's random cases are drawn from, settled and checked before anything is drawn.

An axis is one of three kinds:

- packed lengths (`seqlens`), drawn anew for every example; where a rule names them and does not
  hold, a batch that the spec lists takes their place;
- a *free* axis, drawn anew, too: one that `fuzz.axes` names, or one that decides no kernel (two
  cases that differ in it alone have one compile key: values, scale, batch);
- the rest decide kernels. Together they make a *configuration*, and those come from the cases of
  the tier, so that a few compiled kernels serve many examples.

Rules hold by construction: every axis that a rule names takes its value among those from which
the other axes can still obey all rules (`tlmatrix.matrix.space` knows them exactly).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import prod
from typing import TYPE_CHECKING

from tlmatrix.fuzz.strategies.axis_domain import Domain, domain_of
from tlmatrix.fuzz.strategies.lengths import Lengths, lengths_of
from tlmatrix.fuzz.strategies.optional_axes import Extras, extras_of
from tlmatrix.fuzz.strategies.traces import requests_of
from tlmatrix.matrix import expand
from tlmatrix.matrix.rules import UNBOUND
from tlmatrix.matrix.space import Space
from tlmatrix.matrix.tiers import plan_of
from tlmatrix.problem import family_for
from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.fields import FAMILIES
from tlmatrix.spec.model.fuzz import Fuzz, FuzzLengths
from tlmatrix.spec.model.packed import is_packed, packed_axes
from tlmatrix.spec.values import canonical, label

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tlmatrix.matrix.tiers import Plan
    from tlmatrix.problem import Family
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import ConstraintDecl, Spec
    from tlmatrix.spec.values import Value

__all__ = ["CaseDomain", "Configuration", "case_domain"]

_MOST_CASES = 512
"""Cases of a tier that are looked at for configurations."""
_MOST_VALUES = 4096
"""Values that an axis may have which a rule names."""
_MOST_COMBINATIONS = 1 << 20
"""Combinations of values that one rule may speak of which is enumerated, not solved."""
_MOST_TILES = 8


@dataclass(frozen=True, eq=False)
class Configuration:
    """One value for each axis that decides kernels, in the order of the spec."""

    values: Mapping[str, Value]

    def __str__(self) -> str:
        return "-".join(f"{axis}={label(value)}" for axis, value in self.values.items()) or "one"

    @cached_property
    def key(self) -> str:
        """Equal for equal configurations."""
        return canonical(dict(self.values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, eq=False)
class CaseDomain:
    """All that drawing needs to know of a spec and a tier.

    `fixed` are the axes of a configuration and `free` those drawn anew, each with its domain;
    `extras` are axes that the spec does not have. `lengths` are those of packed axes whose batches
    are generated; `rules` name them, and hold for each case as a whole. `space` holds the axes that
    the other rules name, over the values of their domains. With `only`, no other combination of
    the fixed axes is ever drawn.
    """

    spec: Spec
    tier: str
    configurations: tuple[Configuration, ...]
    fixed: Mapping[str, Domain]
    free: Mapping[str, Domain]
    lengths: Mapping[str, Lengths]
    space: Space
    extras: Extras
    rules: tuple[ConstraintDecl, ...] = ()
    only: bool = False

    @property
    def domains(self) -> dict[str, Domain]:
        """Of every axis but drawn lengths, in the order in which they are drawn."""
        return {**self.fixed, **self.free}


def case_domain(
    spec: Spec,
    tier: str = "quick",
    *,
    among: Sequence[Configuration] | None = None,
    at_most: Mapping[str, int] | None = None,
) -> CaseDomain:
    """What cases of a tier are drawn from.

    `among` allows no other configurations, `at_most` no larger numbers of an axis; but all of
    them where there is no case without.

    Raises:
        ValueError: the spec has no such tier.
        SpecError: a rule that names drawn lengths, or more values than can be searched; or the
            tier's own cases cannot be made.
    """
    plan = plan_of(spec, tier)
    fuzz = spec.fuzz or Fuzz()
    family = family_for(spec)
    apart = _packed_axes(spec, fuzz)
    axes = {name: values for name, values in plan.axes.items() if name not in apart}
    some = [case.values for case in expand(spec, tier).some(_MOST_CASES)]
    free_names = _free(spec, fuzz, family, axes, some[0])
    tiles = _Tiles(spec, some)
    domains = {
        name: domain_of(values, fuzz.axes.get(name), tiles.of(name))
        for name, values in axes.items()
    }
    for name, most in (at_most or {}).items():
        if name in domains:
            domains[name] = domains[name].within(most) or domains[name]
    fixed = {name: domain for name, domain in domains.items() if name not in free_names}
    free = {name: domain for name, domain in domains.items() if name in free_names}
    rules = tuple(rule for rule in spec.constraints if rule.expression.names & apart.keys())
    space = _space(spec, plan, {**fixed, **free}, apart)
    if at_most and not space.extensible([UNBOUND] * len(space.names)):
        return case_domain(spec, tier, among=among)
    found = dict.fromkeys(Configuration({name: case[name] for name in fixed}) for case in some)
    configurations = tuple(each for each in among or found if _possible(each, fixed, space))
    lengths = {axis: _lengths(spec, axis, batches, tiles) for axis, batches in apart.items()}
    extras = extras_of(spec, fuzz, family, lengths.get("seqlens"))
    only = among is not None
    return CaseDomain(spec, tier, configurations, fixed, free, lengths, space, extras, rules, only)


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
    """The packed axes whose batches are generated, with how."""
    found = {axis: FuzzLengths() for axis in packed_axes(spec)}
    found |= {"seqlens": fuzz.seqlens} if _packs(spec, "seqlens") else {}
    found |= {axis: drawn.lengths for axis, drawn in fuzz.axes.items() if drawn.lengths is not None}
    return found


def _packs(spec: Spec, axis: str) -> bool:
    return axis in spec.axes and any(map(is_packed, spec.axes[axis]))


def _free(
    spec: Spec,
    fuzz: Fuzz,
    family: Family,
    axes: Mapping[str, Sequence[Value]],
    base: Mapping[str, Value],
) -> frozenset[str]:
    """Axes that change from one example to the next."""

    def key(values: Mapping[str, Value]) -> str:
        return family.compile_key(spec, values)

    found = {name for name in fuzz.axes if name in axes}
    for name, values in axes.items():
        if len({key({**base, name: value}) for value in values}) == 1:
            found.add(name)
    return frozenset(found)


def _possible(configuration: Configuration, fixed: Mapping[str, Domain], space: Space) -> bool:
    """Whether the values are all of the axes, and free axes can obey the rules beside them."""
    row = [UNBOUND] * len(space.names)
    for name, value in configuration.values.items():
        place = fixed[name].places.get(canonical(value)) if name in fixed else None
        if place is None:
            return False
        if name in space.axes:
            row[space.names.index(name)] = place
    return configuration.values.keys() == fixed.keys() and space.extensible(row)


def _space(spec: Spec, plan: Plan, domains: Mapping[str, Domain], packed: Collection[str]) -> Space:
    """The axes that rules name, over all their values; SpecError where those are too many."""
    issues: list[Issue] = []
    constraints = tuple(each for each in plan.constraints if not {*each.names} & {*packed})
    named = {name for constraint in constraints for name in constraint.names}
    for name in sorted(named):
        if domains[name].count > _MOST_VALUES:
            message = (
                f"a rule names the axis {name!r}, which then can have {_MOST_VALUES} values to "
                f"draw from, not {domains[name].count}; narrow its range"
            )
            issues.append(spec.issue(("fuzz", "axes", name), message))
    if issues:
        raise SpecError(issues)
    space = Space({name: domains[name].values for name in domains if name in named}, constraints)
    for position, constraint in enumerate(constraints):
        count = prod(domains[name].count for name in constraint.names)
        ranged = [name for name in constraint.names if domains[name].spans]
        if ranged and count > _MOST_COMBINATIONS and space.enumerated(position):
            message = (
                f"the axes of {constraint.text!r} have {count} combinations of values to draw "
                f"from; narrow the range of {' and '.join(ranged)} in 'fuzz.axes' to leave at "
                f"most {_MOST_COMBINATIONS}"
            )
            number = plan.constraints.index(constraint)
            issues.append(spec.issue(("constraints", number, "require"), message))
    if issues:
        raise SpecError(issues)
    return space


class _Tiles:
    """Edges of the kernel's tiles as numbers, for expressions those of the cases."""

    def __init__(self, spec: Spec, cases: Sequence[Mapping[str, Value]]) -> None:
        self._spec = spec
        self._cases = cases

    def of(self, name: str) -> list[int]:
        """The edges for an axis: its tile, or for the lengths of a side that side's."""
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
                continue  # it needs names of the problem, which no case has yet
            if type(edge) is int and edge > 0:
                yield edge
