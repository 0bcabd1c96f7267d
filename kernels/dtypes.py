"""Dtypes of PyTorch by the names that TileLang has for them."""

import torch

__all__ = ["dtype_name"]


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype as TileLang and people spell it: float16 for torch.float16."""
    return str(dtype).removeprefix("torch.")
