"""The causal and window mask, as a function of (query, key) used by forward and backward alike.

Positions count from the start of their sequence. Query i attends to the keys ``j <= i + offset``. A
window of w keys, including the query's own position, also requires ``j > i + offset - w``. With
different lengths the alignment of the mask counts: bottom-right, where the last query has the last
key beside it (``offset = seqlen_k - seqlen_q``), or top-left, where the first has the first
(``offset = 0``). `causal` is False, True (bottom-right) or `TOP_LEFT`, at compile time.

A kernel makes one `Mask` from the lengths of the block's sequence while it is traced. `visible`
tests one pair, `attends` one with a query of the sequence; `key_tiles` and `query_tiles` are the
ranges of tiles with visible pairs, `any_key_visible` and `any_query_visible` whether these ranges
are non-empty; `needs_mask` is whether a pair of tiles has a masked pair.
"""

from dataclasses import dataclass, replace
from functools import reduce

import tilelang.language as T

TOP_LEFT = "top_left"
"""The value of `causal` for a mask aligned at the first query and the first key."""


def block_order(causal, tiles, heads):
    """The first two grid dimensions, for `tiles` tiles of each of `heads` heads.

    Blocks start in order, first dimension fastest. Non-causal: tiles of one head are consecutive
    and share its keys in L2. Causal: tiles differ in work, so the longest tiles of all heads start
    first, which balances the last wave.
    """
    return (heads, tiles) if causal else (tiles, heads)


def tile_and_head(causal, first, second):
    """The (tile, head) of the block with these two grid indices."""
    return (second, first) if causal else (first, second)


def query_tile(causal, tile, rows, queries, keys):
    """The first row of tile `tile` of `rows` queries, and the queries and keys that its block uses.

    Causal tiles are counted from the end: tile 0 of a sequence is the longest, and a partial tile
    is at the start, where it has the least work. The queries up to the end of a tile, with the keys
    visible to them, form a shorter sequence with the same alignment; the block works on its last
    rows. Top-left, the keys stay as they are.
    """
    if not causal:
        return tile * rows, queries, keys
    queries = queries.without_last(tile * rows)
    if causal != TOP_LEFT:
        keys = keys.without_last(tile * rows)
    return T.max(queries.length - rows, 0), queries, keys


@dataclass(frozen=True)
class Mask:
    """The mask of one sequence.

    ``causal`` (see the module) and ``windowed`` are compile-time constants; the lengths and the
    window are int32 expressions.
    """

    causal: bool | str
    windowed: bool
    seqlen_q: object
    seqlen_k: object
    window: object

    def with_lengths(self, seqlen_q, seqlen_k):
        """The same mask with other expressions for the lengths."""
        return replace(self, seqlen_q=seqlen_q, seqlen_k=seqlen_k)

    def bound(self):
        """The same mask, with all but the lengths bound to kernel variables: see `rows`."""
        return self

    def for_key_tile(self, _key):
        """The mask of the key tile at `_key`; subclasses with several key ranges override it."""
        return self

    @property
    def offset(self):
        """The key position aligned with query 0."""
        if self.causal == TOP_LEFT:
            return 0
        return self.seqlen_k - self.seqlen_q

    @property
    def ends_on_diagonal(self):
        """Whether the causal test alone hides keys past the end from a query of the sequence."""
        return self.causal is True

    def attends(self, query, key):
        """Whether `query` attends to `key`, for a query of the sequence; past its end, anything.

        The forward pass does not store such rows, and these are all tests that a score costs it.
        """
        tests = [] if self.ends_on_diagonal else [key < self.seqlen_k]
        if self.causal:
            tests.append(key <= query + self.offset)
        if self.windowed:
            tests.append(key > query + self.offset - self.window)
        return reduce(T.And, tests)

    def visible(self, query, key):
        """Whether `query` attends to `key`; False past the end of either sequence."""
        return T.And(query < self.seqlen_q, self.attends(query, key))

    def needs_mask(self, query, queries, key, keys):
        """Whether the tiles from `query` and from `key` contain a masked pair.

        Interior tiles then skip the elementwise test. Conservative: it may be True without a masked
        pair.
        """
        cut = T.Or(query + queries > self.seqlen_q, key + keys > self.seqlen_k)
        if self.causal:
            cut = T.Or(cut, key + keys - 1 > query + self.offset)
        if self.windowed:
            cut = T.Or(cut, key <= query + queries - 1 + self.offset - self.window)
        return cut

    def key_tiles(self, query, queries, keys):
        """The tiles of `keys` keys visible to the `queries` queries from `query`.

        Returns the first tile and the number of tiles, which is zero or negative if none is
        visible.
        """
        first = 0
        end = self.seqlen_k
        if self.causal:  # the last query of the tile has the last visible key
            end = T.min(end, T.min(query + queries, self.seqlen_q) + self.offset)
        if self.windowed:  # the first query of the tile has the first visible key
            first = T.max(query + self.offset - self.window + 1, 0) // keys
        return first, T.ceildiv(end, keys) - first

    def query_tiles(self, key, keys, queries):
        """The tiles of `queries` queries that attend to any of the `keys` keys from `key`.

        Returns the first tile and the number of tiles, which is zero or negative if there is none.
        """
        first = 0
        end = self.seqlen_q
        if self.causal:  # the first key of the tile is visible to the first query
            first = T.max(key - self.offset, 0) // queries
        if self.windowed:  # the last key of the tile is visible to the last query
            last_key = T.min(key + keys, self.seqlen_k) - 1
            end = T.min(end, last_key + self.window - self.offset)
        return first, T.ceildiv(end, queries) - first

    def any_key_visible(self, query, queries, keys):
        """Whether the tile of queries starts inside its sequence and has a visible tile of keys."""
        return T.And(query < self.seqlen_q, self.key_tiles(query, queries, keys)[1] > 0)

    def any_query_visible(self, key, keys, queries):
        """Whether the tile of keys starts inside its sequence and any query attends to it."""
        return T.And(key < self.seqlen_k, self.query_tiles(key, keys, queries)[1] > 0)
