"""What a spec's random cases are drawn from, settled and checked before anything is drawn.

An axis is one of three kinds:

- packed lengths (`seqlens`), drawn anew for every example;
- a *free* axis, drawn anew, too: one that `fuzz.axes` names, or one that decides no kernel (two
  cases that differ in it alone have one compile key: values, scale, batch);
- the rest decide kernels. Together they make a *configuration*, and those come from the cases of
  the tier, so that a few compiled kernels serve many examples.

Rules hold by construction: every axis that a rule names takes its value among those from which
the other axes can still obey all rules (`tlmatrix.matrix.space` knows them exactly).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import prod
from typing import TYPE_CHECKING

from tlmatrix.fuzz.draw.domains import Domain, domain_of
from tlmatrix.fuzz.draw.extras import Extras, extras_of
from tlmatrix.fuzz.draw.lengths import Lengths, lengths_of
from tlmatrix.fuzz.draw.traces import requests_of
from tlmatrix.matrix import expand
from tlmatrix.matrix.rules import UNBOUND
from tlmatrix.matrix.space import Space
from tlmatrix.matrix.tiers import plan_of
from tlmatrix.problem import family_for
from tlmatrix.spec.drawing import Fuzz
from tlmatrix.spec.expressions import Expression, ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.values import canonical, label

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tlmatrix.matrix.tiers import Plan
    from tlmatrix.problem import Family
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.models import Spec
    from tlmatrix.spec.values import Value

__all__ = ["Configuration", "Ground", "ground_of"]

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
class Ground:
    """All that drawing needs to know of a spec and a tier.

    `fixed` are the axes of a configuration and `free` those drawn anew, each with its domain;
    `extras` are axes that the spec does not have. `lengths` is None where the spec packs no
    sequences, or a rule speaks of them. `space` holds the axes that rules name, over the values of
    their domains. With `only`, no other combination of the fixed axes is ever drawn.
    """

    spec: Spec
    tier: str
    configurations: tuple[Configuration, ...]
    fixed: Mapping[str, Domain]
    free: Mapping[str, Domain]
    lengths: Lengths | None
    space: Space
    extras: Extras
    only: bool = False

    @property
    def domains(self) -> dict[str, Domain]:
        """Of every axis but drawn lengths, in the order in which they are drawn."""
        return {**self.fixed, **self.free}


def ground_of(
    spec: Spec,
    tier: str = "quick",
    *,
    among: Sequence[Configuration] | None = None,
    at_most: Mapping[str, int] | None = None,
) -> Ground:
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
    drawn_lengths = _draws_lengths(spec, fuzz)
    apart = {"seqlens"} if drawn_lengths else set()
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
    space = _space(spec, plan, {**fixed, **free})
    if at_most and not space.extensible([UNBOUND] * len(space.names)):
        return ground_of(spec, tier, among=among)
    found = dict.fromkeys(Configuration({name: case[name] for name in fixed}) for case in some)
    configurations = tuple(each for each in among or found if _possible(each, fixed, space))
    lengths = _lengths(spec, fuzz, tiles) if drawn_lengths else None
    extras = extras_of(spec, fuzz, family, lengths)
    only = among is not None
    return Ground(spec, tier, configurations, fixed, free, lengths, space, extras, only)


def _lengths(spec: Spec, fuzz: Fuzz, tiles: _Tiles) -> Lengths:
    requests = requests_of(spec, fuzz.seqlens)
    return lengths_of(fuzz.seqlens, tiles.of("q"), tiles.of("k"), requests)


def _draws_lengths(spec: Spec, fuzz: Fuzz) -> bool:
    """Whether packed lengths are drawn: not where a rule speaks of them."""
    if "seqlens" not in spec.axes:
        return False
    ruled = [number for number, rule in enumerate(spec.where) if "seqlens" in rule.expr.names]
    if ruled and "seqlens" in fuzz.model_fields_set:
        message = (
            f"lengths cannot be drawn so that {spec.where[ruled[0]].expr.text!r} holds; change the "
            "rule, or remove 'fuzz.seqlens' to draw from the batches that are listed"
        )
        raise SpecError([spec.issue(("fuzz", "seqlens"), message)])
    return not ruled


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

    found = set(fuzz.axes)
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


def _space(spec: Spec, plan: Plan, domains: Mapping[str, Domain]) -> Space:
    """The axes that rules name, over all their values; SpecError where those are too many."""
    issues: list[Issue] = []
    named = {name for constraint in plan.constraints for name in constraint.names}
    for name in sorted(named):
        if domains[name].count > _MOST_VALUES:
            message = (
                f"a rule names the axis {name!r}, which then can have {_MOST_VALUES} values to "
                f"draw from, not {domains[name].count}; narrow its range"
            )
            issues.append(spec.issue(("fuzz", "axes", name), message))
    if issues:
        raise SpecError(issues)
    space = Space(
        {name: domains[name].values for name in domains if name in named}, plan.constraints
    )
    for number, constraint in enumerate(plan.constraints):
        count = prod(domains[name].count for name in constraint.names)
        ranged = [name for name in constraint.names if domains[name].spans]
        if ranged and count > _MOST_COMBINATIONS and space.enumerated(number):
            message = (
                f"the axes of {constraint.text!r} have {count} combinations of values to draw "
                f"from; narrow the range of {' and '.join(ranged)} in 'fuzz.axes' to leave at "
                f"most {_MOST_COMBINATIONS}"
            )
            issues.append(spec.issue(("where", number, "expr"), message))
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
