"""Padded tensors [batch, seqlen, ...], with masks that say which positions hold tokens.

Reference and relations compute with packed sequences; this module pads the inputs of an entry. The
axis `padding` places the padding after the tokens (`right`), before them (`left`), or anywhere
(`holes`). Padding of inputs holds NaN or huge values, by the case's seed; results there must be 0,
and lse -inf.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.lazy_mapping import LazyMapping
from tlmatrix.problem.model import Dim, UnusedRows
from tlmatrix.problem.poison import poison_scale

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.model import Tensors

_OF_KEYS = frozenset({"k", "v", "dk", "dv"})
_UNPADDED = frozenset({"sink", "dsink"})
_PER_ROW = frozenset({"lse", "delta"})
_MOST_SPARE = 3
"""Largest number of positions of a padded tensor beyond its longest sequence."""


@dataclass(frozen=True)
class Padding:
    """The positions of the tokens of a setting; `pattern` is a value of the axis `padding`."""

    setting: Setting
    pattern: str
    seed: int
    device: torch.device

    @cached_property
    def masks(self) -> dict[str, torch.Tensor]:
        """`mask_q` [batch, seqlen_q] and `mask_k` [batch, seqlen_k], bool, true at tokens.

        The two are equal if the setting has a shared mask.
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
        size = max(lengths, default=0) + pick.randrange(_MOST_SPARE + 1)
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
        """A packed tensor, or lse [heads, total], as a padded one with `fill` in the padding."""
        if name in _UNPADDED:
            return tensor
        mask = self.masks["mask_k" if name in _OF_KEYS else "mask_q"]
        rows = tensor.T if name in _PER_ROW else tensor
        spread = rows.new_full((*mask.shape, *rows.shape[1:]), fill)
        spread[mask] = rows
        return spread.transpose(1, 2).contiguous() if name in _PER_ROW else spread

    def results(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Packed results as padded ones: 0 in the padding, lse -inf."""
        return {
            name: self.padded(name, tensor, -torch.inf if name == "lse" else 0.0)
            for name, tensor in tensors.items()
        }

    def operands(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Packed operands as padded ones, with poison in the padding."""
        fill = torch.nan if self.seed % 2 else poison_scale(self.setting.dtype)
        return {name: self.padded(name, tensor, fill) for name, tensor in tensors.items()}

    def unused(self) -> dict[str, UnusedRows]:
        """The positions of operands that hold no token."""

        def describe(name: str, index: tuple[int, ...]) -> str:
            return f"row {index[1]} of {name}, in the padding of sequence {index[0]}"

        return {
            name: UnusedRows(
                ~self.masks["mask_k" if name in _OF_KEYS else "mask_q"], partial(describe, name)
            )
            for name in ("q", "k", "v", "do")
        }

    def dims(self, name: str, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The dimensions of the padded form of a packed tensor."""
        if name in _UNPADDED:
            return dims
        mask = self.masks["mask_k" if name in _OF_KEYS else "mask_q"]
        batch = Dim("batch", len(mask), region=range(len(mask)))
        return batch, *(
            Dim("position", mask.shape[1], tile=dim.tile) if dim.name == "position" else dim
            for dim in dims
        )


def packed(tensors: Tensors, masks: Mapping[str, torch.Tensor]) -> Tensors:
    """Padded tensors as packed ones: the tokens alone; computed on access."""

    def take(name: str) -> torch.Tensor:
        tensor = tensors[name]
        if name in _UNPADDED:
            return tensor
        mask = masks["mask_k" if name in _OF_KEYS else "mask_q"]
        return tensor.transpose(1, 2)[mask].T if name in _PER_ROW else tensor[mask]

    return LazyMapping(tuple(tensors), take)
