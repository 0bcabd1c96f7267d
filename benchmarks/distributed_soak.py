"""Stress test of the multi-GPU operators: thousands of back-to-back calls with random stragglers.

    python benchmarks/distributed_soak.py [--world 2] [--calls 10000] [--seed 0]

Calls every multi-GPU operator, in a random order that all ranks share, with random shapes, on one
context. A random rank is often delayed by up to some milliseconds on its main stream, before or
after the call. Only every 250th call synchronizes and counts wrong results. Operands are -1, 0 and
1, so sums are exact and results must match bitwise; attention and its gradients must be within 0.02
of PyTorch's attention over the gathered keys.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from typing import Any

import torch
import torch.distributed as dist
from distributed_workers import Step, run_steps

from tlmatrix_kernels.distributed import (
    Context,
    TwoLevelContext,
    all_gather,
    all_gather_gemm,
    gemm_reduce_scatter,
    reduce_scatter,
    reduce_scatter_two_level,
    segments,
)
from tlmatrix_kernels.distributed.attention import sequence_attention
from tlmatrix_kernels.distributed.attention.reference import gathered_attention
from tlmatrix_kernels.distributed.partition import row_range

segments.MIN_FLOP = 0.0  # reduce in segments for small products too

CALLS_PER_STEP = 250
"""Calls between two checks of the results."""
MOST_TICKS = 4_000_000
"""The maximum delay of a rank in clock ticks, some 2 milliseconds."""
SHAPES = [
    (512, 256, 128),
    (130, 72, 40),
    (64, 8, 256),
    (333, 129, 77),
    (1024, 1024, 256),
    (3, 5, 7),
]
"""m, n and k of a rank; sums of up to 8 * 256 units are exact in float16."""
SEGMENTED_SHAPE = (4096, 2048, 64)
"""m, n and k for which a rank reduces its own rows in several segments."""
SLICED_ROWS = 4608
"""Rows of a rank's keys that arrive in several slices."""


def _signs(source: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(-1, 2, shape, generator=source, device="cuda").half()


def _gather(context: Context, m: int, n: int, _k: int, source: torch.Generator) -> torch.Tensor:
    x = _signs(source, m, n)
    mine = x[slice(*row_range(m, context.world, context.rank))]
    return all_gather(mine, context=context, rows=m) != x


def _scatter(context: Context, m: int, n: int, _k: int, source: torch.Generator) -> torch.Tensor:
    x = _signs(source, context.world, m, n)
    out = reduce_scatter(x[context.rank], context=context)
    return out != x.sum(0)[slice(*row_range(m, context.world, context.rank))]


def _levels(context: Context, m: int, n: int, _k: int, source: torch.Generator) -> torch.Tensor:
    rows = -(-m // context.world) * context.world
    x = _signs(source, context.world, rows, n)
    out = reduce_scatter_two_level(x[context.rank], context=TwoLevelContext(context, None))
    return out != x.sum(0)[slice(*row_range(rows, context.world, context.rank))]


def _gather_gemm(context: Context, m: int, n: int, k: int, source: torch.Generator) -> torch.Tensor:
    a, b = _signs(source, m, k), _signs(source, k, n)
    mine = a[slice(*row_range(m, context.world, context.rank))]
    out = all_gather_gemm(mine, b, context=context, m=m, overlap=True)
    return out != (a.float() @ b.float()).half()


def _gemm_scatter(
    context: Context, m: int, n: int, k: int, source: torch.Generator
) -> torch.Tensor:
    a, b = _signs(source, context.world, m, k), _signs(source, context.world, k, n)
    out = gemm_reduce_scatter(a[context.rank], b[context.rank], context=context, overlap=True)
    whole = (a.float() @ b.float()).sum(0).half()
    return out != whole[slice(*row_range(m, context.world, context.rank))]


def _attention(
    context: Context, rows: int, mask: int, steps: int, source: torch.Generator
) -> torch.Tensor:
    """Forward and backward with `rows` rows per rank, for 4 masks and shardings and 4 schedules."""
    shape = (context.world, 1, rows, 4, 64)
    q, keys, values = (
        torch.randn(shape, generator=source, device="cuda").half()[context.rank] for _ in range(3)
    )
    options = {"causal": mask % 2 == 0, "sharding": "zigzag" if mask < 2 else "contiguous"}
    counts = {"steps": (1, 2, context.world, None)[steps]}
    results = []
    for entry, more in ((sequence_attention, counts), (gathered_attention, {})):
        leaves = [tensor.detach().clone().requires_grad_() for tensor in (q, keys, values)]
        out = entry(*leaves, context=context, **options, **more)[0]
        out.backward(q)
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    wrong = [
        ~((got.float() - want.float()).abs() <= 0.02 + 0.02 * want.float().abs()).flatten()
        for got, want in zip(*results, strict=True)
    ]
    return torch.cat(wrong)


CHECKS: dict[str, Any] = {
    "sequence_attention": _attention,
    "all_gather": _gather,
    "reduce_scatter": _scatter,
    "reduce_scatter_two_level": _levels,
    "all_gather_gemm": _gather_gemm,
    "gemm_reduce_scatter": _gemm_scatter,
}


def shapes(name: str) -> list[tuple[int, int, int]]:
    """The shapes with which an operator is called."""
    if name == "sequence_attention":
        rows = [*(2 * (m % 190 + 1) for m, _, _ in SHAPES), SLICED_ROWS]
        return list(itertools.product(rows, range(4), range(4)))
    return [*SHAPES, SEGMENTED_SHAPE] if name == "gemm_reduce_scatter" else SHAPES


def prepare(context: Context) -> dict[str, int]:
    """Compile every kernel, so that no later step waits for it; the number of wrong elements."""
    torch.backends.cuda.matmul.allow_tf32 = False
    source = torch.Generator(device="cuda").manual_seed(0)
    wrong = sum(
        check(context, *shape, source).sum()
        for name, check in CHECKS.items()
        for shape in shapes(name)
    )
    counts = torch.as_tensor(wrong, device="cuda")
    dist.all_reduce(counts)
    return {"first calls": int(counts)}


def soak(context: Context, seed: int, calls: int) -> dict[str, int]:
    """Run `calls` calls without synchronization; the number of wrong elements by operator."""
    draws = random.Random(seed)  # the same on every rank
    source = torch.Generator(device="cuda").manual_seed(seed)
    wrong = {name: torch.zeros((), dtype=torch.int64, device="cuda") for name in CHECKS}
    for _ in range(calls):
        name = draws.choice(list(CHECKS))
        shape = draws.choice(shapes(name))
        late, ticks = draws.randrange(2 * context.world), draws.randrange(MOST_TICKS)
        if late == context.rank:
            torch.cuda._sleep(ticks)  # noqa: SLF001  (has no public name)
        bad = CHECKS[name](context, *shape, source)
        if late - context.world == context.rank:
            torch.cuda._sleep(ticks)  # noqa: SLF001
        wrong[name] += bad.sum()
    counts = torch.stack(list(wrong.values()))
    dist.all_reduce(counts)
    return dict(zip(wrong, counts.tolist(), strict=True))


def main() -> int:
    """Run the stress test and print results as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=torch.cuda.device_count())
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60, help="seconds per step")
    options = parser.parse_args()
    if options.world < 2:
        print(f"needs two GPUs, found {torch.cuda.device_count()}")
        return 1
    firsts = range(0, options.calls, CALLS_PER_STEP)
    steps = [Step("compile", prepare, limit=600)]
    steps += [
        Step(
            f"{first} to {min(first + CALLS_PER_STEP, options.calls) - 1}",
            soak,
            arguments,
            options.limit,
        )
        for first in firsts
        for arguments in [(options.seed + first, min(CALLS_PER_STEP, options.calls - first))]
    ]
    right, bad = 0, 0
    for outcome in run_steps(steps, options.world):
        clean = outcome.error is None and not any(outcome.result.values())
        verdict = "right" if clean else f"WRONG {outcome.error or outcome.result}"
        print(f"{outcome.step.name}: {verdict} ({outcome.seconds:.1f} s)", flush=True)
        bad += not clean
        right += outcome.step.arguments[1] if clean and outcome.step.arguments else 0
    print(f"{right} of {options.calls} calls right on {options.world} GPUs")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
