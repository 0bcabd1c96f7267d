"""Where the rows of sequences stand in the pages of a pool.

Pages are in no order, a few belong to no sequence, and entries of a block table past the last page
of a sequence name no page of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.seeded import seeded_random
from tlmatrix.spec.expr.closures import SPARE_PAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Paging"]

_NO_PAGE = (-1, 2**31 - 1)


@dataclass(frozen=True)
class Paging:
    """The pages of sequences with some lengths; `seed` decides which page is whose."""

    lengths: Sequence[int]
    page_size: int
    seed: int

    @property
    def _owned(self) -> list[int]:
        return [-(-length // self.page_size) for length in self.lengths]

    @property
    def pool(self) -> int:
        """Pages of the pool."""
        return sum(self._owned) + SPARE_PAGES

    @cached_property
    def pages(self) -> list[list[int]]:
        """The pages of each sequence, in the order of its rows."""
        pool = list(range(self.pool))
        seeded_random(self.seed).shuffle(pool)
        return [[pool.pop() for _ in range(count)] for count in self._owned]

    @cached_property
    def rows(self) -> torch.Tensor:
        """[total] int64: where each packed row stands, slots counted over the pages."""
        found = [torch.zeros(0, dtype=torch.int64)]
        for length, pages in zip(self.lengths, self.pages, strict=True):
            row = torch.arange(length)
            place = torch.tensor(pages, dtype=torch.int64)
            found.append(place[row // self.page_size] * self.page_size + row % self.page_size)
        return torch.cat(found)

    def table(self, most: int) -> torch.Tensor:
        """[batch, most] int64: the block table, with room for `most` pages of a sequence."""
        pick = seeded_random(self.seed + 1)
        made = [
            [*pages, *(pick.choice(_NO_PAGE) for _ in range(most - len(pages)))]
            for pages in self.pages
        ]
        return torch.tensor(made, dtype=torch.int64).view(len(self.lengths), most)
