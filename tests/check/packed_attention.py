"""A small packed-attention problem and correct kernels for it, all in plain PyTorch.

Tests of checks use these problems instead of those of the families, which the checks judge.
`flash` computes what a correct low-precision kernel does: tiles, an online softmax, P rounded
before it is normalised, exp2 with an error of 2 ulp, dS rounded, sums in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import torch

from tlmatrix.check import judge
from tlmatrix.matrix.listed_cases import Case
from tlmatrix.problem.model import Dim, Problem, TensorInfo
from tlmatrix.spec.model.spec import Tolerance

LOG2E = math.log2(math.e)
ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}
DTYPES = tuple(ROUNDOFF)
DISTRIBUTIONS = ("normal", "onehot", "ramp", "large", "outlier", "constant", "tiny")


@dataclass(frozen=True)
class FakeSpec:
    tolerance: Tolerance


def draw(kind, shape, generator):
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    rows, dim = shape[0], shape[-1]
    if kind == "onehot":
        values = torch.zeros(shape, dtype=torch.float64)
        values[torch.arange(rows), :, torch.arange(rows) % dim] = 1
    elif kind == "ramp":
        along = torch.linspace(-1, 1, rows, dtype=torch.float64) if rows > 1 else torch.ones(1)
        values = (along[:, None, None] + torch.linspace(0, 0.5, dim)).expand(shape).clone()
    elif kind == "large":
        values = values * 6
    elif kind == "outlier" and rows:
        values[rows // 2] *= 30
    elif kind == "constant":
        values = torch.full(shape, 0.7, dtype=torch.float64)
    elif kind == "tiny":
        values = values * 1e-3
    return values


def visible(lq, lk, causal, window=None):
    query = torch.arange(lq)[:, None] + lk - lq
    key = torch.arange(lk)[None]
    seen = torch.ones(lq, lk, dtype=torch.bool)
    if causal:
        seen &= key <= query
        if window is not None:
            seen &= key > query - window
    return seen


def sequences(problem):
    n = problem.names
    starts_q = [0, *accumulate(n["seqlens_q"])]
    starts_k = [0, *accumulate(n["seqlens_k"])]
    for i, (lq, lk) in enumerate(zip(n["seqlens_q"], n["seqlens_k"], strict=True)):
        yield (
            slice(starts_q[i], starts_q[i] + lq),
            slice(starts_k[i], starts_k[i] + lk),
            visible(lq, lk, n["causal"], n["window"]),
        )


def empty_results(problem, dtype, lse_dtype):
    shapes = {name: info.shape for name, info in problem.outputs.items()}
    results = {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}
    results["lse"] = torch.full(shapes["lse"], -torch.inf, dtype=lse_dtype)
    return results


def exact(problem, compute=torch.float64, store=None, *, sizes=False):
    """Closed form, by sequence; with `store` what a kernel stores is rounded to it."""

    def rounded(x):
        return x if store is None else x.to(store).to(compute)

    t = {k: v.to(compute) for k, v in {**problem.inputs, **problem.cotangents}.items()}
    scale = problem.names["scale"]
    results = empty_results(problem, store or compute, torch.float32 if store else compute)
    magnitude, spread = (
        {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in results.items()}
        for _ in range(2)
    )
    for rows, cols, seen in sequences(problem):
        q, do = t["q"][rows].transpose(0, 1), t["out"][rows].transpose(0, 1)
        k, v = t["k"][cols].transpose(0, 1), t["v"][cols].transpose(0, 1)
        if not q.numel() or not k.numel():
            continue
        s = (q @ k.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf)
        m = s.amax(-1, keepdim=True).clamp_min(torch.finfo(compute).min)
        p = torch.exp(s - m)
        total = p.sum(-1, keepdim=True)
        inverse = torch.where(total > 0, 1 / total, 0.0)
        out = rounded(rounded(p) @ v * inverse)
        lse = (m + total.log())[..., 0]
        p = p * inverse
        dp = do @ v.transpose(1, 2)
        delta = (out * do).sum(-1, keepdim=True)
        ds = rounded(p * (dp - delta))
        parts = {
            "out": out, "dq": ds @ k * scale, "dk": ds.transpose(1, 2) @ q * scale,
            "dv": rounded(p).transpose(1, 2) @ do,
        }  # fmt: skip
        for name, part in parts.items():
            place = rows if name in ("out", "dq") else cols
            results[name][place] = part.transpose(0, 1).to(results[name].dtype)
        results["lse"][:, rows] = lse.to(results["lse"].dtype)
        if sizes:
            w = p * (dp.abs() + delta.abs())
            for power, target in ((1, magnitude), (2, spread)):
                terms = {
                    "out": p**power @ v.abs() ** power,
                    "dq": (w * scale) ** power @ k.abs() ** power,
                    "dk": (w * scale).transpose(1, 2) ** power @ q.abs() ** power,
                    "dv": p.transpose(1, 2) ** power @ do.abs() ** power,
                }
                for name, part in terms.items():
                    place = rows if name in ("out", "dq") else cols
                    target[name][place] = part.transpose(0, 1)
            reach = scale * (q.abs() @ k.abs().transpose(1, 2)).amax(-1)
            magnitude["lse"][:, rows] = reach + lse.nan_to_num(neginf=0).abs() + 1
    return results, magnitude, {name: part.sqrt() for name, part in spread.items()}


def packed_dims(lengths, heads, dim, *, tile=16):
    starts = [0, *accumulate(lengths)]
    region = [i for i, length in enumerate(lengths) for _ in range(length)]
    rows = Dim("position", starts[-1], region, starts, "sequence", tile)
    each = Dim("head", heads, range(heads))
    return (rows, each, Dim("dim", dim)), (each, rows)


def attention(
    lengths=(17, 40),
    keys=None,
    *,
    heads=3,
    dim=16,
    dtype=torch.float16,
    causal=True,
    window=None,
    values="normal",
    seed=0,
    sizes=True,
    scale=None,
    tile=16,
    relations=lambda _kind: (),
):
    keys = lengths if keys is None else keys
    generator = torch.Generator().manual_seed(seed)
    rows, cols = sum(lengths), sum(keys)
    if isinstance(values, str):
        values = dict.fromkeys(("q", "k", "v", "out"), values)

    def tensor(name, count):
        return draw(values[name], (count, heads, dim), generator).to(dtype)

    inputs = {"q": tensor("q", rows), "k": tensor("k", cols), "v": tensor("v", cols)}
    cotangent = tensor("out", rows)
    query, statistic = packed_dims(lengths, heads, dim, tile=tile)
    key, _ = packed_dims(keys, heads, dim, tile=tile)
    memory = {}

    def once(name, make):
        if name not in memory:
            memory[name] = make()
        return memory[name]

    def size(name, which):
        if not sizes:
            return None
        return lambda: once("ref", lambda: exact(problem, sizes=True))[which][name]

    def exponent():
        return torch.cat([size("lse", 1)().flatten(), torch.zeros(1)]).amax()

    def info(name, dims, kind, u, *, with_spread=True):
        return TensorInfo(
            name,
            dims,
            kind,
            u,
            size(name, 1),
            size(name, 2) if with_spread else None,
            exponent if sizes else None,
        )

    u = ROUNDOFF[dtype]
    problem = Problem(
        values={"causal": causal},
        names={
            **inputs, "seqlens_q": list(lengths), "seqlens_k": list(keys), "causal": causal,
            "window": window, "scale": dim**-0.5 if scale is None else scale, "heads": heads,
        },
        inputs=inputs,
        outputs={
            "out": info("out", query, dtype, u),
            "lse": info("lse", statistic, torch.float32, 2.0**-24, with_spread=False),
            "dq": info("dq", query, dtype, u),
            "dk": info("dk", key, dtype, u),
            "dv": info("dv", key, dtype, u),
        },
        returns=("out", "lse"),
        cotangents={"out": cotangent},
        gradient_of={"dq": "q", "dk": "k", "dv": "v"},
        reference=lambda: once("ref", lambda: exact(problem, sizes=sizes))[0],
        lowp=lambda: once("low", lambda: exact(problem, torch.float32, dtype)[0]),
        relations=relations,
    )  # fmt: skip
    return problem


def noisy_exp2(x, generator, ulp=2):
    value = torch.exp2(x)
    noise = (torch.rand(x.shape, generator=generator) * 2 - 1) * ulp * 2.0**-23
    return value * (1 + noise)


def flash(problem, *, tile=16, seed=0, reverse=False, ulp=2):
    """What a correct kernel computes; `tile` keys at a time."""
    generator = torch.Generator().manual_seed(seed)
    dtype = problem.outputs["out"].dtype
    t = {k: v.float() for k, v in {**problem.inputs, **problem.cotangents}.items()}
    scale = problem.names["scale"]
    log_scale = torch.tensor(scale * LOG2E, dtype=torch.float32)
    results = empty_results(problem, dtype, torch.float32)

    def rounded(x):
        return x.to(dtype).float()

    def exp2(x):
        return noisy_exp2(x, generator, ulp)

    for rows, cols, seen in sequences(problem):
        q, do = t["q"][rows].transpose(0, 1), t["out"][rows].transpose(0, 1)
        k, v = t["k"][cols].transpose(0, 1), t["v"][cols].transpose(0, 1)
        if not q.numel() or not k.numel():
            continue
        m = torch.full((*q.shape[:2], 1), -torch.inf)
        total, acc = torch.zeros_like(m), torch.zeros(*q.shape[:2], v.shape[-1])
        tiles = list(range(0, k.shape[1], tile))
        for start in reversed(tiles) if reverse else tiles:
            part = slice(start, start + tile)
            s = (q @ k[:, part].transpose(1, 2)).masked_fill(~seen[:, part], -torch.inf)
            new = torch.maximum(m, s.amax(-1, keepdim=True))
            base = torch.where(new.isneginf(), 0.0, new)
            p = exp2(s * log_scale - base * log_scale)
            shrink = torch.exp2((m - base) * log_scale)
            total = total * shrink + p.sum(-1, keepdim=True)
            acc = acc * shrink + rounded(p) @ v[:, part]
            m = new
        out = rounded(torch.where(total > 0, acc / total, 0.0))
        lse = torch.where(total > 0, m * scale + total.log(), -torch.inf)
        delta = (out * do).sum(-1, keepdim=True)
        dq = torch.zeros_like(q)
        for start in tiles:
            part = slice(start, start + tile)
            s = (q @ k[:, part].transpose(1, 2)).masked_fill(~seen[:, part], -torch.inf)
            base = torch.where(lse.isneginf(), 0.0, lse)
            p = exp2(s * log_scale - base * LOG2E)
            dp = do @ v[:, part].transpose(1, 2)
            ds = rounded(p * (dp - delta))
            dq += ds @ k[:, part]
            place = slice(cols.start + start, cols.start + min(start + tile, k.shape[1]))
            results["dk"][place] = (ds.transpose(1, 2) @ q * scale).transpose(0, 1).to(dtype)
            results["dv"][place] = (rounded(p).transpose(1, 2) @ do).transpose(0, 1).to(dtype)
        results["out"][rows] = out.transpose(0, 1).to(dtype)
        results["dq"][rows] = (dq * scale).transpose(0, 1).to(dtype)
        results["lse"][:, rows] = lse[..., 0]
    return results


def run(problem, execute, *checks, deterministic=True, tolerance=None, **options):
    """The findings of `judge` with these checks (numeric and gradients where none are named)."""
    return judge(
        FakeSpec(tolerance or Tolerance()),
        Case("attention", {}),
        problem,
        execute,
        checks=checks or ("numeric", "gradients"),
        arch="interpreter",
        deterministic=deterministic,
        **options,
    )
