"""The domain of packed batches: a table of spans, and profiles that use parts of it.

A profile is a kind of batch that tends to fail: all sequences empty, runs of empty ones, one long
sequence among short ones, all lengths at tile edges, lengths that climb over the edge of a tile one
by one. Each profile uses a part of the table, and the first one all of it, so Hypothesis can shrink
to the first profile without changing lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tlmatrix.fuzz.strategies.integers import Span, beyond, clip, edges, edges_of, related_span
from tlmatrix.spec.model.fuzz import Range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.fuzz.strategies.traces import Requests
    from tlmatrix.spec.model.spec import FuzzLengths
    from tlmatrix.spec.values import Value

KeySpan = Span | Literal["same", "longer", "shorter"] | int
"""Key lengths: a span, a relation to the query length, or the number of a related span."""

_SHORT = 3
"""Short lengths are at most this much above the least."""
_LONG = 4
"""Long lengths are in the last quarter of the range."""
_RELATED = 4
"""One key span in so many is relative to the number of queries."""
_CLIMB, _CLIMBS = 5, 4
"""Sequences of a climbing batch, and how many profiles draw one."""
_USUAL_TILES = (64, 128)
"""Tiles of a kernel of which the spec tells none."""
_MULTIPLES = 3
"""Edges of a tile at which batches climb."""
_EMPTY = 1
"""The index of the empty span in every table."""


@dataclass(frozen=True)
class Profile:
    """A kind of batch: the ranges of indices into the tables of query and key spans."""

    name: str
    queries: Span
    keys: Span
    of_trace: bool = False
    climbs: bool = False


@dataclass(frozen=True)
class Lengths:
    """The domain of the batches of a packed axis.

    `keys` is None if every sequence has as many keys as queries. `fixed` is the number of queries
    if all sequences have the same (decoding). Some profiles are repeated, to be drawn more often.
    """

    sequences: Span
    whole: Span
    """The range of key lengths, and of query lengths unless these have their own."""
    relation: str
    """Key lengths relative to query lengths: same, independent, longer or shorter."""
    queries: tuple[Span, ...]
    keys: tuple[KeySpan, ...] | None
    profiles: tuple[Profile, ...]
    fixed: int | None = None
    separate_queries: bool = False
    """Whether queries have their own range; a trace then has lengths of keys."""
    plain: bool = False
    """Whether values of the axis are plain lists, without `q` and `k`."""
    requests: Requests = ()
    """The requests of a trace, which profiles with `of_trace` replay."""
    tiles: tuple[int, ...] = ()
    """Tiles at whose multiples sums and differences of queries and keys are put."""
    climbs: tuple[Requests, ...] = ()
    """Batches for profiles with `climbs`."""
    alone: tuple[int, ...] = ()
    """Numbers of sequences above `sequences`, of batches of the least lengths."""

    @property
    def least(self) -> tuple[int, int]:
        """The queries and keys of the shortest sequence that is not empty."""
        queries = self.queries[0].least if self.fixed is None else self.fixed
        if self.keys is None:
            return queries, queries
        return queries, key_span(self, self.whole, queries).least

    def longest(self, side: int) -> int:
        """The largest number of queries (0) or keys (1) of a sequence."""
        return self.whole.high if side else self.queries[0].high


def lengths_of(
    fuzz: FuzzLengths,
    tiles_q: Sequence[int],
    tiles_k: Sequence[int],
    requests: Requests = (),
    *,
    plain: bool = False,
) -> Lengths:
    """The domain of a packed axis with this section of `fuzz` and these tile sizes."""
    own = fuzz.q
    if own is None and isinstance(fuzz.k, Range):
        own = fuzz.length
    traced = [length for pair in requests for length in (pair if own is None else pair[1:])]
    whole = Span(min([fuzz.keys.low, *traced]), max([fuzz.keys.high, *traced]))
    rows = whole if own is None else Span(own.low, own.high)
    queries, parts = _query_table(rows, edges(rows, tiles_q, fuzz.around))
    keys = _key_table(
        whole, edges(whole, tiles_k, fuzz.around), fuzz.relation, independent=_has_own_queries(fuzz)
    )
    fixed = own.low if _has_own_queries(fuzz) and own is not None and own.low == own.high else None
    tiles = (
        () if keys is None or fixed is not None else edges_of([*tiles_q, *tiles_k, *fuzz.around])
    )
    if tiles and keys is not None and fixed is None:
        keys = (*keys, *range(len(keys) // _RELATED))
    rows_at, keys_at = Span(0, len(queries) - 1), Span(0, len(keys or (0,)) - 1)
    profiles = _profiles(parts, rows_at, keys_at)
    anywhere = 0 if keys is None else keys.index(whole)
    traces = (
        (Profile("trace", Span(0, 0), Span(anywhere, anywhere), of_trace=True),) if requests else ()
    )
    climbs = climbing_batches(
        rows,
        whole,
        edges_of([*tiles_q, *tiles_k, *fuzz.around]) or _USUAL_TILES,
        fuzz.relation,
        fixed,
    )
    climb = Profile("climb", Span(0, 0), Span(anywhere, anywhere), climbs=True)
    profiles = (*profiles, *[climb] * _CLIMBS) if climbs else profiles
    return Lengths(
        sequences=Span(fuzz.sequences.low, fuzz.sequences.high),
        whole=whole,
        relation=fuzz.relation,
        queries=queries,
        keys=keys,
        profiles=(*profiles, *traces * len(profiles)),
        fixed=fixed,
        separate_queries=_has_own_queries(fuzz),
        plain=plain,
        requests=requests,
        tiles=tiles,
        climbs=climbs,
        alone=beyond(fuzz.sequences.high, fuzz.alone, fuzz.around),
    )


def climbing_batches(
    rows: Span, whole: Span, tiles: Sequence[int], relation: str, fixed: int | None
) -> tuple[Requests, ...]:
    """Batches whose key lengths climb over the edge of a tile one by one, as (queries, keys).

    A tile of a mask, the last tile of a sequence or the first of a window then holds no, one or two
    pairs too many in one of the sequences. The numbers of queries are equal, or descend, or every
    second one is 1, as in a prefill beside a decode step; or they are those of keys, if `relation`
    is `same`. None if the relation orders the lengths, or no edge is in the range.

    Args:
        rows: the range of query lengths.
        whole: the range of key lengths.
        tiles: sizes of tiles.
        relation: of key lengths to query lengths.
        fixed: the number of queries, if all sequences have the same.
    """
    if relation in ("longer", "shorter"):
        return ()
    steps = range(-(_CLIMB // 2), _CLIMB - _CLIMB // 2)
    found = []
    for tile in dict.fromkeys(tiles):
        top = min(_MULTIPLES, (whole.high - steps[-1]) // tile)
        for edge in range(tile, (top + 1) * tile, tile):
            keys = [edge + step for step in steps]
            if keys[0] < whole.low:
                continue
            if relation == "same":
                found.append(tuple((key, key) for key in keys))
                continue
            many = [
                min(max(at, rows.low), rows.high) if fixed is None else fixed
                for at in (edge, tile + 1)
            ]
            found += [tuple((count, key) for key in keys) for count in dict.fromkeys(many)]
            if fixed is not None:
                continue
            descending = [min(max(at, rows.low), rows.high) for at in reversed(keys)]
            found.append(tuple(zip(descending, keys, strict=True)))
            if rows.low <= 1 < rows.high:
                alternating = [1 if at % 2 else many[0] for at in range(_CLIMB)]
                found.append(tuple(zip(alternating, keys, strict=True)))
    return tuple(found)


def _has_own_queries(fuzz: FuzzLengths) -> bool:
    """Whether queries and keys have independent ranges."""
    return (fuzz.q is not None and fuzz.k == "same") or isinstance(fuzz.k, Range)


def _query_table(
    whole: Span, edge: Sequence[Span]
) -> tuple[tuple[Span, ...], dict[str, tuple[int, int]]]:
    """The table of query spans, and the indices (first, last) of each part of it."""
    empty, one = (clip(Span(at, at), whole.low, whole.high) for at in (0, 1))
    short = Span(whole.low, min(whole.low + _SHORT, whole.high))
    long = Span(whole.high - (whole.high - whole.low) // _LONG, whole.high)
    kinds: dict[str, list[Span]] = {
        "edges": list(edge) or [whole],
        "one long": [short] * 7 + [long],
        "runs of empty": [empty] * 5 + [one] + [whole] * 2,
    }
    spans = [whole, empty]
    parts = {}
    for name, own in kinds.items():
        parts[name] = (len(spans), len(spans) + len(own) - 1)
        spans += own
    spans += [one] * (len(spans) // 12) + [whole] * (len(spans) // 3)
    return tuple(spans), parts


def _key_table(
    whole: Span, edge: Sequence[Span], relation: str, *, independent: bool
) -> tuple[KeySpan, ...] | None:
    empty, one = (clip(Span(at, at), whole.low, whole.high) for at in (0, 1))
    if independent:
        special = [*edge, *[empty, one] * (1 + len(edge) // 8)]
        return (whole, empty, *special, *[whole] * (2 * len(special) // 3))
    if relation == "same":
        return None
    related: tuple[KeySpan, ...] = ("same", "longer", "shorter", empty, one, whole, whole, whole)
    return ("same", empty, whole, *edge, *related * (1 + len(edge) // 8))


def _profiles(parts: dict[str, tuple[int, int]], rows: Span, keys: Span) -> tuple[Profile, ...]:
    """The profiles; the first one uses the whole tables."""
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
    """The span of key lengths for a sequence of `query` queries."""
    low, high = lengths.whole.low, lengths.whole.high
    relation = span if lengths.relation == "independent" else lengths.relation
    if relation == "longer":
        low, high = query, max(query, high)
    elif relation == "shorter":
        low, high = min(low, query), query
    match span:
        case "same":
            return Span(query, query)
        case int():
            return related_span(Span(low, high), [query], lengths.tiles, span)
        case Span():
            return clip(span, low, high)
    return Span(low, high)


def batch_value(lengths: Lengths, batch: Sequence[tuple[int, int]]) -> Value:
    """A batch as a value of the axis: `[17, 64]`, `{q: [17, 64], k: same}`."""
    queries, keys = [q for q, _ in batch], [k for _, k in batch]
    if lengths.plain:
        return queries
    if lengths.fixed is not None:
        return {"q": lengths.fixed, "k": keys}
    return {"q": queries, "k": "same" if queries == keys else keys}
