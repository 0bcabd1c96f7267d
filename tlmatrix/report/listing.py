"""The output of `tlmatrix list`: the cases of a spec, and why a case belongs to a tier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.fuzz.strategies import case_domain, summarize
from tlmatrix.report.text import count
from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.matrix import Explanation
    from tlmatrix.run.plan import Plan


def list_lines(plan: Plan, *, cases: bool = False) -> Iterator[str]:
    """The lines about a spec: the counts of its tier's cases; with `cases`, the id of each."""
    spec, expansion = plan.spec, plan.expansion
    yield f"{spec.name}  {spec.path}"
    if spec.summary:
        yield f"    {spec.summary}"
    yield (
        f"    {plan.tier}: {'' if expansion.counted else 'at most '}"
        f"{count(plan.count(), 'case')} ({expansion.strategy}) "
        f"of {expansion.combinations:,} combinations"
    )
    configurations = plan.configurations()
    if configurations is not None:
        yield f"    compiled for {count(configurations, 'configuration')} ({_compiled_for(plan)})"
    parts = {
        "regression": len(spec.regressions),
        "extra case": len(spec.extra_cases),
        "invalid input": len(plan.invalid),
        "known bug": len(spec.known_bugs),
    }
    counts = ", ".join(count(items, name) for name, items in parts.items() if items)
    if counts:
        yield f"    with {counts}"
    examples = spec.fuzz.examples.get(plan.tier, 0) if spec.fuzz is not None else 0
    if examples:
        yield f"    and up to {count(examples, 'fuzz case')} generated when it runs"
        for line in summarize(case_domain(spec, plan.tier)):
            yield f"        {line}"
    others = [f"{name} ({tier.strategy})" for name, tier in spec.tiers.items() if name != plan.tier]
    if others:
        yield f"    other tiers: {', '.join(others)}"
    for rule, removed in expansion.removed.items():
        number = "too many to count" if removed is None else f"{removed:,}"
        yield f"    constraint {rule.text}{rule.reason}: removes {number}"
    if cases:
        for case in plan.cases():
            origin = "" if case.origin == "tier" else f"  ({case.origin})"
            yield f"    {case.id}{origin}"


def _compiled_for(plan: Plan) -> str:
    """What kernels are compiled for, as the spec says."""
    named = ", ".join(str(each) for each in plan.spec.compile_axes)
    return named or "all axes that are not run-time arguments"


def explain_lines(explanation: Explanation) -> Iterator[str]:
    """The lines about a case: its values, its tiers with reasons, and matching known bugs."""
    case = explanation.case
    yield f"{case.spec}::{case.id}"
    width = max(map(len, case.values))
    for name, value in case.values.items():
        yield f"    {name:<{width}}  {label(value)}"
    for tier, membership in explanation.tiers.items():
        yield f"    {tier}: {'yes' if membership.included else 'no'}, {membership.reason}"
    for rule in explanation.removed_by:
        yield f"    removed by the constraint {rule.text}{rule.reason}"
    for bug in explanation.known_bugs:
        yield f"    known bug {bug.issue} until {bug.expires} ({bug.mode}): {bug.when.text}"
    for bug in explanation.undecided:
        yield f"    known bug {bug.issue}, depending on architecture or backend: {bug.when.text}"
    yield f"    seed {explanation.seed}"
