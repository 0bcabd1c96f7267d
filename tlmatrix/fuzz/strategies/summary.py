"""What the random cases of a spec are drawn from, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.fuzz.strategies.axis_domain import Domain
    from tlmatrix.fuzz.strategies.case_domain import CaseDomain
    from tlmatrix.fuzz.strategies.lengths import Lengths
    from tlmatrix.fuzz.strategies.spans import Span

__all__ = ["described"]


def described(ground: CaseDomain) -> Iterator[str]:
    """A line each for lengths, for other axes that change freely, and for those that do not."""
    for axis, lengths in ground.lengths.items():
        yield f"{axis}: {_lengths(lengths)}"
    parts = [f"{name} {_domain(each)}" for name, each in ground.free.items() if each.count > 1]
    if ground.extras.values:
        parts.append("values of every distribution")
    parts += [f"{name} larger than any" for name in ground.extras.larger]
    storage = [name for name in dict.fromkeys(ground.extras.storage) if name is not None]
    if storage:
        parts.append(f"storage {', '.join(storage)}")
    if parts:
        yield f"each time: {'; '.join(parts)}"
    if ground.fixed:
        many = len(ground.configurations)
        yield f"mostly as in the tier ({many}): {', '.join(ground.fixed)}"


def _lengths(lengths: Lengths) -> str:
    told = f"{_span(lengths.sequences)} sequences of {_span(lengths.whole)}"
    if lengths.apart:
        told += f" keys, beside {_span(lengths.queries[0])} queries each"
    elif lengths.relation != "same":
        told += f", keys {lengths.relation}"
    count = len(lengths.requests)
    return f"{told}; half of them from {count} requests of a trace" if count else told


def _domain(domain: Domain) -> str:
    named = [label(value) for value in domain.named]
    return ", ".join([*named, *(_span(span) for span in domain.spans[:1])])


def _span(span: Span) -> str:
    return str(span.low) if span.low == span.high else f"{span.low}..{span.high}"
