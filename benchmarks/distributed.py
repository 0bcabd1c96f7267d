"""Overlapped operators against NCCL and a GEMM in sequence, and against PyTorch's fused operators.

    python benchmarks/distributed.py [--world 2] [--operators all_gather_gemm,...]
        [--sizes 8192,8192x28672x8192] [--dtype float16] [--rounds 5] [--json results.jsonl]

For every operator and size (M = N = K of the whole product, or MxNxK) on `world` GPUs, milliseconds
per call of

    ours        this project's overlapped operator
    in turn     NCCL's collective and this project's GEMM, in sequence
    torch       torch.ops.symm_mem.fused_all_gather_matmul, fused_matmul_reduce_scatter
    torch seq   NCCL's collective and torch.matmul, in sequence
    gemm        this project's GEMM alone: T_compute
    nccl        the collective alone: T_comm
    tiles       the overlapped kernel alone, with its flags already set or not awaited
    pulls       the overlapped copies alone, and a barrier
    sum         the reduction in ring order alone

and the overlap efficiency (T_compute + T_comm - T) / min(T_compute, T_comm): 1 if the shorter is
completely hidden, 0 if it is no faster than in sequence. Reports median and quartiles over rounds.

A time is the median over rounds of the slowest rank's mean of back-to-back calls, with the
candidates interleaved. Each candidate is first compared with PyTorch's product. One line of JSON
per size is printed, and written, as soon as it is measured. Candidates that fail or hang are
reported and skipped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from distributed_workers import Step, efficiency, run_steps, slowest

from tlmatrix_kernels.distributed import (
    Context,
    all_gather,
    all_gather_gemm,
    gemm_reduce_scatter,
    reduce_scatter,
)
from tlmatrix_kernels.distributed.baselines import (
    all_gather_then_gemm,
    all_gather_then_torch,
    gemm_then_reduce_scatter,
    torch_all_gather_matmul,
    torch_matmul_reduce_scatter,
    torch_then_reduce_scatter,
)
from tlmatrix_kernels.distributed.collectives import gather_single, reduce_scatter_single
from tlmatrix_kernels.distributed.gemm_launch import gemm_launch
from tlmatrix_kernels.distributed.gemm_ordered import gemm_on_arrival, gemm_signalling
from tlmatrix_kernels.distributed.partition import row_ranges
from tlmatrix_kernels.distributed.ring import add_in_ring_order
from tlmatrix_kernels.distributed.segments import MAX_SEGMENTS, own_segments, segment_count
from tlmatrix_kernels.gemm import gemm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Call = Callable[[], torch.Tensor]

TARGET = 0.1
"""Seconds per candidate and round."""
FUSED = ("ours", "torch")


def _all_gather_gemm(context: Context, m: int, n: int, k: int, dtype: torch.dtype) -> Candidates:
    """Operands a [M/W, K] times w [N/W, K] transposed."""
    world = context.world
    a = torch.randn(m // world, k, device="cuda", dtype=dtype)
    w = torch.randn(n // world, k, device="cuda", dtype=dtype)
    whole = torch.randn(m, k, device="cuda", dtype=dtype)

    def gathered() -> torch.Tensor:
        gather_single(whole, a)
        return whole

    whole_call = {"context": context, "m": m, "transpose_b": True}
    return {
        "torch seq": partial(all_gather_then_torch, a, w, **whole_call),
        "ours": partial(all_gather_gemm, a, w, **whole_call, overlap=True),
        "in turn": partial(all_gather_then_gemm, a, w, **whole_call),
        "torch": partial(torch_all_gather_matmul, a, w, **whole_call),
        "gemm": lambda: gemm(whole, w, transpose_b=True),
        "nccl": gathered,
        "tiles": partial(_tiles_on_arrival, context, whole, w),
        "pulls": partial(all_gather, a, context=context),
    }


def _tiles_on_arrival(context: Context, whole: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The kernel of all_gather_gemm, with all flags set."""
    world, rows = context.world, row_ranges(whole.shape[0], context.world)
    out = whole.new_empty(whole.shape[0], w.shape[0])
    launch = gemm_launch(
        gemm_on_arrival,
        w,
        out,
        world,
        rows[context.rank][0],
        transpose_b=True,
        whole_rows=True,
        whole_tile=True,
    )
    ready = torch.ones(world, dtype=torch.int32, device="cuda")
    launch.kernel(whole, w, out, ready, 1, launch.first, launch.panel)
    return out


def _gemm_reduce_scatter(
    context: Context, m: int, n: int, k: int, dtype: torch.dtype
) -> Candidates:
    """Operands a [M, K/W] times w [N, K/W] transposed; the rank's rows of the sum."""
    world = context.world
    a = torch.randn(m, k // world, device="cuda", dtype=dtype)
    w = torch.randn(n, k // world, device="cuda", dtype=dtype)
    product = torch.randn(m, n, device="cuda", dtype=dtype)
    out = torch.empty(m // world, n, device="cuda", dtype=dtype)

    def scattered(x: torch.Tensor) -> torch.Tensor:
        reduce_scatter_single(out, x)
        return out

    call = {"context": context, "transpose_b": True}
    return {
        "torch seq": partial(torch_then_reduce_scatter, a, w, m=m, **call),
        "ours": partial(gemm_reduce_scatter, a, w, **call, overlap=True),
        "in turn": partial(gemm_then_reduce_scatter, a, w, **call),
        "torch": partial(torch_matmul_reduce_scatter, a, w, m=m, **call),
        "gemm": lambda: gemm(a, w, transpose_b=True),
        "nccl": lambda: scattered(product),
        "tiles": partial(_tiles_signalling, context, a, w),
        "pulls": partial(reduce_scatter, product, context=context),
        "sum": partial(_summed, context, product),
    }


def _tiles_signalling(context: Context, a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The kernel of gemm_reduce_scatter, with no rank waiting for its flags."""
    (m, n), world, rank = (a.shape[0], w.shape[0]), context.world, context.rank
    rows = row_ranges(m, world)
    out = a.new_empty(m, n)
    most = segment_count(-(-m // world), n, 2.0 * m * n * a.shape[1])
    launch = gemm_launch(
        gemm_signalling,
        w,
        out,
        world,
        rows[(rank + 1) % world][0],
        transpose_b=True,
        whole_rows=True,
        whole_tile=False,
        panels=most,
    )
    own = own_segments(rows[rank], m, launch, most)
    done = torch.zeros(world, dtype=torch.int32, device="cuda")
    made = torch.zeros(MAX_SEGMENTS, dtype=torch.int32, device="cuda")
    order = launch.first, launch.panel, rank, own.base, own.step
    launch.kernel(a, w, out, done, made, *order)
    return out


def _summed(context: Context, product: torch.Tensor) -> torch.Tensor:
    """The reduction of a rank's rows, over as many parts as there are ranks."""
    parts = product.view(context.world, -1, product.shape[1])
    out = torch.empty_like(parts[0])
    add_in_ring_order(parts[:-1], parts[-1], None, out)
    return out


def _all_gather(context: Context, m: int, n: int, _k: int, dtype: torch.dtype) -> Candidates:
    """All-gather of x [M/W, N]."""
    x = torch.randn(m // context.world, n, device="cuda", dtype=dtype)
    whole = torch.empty(m, n, device="cuda", dtype=dtype)

    def gathered() -> torch.Tensor:
        gather_single(whole, x)
        return whole

    return {"nccl": gathered, "ours": lambda: all_gather(x, context=context)}


def _reduce_scatter(context: Context, m: int, n: int, _k: int, dtype: torch.dtype) -> Candidates:
    """Reduce-scatter of x [M, N] on every rank."""
    x = torch.randn(m, n, device="cuda", dtype=dtype)
    out = torch.empty(m // context.world, n, device="cuda", dtype=dtype)

    def scattered() -> torch.Tensor:
        reduce_scatter_single(out, x)
        return out

    return {"nccl": scattered, "ours": lambda: reduce_scatter(x, context=context)}


Candidates = dict[str, "Call"]
OPERATORS = {
    "all_gather_gemm": _all_gather_gemm,
    "gemm_reduce_scatter": _gemm_reduce_scatter,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
}


def measure(
    context: Context, operator: str, size: tuple[int, int, int], dtype: str, rounds: int
) -> dict[str, Any]:
    """Milliseconds of every candidate, on every rank; and errors by candidate."""
    torch.manual_seed(context.rank)
    candidates = OPERATORS[operator](context, *size, getattr(torch, dtype))
    reference = next(iter(candidates.values()))().double()
    counts: dict[str, int] = {}
    problems: dict[str, str] = {}
    for name, call in candidates.items():
        try:
            counts[name] = _prepare(name, call, reference, problems)
        except Exception as error:  # noqa: BLE001  (the other candidates go on)
            problems[name] = f"{type(error).__name__}: {error}"[:500]
        if slowest(float(name not in counts)) > 0:  # all ranks must skip it
            counts.pop(name, None)
            problems.setdefault(name, "failed on another rank")
    times: dict[str, list[float]] = {name: [] for name in counts}
    for _ in range(rounds):
        for name, count in counts.items():
            times[name].append(1e3 * slowest(_seconds(candidates[name], count)))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    return {"ms": medians, "rounds": times, "problems": problems}


def _prepare(name: str, call: Call, reference: torch.Tensor, problems: dict[str, str]) -> int:
    """Check a candidate's result, and return the number of calls per round."""
    out = call()
    torch.cuda.synchronize()
    if name in (*FUSED, "in turn"):
        error = float((out.double() - reference).abs().max() / reference.abs().max())
        if not error < 0.02:
            problems[name] = f"wrong: largest error {error:.3g} of the largest value"
    one = slowest(_seconds(call, 3))
    return max(3, min(200, int(TARGET / one)))


def _seconds(call: Call, count: int) -> float:
    """Mean seconds of `count` back-to-back calls on this rank."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    dist.barrier()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / count


def _size(text: str) -> tuple[int, int, int]:
    parts = [int(part) for part in text.split("x")]
    if len(parts) not in (1, 3):
        raise argparse.ArgumentTypeError(f"a size is M or MxNxK, got {text!r}")
    return tuple(parts * 3)[:3]  # type: ignore[return-value]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=min(torch.cuda.device_count(), 4))
    parser.add_argument("--operators", default=",".join(OPERATORS))
    parser.add_argument(
        "--sizes", default="8192,4096,2048,1024,16384,8192x28672x8192", help="M or MxNxK, by commas"
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["float16", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=90, help="seconds per size")
    parser.add_argument("--budget", type=float, default=540, help="seconds in total")
    parser.add_argument("--json", help="append lines of JSON to this file")
    return parser.parse_args()


def _report(row: dict[str, Any], path: Path | str | None) -> None:
    line = json.dumps(row)
    print("JSON " + line, flush=True)
    if path:
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(line + "\n")


def main() -> int:
    """Run the benchmark and print results as they are measured."""
    options = _arguments()
    if options.world < 2:
        print(f"needs two GPUs, found {torch.cuda.device_count()}")
        return 1
    print(
        f"{options.world} x {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
        f"{options.dtype}, milliseconds a call, median of {options.rounds} rounds"
    )
    begun = time.monotonic()
    operators = options.operators.split(",")
    sizes = [_size(text) for text in options.sizes.split(",")]
    steps = [
        Step(
            f"{operator} {'x'.join(map(str, size))}",
            measure,
            (operator, size, options.dtype, options.rounds),
            options.limit,
        )
        for size in sizes
        for operator in operators
    ]
    failed = 0
    for outcome in run_steps(steps, options.world):
        operator, size, *_ = outcome.step.arguments
        if outcome.error is not None:
            failed += 1
            print(f"{outcome.step.name}: FAILED after {outcome.seconds:.0f} s\n{outcome.error}")
            continue
        ms, problems = outcome.result["ms"], outcome.result["problems"]
        row = {"operator": operator, "world": options.world, "size": size, "dtype": options.dtype}
        rounds = outcome.result["rounds"]
        found = {
            name: efficiency(rounds["gemm"], rounds["nccl"], rounds[name])
            if {"gemm", "nccl", name} <= rounds.keys()
            else None
            for name in FUSED
        }
        _report({**row, **outcome.result, "efficiency": found}, options.json)
        cells = "  ".join(f"{name} {taken:.3f}" for name, taken in ms.items())
        rates = "  ".join(
            f"{name} {rates[1]:.2f} ({rates[0]:.2f} to {rates[2]:.2f})"
            for name, rates in found.items()
            if rates is not None
        )
        print(f"{outcome.step.name}: {cells}  efficiency: {rates}", flush=True)
        for name, problem in problems.items():
            failed += 1
            print(f"    {name}: {problem}", flush=True)
        if time.monotonic() - begun > options.budget:
            print(f"stopped: budget of {options.budget:.0f} s exhausted")
            break
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
