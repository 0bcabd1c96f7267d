"""Specs for tests, and an independent attention formula."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from tlmatrix.problem import family_for
from tlmatrix.spec.model.spec import Spec

CPU = torch.device("cpu")


def make_spec(problem="attention", **fields):
    """A spec as if read from a file; every location is line 1."""
    if "factory" not in fields:
        fields.setdefault("entry", "some.module:entry")
    fields.setdefault("axes", {"any": [1]})
    return Spec.model_validate({"name": "made_up", "problem": problem, **fields})


def make_problem(values, *, seed=1, **fields):
    """The attention problem of a case; the axes of its spec have only its values."""
    fields["axes"] = {axis: [value] for axis, value in values.items()} | fields.get("axes", {})
    spec = make_spec(**fields)
    return family_for(spec).problem(spec, values, seed=seed, device=CPU)


def packed(q, k="same", **values):
    base = {"dtype": "float16", "kv_heads": 1, "head_dim": 8, "seqlens": {"q": q, "k": k}}
    return {**base, **values}


def dense(seqlen_q, seqlen_k="same", **values):
    return {
        "dtype": "float16", "kv_heads": 1, "head_dim": 8, "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_k, **values,
    }  # fmt: skip


def heads_first(problem, name, number):
    """[head, row, dim] of sequence `number` of an input, an output or a gradient."""
    side = "k" if name in ("k", "v", "dk", "dv") else "q"
    tensor = {**problem.inputs, **problem.reference()}[name]
    names = problem.names
    if names["layout"] == "thd":
        starts = names[f"cu_seqlens_{side}"].tolist()
        return tensor[starts[number] : starts[number + 1]].transpose(0, 1)
    return tensor[number].transpose(0, 1) if names["layout"] == "bshd" else tensor[number]


def visible(lq, lk, *, causal=False, window=None, alignment="bottom_right"):
    """The mask by definition, pair by pair: rows of True and False."""

    def sees(i, j):
        place = i if alignment == "top_left" else i + lk - lq
        if causal and j > place:
            return False
        return window is None or j > place - window

    return torch.tensor(
        [[sees(i, j) for j in range(lk)] for i in range(lq)], dtype=torch.bool
    ).view(lq, lk)


def by_sdpa(problem, number):
    """Out, lse and gradients of one sequence, by PyTorch's SDPA and autograd in float64.

    The sink is a concatenated key of zeros whose logit the additive mask gives. Rows that see
    nothing are left out of SDPA, which makes NaN of them.
    """
    names = problem.names
    leaves = {
        name: heads_first(problem, name, number).detach().double().requires_grad_()
        for name in ("q", "k", "v")
    }
    q, do = leaves["q"], heads_first(problem, "do", number).double()
    k, v = (leaves[name].repeat_interleave(names["groups"], 0) for name in ("k", "v"))
    heads, lq, lk = q.shape[0], q.shape[1], k.shape[1]
    alignment = names.get("alignment", "bottom_right")
    mask = visible(lq, lk, causal=names["causal"], window=names["window"], alignment=alignment)
    bias = torch.zeros(heads, lq, lk, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    if names["sink"] is not None:
        leaves["sink"] = names["sink"].double().requires_grad_()
        column = leaves["sink"][:, None, None].expand(heads, lq, 1)
        bias = torch.cat([bias, column], -1)
        k, v = (torch.cat([each, torch.zeros_like(each[:, :1]).expand(heads, 1, -1)], 1)
                if lk else torch.zeros(heads, 1, each.shape[-1], dtype=torch.float64)
                for each in (k, v))  # fmt: skip
    scale = names["head_dim"] ** -0.5 if names["scale"] is None else names["scale"]
    seeing = (bias[0] > -torch.inf).any(-1)
    out = torch.zeros(heads, lq, v.shape[-1], dtype=torch.float64)
    rows = seeing.nonzero().flatten()
    if len(rows):
        some = scaled_dot_product_attention(
            q[None, :, rows], k[None], v[None], attn_mask=bias[None, :, rows], scale=scale
        )[0]
        out = out.index_copy(1, rows, some)
    lse = torch.logsumexp(q @ k.transpose(1, 2) * scale + bias, -1)
    results = {"out": out.detach(), "lse": lse.detach()}
    if out.requires_grad:
        found = torch.autograd.grad(out, list(leaves.values()), do, allow_unused=True)
    else:
        found = [None] * len(leaves)
    for (name, leaf), grad in zip(leaves.items(), found, strict=True):
        results[f"d{name}"] = torch.zeros_like(leaf) if grad is None else grad
    return results
