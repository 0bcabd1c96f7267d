"""The grid of a kernel: one thread block per tile of queries, or of keys, of a head of a sequence.

A kernel passes what its blocks do as `functools.partial`s of the macros in `forward` and
`backward`: `visible` for a tile with visible pairs, and `masked` for one without, which must not
run a loop of no iterations (see `forward.masked_block`).
"""

from dataclasses import dataclass

import tilelang.language as T

from tlmatrix_kernels.attention.masks import block_order, query_tile, tile_and_head
from tlmatrix_kernels.attention.tiles import PRODUCER_REGISTERS


@dataclass(frozen=True)
class Config:
    """The compile-time configuration of a kernel.

    ``groups`` query heads share a kv head; ``dims`` is (head_dim, head_dim_v); ``causal`` and
    ``windowed`` as in `masks.Mask`. With ``ordered`` causal blocks start by their work, see
    `masks.block_order`.
    """

    groups: int
    dims: tuple[int, int]
    causal: bool | str
    windowed: bool
    tiles: object
    ordered: bool = True

    @property
    def longest_first(self):
        """Whether the longest tiles of all heads start first."""
        return bool(self.causal) and self.ordered


@T.macro
def share_multiprocessor(tiles):
    """Limit the registers of a block so that `tiles.blocks` blocks share a multiprocessor."""
    if tiles.blocks > 1:
        T.annotate_min_blocks_per_sm(tiles.blocks)
        T.annotate_producer_reg_dealloc(PRODUCER_REGISTERS)
        T.annotate_consumer_reg_alloc(tiles.registers)


@T.macro
def query_blocks(sequences, window, cfg, visible, masked):
    """Launch ``visible(queries, keys, mask, query, head, kv_head)`` for each tile of queries.

    ``masked(queries, query, head)``, if not None, for a tile without a visible key.
    """
    tiles, batch = cfg.tiles, sequences.batch
    with T.Kernel(
        *block_order(cfg.longest_first, T.ceildiv(sequences.longest_q, tiles.queries), batch.heads),
        batch.count,
        threads=tiles.threads,
    ) as (first, second, sequence):
        share_multiprocessor(tiles)
        tile, head = tile_and_head(cfg.longest_first, first, second)
        query, queries, keys = query_tile(
            cfg.causal, tile, tiles.queries, sequences.queries(sequence), sequences.keys(sequence)
        )
        mask = sequences.mask(sequence, cfg, queries, keys, window)
        if masked is None:  # no empty `else`, which changes where TileLang loads table entries
            if mask.any_key_visible(query, tiles.queries, tiles.keys):
                visible(queries, keys, mask, query, head, head // cfg.groups)
        elif mask.any_key_visible(query, tiles.queries, tiles.keys):
            visible(queries, keys, mask, query, head, head // cfg.groups)
        else:
            masked(queries, query, head)


@T.macro
def key_blocks(sequences, window, cfg, gradients, visible, masked):
    """Launch ``visible(gradients, queries, keys, mask, key, head, kv_head)`` for each tile of keys.

    A block has as many query heads from `head` on as `gradients` says. ``masked(gradients, keys,
    key, kv_head)`` for a tile to which no query attends, unless the gradients are accumulators.
    """
    tiles, batch = cfg.tiles, sequences.batch
    with T.Kernel(
        *block_order(
            cfg.longest_first, T.ceildiv(sequences.longest_k, tiles.keys), gradients.blocks
        ),
        batch.count,
        threads=tiles.threads,
    ) as (first, second, sequence):
        share_multiprocessor(tiles)
        tile, block_head = tile_and_head(cfg.longest_first, first, second)
        head = block_head * gradients.heads
        queries, keys = sequences.queries(sequence), sequences.keys(sequence)
        mask = sequences.mask(sequence, cfg, queries, keys, window)
        key = tile * tiles.keys
        of_head = gradients.of_head(head)
        if mask.any_query_visible(key, tiles.keys, tiles.queries):
            visible(of_head, queries, keys, mask, key, head, head // cfg.groups)
        elif gradients.parts:
            masked(of_head, keys, key, head // cfg.groups)
