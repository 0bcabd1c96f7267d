"""Names of PyTorch dtypes in TileLang."""

import torch


def dtype_name(dtype: torch.dtype) -> str:
    """The TileLang name of a dtype, e.g. float16 for torch.float16."""
    return str(dtype).removeprefix("torch.")
