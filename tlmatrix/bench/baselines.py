"""PyTorch's own implementations of a problem, by name; what one of them cannot do it says."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tlmatrix.bench.candidates import CannotError, Run
from tlmatrix.spec.importing import load
from tlmatrix.spec.models import DeclaredProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tlmatrix.problem import Problem
    from tlmatrix.spec.models import Spec

__all__ = ["torch_run"]

_SDPA = {
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_NO_KERNEL = re.compile("No viable backend|No available kernel")
_GIB = 2**30


def torch_run(name: str, spec: Spec, problem: Problem) -> Run:
    """The implementation of that name for a problem.

    Raises:
        CannotError: PyTorch has none, or it has not what the case asks for.
    """
    if isinstance(spec.problem, DeclaredProblem):
        return _declared(name, spec, problem)
    match spec.problem:
        case "attention":
            return _attention(name, problem)
        case "gemm":
            return _gemm(name, problem)
    raise CannotError("knows attention, gemm and declared problems; name `package.module:name`")


# Declared problems, GEMM --------------------------------------------------------------------


def _declared(name: str, spec: Spec, problem: Problem) -> Run:
    if name not in ("torch", "reference_compiled"):
        raise CannotError("is attention")
    assert isinstance(spec.problem, DeclaredProblem)
    reference: Any = load(spec, ("problem", "reference"), spec.problem.reference)
    parameters = inspect.signature(reference).parameters
    others = {
        axis: value
        for axis, value in problem.names.items()
        if axis in parameters and axis not in problem.inputs
    }
    function = reference if name == "torch" else torch.compile(reference, dynamic=False)
    returns = problem.returns
    return Run.of(lambda inputs: function(**inputs, **others), returns)


def _gemm(name: str, problem: Problem) -> Run:
    names = problem.names
    turn_a, turn_b = names.get("transpose_a"), names.get("transpose_b")
    out = problem.outputs["c"].dtype

    def product(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        a, b = inputs["a"], inputs["b"]
        a, b = a.T if turn_a else a, b.T if turn_b else b
        c = inputs.get("c")
        made = a @ b if c is None else torch.addmm(c, a, b)
        return made.to(out)

    if name not in ("torch", "reference_compiled"):
        raise CannotError("is attention")
    if problem.inputs["a"].dtype != problem.inputs["b"].dtype:
        raise CannotError("torch.matmul takes operands of one dtype")
    if out.itemsize > problem.inputs["a"].dtype.itemsize and name == "torch":
        raise CannotError(f"torch.matmul rounds to the operands' dtype before it gives {out}")
    function = product if name == "torch" else torch.compile(product, dynamic=False)
    return Run.of(function, ("c",))


# Attention ----------------------------------------------------------------------------------


def _attention(name: str, problem: Problem) -> Run:
    if problem.names.get("sink") is not None:
        raise CannotError("PyTorch's attention has no sinks")
    if any(kind in problem.inputs for kind in ("block_table", "pages")):
        raise CannotError("takes no pages")
    if name in _SDPA:
        return _sdpa(_SDPA[name], problem)
    if name == "torch_varlen":
        return _varlen(problem)
    if name == "reference_compiled":
        return _compiled(problem)
    raise CannotError("for attention name sdpa_cudnn, sdpa_flash, sdpa_efficient or torch_varlen")


def _sdpa(backend: SDPBackend, problem: Problem) -> Run:
    names = problem.names
    lengths_q, lengths_k = names["seqlens_q"], names["seqlens_k"]
    if len({*lengths_q}) > 1 or len({*lengths_k}) > 1:
        raise CannotError("SDPA takes sequences of one length; torch_varlen takes any")
    window, causal = names.get("window"), bool(names["causal"])
    if window is not None and window < max(lengths_k):
        raise CannotError("SDPA has no window")
    causal &= lengths_q[0] > 1  # one query, aligned at the last key, sees them all
    if causal and lengths_q[0] != lengths_k[0]:
        raise CannotError("SDPA aligns a causal mask at the first key, not at the last")
    packed = "cu_seqlens_q" in problem.inputs
    turned = names.get("layout") != "bhsd"
    batch, scale = names["batch"], names["scale"]
    grouped = names["groups"] != 1

    def into(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.reshape(batch, -1, *tensor.shape[1:]) if packed else tensor
        return tensor.transpose(1, 2) if turned else tensor

    def call(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        q, k, v = (into(inputs[key]) for key in ("q", "k", "v"))
        try:
            with sdpa_kernel(backend):
                out = scaled_dot_product_attention(
                    q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped
                )
        except RuntimeError as error:
            if _NO_KERNEL.search(str(error)):
                raise CannotError("this kernel of SDPA does not take such a case") from error
            raise
        out = out.transpose(1, 2) if turned else out
        return out.flatten(0, 1) if packed else out

    return Run.of(call, ("out",))


def _varlen(problem: Problem) -> Run:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise CannotError(f"PyTorch {torch.__version__} has no varlen_attn") from error
    names = problem.names
    if "cu_seqlens_q" not in problem.inputs:
        raise CannotError("is for packed sequences")
    options: dict[str, Any] = {}
    takes = inspect.signature(varlen_attn).parameters
    window, causal = names.get("window"), bool(names["causal"])
    if "window_size" in takes:
        # Ours counts the row's own key, theirs the keys to its left.
        options["window_size"] = (-1 if window is None else window - 1, 0 if causal else -1)
    elif window is None:
        options["is_causal"] = causal
    else:
        raise CannotError(f"varlen_attn of PyTorch {torch.__version__} has no window")
    if "scale" in takes:
        options["scale"] = names["scale"]
    elif names["scale"] not in (None, names["head_dim"] ** -0.5):
        raise CannotError(f"varlen_attn of PyTorch {torch.__version__} has no scale")
    if "enable_gqa" in takes:
        options["enable_gqa"] = names["groups"] != 1
    longest = names["max_seqlen_q"], names["max_seqlen_k"]

    def call(inputs: Mapping[str, torch.Tensor]) -> object:
        q, k, v = (inputs[key] for key in ("q", "k", "v"))
        starts = inputs["cu_seqlens_q"], inputs["cu_seqlens_k"]
        return varlen_attn(q, k, v, *starts, *longest, **options)

    return Run.of(call, ("out",))


def _compiled(problem: Problem) -> Run:
    """softmax(q k^T) v as one writes it down, scores and all, through torch.compile."""
    names, inputs = problem.names, problem.inputs
    packed, turned = "cu_seqlens_q" in inputs, names.get("layout") != "bhsd"
    groups, scale = names["groups"], names["scale"]
    rows = names["total_q"] if packed else names["seqlen_q"]
    keys = names["total_k"] if packed else names["seqlen_k"]
    count = 1 if packed else names["batch"]
    needed = 4 * count * names["heads"] * rows * keys * 4
    free = torch.cuda.mem_get_info()[0] if inputs["q"].is_cuda else 4 * _GIB
    if needed > free:
        raise CannotError(f"its scores take {needed / _GIB:.0f} GiB, {free / _GIB:.0f} are free")
    hidden = ~_visible(names, inputs["q"].device, packed=packed)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = (q @ k.transpose(-1, -2)).float() * (scale or q.shape[-1] ** -0.5)
        scores = scores.masked_fill(hidden, -torch.inf)
        weights = torch.softmax(scores, -1).masked_fill(hidden, 0.0)
        return weights.to(v.dtype) @ v

    compiled: Callable[..., torch.Tensor] = torch.compile(attend, dynamic=False)

    def call(given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        q, k, v = (given[key][None] if packed else given[key] for key in ("q", "k", "v"))
        if turned:
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        out = compiled(q, k, v)
        out = out.transpose(1, 2) if turned else out
        return out[0] if packed else out

    return Run.of(call, ("out",))


def _visible(names: Mapping[str, Any], device: torch.device, *, packed: bool) -> torch.Tensor:
    """Which key a row sees, [rows, keys]."""
    pairs = list(zip(names["seqlens_q"], names["seqlens_k"], strict=True))
    blocks = []
    for rows, keys in pairs if packed else pairs[:1]:
        last = torch.arange(rows, device=device)[:, None] + keys - rows
        key = torch.arange(keys, device=device)[None]
        seen = key <= last if names["causal"] else torch.ones(rows, keys, device=device) > 0
        if names.get("window") is not None:
            seen &= key > last - names["window"]
        blocks.append(seen)
    if not packed:
        return blocks[0]
    joined: torch.Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return joined.bool()
