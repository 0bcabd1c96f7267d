"""Copies of a GPU's tensors on the CPU, all in one transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def on_cpu(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Contiguous copies of tensors of one device, in one transfer: each transfer waits for it."""
    if not tensors:
        return []
    # The widest dtype first: each begins at a multiple of its width.
    order = sorted(range(len(tensors)), key=lambda number: -tensors[number].element_size())
    rows = [flat_bytes(tensors[number]) for number in order]
    memory = torch.cat(rows).cpu()
    copies = list(tensors)
    split = torch.split(memory, [len(row) for row in rows])
    for number, row in zip(order, split, strict=True):
        copies[number] = row.view(tensors[number].dtype).view(tensors[number].shape)
    return copies


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in the order of its elements, [bytes]; a view if it is contiguous.

    A contiguous tensor of one element or none may have any strides, with which `view` fails.
    """
    dense = tensor.detach().contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
