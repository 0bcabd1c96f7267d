"""PyTorch's implementations of built-in and declared problems as baselines.

They get the entry's inputs; conversions between layouts are views.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tlmatrix.backend.binding.calls import Entry
from tlmatrix.backend.signature import parameters_of
from tlmatrix.bench.candidates import NotApplicableError, Run, spec_of_function
from tlmatrix.dtypes import is_float8
from tlmatrix.spec.importing import load
from tlmatrix.spec.model.spec import DeclaredProblem

if TYPE_CHECKING:
    from tlmatrix.backend.binding import PreparedCall
    from tlmatrix.bench.candidates import Named
    from tlmatrix.problem import Problem
    from tlmatrix.spec.model.spec import Spec

_Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_SDPA = {
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_NO_KERNEL = re.compile("No viable backend|No available kernel")
_GIB = 2**30


def torch_run(name: str, spec: Spec, problem: Problem) -> Run:
    """Return the implementation of this name for a problem.

    Raises:
        NotApplicableError: PyTorch has none, or it does not support the case.
    """
    if isinstance(spec.problem, DeclaredProblem):
        return _declared(name, spec, spec.problem, problem)
    match spec.problem:
        case "attention":
            return _attention(name, problem)
        case "gemm":
            return _product(name, problem)
    raise NotApplicableError(
        "exists for attention, gemm and declared problems; give `package.module:name` instead"
    )


def _declared(name: str, spec: Spec, declared: DeclaredProblem, problem: Problem) -> Run:
    """The problem's reference, called with the entry's inputs."""
    if name not in ("torch", "reference_compiled"):
        raise NotApplicableError("implements attention only")
    if declared.reference is None:
        raise NotApplicableError("is the problem's reference, and there is none")
    said = declared.reference
    reference: Any = load(spec, ("problem", "reference"), said.function)
    function = reference if name == "torch" else torch.compile(reference, dynamic=False)
    alone = spec_of_function(spec, said.function, call=said.call, returns=said.returns)
    entry = Entry(alone, function, parameters_of(reference))

    def ready(inputs: Named) -> PreparedCall:
        return entry.prepare({**problem.names, **problem.inputs, **inputs}, problem)

    return Run(ready, ready({}).named)


# Attention -----------------------------------------------------------------------------------


def _attention(name: str, problem: Problem) -> Run:
    if problem.names.get("sink") is not None:
        raise NotApplicableError("PyTorch's attention has no sinks")
    if problem.names["layout"] == "paged":
        raise NotApplicableError("does not support a paged cache")
    if name in _SDPA:
        return _sdpa(_SDPA[name], problem)
    if name == "torch_varlen":
        return _varlen(problem)
    if name == "reference_compiled" and problem.names["layout"] != "cache":
        return _compiled(problem)
    if name == "reference_compiled":
        raise NotApplicableError("does not support a KV cache")
    raise NotApplicableError(
        "is not known for attention; use sdpa_cudnn, sdpa_flash, sdpa_efficient or torch_varlen"
    )


def _sdpa(backend: SDPBackend, problem: Problem) -> Run:
    names = problem.names
    lengths_q, lengths_k = list(names["seqlens_q"]), [int(n) for n in names["seqlens_k"]]
    if len({*lengths_q}) > 1 or len({*lengths_k}) > 1:
        raise NotApplicableError("SDPA needs sequences of equal length; use torch_varlen")
    window, causal = names.get("window"), bool(names["causal"])
    if window is not None and window < max(lengths_k):
        raise NotApplicableError("SDPA has no window")
    top_left = names.get("alignment") == "top_left"
    causal &= (
        top_left or lengths_q[0] > 1
    )  # a single query, aligned at the last key, attends to all keys
    if causal and lengths_q[0] != lengths_k[0] and not top_left:
        raise NotApplicableError("SDPA aligns a causal mask at the first key, not at the last")
    layout, batch, keys = names["layout"], names["batch"], lengths_k[0]

    def to_bhsd(name: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """View an input as [batch, heads, rows, dim]."""
        match layout:
            case "thd":
                return inputs[name].reshape(batch, -1, *inputs[name].shape[1:]).transpose(1, 2)
            case "bhsd":
                return inputs[name]
            case "cache" if name == "q":
                return inputs["q"][:, :, None]
            case "cache":
                return inputs[f"{name}_cache"][:, :keys].transpose(1, 2)
        return inputs[name].transpose(1, 2)

    def from_bhsd(out: torch.Tensor) -> torch.Tensor:
        match layout:
            case "thd":
                return out.transpose(1, 2).flatten(0, 1)
            case "bhsd":
                return out
            case "cache":
                return out[:, :, 0]
        return out.transpose(1, 2)

    options = {"is_causal": causal, "scale": names["scale"], "enable_gqa": names["groups"] != 1}

    def call(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        q, k, v = (to_bhsd(name, inputs) for name in ("q", "k", "v"))
        try:
            with sdpa_kernel(backend):
                return from_bhsd(scaled_dot_product_attention(q, k, v, **options))
        except RuntimeError as error:
            if _NO_KERNEL.search(str(error)):
                raise NotApplicableError("this kernel of SDPA does not support the case") from error
            raise

    return Run.of(call, ("out",))


def _varlen(problem: Problem) -> Run:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise NotApplicableError(f"PyTorch {torch.__version__} has no varlen_attn") from error
    names = problem.names
    if names["layout"] != "thd":
        raise NotApplicableError("needs packed sequences")
    if names.get("alignment") == "top_left":
        raise NotApplicableError(
            "varlen_attn aligns a causal mask at the last key, not at the first"
        )
    options: dict[str, Any] = {}
    takes = inspect.signature(varlen_attn).parameters
    window, causal = names.get("window"), bool(names["causal"])
    if "window_size" in takes:
        # Our window includes the row's own key; PyTorch's counts the keys to its left.
        options["window_size"] = (-1 if window is None else window - 1, 0 if causal else -1)
    elif window is None:
        options["is_causal"] = causal
    else:
        raise NotApplicableError(f"varlen_attn of PyTorch {torch.__version__} has no window")
    if "scale" in takes:
        options["scale"] = names["scale"]
    elif names["scale"] not in (None, names["head_dim"] ** -0.5):
        raise NotApplicableError(f"varlen_attn of PyTorch {torch.__version__} has no scale")
    if "enable_gqa" in takes:
        options["enable_gqa"] = names["groups"] != 1
    longest = names["max_seqlen_q"], names["max_seqlen_k"]

    def call(inputs: Mapping[str, torch.Tensor]) -> object:
        q, k, v = (inputs[key] for key in ("q", "k", "v"))
        starts = inputs["cu_seqlens_q"], inputs["cu_seqlens_k"]
        return varlen_attn(q, k, v, *starts, *longest, **options)

    return Run.of(call, ("out",))


def _compiled(problem: Problem) -> Run:
    """softmax(q k^T) v with materialized scores, through torch.compile."""
    names, inputs = problem.names, problem.inputs
    packed, transposed = names["layout"] == "thd", names["layout"] != "bhsd"
    groups, scale = names["groups"], names["scale"]
    rows = names["total_q"] if packed else names["seqlen_q"]
    keys = names["total_k"] if packed else names["seqlen_k"]
    count = 1 if packed else names["batch"]
    needed = 4 * count * names["heads"] * rows * keys * 4
    free = torch.cuda.mem_get_info()[0] if inputs["q"].is_cuda else 4 * _GIB
    if needed > free:
        raise NotApplicableError(
            f"its scores need {needed / _GIB:.0f} GiB, {free / _GIB:.0f} are free"
        )
    hidden = ~_visible(names, inputs["q"].device, packed=packed)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        scores = (q @ k.transpose(-1, -2)).float() * factor
        scores = scores.masked_fill(hidden, -torch.inf)
        weights = torch.softmax(scores, -1).masked_fill(hidden, 0.0)
        return weights.to(v.dtype) @ v

    compiled: Callable[..., torch.Tensor] = torch.compile(attend, dynamic=False)

    def call(given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        q, k, v = (given[key][None] if packed else given[key] for key in ("q", "k", "v"))
        if transposed:
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        out = compiled(q, k, v)
        out = out.transpose(1, 2) if transposed else out
        return out[0] if packed else out

    return Run.of(call, ("out",))


def _visible(names: Mapping[str, Any], device: torch.device, *, packed: bool) -> torch.Tensor:
    """The mask, [rows, keys]: True if a row attends to a key."""
    pairs = list(zip(names["seqlens_q"], names["seqlens_k"], strict=True))
    blocks = []
    for rows, keys in pairs if packed else pairs[:1]:
        offset = 0 if names.get("alignment") == "top_left" else keys - rows
        last = torch.arange(rows, device=device)[:, None] + offset
        key = torch.arange(keys, device=device)[None]
        seen = key <= last if names["causal"] else torch.ones(rows, keys, device=device) > 0
        if names.get("window") is not None:
            seen &= key > last - names["window"]
        blocks.append(seen)
    if not packed:
        return blocks[0]
    joined: torch.Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return joined.bool()


# Matrix products -----------------------------------------------------------------------------


def _product(name: str, problem: Problem) -> Run:
    """PyTorch's product (`torch`), or the same through torch.compile."""
    if name not in ("torch", "reference_compiled"):
        raise NotApplicableError("implements attention only")
    names, out = problem.names, problem.outputs["c"].dtype
    transpose_a, transpose_b = bool(names.get("transpose_a")), bool(names.get("transpose_b"))
    product = _multiplication(problem, out, row_major_a=not transpose_a, column_major_b=transpose_b)

    def call(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        a, b = inputs["a"], inputs["b"]
        made = product(a.T if transpose_a else a, b.T if transpose_b else b)
        if "scale" in inputs:
            made = made * inputs["scale"]
        if "c" in inputs:
            made = made + inputs["c"]
        return made.to(out)

    return Run.of(call if name == "torch" else torch.compile(call, dynamic=False), ("c",))


def _multiplication(
    problem: Problem, out: torch.dtype, *, row_major_a: bool, column_major_b: bool
) -> _Product:
    """The function that multiplies op(a) and op(b) of the problem's dtypes."""
    a, b = problem.inputs["a"].dtype, problem.inputs["b"].dtype
    if is_float8(a) and is_float8(b):
        if not (row_major_a and column_major_b):
            raise NotApplicableError(
                "torch._scaled_mm needs a row-major and columns of b contiguous"
            )
        one = torch.ones((), device=problem.inputs["a"].device)
        return lambda x, y: torch._scaled_mm(x, y, one, one, out_dtype=out)  # noqa: SLF001 - PyTorch's only one
    if a == b == torch.int8:
        return torch._int_mm  # noqa: SLF001 - as above
    if a != b:
        # A layer with quantised weights converts them first if it has no mixed kernel.
        wide = a if a.is_floating_point and a.itemsize >= b.itemsize else b
        return lambda x, y: x.to(wide) @ y.to(wide)
    if out.itemsize > a.itemsize:
        return lambda x, y: torch.mm(x, y, out_dtype=out)
    return torch.matmul
