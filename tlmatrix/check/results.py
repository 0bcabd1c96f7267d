"""The results of one call of the entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

__all__ = ["Results"]


class Results(dict[str, "torch.Tensor"]):
    """Outputs and gradients by name; `absent` maps each missing gradient to the reason."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], absent: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(tensors)
        self.absent = dict(absent or {})
