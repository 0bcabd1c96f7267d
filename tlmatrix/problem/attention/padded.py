"""Sequences in padded tensors, with masks that say which positions are tokens.

Everything else computes with sequences one after another. Here they are spread over tensors
[batch, seqlen, ...] on the way to an entry, by the axis `padding`: tokens first (`right`), last
(`left`), or anywhere in their order (`holes`). Between them the operands hold NaN or values of
enormous size, by the case's seed; results must be 0 there, and lse -inf.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.deferred import Deferred
from tlmatrix.problem.model import Dim
from tlmatrix.problem.poison import huge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.model import Tensors

__all__ = ["Padding", "packed"]

_OF_KEYS = frozenset({"k", "v", "dk", "dv"})
_APART = frozenset({"sink", "dsink"})
_OF_ROWS = frozenset({"lse", "delta"})
_MOST = 3
"""Positions that a padded tensor may have beyond its longest sequence."""


@dataclass(frozen=True)
class Padding:
    """Where the tokens of a setting's sequences stand."""

    setting: Setting
    pattern: str
    seed: int
    device: torch.device

    @cached_property
    def masks(self) -> dict[str, torch.Tensor]:
        """`mask_q` [batch, seqlen_q] and `mask_k` [batch, seqlen_k], true where a token is.

        Equal where the setting has one mask for both.
        """
        sides = {"q": self.setting.lengths_q, "k": self.setting.lengths_k}
        return {
            f"mask_{side}": self._mask("q" if self.setting.shared_mask else side, lengths).to(
                self.device
            )
            for side, lengths in sides.items()
        }

    def _mask(self, side: str, lengths: Sequence[int]) -> torch.Tensor:
        pick = random.Random(f"{self.seed} {side}")  # noqa: S311 - test data, not secrets
        size = max(lengths, default=0) + pick.randrange(_MOST + 1)
        mask = torch.zeros(len(lengths), size, dtype=torch.bool)
        for row, length in zip(mask, lengths, strict=True):
            if self.pattern == "holes":
                row[pick.sample(range(size), length)] = True
            elif self.pattern == "left":
                row[size - length :] = True
            else:
                row[:length] = True
        return mask

    def padded(self, name: str, tensor: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
        """A packed tensor, or lse [heads, total], with `fill` where no token is."""
        if name in _APART:
            return tensor
        mask = self.masks["mask_k" if name in _OF_KEYS else "mask_q"]
        rows = tensor.T if name in _OF_ROWS else tensor
        spread = rows.new_full((*mask.shape, *rows.shape[1:]), fill)
        spread[mask] = rows
        return spread.transpose(1, 2).contiguous() if name in _OF_ROWS else spread

    def results(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Results as they must come out of a padded problem."""
        return {
            name: self.padded(name, tensor, -torch.inf if name == "lse" else 0.0)
            for name, tensor in tensors.items()
        }

    def operands(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Operands as an entry is given them, poison between the tokens."""
        fill = torch.nan if self.seed % 2 else huge(self.setting.dtype)
        return {name: self.padded(name, tensor, fill) for name, tensor in tensors.items()}

    def dims(self, name: str, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The dims of a packed tensor as those of a padded one."""
        if name in _APART:
            return dims
        mask = self.masks["mask_k" if name in _OF_KEYS else "mask_q"]
        batch = Dim("batch", len(mask), region=range(len(mask)))
        return batch, *(
            Dim("position", mask.shape[1], tile=dim.tile) if dim.name == "position" else dim
            for dim in dims
        )


def packed(tensors: Tensors, masks: Mapping[str, torch.Tensor]) -> Tensors:
    """The tokens of padded tensors, one after another."""

    def take(name: str) -> torch.Tensor:
        tensor = tensors[name]
        if name in _APART:
            return tensor
        mask = masks["mask_k" if name in _OF_KEYS else "mask_q"]
        return tensor.transpose(1, 2)[mask].T if name in _OF_ROWS else tensor[mask]

    return Deferred(tuple(tensors), take)
