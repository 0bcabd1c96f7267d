"""Sequence-parallel attention on 2, 4 or 8 GPUs: how much of the communication attention hides.

    python benchmarks/sequence_attention.py [--world 4] [--tokens 4096 16384 32768]
        [--heads 32] [--kv-heads 8 32] [--masks full causal] [--backward] [--json FILE]

One sequence in zigzag order. For each size, interleaved in one run, in milliseconds:

compute    this project's kernel, one launch, with all keys already local
nccl       NCCL's all-gather of k and v alone
pulls      a copy to symmetric memory, a barrier, and the copy engine's pulls alone
in turn    nccl, reordering of the chunks, and compute, in sequence
sdpa       nccl, reordering of the chunks, and PyTorch's scaled_dot_product_attention, in sequence
steps n    `sequence_attention` in n steps: 1 fetches all keys first, 2 starts with the local ones
apart      2 steps with one launch each, as while a CUDA graph is captured
chosen     the number of steps that the operator chooses

The overlap efficiency is (compute + nccl - time) / min(compute, nccl): 1 if the shorter of the two
is completely hidden, 0 if both run in sequence. It is computed for every round from the times of
that round; median and quartiles are reported.

A time is the median over rounds of the slowest rank's. A round makes a few back-to-back calls,
enqueued while the GPUs sleep, so host time is not included. Long calls heat a GPU and lower its
clock by more than a gather costs; therefore each measurement is preceded by a rest, and every round
has a random order. Failures are reported and skipped; results are printed as they are measured, and
as JSON with --json.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import json
import multiprocessing
import os
import queue
import random
import socket
import statistics
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from distributed_workers import efficiency, slowest
from gathered_sdpa import all_gather, gathered_sdpa, in_sequence_order

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]

TICKS_PER_MS = 2_000_000
"""Of `torch.cuda._sleep`, approximately, on an H200."""
DIM = 128
"""Head dimension."""
HOST_MS = 1.5
"""Upper bound of the host time to enqueue a call, in milliseconds."""
REST = 0.03
"""Seconds of rest before each measurement."""


@dataclass(frozen=True)
class Case:
    """One sequence, and how it is sharded."""

    world: int
    tokens: int
    heads: int
    kv_heads: int
    causal: bool
    dim: int = DIM
    sharding: str = "zigzag"

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        return (
            f"{self.tokens} tokens on {self.world} GPUs, {self.heads} heads, {self.kv_heads} kv "
            f"heads, {mask}"
        )

    @property
    def flops(self) -> float:
        """FLOP of the forward on one rank."""
        whole = 4 * self.tokens**2 * self.heads * self.dim / (2 if self.causal else 1)
        return whole / self.world


class Bench:
    """One rank: its shards of a case, and the candidates."""

    def __init__(self, case: Case, context: Any, dtype: torch.dtype) -> None:
        from tlmatrix_kernels.distributed.attention import operators, validate
        from tlmatrix_kernels.distributed.attention.shards import Sharding

        self.case, self.context = case, context
        self.operators = operators
        rank, world = context.rank, context.world
        rows = case.tokens // world
        source = torch.Generator(device="cuda").manual_seed(17)
        shape = (1, case.tokens, case.kv_heads, case.dim)
        k, v = (torch.randn(shape, generator=source, device="cuda", dtype=dtype) for _ in range(2))
        order = Sharding(case.sharding, world)
        mine = order.positions([case.tokens], rank).cuda()
        self.k, self.v = k[:, mine].contiguous(), v[:, mine].contiguous()
        self.whole = k, v
        shape = (1, rows, case.heads, case.dim)
        self.q = torch.randn(shape, device="cuda", dtype=dtype)
        self.order = order
        # One launch over keys that are all local, in order of position.
        self.call = validate.check_dense_call(
            self.q, self.k, self.v, None, None, case.causal, None, case.sharding, 1, "pipelined",
            rank, world,
        )  # fmt: skip
        self.plan = operators.all_plans(self.call, 1)[rank]
        self.tables = operators.device_tables(self.call, 1, self.q.device)
        self.results: dict[str, torch.Tensor] = {}

    def attend(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """This project's kernel on whole keys; a rank reads only those visible to it."""
        from tlmatrix_kernels.distributed.attention.exchange import KeyValues

        rows = self.plan.fetched or k.shape[1]
        there = _LocalKeys(KeyValues(k[0, :rows], v[0, :rows]))
        out, _ = self.operators.attend(
            self.q.flatten(0, 1), self.plan, self.tables, there, self.call
        )
        return out[None]

    def compute(self) -> torch.Tensor:
        """The kernel alone."""
        return self.attend(*self.whole)

    def nccl(self) -> tuple[torch.Tensor, torch.Tensor]:
        """NCCL's all-gather."""
        return all_gather(self.k), all_gather(self.v)

    def in_turn(self) -> torch.Tensor:
        """All-gather, then the kernel."""
        k, v = (in_sequence_order(found, self.order) for found in self.nccl())
        return self.attend(k, v)

    def sdpa(self) -> torch.Tensor:
        """All-gather, then PyTorch's SDPA."""
        return gathered_sdpa(
            self.q, self.k, self.v, causal=self.case.causal, sharding=self.case.sharding
        )

    def pulls(self) -> None:
        """The communication alone."""
        from tlmatrix_kernels.distributed.attention.exchange import Fetch, KeyValues

        plans = self.operators.all_plans(self.call, min(2, self.case.world))
        fetch = Fetch(plans, KeyValues(self.k[0], self.v[0]), self.context)
        fetch.pull()
        fetch.wait_all()

    def fused(self, steps: int | None) -> torch.Tensor:
        """The operator."""
        out, _ = self.operators.sequence_attention(
            self.q, self.k, self.v, context=self.context, causal=self.case.causal,
            sharding=self.case.sharding, steps=steps,
        )  # fmt: skip
        return out

    def apart(self) -> torch.Tensor:
        """The operator in 2 steps with one launch each."""
        from tlmatrix_kernels.distributed.attention.schedule import Schedule

        choose = self.operators.choose_schedule
        self.operators.choose_schedule = lambda *_: Schedule(2, one_launch=False)
        try:
            return self.fused(None)
        finally:
            self.operators.choose_schedule = choose

    def both_ways(self, steps: int | None) -> None:
        """Forward and backward of the operator."""
        leaves = [t.detach().requires_grad_() for t in (self.q, self.k, self.v)]
        out, _ = self.operators.sequence_attention(
            *leaves, context=self.context, causal=self.case.causal, sharding=self.case.sharding,
            steps=steps,
        )  # fmt: skip
        torch.autograd.grad(out, leaves, self.q)

    def chosen(self) -> str:
        """The candidate name of the schedule that the operator chooses."""
        case = self.case
        lengths = (case.tokens,)
        heads, dims = (case.heads, case.kv_heads), (case.dim, case.dim)
        found = self.operators.choose_schedule(
            self.order, lengths, lengths, case.causal, heads, dims
        )
        return f"steps {found.steps}" if found.one_launch else "apart"


class _LocalKeys:
    """Local keys in place of a `Fetch`."""

    may_wait = False

    def __init__(self, keys: Any) -> None:
        self.keys = keys

    def pull(self) -> None:
        """Do nothing."""

    def wait(self, _step: int) -> Any:
        return self.keys


def timed(call: Call, calls: int) -> float:
    """Milliseconds per call on the slowest rank, for `calls` back-to-back calls."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(TICKS_PER_MS * HOST_MS * calls))  # noqa: SLF001 - no public name
    # GPUs with different clocks sleep for different times; this aligns their start.
    dist.all_reduce(torch.zeros(1, device="cuda"))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return slowest(begin.elapsed_time(end) / calls)


def works(name: str, call: Call, report: Callable[[dict], None]) -> bool:
    """Whether a first call, which compiles, succeeds on every rank."""
    wrong = 0.0
    try:
        call()
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - reported; others go on
        wrong = 1.0
        report({"failed": name, "error": f"{type(error).__name__}: {error}"[:2000]})
        traceback.print_exc()
    return slowest(wrong) == 0.0


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """The maximum absolute difference over all ranks."""
    return slowest(float((got.float() - want.float()).abs().max()))


def measure(case: Case, context: Any, options: argparse.Namespace, report: Callable) -> None:
    """Time all candidates of a case, interleaved; rank 0 reports."""
    bench = Bench(case, context, getattr(torch, options.dtype))
    steps = sorted({1, min(2, case.world), case.world})
    candidates: dict[str, Call] = {
        "compute": bench.compute, "nccl": bench.nccl, "pulls": bench.pulls,
        "in turn": bench.in_turn, "sdpa": bench.sdpa,
        **{f"steps {count}": partial(bench.fused, count) for count in steps},
        "apart": bench.apart,
        "chosen": partial(bench.fused, None),
    }  # fmt: skip
    if options.backward:
        for count in steps:
            candidates[f"both ways, steps {count}"] = partial(bench.both_ways, count)
    candidates = {name: call for name, call in candidates.items() if works(name, call, report)}
    difference = {
        name: off(candidates[name](), candidates["compute"]())
        for name in candidates
        if name not in {"compute", "nccl", "pulls"}
        and not name.startswith("both")
        and "compute" in candidates
    }
    times: dict[str, list[float]] = {name: [timed(call, 2)] for name, call in candidates.items()}
    order = random.Random(case.tokens)
    for _ in range(options.rounds):
        for name in order.sample(list(candidates), len(candidates)):
            time.sleep(REST)
            calls = max(2, min(20, int(30 / max(times[name][0], 0.05))))
            times[name].append(timed(candidates[name], calls))
    times = {name: found[1:] for name, found in times.items()}
    medians = {name: statistics.median(found) for name, found in times.items()}
    report({"case": asdict(case), "named": str(case), "ms": medians, "off": difference,
          "chosen": bench.chosen(), "spread": {n: [min(f), max(f)] for n, f in times.items()},
          "tflops": case.flops / 1e9 / medians["compute"] if "compute" in medians else None,
          "efficiency": efficiencies(times)})  # fmt: skip


def efficiencies(times: dict[str, list[float]]) -> dict[str, list[float]]:
    """Overlap efficiency of each overlapped candidate: lower quartile, median, upper quartile."""
    if not {"compute", "nccl"} <= times.keys():
        return {}
    return {
        name: efficiency(times["compute"], times["nccl"], taken)
        for name, taken in times.items()
        if name.startswith("steps") or name in {"apart", "chosen", "in turn"}
    }


def moments(case: Case, context: Any, options: argparse.Namespace, report: Callable) -> None:
    """A timeline of a call in 2 steps: when each part was done, in milliseconds from its start."""
    from tlmatrix_kernels.distributed.attention import exchange

    bench = Bench(case, context, getattr(torch, options.dtype))
    marks: list[tuple[str, torch.cuda.Event]] = []

    def mark(name: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        marks.append((name, event))

    real_barrier, real_flag = exchange.barrier_without_kernel, exchange.write_flag

    def barrier(*arguments: Any) -> None:
        mark("copied")
        real_barrier(*arguments)
        mark("barrier")

    def write_flag(*arguments: Any) -> None:
        real_flag(*arguments)
        mark(f"slice {len(marks) - 3}")

    for _ in range(3):
        marks.clear()
        exchange.barrier_without_kernel, exchange.write_flag = barrier, write_flag
        try:
            torch.cuda._sleep(int(TICKS_PER_MS * 5))  # noqa: SLF001 - no public name
            dist.all_reduce(torch.zeros(1, device="cuda"))
            mark("start")
            bench.fused(min(2, case.world))
            mark("end")
        finally:
            exchange.barrier_without_kernel, exchange.write_flag = real_barrier, real_flag
        torch.cuda.synchronize()
    start = marks[0][1]
    found = {name: slowest(start.elapsed_time(event)) for name, event in marks[1:]}
    report({"moments": found, "named": str(case)})


def rank_main(rank: int, world: int, port: int, options: argparse.Namespace, messages: Any) -> None:
    """The main function of one rank."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0",
        TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
    )  # fmt: skip

    def report(what: dict) -> None:
        if rank == 0 or "failed" in what or "died" in what:
            messages.put({"rank": rank, **what})

    try:
        from tlmatrix_kernels.distributed import create_context

        torch.cuda.set_device(rank)
        dist.init_process_group(
            "nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank),
            timeout=dt.timedelta(seconds=180),
        )  # fmt: skip
        context = create_context()
        for kv_heads in options.kv_heads:
            for mask in options.masks:
                for tokens in options.tokens:
                    case = Case(world, tokens, options.heads, kv_heads, mask == "causal")
                    measure(case, context, options, report)
                    if tokens == max(options.tokens):
                        moments(case, context, options, report)
        dist.barrier()
        report({"done": True})
        dist.destroy_process_group()
    except BaseException:
        report({"died": traceback.format_exc()[-3000:]})
        raise


def variants(options: argparse.Namespace, world: int) -> list[tuple]:
    """The kernels that all cases need: (factory name, arguments)."""
    from tlmatrix_kernels.distributed.attention.plan import plan_for
    from tlmatrix_kernels.distributed.attention.shards import Sharding

    found: dict[tuple, None] = {}
    for kv_heads, mask, tokens, steps in itertools.product(
        options.kv_heads, options.masks, options.tokens, {1, min(2, world), world}
    ):
        dtype, shape = options.dtype, (options.heads // kv_heads, DIM, DIM)
        for rank in range(world):
            plan = plan_for(
                Sharding("zigzag", world), rank, (tokens,), (tokens,), mask == "causal", steps
            )
            launches = [launch for step in plan.steps for launch in step.launches]
            if plan.in_one_launch:
                causal = any(launch.causal for launch in launches)
                found["overlapped_forward", dtype, *shape, causal] = None
            for place, launch in enumerate(launches):
                last = dtype if place == len(launches) - 1 else "float32"
                name = "forward_continued" if place else "forward"
                found[name, dtype, last, *shape, launch.causal] = None
                if options.backward:
                    found["key_sums", dtype, *shape, launch.causal] = None
                    found["query_sums", dtype, *shape, launch.causal] = None
    return list(found)


def build(name: str, *arguments: Any) -> float:
    """Compile one kernel into the disk cache; returns the seconds it took."""
    from tlmatrix_kernels.distributed.attention import kernels, overlapped_forward

    begin = time.monotonic()
    getattr(overlapped_forward if name == "overlapped_forward" else kernels, name)(*arguments)
    return time.monotonic() - begin


def build_all(needed: list[tuple], limit: float) -> None:
    """Compile kernels in parallel, before the ranks start."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(len(needed), os.cpu_count() or 1), mp_context=spawn) as pool:
        jobs = {pool.submit(build, *each): each for each in needed}
        try:
            for job in as_completed(jobs, timeout=limit):
                outcome = f"{job.result():.0f} s" if job.exception() is None else job.exception()
                print(f"  {' '.join(map(str, jobs[job]))}: {outcome}", flush=True)
        except TimeoutError:
            print(f"! compiling exceeded {limit:.0f} s; the ranks compile the rest", flush=True)
            pool.shutdown(wait=False, cancel_futures=True)


def show(what: dict) -> None:
    """Print a result."""
    if "failed" in what:
        print(f"! rank {what['rank']}: {what['failed']} failed: {what['error']}", flush=True)
    elif "died" in what:
        print(f"! rank {what['rank']} died:\n{what['died']}", flush=True)
    elif "moments" in what:
        parts = ", ".join(f"{name} {ms:.3f}" for name, ms in what["moments"].items())
        print(f"  in 2 steps, ms from the start: {parts}", flush=True)
    elif "case" in what:
        rate = f", {what['tflops']:.0f} TFLOP/s a GPU" if what["tflops"] else ""
        print(f"\n{what['named']}{rate}; chosen: {what['chosen']}")
        for name, ms in what["ms"].items():
            low, high = what["spread"][name]
            extra = ""
            if name in what["efficiency"]:
                least, middle, most = what["efficiency"][name]
                extra = f"  efficiency {middle:6.2f} ({least:.2f} to {most:.2f})"
            extra += f"  off {what['off'][name]:.2g}" if name in what["off"] else ""
            print(f"  {name:22} {ms:9.3f}  ({low:.3f} to {high:.3f}){extra}", flush=True)


def main() -> None:
    """Start the ranks, and print their results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=0, help="number of GPUs; by default all")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, nargs="+", default=[8, 32])
    parser.add_argument(
        "--masks", nargs="+", choices=["full", "causal"], default=["full", "causal"]
    )
    parser.add_argument("--dtype", choices=["float16", "bfloat16"], default="bfloat16")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--limit", type=float, default=540, help="seconds for everything")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    world = options.world or torch.cuda.device_count()
    if world < 2 or torch.cuda.device_count() < world:
        parser.error(f"needs {max(world, 2)} GPUs, found {torch.cuda.device_count()}")
    begin = time.monotonic()
    needed = variants(options, world)
    print(f"compiling {len(needed)} kernels", flush=True)
    build_all(needed, options.limit / 2)
    print(f"compiled in {time.monotonic() - begin:.0f} s", flush=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    messages, found, until = spawn.Queue(), [], begin + options.limit
    ranks = [
        spawn.Process(target=rank_main, args=(rank, world, port, options, messages))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    try:
        while time.monotonic() < until:
            try:
                what = messages.get(timeout=2)
            except queue.Empty:
                if not any(process.is_alive() for process in ranks):
                    break
                continue
            found.append(what)
            show(what)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1))
            if "done" in what or "died" in what:
                break
        else:
            print(f"! stopped: limit of {options.limit} s reached", flush=True)
    finally:
        for process in ranks:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


if __name__ == "__main__":
    main()
