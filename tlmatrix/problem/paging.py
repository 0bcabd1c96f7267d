"""Assignment of the rows of sequences to pages of a pool.

Pages are shuffled, and a few are spare. Entries of the block table past the last page of a
sequence, and those of pages that a window has left behind, are no page of the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from tlmatrix.problem.distributions import seeded_random
from tlmatrix.problem.model import UnusedRows
from tlmatrix.spec.expr.evaluation import SPARE_PAGES

_NO_PAGE = (-1, 2**31 - 1)


@dataclass(frozen=True)
class Paging:
    """The pages of sequences with the given lengths, shuffled by `seed`.

    `left` are the rows at the begin of each sequence that nothing sees; by default none. Pages of
    these rows alone hold their values, but are not in the block table.
    """

    lengths: Sequence[int]
    page_size: int
    seed: int
    left: Sequence[int] | None = None

    @property
    def _page_counts(self) -> list[int]:
        return [-(-length // self.page_size) for length in self.lengths]

    @property
    def pool(self) -> int:
        """Number of pages in the pool."""
        return sum(self._page_counts) + SPARE_PAGES

    @cached_property
    def pages(self) -> list[list[int]]:
        """The pages of each sequence, in the order of its rows."""
        pool = list(range(self.pool))
        seeded_random(self.seed).shuffle(pool)
        return [[pool.pop() for _ in range(count)] for count in self._page_counts]

    @cached_property
    def rows(self) -> torch.Tensor:
        """[total] int64: the slot of each packed row, page * page_size + row of the page."""
        found = [torch.zeros(0, dtype=torch.int64)]
        for length, pages in zip(self.lengths, self.pages, strict=True):
            row = torch.arange(length)
            numbers = torch.tensor(pages, dtype=torch.int64)
            found.append(numbers[row // self.page_size] * self.page_size + row % self.page_size)
        return torch.cat(found)

    def unused(self, name: str) -> UnusedRows:
        """The slots of the pool `name` [pages, page_size, ...] that hold no row."""
        mask = torch.ones(self.pool, self.page_size, dtype=torch.bool)
        mask.view(-1)[self.rows] = False
        owner = {page: number for number, pages in enumerate(self.pages) for page in pages}

        def describe(index: tuple[int, ...]) -> str:
            page, slot = index
            of = f"past the length of sequence {owner[page]}" if page in owner else "of no sequence"
            return f"slot {slot} of page {page} of {name}, {of}"

        return UnusedRows(mask, describe)

    def table(self, most: int) -> torch.Tensor:
        """The block table, [batch, most] int64, with `most` entries per sequence."""
        pick = seeded_random(self.seed + 1)
        made = [
            [*pages, *(pick.choice(_NO_PAGE) for _ in range(most - len(pages)))]
            for pages in self.pages
        ]
        for entries, rows in zip(made, self.left or (), strict=False):
            freed = rows // self.page_size
            entries[:freed] = [pick.choice(_NO_PAGE) for _ in range(freed)]
        return torch.tensor(made, dtype=torch.int64).view(len(self.lengths), most)
