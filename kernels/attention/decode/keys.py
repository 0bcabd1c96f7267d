"""The memory layout of the keys and values of a sequence: a contiguous cache, or pages of a pool.

A tile is a fixed number of consecutive keys of one kv head, starting at a multiple of that number.
Rows of a tile that are not visible may hold anything, such as stale rows of the cache or of the
last page, including inf and NaN. The block masks them by select, not by a product with zero.
"""

from dataclasses import dataclass

import tilelang.language as T


@dataclass(frozen=True)
class Span:
    """The visible keys of a sequence, and the range of tiles of one split.

    The query is aligned with the last key. With a `window` (or None) it attends to the last
    `window` keys, including its own position. `length` and `window` are int32 expressions;
    `columns` is the number of keys in a tile.
    """

    length: object
    window: object
    columns: int

    @property
    def begin(self):
        """The first visible key."""
        return 0 if self.window is None else T.max(self.length - self.window, 0)

    def tile_range(self, split, splits):
        """The first tile of split `split` of `splits`, and its number of tiles."""
        low = 0 if self.window is None else T.truncdiv(self.begin, self.columns)
        tiles = T.truncdiv(self.length + (self.columns - 1), self.columns) - low
        first = T.truncdiv(tiles * split, splits)
        return low + first, T.truncdiv(tiles * (split + 1), splits) - first

    def needs_mask(self, key):
        """Whether the tile from `key` has a key that is not visible."""
        cut = key + self.columns > self.length
        return cut if self.window is None else T.Or(cut, key < self.begin)

    def visible(self, key):
        """Whether `key` is visible; False past the end of the sequence."""
        seen = key < self.length
        return seen if self.window is None else T.And(seen, key >= self.begin)


@dataclass(frozen=True)
class Cached:
    """Contiguous cache: k and v are [batch, max_seqlen, kv_heads, dim].

    Key j of sequence b is row (b, j).
    """

    sequence: object


@dataclass(frozen=True)
class Paged:
    """Paged cache: k and v are [pages, page_size, kv_heads, dim].

    Keys [i * page_size, (i + 1) * page_size) of sequence b are the rows of page block_table[b, i].
    """

    block_table: object
    sequence: object
    page_size: int


def _entry(keys, key, part, span):
    """The block table column of page `part` of the tile from `key`, clamped to visible keys."""
    entry = T.truncdiv(key, keys.page_size) + part
    entry = T.min(entry, T.truncdiv(span.length - 1, keys.page_size))
    if span.window is None:
        return entry
    return T.max(entry, T.truncdiv(span.begin, keys.page_size))


@T.macro
def load(keys, tensor, shared, kv_head, key):
    """Load the tile from `key`, which must not span several pages."""
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
    """Whether a tile of `columns` keys spans several pages."""
    return isinstance(keys, Paged) and keys.page_size < columns


def pages_per_tile(keys, columns):
    """The number of pages of a tile of `columns` keys that spans several."""
    return columns // keys.page_size


@T.macro
def load_page_indices(keys, entries, tile, columns, span):
    """Load the page indices of tile `tile` into `entries`.

    Table entries without a visible key may be uninitialized and are not read; the nearest visible
    page is loaded in their place.
    """
    for part in T.unroll(pages_per_tile(keys, columns)):
        entries[part] = keys.block_table[keys.sequence, _entry(keys, tile * columns, part, span)]


@T.macro
def copy_pages(keys, entries, tensor, shared, stage, kv_head):
    """Start the asynchronous copy of the pages `entries` of a tile to stage `stage`.

    All threads copy, 16 bytes at a time; each page is one `cp.async` group.
    """
    for part in T.unroll(pages_per_tile(keys, shared.shape[1])):
        row = part * keys.page_size
        T.async_copy(
            tensor[entries[part], 0 : keys.page_size, kv_head, 0 : shared.shape[2]],
            shared[stage, row : row + keys.page_size, :],
        )
