"""Argument checks of the attention operators.

Each check raises a ValueError with the argument, the rule and the value. The kernels rely on these
checks: they only guard the ends of tensors and sequences.
"""

import functools
import itertools
from dataclasses import dataclass

import torch

from tlmatrix_kernels.attention.cu_seqlens import host_values
from tlmatrix_kernels.attention.masks import TOP_LEFT
from tlmatrix_kernels.attention.tiles import strategy_for
from tlmatrix_kernels.dtypes import dtype_name
from tlmatrix_kernels.metadata import once_per_metadata
from tlmatrix_kernels.target import HOPPER, capability

STRATEGIES = ("atomic", "split", "grouped", "reordered", "specialized")
SM100_VARIANTS = ("ss", "ts", "wasp")
SCALE_MIN, SCALE_MAX = 1e-20, 1e20
SM100_MAJOR = 10
# Four accumulators of the backward pass share the 512 columns of tensor memory.
SM100_GRADIENT_DIM_MAX = 128
DENSE_LAYOUTS = ("bshd", "bhsd")
ALIGNMENTS = ("bottom_right", TOP_LEFT)
DTYPES = (torch.float16, torch.bfloat16)
# TMA and 128-bit loads need rows of 16-byte multiples; accumulators hold at most 256 columns.
HEAD_DIM_STEP = 8
HEAD_DIM_MAX = 256
# CUDA's limit for the y and z dimensions of a grid: heads and sequences.
GRID_MAX = 65535


@dataclass(frozen=True)
class Attention:
    """The checked options of a call: all kernel parameters that are not tensors."""

    layout: str
    dtype: str
    groups: int
    head_dim: int
    head_dim_v: int
    causal: bool
    window: int | None
    scale: float
    backward: str
    alignment: str = "bottom_right"

    @property
    def mask(self) -> bool | str:
        """The parameter `causal` of the kernels: False, True or `TOP_LEFT` (see `masks`)."""
        return TOP_LEFT if self.causal and self.alignment == TOP_LEFT else self.causal


@dataclass(frozen=True)
class Lengths:
    """The longest query sequence and the longest key sequence of a packed batch."""

    max_seqlen_q: int
    max_seqlen_k: int


def refuse(message: str) -> None:
    """Raises a ValueError."""
    raise ValueError(message)


def _shape(tensor: torch.Tensor) -> list[int]:
    return list(tensor.shape)


def check_tensor(name: str, tensor, dims: str, q: torch.Tensor, dtypes: tuple = DTYPES) -> None:
    """Raises ValueError unless it is a tensor of these dimensions, one of `dtypes`, beside q.

    With `DTYPES` it must have the dtype of q.
    """
    rank = len(dims.split(","))
    if not isinstance(tensor, torch.Tensor):
        refuse(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dim() != rank:
        refuse(f"{name} must have {rank} dimensions [{dims}], got shape {_shape(tensor)}")
    if tensor.dtype not in dtypes:
        wanted = " or ".join(dtype_name(dtype) for dtype in dtypes)
        refuse(f"{name} must be {wanted}, got {tensor.dtype}")
    if dtypes is DTYPES and tensor.dtype != q.dtype:
        refuse(f"{name} must have the dtype of q, {q.dtype}, got {tensor.dtype}")
    if tensor.device != q.device:
        refuse(f"{name} must be on the device of q, {q.device}, got {tensor.device}")


def _check_tensors(named: dict[str, torch.Tensor], dims: str) -> None:
    for name, tensor in named.items():
        check_tensor(name, tensor, dims, named["q"])


def _check_dims(heads: int, kv_heads: int, v_heads: int, dims: dict[str, int], k_dim: int) -> None:
    if v_heads != kv_heads:
        refuse(f"v must have as many heads as k, {kv_heads}, got {v_heads}")
    check_head_counts(heads, kv_heads, "k", "k and v")
    if heads > GRID_MAX:
        refuse(f"q must have at most {GRID_MAX} heads, got {heads}")
    if k_dim != dims["head_dim"]:
        refuse(f"k must have the head_dim of q, {dims['head_dim']}, got {k_dim}")
    check_head_dims(dims)


def check_head_counts(heads: int, kv_heads: int, k: str, owners: str) -> None:
    """Raises ValueError unless q has a multiple of the heads of `k`, which `owners` have."""
    if kv_heads < 1:
        refuse(f"{k} must have at least 1 head, got 0")
    if heads < 1:
        refuse("q must have at least 1 head, got 0")
    if heads % kv_heads:
        refuse(
            f"the heads of q must be a multiple of the heads of {owners}, "
            f"got {heads} query heads and {kv_heads} kv heads"
        )


def check_head_dims(dims: dict[str, int]) -> None:
    """Raises ValueError unless the kernels support the head dimensions."""
    for name, dim in dims.items():
        if not (HEAD_DIM_STEP <= dim <= HEAD_DIM_MAX) or dim % HEAD_DIM_STEP:
            refuse(
                f"{name} must be a multiple of {HEAD_DIM_STEP} "
                f"from {HEAD_DIM_STEP} to {HEAD_DIM_MAX}, got {dim}"
            )


def _check_sink(sink, q: torch.Tensor, heads: int) -> None:
    if sink is None:
        return
    if not isinstance(sink, torch.Tensor):
        refuse(f"sink must be a torch.Tensor or None, got {type(sink).__name__}")
    if _shape(sink) != [heads]:
        refuse(f"sink must have the shape [heads], [{heads}], got {_shape(sink)}")
    if sink.dtype not in (torch.float32, q.dtype):
        refuse(f"sink must be float32 or have the dtype of q, {q.dtype}, got {sink.dtype}")
    if sink.device != q.device:
        refuse(f"sink must be on the device of q, {q.device}, got {sink.device}")


def _check_options(causal, window, scale, head_dim: int, backward) -> float:
    if not isinstance(causal, bool):
        refuse(f"causal must be True or False, got {causal!r}")
    if window is not None:
        if isinstance(window, bool) or not isinstance(window, int):
            refuse(f"window must be an int or None, got {window!r}")
        if not causal:
            refuse(f"window needs causal=True, got window={window} with causal=False")
        if not 1 <= window < 2**31:
            refuse(f"window must be at least 1 and below 2**31, got {window}")
    if backward is not None and backward not in STRATEGIES:
        refuse(f"backward must be one of {', '.join(STRATEGIES)} or None, got {backward!r}")
    return check_scale(scale, head_dim)


def check_scale(scale, head_dim: int) -> float:
    """The factor of q k^T as a float; ``head_dim ** -0.5`` for None.

    The kernels multiply masked scores, -inf, by it and divide a sink's logit by it, in float32. At
    0 or below the running maximum is not that of the scaled scores.

    Raises:
        ValueError: it is no number, 0 or below, or so small or large that float32 rounds it, or
            its product with scores, to 0 or infinity.
    """
    if scale is None:
        return head_dim**-0.5
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        refuse(f"scale must be a number or None, got {scale!r}")
    if not SCALE_MIN <= scale <= SCALE_MAX:
        refuse(
            f"scale must be positive and finite, from {SCALE_MIN:.0e} to {SCALE_MAX:.0e}, "
            f"got {scale}"
        )
    return float(scale)


def _attention(
    layout, q, k, heads, kv_heads, dims, causal, window, scale, backward, alignment="bottom_right"
) -> Attention:
    if alignment not in ALIGNMENTS:
        refuse(f"alignment must be one of {', '.join(ALIGNMENTS)}, got {alignment!r}")
    scale = _check_options(causal, window, scale, dims["head_dim"], backward)
    if backward == "specialized":
        _check_specialized(q)
    return Attention(
        layout=layout,
        dtype=dtype_name(q.dtype),
        groups=heads // kv_heads,
        causal=causal,
        # Clamped so that window + position does not overflow int32.
        window=window if window is None else min(window, 2**30),
        scale=scale,
        backward=backward or strategy_for(k.numel() // dims["head_dim"]),
        alignment=alignment,
        **dims,
    )


def _check_specialized(q: torch.Tensor) -> None:
    if q.is_cuda and capability() != HOPPER:
        refuse(
            f"backward='specialized' needs a GPU of compute capability 9.0, got {capability() / 10}"
        )


@once_per_metadata
def check_dense(
    q, k, v, causal, window, scale, layout, backward, sink=None, alignment="bottom_right"
) -> Attention:
    """Check the arguments of `dense_attention`.

    Raises:
        ValueError: the first invalid argument; the message names it, the rule and the value.
    """
    if layout not in DENSE_LAYOUTS:
        refuse(f"layout must be one of {', '.join(DENSE_LAYOUTS)}, got {layout!r}")
    dims = "batch, seqlen, heads, dim" if layout == "bshd" else "batch, heads, seqlen, dim"
    _check_tensors({"q": q, "k": k, "v": v}, dims)
    rows, heads = (1, 2) if layout == "bshd" else (2, 1)
    for name, tensor in {"k": k, "v": v}.items():
        if tensor.shape[0] != q.shape[0]:
            refuse(f"{name} must have the batch of q, {q.shape[0]}, got {tensor.shape[0]}")
    if q.shape[0] > GRID_MAX:
        refuse(f"q must have a batch of at most {GRID_MAX}, got {q.shape[0]}")
    if v.shape[rows] != k.shape[rows]:
        refuse(f"v must have the length of k, {k.shape[rows]}, got {v.shape[rows]}")
    dim_sizes = {"head_dim": q.shape[3], "head_dim_v": v.shape[3]}
    _check_dims(q.shape[heads], k.shape[heads], v.shape[heads], dim_sizes, k.shape[3])
    _check_sink(sink, q, q.shape[heads])
    return _attention(
        layout, q, k, q.shape[heads], k.shape[heads], dim_sizes, causal, window, scale, backward,
        alignment,
    )  # fmt: skip


def check_padded(q, k, v, mask_q, mask_k) -> None:
    """Check the shapes and masks of `padded_attention`; `check_packed` checks the rest.

    Raises:
        ValueError: the first invalid argument; the message names it, the rule and the value.
    """
    _check_tensors({"q": q, "k": k, "v": v}, "batch, seqlen, heads, dim")
    for name, tensor in {"k": k, "v": v}.items():
        if tensor.shape[0] != q.shape[0]:
            refuse(f"{name} must have the batch of q, {q.shape[0]}, got {tensor.shape[0]}")
    if v.shape[1] != k.shape[1]:
        refuse(f"v must have the length of k, {k.shape[1]}, got {v.shape[1]}")
    for name, mask, of, tensor in (("mask_q", mask_q, "q", q), ("mask_k", mask_k, "k", k)):
        if mask is None:
            continue
        if not isinstance(mask, torch.Tensor):
            refuse(f"{name} must be a torch.Tensor or None, got {type(mask).__name__}")
        if mask.dtype != torch.bool:
            refuse(f"{name} must be bool, true where a token is, got {mask.dtype}")
        if mask.shape != tensor.shape[:2]:
            refuse(
                f"{name} must have the batch and the length of {of}, {_shape(tensor)[:2]}, "
                f"got shape {_shape(mask)}"
            )
        if mask.device != q.device:
            refuse(f"{name} must be on the device of q, {q.device}, got {mask.device}")


def check_sm100(q, k, v, causal, window, scale, layout, variant, alignment) -> Attention:
    """Check the arguments of `sm100_attention`.

    Raises:
        ValueError: the first invalid argument; the message names it, the rule and the value.
    """
    if variant not in SM100_VARIANTS:
        refuse(f"variant must be one of {', '.join(SM100_VARIANTS)}, got {variant!r}")
    call = check_dense(q, k, v, causal, window, scale, layout, "reordered", None, alignment)
    wide = max(call.head_dim, call.head_dim_v)
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v))
    if wanted and wide > SM100_GRADIENT_DIM_MAX:
        refuse(
            f"head_dim must be at most {SM100_GRADIENT_DIM_MAX} if inputs require gradients, got "
            f"{wide}; dense_attention supports up to {HEAD_DIM_MAX}"
        )
    if q.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(q.device)
        if major != SM100_MAJOR:
            refuse(
                f"q must be on a GPU of compute capability {SM100_MAJOR}, got {major}.{minor}; "
                "dense_attention supports any GPU"
            )
    return call


def _check_bounds(name: str, cu_seqlens: torch.Tensor, total_name: str, q: torch.Tensor) -> None:
    if not isinstance(cu_seqlens, torch.Tensor):
        refuse(f"{name} must be a torch.Tensor, got {type(cu_seqlens).__name__}")
    if cu_seqlens.dtype != torch.int32:
        refuse(f"{name} must be int32, got {cu_seqlens.dtype}")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1:
        refuse(f"{name} must have the shape [batch + 1], got {_shape(cu_seqlens)}")
    if cu_seqlens.device != q.device:
        refuse(
            f"{name} must be on the device of q, {q.device}, got {cu_seqlens.device}; "
            f"it bounds the sequences of {total_name}"
        )


@functools.lru_cache(maxsize=1024)
def _longest(name: str, bounds: tuple[int, ...], total: int, tensor_name: str) -> int:
    if bounds[0] != 0:
        refuse(f"{name} must begin with 0, got {bounds[0]}")
    lengths = [after - before for before, after in itertools.pairwise(bounds)]
    for index, length in enumerate(lengths):
        if length < 0:
            refuse(
                f"{name} must not decrease, got {bounds[index]} then {bounds[index + 1]} "
                f"at index {index + 1}"
            )
    if bounds[-1] != total:
        refuse(f"{name} must end with the rows of {tensor_name}, {total}, got {bounds[-1]}")
    return max(lengths, default=0)


def _max_seqlen(name: str, given, longest: int) -> int:
    if given is None:
        return longest
    if isinstance(given, bool) or not isinstance(given, int):
        refuse(f"{name} must be an int or None, got {given!r}")
    if given < longest:
        refuse(f"{name} must be at least the longest sequence, {longest}, got {given}")
    # A larger bound would only launch blocks without work.
    return longest


def _check_packed_tensors(q, k, v) -> dict[str, int]:
    """Checks q, k and v, and returns the head dimensions."""
    _check_tensors({"q": q, "k": k, "v": v}, "total, heads, dim")
    if v.shape[0] != k.shape[0]:
        refuse(f"v must have the rows of k, {k.shape[0]}, got {v.shape[0]}")
    dims = {"head_dim": q.shape[2], "head_dim_v": v.shape[2]}
    _check_dims(q.shape[1], k.shape[1], v.shape[1], dims, k.shape[2])
    return dims


def _bounds_on_host(q, cu_seqlens_q, cu_seqlens_k) -> list[tuple[int, ...]]:
    """Checks both cu_seqlens as tensors, and returns their values."""
    _check_bound_tensors(q, cu_seqlens_q, cu_seqlens_k)
    return host_values(cu_seqlens_q, cu_seqlens_k)


@once_per_metadata
def _check_bound_tensors(q, cu_seqlens_q, cu_seqlens_k) -> None:
    _check_bounds("cu_seqlens_q", cu_seqlens_q, "q", q)
    _check_bounds("cu_seqlens_k", cu_seqlens_k, "k and v", q)
    size = cu_seqlens_q.shape[0]
    if cu_seqlens_k.shape[0] != size:
        refuse(
            f"cu_seqlens_k must have the length of cu_seqlens_q, {size} (batch + 1), "
            f"got {cu_seqlens_k.shape[0]}"
        )
    if size - 1 > GRID_MAX:
        refuse(f"cu_seqlens_q must bound at most {GRID_MAX} sequences, got {size - 1}")


def check_packed_shards(
    q, k, v, cu_seqlens_q, cu_seqlens_k, causal, scale
) -> tuple[Attention, tuple[int, ...], tuple[int, ...]]:
    """Check packed shards of one rank, with the cu_seqlens of the whole batch.

    Returns the options of the call, and the whole lengths of the query and key sequences.

    Raises:
        ValueError: the first invalid argument; the message names it, the rule and the value.
    """
    dims = _check_packed_tensors(q, k, v)
    bounds_q, bounds_k = _bounds_on_host(q, cu_seqlens_q, cu_seqlens_k)
    # The total of the whole batch is not known otherwise: its last bound.
    _longest("cu_seqlens_q", bounds_q, bounds_q[-1], "q")
    _longest("cu_seqlens_k", bounds_k, bounds_k[-1], "k and v")
    attention = _attention(
        "thd", q, k, q.shape[1], k.shape[1], dims, causal, None, scale, "grouped"
    )
    lengths = (
        tuple(after - before for before, after in itertools.pairwise(bounds))
        for bounds in (bounds_q, bounds_k)
    )
    return attention, *lengths


def check_packed(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    causal, window, scale, backward, sink, alignment="bottom_right",
) -> tuple[Attention, Lengths]:  # fmt: skip
    """Check the arguments of `varlen_attention`.

    Copies both cu_seqlens to the host, once and together (see `cu_seqlens`).

    Raises:
        ValueError: the first invalid argument; the message names it, the rule and the value.
    """
    attention = _check_packed_options(q, k, v, causal, window, scale, backward, sink, alignment)
    bounds_q, bounds_k = _bounds_on_host(q, cu_seqlens_q, cu_seqlens_k)
    longest_q = _longest("cu_seqlens_q", bounds_q, q.shape[0], "q")
    longest_k = _longest("cu_seqlens_k", bounds_k, k.shape[0], "k and v")
    lengths = Lengths(
        _max_seqlen("max_seqlen_q", max_seqlen_q, longest_q),
        _max_seqlen("max_seqlen_k", max_seqlen_k, longest_k),
    )
    return attention, lengths


@once_per_metadata
def _check_packed_options(q, k, v, causal, window, scale, backward, sink, alignment) -> Attention:
    dims = _check_packed_tensors(q, k, v)
    _check_sink(sink, q, q.shape[1])
    return _attention(
        "thd", q, k, q.shape[1], k.shape[1], dims, causal, window, scale, backward, alignment
    )
