"""The cases of a spec in a tier: their order, and groups that share kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from tlmatrix.backend.axes import unread_axes
from tlmatrix.matrix import expand, expired, invalid_cases
from tlmatrix.problem import family_for
from tlmatrix.problem.lint import lint_optional_axes, lint_relations
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.spec import has_ranks
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tlmatrix.matrix import Case, Expansion, InvalidCase
    from tlmatrix.problem import Family
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec

MOST_CASES = 2_000_000
"""The most cases of a spec in one run; each is a pytest item."""

_MOST_COUNTED = 20_000
"""Most cases whose compile keys are counted, in about a second."""

REGRESSIONS = "-regressions"
"""Suffix of the names of groups of regressions."""


@dataclass(frozen=True)
class Plan:
    """The cases of a spec in one tier, and its invalid inputs; generated lazily."""

    spec: Spec
    tier: str
    expansion: Expansion
    invalid: tuple[InvalidCase, ...]
    family: Family

    def cases(self) -> Iterator[Case]:
        """All cases in running order, invalid inputs last."""
        yield from self.expansion.cases
        for each in self.invalid:
            yield each.case

    def count(self) -> int:
        """The number of cases, without generating them."""
        return self.expansion.count() + len(self.invalid)

    def configurations(self) -> int | None:
        """The number of distinct compile keys of the cases; None if there are too many cases.

        Cases with one key share their kernels. An invalid input launches none.
        """
        if self.expansion.count() > _MOST_COUNTED:
            return None
        keys = {self.family.compile_key(self.spec, case.values) for case in self.expansion.cases}
        return len(keys)

    def refuse_too_many(self) -> None:
        """Raise SpecError if the tier has more cases than `MOST_CASES`."""
        if self.count() <= MOST_CASES:
            return
        counted = "" if self.expansion.counted else "at most "
        message = (
            f"the tier {self.tier} ({self.expansion.strategy}) has {counted}{self.count():,} "
            f"cases, and a run holds {MOST_CASES:,}; choose a tier that picks some (pairwise, "
            "or {strategy: sample, size: 1000}), list fewer values in the tier's 'axes', or add "
            "'constraints'"
        )
        raise SpecError([self.spec.issue(("tiers", self.tier), message)])

    def group(self, case: Case) -> str:
        """A short name of the kernels a case needs; equal for cases that share them.

        Regressions are apart from the other cases, so that workers can run all of them first.
        """
        key = self.family.compile_key(self.spec, case.values)
        ending = REGRESSIONS if case.origin == "regression" else ""
        return f"{self.spec.name}-{sha256(key.encode()).hexdigest()[:8]}{ending}"


def plan(spec: Spec, tier: str = "quick", *, seed: int | None = None) -> Plan:
    """Plan the cases of a tier.

    Raises:
        SpecError: the spec is invalid for its family, the tier is unknown or empty, a known bug
            has expired, or an invalid input is also a case that must pass.
    """
    family = family_for(spec)
    issues = [
        *family.lint(spec),
        *lint_optional_axes(spec, family),
        *lint_relations(spec, family),
        *(_lint_shards(spec, family) if has_ranks(spec) or spec.shards else ()),
        *unread_axes(spec, family),
        *expired(spec),
    ]
    if tier not in spec.tiers:
        words = suggestion(tier, spec.tiers, "Its tiers")
        issues.append(spec.issue(("tiers",), f"the spec has no tier {tier!r}{words}"))
    if issues:
        raise SpecError(issues)
    expansion = expand(spec, tier, partial(family.compile_key, spec), seed=seed)
    invalid = invalid_cases(spec)
    issues = [
        spec.issue(
            each.invalid.path,
            f"{each.case.id} is also a case of the tier {tier}, which must pass; "
            "exclude it with a constraint, or set another value",
        )
        for each in invalid
        if expansion.holds(each.case)
    ]
    if issues:
        raise SpecError(issues)
    return Plan(spec, tier, expansion, invalid, family)


def _lint_shards(spec: Spec, family: Family) -> Iterator[Issue]:
    """Issues of a spec's `shards`, found without building a problem.

    A family without the attribute `tensors` may have any tensor.
    """
    known: Iterable[str] | None = getattr(family, "tensors", None)
    for name in spec.shards if known is not None else ():
        if name not in (names := sorted(known or ())):
            hint = suggestion(name, names, "Its tensors")
            message = f"shards: the problem has no tensor {name!r}{hint}"
            yield spec.issue(("shards", name), message)
