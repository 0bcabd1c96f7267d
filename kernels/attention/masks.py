"""Which query sees which key: written once, used by forward and backward alike.

Positions count from the start of their own sequence. When the lengths differ, causal attention
is aligned bottom-right: the last query stands beside the last key, so query i stands at key
position ``i + offset`` with ``offset = seqlen_k - seqlen_q``, and sees the keys up to there. A
window of w keys (the query's own included) hides those at or before ``i + offset - w``.

A kernel makes one `Mask` while it is traced, from the lengths of the sequence its block works
on, and asks: does this query see this key (`sees`), which tiles of keys does a tile of queries
need, if any (`key_tiles`, `sees_keys`), and the reverse (`query_tiles`, `seen_by_queries`), and
does any pair of two tiles need the first question at all (`cuts`).
"""

from dataclasses import dataclass, replace

import tilelang.language as T

__all__ = ["Mask", "block_order", "query_tile", "tile_and_head"]


def block_order(causal, tiles, heads):
    """The first two dimensions of a grid of `tiles` tiles of each of `heads` heads.

    Blocks start in order, the first dimension fastest. Tiles of one head after the other share
    its keys in the cache; but where causal tiles differ in their work, the longest of all heads
    start first, so that little of it is left for a few blocks at the end.
    """
    return (heads, tiles) if causal else (tiles, heads)


def tile_and_head(causal, first, second):
    """The tile and the head of the block at these two places of the grid."""
    return (second, first) if causal else (first, second)


def query_tile(causal, tile, rows, queries, keys):
    """The first row of the block `tile` of `rows` queries, and the sequence that it works on.

    Causal queries see more keys the later they stand, so the tiles are cut from the end: the block
    0 of a sequence has the most work, and of a length that is no multiple the short tile has the
    least. The queries before a later tile, with the keys that these see, are a shorter sequence
    aligned as the whole one is; a block works on that, at its end.
    """
    if not causal:
        return tile * rows, queries, keys
    queries, keys = queries.without(tile * rows), keys.without(tile * rows)
    return T.max(queries.length - rows, 0), queries, keys


@dataclass(frozen=True)
class Mask:
    """The mask of one sequence.

    ``causal`` and ``windowed`` are known when the kernel is compiled; the lengths and the window
    are int32 expressions of the running kernel.
    """

    causal: bool
    windowed: bool
    seqlen_q: object
    seqlen_k: object
    window: object

    def over(self, seqlen_q, seqlen_k):
        """The same mask over other expressions of the lengths."""
        return replace(self, seqlen_q=seqlen_q, seqlen_k=seqlen_k)

    def at(self, _key):
        """The mask of the tile of keys from this one on: the same, where keys are one sequence."""
        return self

    @property
    def offset(self):
        """The key position at which query 0 stands."""
        return self.seqlen_k - self.seqlen_q

    def sees(self, query, key):
        """Whether `query` sees `key`; neither exists beyond its own sequence."""
        seen = T.And(query < self.seqlen_q, key < self.seqlen_k)
        if self.causal:
            seen = T.And(seen, key <= query + self.offset)
        if self.windowed:
            seen = T.And(seen, key > query + self.offset - self.window)
        return seen

    def cuts(self, query, queries, key, keys):
        """Whether some pair of the tiles from `query` and from `key` is masked.

        A tile in the middle of the sequence, where every query sees every key, skips the
        per-element test. (May say yes for a tile that needs none, never the reverse.)
        """
        cut = T.Or(query + queries > self.seqlen_q, key + keys > self.seqlen_k)
        if self.causal:
            cut = T.Or(cut, key + keys - 1 > query + self.offset)
        if self.windowed:
            cut = T.Or(cut, key <= query + queries - 1 + self.offset - self.window)
        return cut

    def key_tiles(self, query, queries, keys):
        """The tiles of `keys` keys that the `queries` queries from `query` see.

        Returns the first tile and their number, which is zero or less when the tile sees nothing.
        """
        first = 0
        end = self.seqlen_k
        if self.causal:  # the last query of the tile sees furthest
            end = T.min(end, T.min(query + queries, self.seqlen_q) + self.offset)
        if self.windowed:  # the first query of the tile sees furthest back
            first = T.max(query + self.offset - self.window + 1, 0) // keys
        return first, T.ceildiv(end, keys) - first

    def query_tiles(self, key, keys, queries):
        """The tiles of `queries` queries that see any of the `keys` keys from `key`.

        Returns the first tile and their number, which is zero or less when the tile sees nothing.
        """
        first = 0
        end = self.seqlen_q
        if self.causal:  # the first key of the tile is the first to be seen
            first = T.max(key - self.offset, 0) // queries
        if self.windowed:  # the last key of the tile is the last to leave the window
            last_key = T.min(key + keys, self.seqlen_k) - 1
            end = T.min(end, last_key + self.window - self.offset)
        return first, T.ceildiv(end, queries) - first

    def sees_keys(self, query, queries, keys):
        """Whether the tile of queries begins in its sequence, and sees a tile of `keys` keys."""
        return T.And(query < self.seqlen_q, self.key_tiles(query, queries, keys)[1] > 0)

    def seen_by_queries(self, key, keys, queries):
        """Whether the tile of keys begins in its sequence, and a tile of `queries` sees it."""
        return T.And(key < self.seqlen_k, self.query_tiles(key, keys, queries)[1] > 0)
