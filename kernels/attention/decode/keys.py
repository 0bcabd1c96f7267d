"""Where the keys and values of a sequence lie: in a cache of its own, or in pages of a pool.

A tile of keys is as many consecutive keys of one kv head, from a multiple of that number on. Both
ways of keeping them read a tile into shared memory, of which the keys that `sees` refuses may be
anything: stale ones of the cache, or of the last page. What they hold may be infinite or NaN, so
the block that reads them drops it by select, never by a product with zero.
"""

from dataclasses import dataclass

import tilelang.language as T

__all__ = [
    "Cached",
    "Paged",
    "Span",
    "copy_pages",
    "load",
    "load_page_indices",
    "pages_per_tile",
    "spans_pages",
]


@dataclass(frozen=True)
class Span:
    """The keys of a sequence that its query sees, and the share of them that one block takes.

    The query stands beside the last key. With a `window` (None: without) it sees as many keys,
    its own included. `length` and `window` are int32 expressions of the running kernel.
    """

    length: object
    window: object
    columns: int

    @property
    def begin(self):
        """The first key that is seen."""
        return 0 if self.window is None else T.max(self.length - self.window, 0)

    def tile_range(self, split, splits):
        """The first tile of the share `split` of `splits`, and its number of tiles."""
        low = 0 if self.window is None else T.truncdiv(self.begin, self.columns)
        tiles = T.truncdiv(self.length + (self.columns - 1), self.columns) - low
        first = T.truncdiv(tiles * split, splits)
        return low + first, T.truncdiv(tiles * (split + 1), splits) - first

    def needs_mask(self, key):
        """Whether some key of the tile from `key` is not seen."""
        cut = key + self.columns > self.length
        return cut if self.window is None else T.Or(cut, key < self.begin)

    def visible(self, key):
        """Whether `key` is seen; none is beyond the sequence."""
        seen = key < self.length
        return seen if self.window is None else T.And(seen, key >= self.begin)


@dataclass(frozen=True)
class Cached:
    """k and v are [batch, max_seqlen, kv_heads, dim]: key j of sequence b is row (b, j)."""

    sequence: object


@dataclass(frozen=True)
class Paged:
    """k and v are [pages, page_size, kv_heads, dim].

    Keys [i * page_size, (i + 1) * page_size) of sequence b are the rows of page block_table[b, i].
    """

    block_table: object
    sequence: object
    page_size: int


def _entry(keys, key, part, span):
    """The table's entry of the part `part` of the tile from `key`, or the nearest that is seen."""
    entry = T.truncdiv(key, keys.page_size) + part
    entry = T.min(entry, T.truncdiv(span.length - 1, keys.page_size))
    if span.window is None:
        return entry
    return T.max(entry, T.truncdiv(span.begin, keys.page_size))


@T.macro
def load(keys, tensor, shared, kv_head, key):
    """Load the tile of keys from `key` on, a multiple of its rows, that lies in one piece."""
    columns, width = shared.shape
    if isinstance(keys, Cached):
        T.copy(tensor[keys.sequence, key : key + columns, kv_head, 0:width], shared)
    else:
        size, sequence = keys.page_size, keys.sequence
        T.copy(
            tensor[
                keys.block_table[sequence, T.truncdiv(key, size)],
                T.truncmod(key, size) : T.truncmod(key, size) + columns,
                kv_head,
                0:width,
            ],
            shared,
        )


def spans_pages(keys, columns):
    """Whether a tile of `columns` keys is several pages."""
    return isinstance(keys, Paged) and keys.page_size < columns


def pages_per_tile(keys, columns):
    """How many pages a tile of `columns` keys is, where it is several."""
    return columns // keys.page_size


@T.macro
def load_page_indices(keys, entries, tile, columns, span):
    """Read which pages hold the keys of tile `tile`.

    Entries that hold no key of the span are never read, for nobody need have filled them in; a
    tile that reaches past the span takes its nearest page again.
    """
    for part in T.unroll(pages_per_tile(keys, columns)):
        entries[part] = keys.block_table[keys.sequence, _entry(keys, tile * columns, part, span)]


@T.macro
def copy_pages(keys, entries, tensor, shared, stage, kv_head):
    """Begin to copy a tile, the pages `entries`, to the place `place` of several.

    All threads copy, 16 bytes at once; each page is a group of copies of its own.
    """
    for part in T.unroll(pages_per_tile(keys, shared.shape[1])):
        row = part * keys.page_size
        T.async_copy(
            tensor[entries[part], 0 : keys.page_size, kv_head, 0 : shared.shape[2]],
            shared[stage, row : row + keys.page_size, :],
        )
