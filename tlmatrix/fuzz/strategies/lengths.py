"""What packed batches are made of: tables of spans, and profiles that draw from parts of them.

A profile is a way in which batches go wrong: all sequences empty, runs of empty ones, one long
among short, every length next to a tile's edge. All profiles draw from one table, each from a part
of it, and the first from all: so any batch is also one of the first profile's, and Hypothesis
shrinks to that without losing a length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tlmatrix.fuzz.strategies.spans import Span, clipped, edges
from tlmatrix.spec.model.fuzz import Range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.fuzz.strategies.traces import Requests
    from tlmatrix.spec.model.spec import FuzzLengths
    from tlmatrix.spec.values import Value

__all__ = ["KeySpan", "Lengths", "Profile", "batch_value", "key_span", "lengths_of"]

KeySpan = Span | Literal["same", "longer", "shorter"]
"""A span of key lengths, or one that the query's length decides."""

_SHORT = 3
_LONG = 4
"""Short lengths are up to 3, long ones in the last quarter of the range."""
_EMPTY = 1
"""The place of the empty span in every table."""


@dataclass(frozen=True)
class Profile:
    """The places of the tables of query and key spans that one batch draws from."""

    name: str
    queries: Span
    keys: Span
    of_trace: bool = False


@dataclass(frozen=True)
class Lengths:
    """How batches are drawn: how many sequences, and spans for their lengths.

    `keys` is None where they are as many as queries, and `fixed` the number of queries where all
    sequences have the same (decoding). `profiles` are drawn alike, some of them are there twice.
    """

    sequences: Span
    whole: Span
    """Of key lengths; of those of queries, too, where they are not told apart."""
    relation: str
    """How keys follow from queries: same, independent, longer or shorter."""
    queries: tuple[Span, ...]
    keys: tuple[KeySpan, ...] | None
    profiles: tuple[Profile, ...]
    fixed: int | None = None
    apart: bool = False
    """Whether queries have a range of their own; a trace then tells lengths of keys."""
    plain: bool = False
    """Whether the axis lists plain lists, not sides."""
    requests: Requests = ()
    """Of a trace, which profiles with `of_trace` replay."""

    def longest(self, side: int) -> int:
        """The longest that a sequence can be, in queries (0) or keys (1)."""
        return self.whole.high if side else self.queries[0].high


def lengths_of(
    fuzz: FuzzLengths,
    tiles_q: Sequence[int],
    tiles_k: Sequence[int],
    requests: Requests = (),
    *,
    plain: bool = False,
) -> Lengths:
    """The tables that `fuzz.seqlens` makes, with the edges of the kernel's tiles."""
    apart = fuzz.q
    if apart is None and isinstance(fuzz.k, Range):
        apart = fuzz.length
    traced = [length for pair in requests for length in (pair if apart is None else pair[1:])]
    whole = Span(min([fuzz.keys.low, *traced]), max([fuzz.keys.high, *traced]))
    rows = whole if apart is None else Span(apart.low, apart.high)
    queries, parts = _query_table(rows, edges(rows, tiles_q, fuzz.around))
    keys = _key_table(whole, edges(whole, tiles_k, fuzz.around), fuzz.relation, apart=_own(fuzz))
    fixed = apart.low if _own(fuzz) and apart is not None and apart.low == apart.high else None
    rows_at, keys_at = Span(0, len(queries) - 1), Span(0, len(keys or (0,)) - 1)
    profiles = _profiles(parts, rows_at, keys_at)
    anywhere = 0 if keys is None else keys.index(whole)
    traces = (
        (Profile("trace", Span(0, 0), Span(anywhere, anywhere), of_trace=True),) if requests else ()
    )
    return Lengths(
        sequences=Span(fuzz.sequences.low, fuzz.sequences.high),
        whole=whole,
        relation=fuzz.relation,
        queries=queries,
        keys=keys,
        profiles=(*profiles, *traces * len(profiles)),
        fixed=fixed,
        apart=_own(fuzz),
        plain=plain,
        requests=requests,
    )


def _own(fuzz: FuzzLengths) -> bool:
    """Whether queries and keys have ranges of their own that do not depend on each other."""
    return (fuzz.q is not None and fuzz.k == "same") or isinstance(fuzz.k, Range)


def _query_table(
    whole: Span, edge: Sequence[Span]
) -> tuple[tuple[Span, ...], dict[str, tuple[int, int]]]:
    """The spans, and the places (first, last) of each kind of batch."""
    empty, one = (clipped(Span(at, at), whole.low, whole.high) for at in (0, 1))
    short = Span(whole.low, min(whole.low + _SHORT, whole.high))
    long = Span(whole.high - (whole.high - whole.low) // _LONG, whole.high)
    kinds: dict[str, list[Span]] = {
        "edges": list(edge) or [whole],
        "one long": [short] * 7 + [long],
        "runs of empty": [empty] * 5 + [one] + [whole] * 2,
    }
    spans = [whole, empty]
    places = {}
    for name, own in kinds.items():
        places[name] = (len(spans), len(spans) + len(own) - 1)
        spans += own
    spans += [one] * (len(spans) // 12) + [whole] * (len(spans) // 3)
    return tuple(spans), places


def _key_table(
    whole: Span, edge: Sequence[Span], relation: str, *, apart: bool
) -> tuple[KeySpan, ...] | None:
    empty, one = (clipped(Span(at, at), whole.low, whole.high) for at in (0, 1))
    if apart:
        special = [*edge, *[empty, one] * (1 + len(edge) // 8)]
        return (whole, empty, *special, *[whole] * (2 * len(special) // 3))
    if relation == "same":
        return None
    related: tuple[KeySpan, ...] = ("same", "longer", "shorter", empty, one, whole, whole, whole)
    return ("same", empty, whole, *edge, *related * (1 + len(edge) // 8))


def _profiles(parts: dict[str, tuple[int, int]], rows: Span, keys: Span) -> tuple[Profile, ...]:
    """Profiles by the places they draw from; the first draws from all there are."""
    empty = Span(_EMPTY, _EMPTY)
    no_keys = empty if keys.high else keys
    one_long, runs, edge = (Span(*parts[name]) for name in ("one long", "runs of empty", "edges"))
    return (
        Profile("mixed", rows, keys),
        *[Profile("one long", one_long, keys)] * 3,
        Profile("runs of empty", runs, keys),
        *[Profile("edges", edge, keys)] * 2,
        Profile("equal lengths", rows, Span(0, 0)),
        Profile("no queries", empty, keys),
        Profile("no keys", rows, no_keys),
        Profile("all empty", empty, no_keys),
        *[Profile("mixed", rows, keys)] * 7,
    )


def key_span(lengths: Lengths, span: KeySpan, query: int) -> Span:
    """The span of key lengths beside `query` queries."""
    low, high = lengths.whole.low, lengths.whole.high
    relation = span if lengths.relation == "independent" else lengths.relation
    if relation == "longer":
        low, high = query, max(query, high)
    elif relation == "shorter":
        low, high = min(low, query), query
    match span:
        case "same":
            return Span(query, query)
        case Span():
            return clipped(span, low, high)
    return Span(low, high)


def batch_value(lengths: Lengths, batch: Sequence[tuple[int, int]]) -> Value:
    """A batch as the axis has it: `[17, 64]`, `{q: [17, 64], k: same}`."""
    queries, keys = [q for q, _ in batch], [k for _, k in batch]
    if lengths.plain:
        return queries
    if lengths.fixed is not None:
        return {"q": lengths.fixed, "k": keys}
    return {"q": queries, "k": "same" if queries == keys else keys}
