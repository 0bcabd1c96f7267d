"""Argument checks of the decode operators that need no synchronization with the GPU.

The values of `seqlens_k` and `block_table` are not checked: copying them to the host would take
longer than a short call.
"""

from dataclasses import dataclass

import torch

from tlmatrix_kernels.alignment import ALIGNMENT
from tlmatrix_kernels.attention.validate import (
    DTYPES,
    GRID_MAX,
    check_head_counts,
    check_head_dims,
    check_scale,
    check_tensor,
    refuse,
)
from tlmatrix_kernels.dtypes import dtype_name
from tlmatrix_kernels.metadata import once_per_metadata

PAGE_SIZES = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Decode:
    """The checked options of a call: all kernel parameters that are not tensors."""

    dtype: str
    groups: int
    head_dim: int
    head_dim_v: int
    window: int | None
    scale: float
    splits: int | None


def _check_stored(name: str, tensor: torch.Tensor, dims: str, q: torch.Tensor) -> None:
    """Checks a cache or a pool of pages, which a call must not copy."""
    check_tensor(name, tensor, dims, q)
    if not tensor.is_contiguous():
        refuse(f"{name} must be contiguous, got strides {list(tensor.stride())}")
    if tensor.device.type != "meta" and tensor.data_ptr() % ALIGNMENT:
        refuse(f"{name} must begin at a multiple of {ALIGNMENT} bytes, got {tensor.data_ptr()}")


def _check_heads(q: torch.Tensor, k_name: str, k: torch.Tensor, v_name: str, v: torch.Tensor):
    if v.shape[:3] != k.shape[:3]:
        refuse(
            f"{v_name} must have the shape of {k_name} but for its last dimension, "
            f"{list(k.shape[:3])}, got {list(v.shape[:3])}"
        )
    heads, kv_heads = q.shape[1], k.shape[2]
    check_head_counts(heads, kv_heads, k_name, k_name)
    for name, size in (("heads", heads), ("a batch", q.shape[0])):
        if size > GRID_MAX:
            refuse(f"q must have {name} of at most {GRID_MAX}, got {size}")
    if k.shape[3] != q.shape[2]:
        refuse(f"{k_name} must have the head_dim of q, {q.shape[2]}, got {k.shape[3]}")
    check_head_dims({"head_dim": q.shape[2], "head_dim_v": v.shape[3]})


def _check_batch(name: str, tensor: torch.Tensor, q: torch.Tensor) -> None:
    if tensor.shape[0] != q.shape[0]:
        refuse(f"{name} must have the batch of q, {q.shape[0]}, got {tensor.shape[0]}")


def _check_count(name: str, value) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(f"{name} must be an int or None, got {value!r}")
    if not 1 <= value < 2**31:
        refuse(f"{name} must be at least 1 and below 2**31, got {value}")


def _check_common(q, k, v, seqlens_k, window, scale, sink, splits) -> Decode:
    """Checks the arguments that both operators share; q, k and v have been checked."""
    check_tensor("seqlens_k", seqlens_k, "batch", q, (torch.int32,))
    _check_batch("seqlens_k", seqlens_k, q)
    if sink is not None:
        check_tensor("sink", sink, "heads", q, (torch.float32, *DTYPES))
        if sink.shape[0] != q.shape[1]:
            refuse(f"sink must have one value a head of q, {q.shape[1]}, got {sink.shape[0]}")
    _check_count("window", window)
    _check_count("splits", splits)
    return Decode(
        dtype=dtype_name(q.dtype),
        groups=q.shape[1] // k.shape[2],
        head_dim=q.shape[2],
        head_dim_v=v.shape[3],
        window=window,
        scale=check_scale(scale, q.shape[2]),
        splits=splits,
    )


@once_per_metadata
def check_cache(q, k_cache, v_cache, seqlens_k, window, scale, sink, splits) -> Decode:
    """Check the arguments of `decode_attention`.

    Raises:
        ValueError: the first invalid argument; the message names it, the rule and the value.
    """
    check_tensor("q", q, "batch, heads, head_dim", q)
    for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
        _check_stored(name, tensor, "batch, max_seqlen, kv_heads, dim", q)
        _check_batch(name, tensor, q)
    _check_heads(q, "k_cache", k_cache, "v_cache", v_cache)
    return _check_common(q, k_cache, v_cache, seqlens_k, window, scale, sink, splits)


@once_per_metadata
def check_pages(q, k_pages, v_pages, block_table, seqlens_k, window, scale, sink, splits) -> Decode:
    """Check the arguments of `paged_attention`.

    Raises:
        ValueError: the first invalid argument; the message names it, the rule and the value.
    """
    check_tensor("q", q, "batch, heads, head_dim", q)
    for name, tensor in (("k_pages", k_pages), ("v_pages", v_pages)):
        _check_stored(name, tensor, "pages, page_size, kv_heads, dim", q)
    _check_heads(q, "k_pages", k_pages, "v_pages", v_pages)
    if k_pages.shape[1] not in PAGE_SIZES:
        refuse(
            f"k_pages must have a page_size of {', '.join(map(str, PAGE_SIZES))}, "
            f"got {k_pages.shape[1]}"
        )
    check_tensor("block_table", block_table, "batch, max_pages", q, (torch.int32,))
    _check_batch("block_table", block_table, q)
    return _check_common(q, k_pages, v_pages, seqlens_k, window, scale, sink, splits)
