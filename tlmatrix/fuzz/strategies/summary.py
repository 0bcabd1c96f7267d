"""A summary of a `CaseDomain` for `tlmatrix list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.fuzz.strategies.axis_domain import AxisDomain
    from tlmatrix.fuzz.strategies.case_domain import CaseDomain
    from tlmatrix.fuzz.strategies.lengths import Lengths
    from tlmatrix.fuzz.strategies.spans import Span


def summarize(case_domain: CaseDomain) -> Iterator[str]:
    """Yield a line for each of: lengths, free axes, and axes that kernels are compiled for."""
    for axis, lengths in case_domain.lengths.items():
        yield f"{axis}: {_lengths(lengths)}"
    parts = [f"{name} {_domain(each)}" for name, each in case_domain.free.items() if each.count > 1]
    if case_domain.optional.values:
        parts.append("values of all distributions")
    parts += [f"{name} larger than the longest" for name in case_domain.optional.larger]
    storage = [name for name in dict.fromkeys(case_domain.optional.storage) if name is not None]
    if storage:
        parts.append(f"storage {', '.join(storage)}")
    if parts:
        yield f"each time: {'; '.join(parts)}"
    if case_domain.fixed:
        many = len(case_domain.configurations)
        yield f"mostly as in the tier ({many}): {', '.join(case_domain.fixed)}"


def _lengths(lengths: Lengths) -> str:
    text = f"{_span(lengths.sequences)} sequences of {_span(lengths.whole)}"
    if lengths.separate_queries:
        text += f" keys, beside {_span(lengths.queries[0])} queries each"
    elif lengths.relation != "same":
        text += f", keys {lengths.relation}"
    count = len(lengths.requests)
    return f"{text}; half of them from {count} requests of a trace" if count else text


def _domain(domain: AxisDomain) -> str:
    named = [label(value) for value in domain.named]
    return ", ".join([*named, *(_span(span) for span in domain.spans[:1])])


def _span(span: Span) -> str:
    return str(span.low) if span.low == span.high else f"{span.low}..{span.high}"
