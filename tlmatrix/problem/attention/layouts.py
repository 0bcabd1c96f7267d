"""Conversion of tensors between layouts, for batches whose sequences have equal lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from tlmatrix.problem.attention.axes import Setting


def convert(
    setting: Setting, source: str, target: str, name: str, tensor: torch.Tensor
) -> torch.Tensor:
    """An operand, output or gradient, converted from layout `source` to layout `target`."""
    if source == target or name == "dsink":
        return tensor
    batch = setting.batch
    if name == "lse":  # packed [heads, batch * row], else [batch, heads, row]
        if source == "thd":
            return tensor.reshape(tensor.shape[0], batch, -1).transpose(0, 1).contiguous()
        return tensor.transpose(0, 1).flatten(1) if target == "thd" else tensor
    rows_first = tensor
    if source == "thd":
        rows_first = tensor.reshape(batch, -1, *tensor.shape[1:])
    elif source == "bhsd":
        rows_first = tensor.transpose(1, 2)
    if target == "thd":
        return rows_first.flatten(0, 1)
    return rows_first.contiguous() if target == "bshd" else rows_first.transpose(1, 2).contiguous()
