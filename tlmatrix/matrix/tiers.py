"""What a tier asks for: its axes, its rules and its strategy, taken out of a spec.

The one boundary where the text of a spec becomes the plain data that the search works on, and
the one place that turns what goes wrong in a rule into an error at its line.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tlmatrix.matrix.nearest import did_you_mean
from tlmatrix.matrix.space import Constraint
from tlmatrix.spec.expressions import ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.values import canonical, label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.spec.models import Spec
    from tlmatrix.spec.values import Value

__all__ = ["Plan", "Strategy", "constraints_of", "describe", "plan_of"]


class Strategy(Enum):
    """How a tier picks cases."""

    PRODUCT = "product"
    ZIP = "zip"
    COVERING = "t-wise"
    SAMPLE = "sample"
    FIRST = "first"


@dataclass(frozen=True)
class Plan:
    """A tier, ready to expand.

    `strength` is the t of t-wise; `size` how many cases a sample (or `first`) takes at most.
    """

    tier: str
    text: str
    strategy: Strategy
    axes: Mapping[str, tuple[Value, ...]]
    constraints: tuple[Constraint, ...]
    strength: int = 0
    size: int = 1
    seed: int = 0


def plan_of(spec: Spec, tier: str, seed: int | None = None) -> Plan:
    """The plan of a tier of `spec`; `seed` overrides the tier's own.

    Raises ValueError for a tier the spec does not have, and SpecError for axes that cannot be told
    apart in ids, a strategy that does not exist or a rule that has no answer.
    """
    if tier not in spec.tiers:
        raise ValueError(
            f"{spec.path}: no tier {tier!r}{did_you_mean(tier, spec.tiers)}; "
            f"there are {', '.join(spec.tiers)}"
        )
    chosen = spec.tiers[tier]
    overrides = chosen.axes or {}
    for name in overrides:
        if name not in spec.axes:
            raise SpecError(
                [
                    spec.issue(
                        ("tiers", tier, "axes", name),
                        f"no axis {name!r}{did_you_mean(name, spec.axes)}",
                    )
                ]
            )
    axes = {name: tuple(overrides.get(name, values)) for name, values in spec.axes.items()}
    for name, values in axes.items():
        place = ("tiers", tier, "axes", name) if name in overrides else ("axes", name)
        _tell_apart(spec, place, name, values)
    strategy = Strategy.COVERING if chosen.strength else Strategy(chosen.strategy)
    if strategy is Strategy.SAMPLE and chosen.size is None:
        raise SpecError(
            [
                spec.issue(
                    ("tiers", tier), "a sample needs a size, as in {strategy: sample, size: 20}"
                )
            ]
        )
    return Plan(
        tier=tier,
        text=chosen.strategy,
        strategy=strategy,
        axes=axes,
        constraints=constraints_of(spec, axes),
        strength=chosen.strength or 0,
        size=1 if chosen.size is None else chosen.size,
        seed=chosen.seed if seed is None else seed,
    )


def constraints_of(spec: Spec, axes: Mapping[str, Sequence[Value]]) -> tuple[Constraint, ...]:
    """The `where` rules of a spec over `axes`, in their order."""
    return tuple(_constraint(spec, number, axes) for number in range(len(spec.where)))


def describe(values: Mapping[str, Value]) -> str:
    """Values by axis as a message shows them: `causal=true, window=none`."""
    return ", ".join(f"{name}={label(value)}" for name, value in values.items())


def _tell_apart(spec: Spec, place: tuple[str, ...], name: str, values: tuple[Value, ...]) -> None:
    """Two values of one axis that read alike would give two cases one id."""
    seen: dict[str, Value] = {}
    for at, value in enumerate(values):
        text = label(value)
        if text in seen:
            one, other = canonical(seen[text]), canonical(value)
            what = (
                f"the axis {name} lists {one} twice"
                if one == other
                else f"{one} and {other} both read {name}={text} in case ids; rename one"
            )
            raise SpecError([spec.issue((*place, at), what)])
        seen[text] = value


def _constraint(spec: Spec, number: int, axes: Mapping[str, Sequence[Value]]) -> Constraint:
    rule = spec.where[number]
    for name in sorted(rule.expr.names):
        if name not in axes:
            raise SpecError(
                [
                    spec.issue(
                        ("where", number, "expr"),
                        f"{rule.expr.text!r} names {name!r}, which is no axis"
                        f"{did_you_mean(name, axes)}",
                    )
                ]
            )

    def allows(values: Mapping[str, Value]) -> bool:
        try:
            return bool(rule.expr.evaluate(values))
        except ExpressionError as error:
            raise SpecError(
                [
                    spec.issue(
                        ("where", number, "expr"),
                        f"{error}, for {describe(values)}; a rule needs an answer for every value "
                        "of the axes it names",
                    )
                ]
            ) from error

    return Constraint(tuple(sorted(rule.expr.names)), allows, rule.expr.text)
