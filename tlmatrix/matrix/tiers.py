"""Turns a tier of a spec into a `Plan`: axes, constraints and strategy as plain data.

Errors in the evaluation of a constraint become a `SpecError` with its location.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tlmatrix.matrix.constraints import Constraint
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.values import label
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


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

    Attributes:
        tier: the name of the tier.
        text: the strategy as the spec writes it.
        strategy: the strategy.
        axes: the values of each axis.
        constraints: what every row satisfies.
        strength: the t of t-wise.
        size: the maximum number of cases of `sample` and `first`.
        seed: the seed of `sample` and t-wise.
    """

    tier: str
    text: str
    strategy: Strategy
    axes: Mapping[str, tuple[Value, ...]]
    constraints: tuple[Constraint, ...]
    strength: int
    size: int
    seed: int


def plan_of(spec: Spec, tier: str, seed: int | None = None) -> Plan:
    """The plan of a tier of `spec`; `seed` overrides the tier's own.

    Raises:
        ValueError: the spec has no such tier.
        SpecError: a constraint cannot be evaluated for some values of the tier.
    """
    if tier not in spec.tiers:
        hint = suggestion(tier, spec.tiers, "Tiers")
        raise ValueError(f"unknown tier {tier!r} of {spec.path}{hint}")
    chosen = spec.tiers[tier]
    axes = {**spec.axes, **(chosen.axes or {})}
    return Plan(
        tier=tier,
        text=chosen.strategy,
        strategy=Strategy.COVERING if chosen.strength else Strategy(chosen.strategy),
        axes=axes,
        constraints=constraints_of(spec),
        strength=chosen.strength or 0,
        size=chosen.size or 1,
        seed=chosen.seed if seed is None else seed,
    )


def constraints_of(spec: Spec) -> tuple[Constraint, ...]:
    """The constraints of a spec, in order; evaluation raises SpecError at the constraint."""
    return tuple(_constraint(spec, number) for number in range(len(spec.constraints)))


def describe(values: Mapping[str, Value]) -> str:
    """Values by axis as a message shows them: `causal=true, window=none`."""
    return ", ".join(f"{name}={label(value)}" for name, value in values.items())


def _constraint(spec: Spec, number: int) -> Constraint:
    expression = spec.constraints[number].expression

    def allows(values: Mapping[str, Value]) -> bool:
        try:
            return bool(expression.evaluate(values))
        except ExpressionError as error:
            message = (
                f"{expression.text!r} has no value for {describe(values)}: {error.reason}; "
                "a constraint needs one for all values of the axes it names"
            )
            raise SpecError([spec.issue(("constraints", number, "require"), message)]) from error

    def too_hard() -> SpecError:
        message = (
            f"{expression.text!r} is too hard to solve: no values of its axes that satisfy all "
            "constraints were found in reasonable time; list fewer values, narrow the ranges in "
            "'fuzz.axes', or make an axis of a quotient or remainder that it computes"
        )
        return SpecError([spec.issue(("constraints", number, "require"), message)])

    return Constraint(tuple(sorted(expression.names)), allows, expression.tree, too_hard)
