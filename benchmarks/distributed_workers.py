"""A pool of worker processes, one per GPU, that run steps together, each with a time limit.

If a step fails on any rank or times out, the pool is killed and a new one continues with the next
step, so one hang costs one step.
"""

from __future__ import annotations

import os
import queue
import socket
import statistics
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tlmatrix_kernels.distributed import Context, create_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

START_LIMIT = 180
"""Seconds for processes to start and join the process group."""
GRACE = 5
"""Seconds for the other ranks to answer after one has failed."""


@dataclass(frozen=True)
class Step:
    """`call(context, *arguments)` on every rank; the result is that of rank 0."""

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    limit: float = 120
    """Seconds, including compilation."""


@dataclass(frozen=True)
class Outcome:
    """The result or the error of a step."""

    step: Step
    result: Any = None
    error: str | None = None
    seconds: float = 0.0


@dataclass
class _WorkerPool:
    """Worker processes, and the queue of their messages."""

    processes: list[Any]
    messages: Any
    early: list[tuple[int, int, str, Any]] = field(default_factory=list)
    kill: bool = True
    """Whether to kill the processes at the end, instead of waiting for them."""

    def next_of(self, number: int, deadline: float) -> tuple[int, str, Any]:
        """The next message of any rank about step `number`: (rank, kind, value).

        Raises:
            queue.Empty: there is none until the deadline.
        """
        for index, (rank, of, kind, value) in enumerate(self.early):
            if of <= number:
                del self.early[index]
                return rank, kind, value
        while True:
            wait = max(0.1, deadline - time.monotonic())
            rank, of, kind, value = self.messages.get(timeout=wait)
            if of <= number:
                return rank, kind, value
            self.early.append((rank, of, kind, value))  # this rank is a step ahead

    def end(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.join(0.1 if self.kill else 10)
            if process.is_alive():
                process.kill()
            process.join()


def run_steps(
    steps: list[Step], world: int, make_context: Callable[[int, int], Context] | None = None
) -> Iterator[Outcome]:
    """Yield the outcome of every step; `world` processes run them, with one GPU each.

    `make_context(rank, world)` creates the context of a rank; `gpu_context` by default.
    """
    done = 0
    while done < len(steps):
        pool = _start(steps[done:], world, make_context or gpu_context)
        try:
            for number, step in enumerate(steps[done:]):
                done += 1
                outcome = _await(pool, step, number, world)
                pool.kill = outcome.error is not None or done < len(steps)
                yield outcome
                if outcome.error is not None:
                    break
        finally:
            pool.end()


def _start(
    steps: list[Step], world: int, make_context: Callable[[int, int], Context]
) -> _WorkerPool:
    spawn = mp.get_context("spawn")
    messages = spawn.Queue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        spawn.Process(
            target=_work, args=(steps, make_context, rank, world, port, messages), daemon=True
        )
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    return _WorkerPool(processes, messages)


def _await(pool: _WorkerPool, step: Step, number: int, world: int) -> Outcome:
    """Collect the ranks' results of step `number`, until its limit."""
    begun = time.monotonic()
    deadline = begun + step.limit + START_LIMIT
    results: dict[int, Any] = {}
    errors: dict[int, str] = {}
    while len(results) + len(errors) < world:
        try:
            rank, kind, value = pool.next_of(number, deadline)
        except queue.Empty:
            silent = [rank for rank in range(world) if rank not in results and rank not in errors]
            failures = "".join(f"\nrank {rank}: {text}" for rank, text in sorted(errors.items()))
            error = f"no answer of ranks {silent} in {time.monotonic() - begun:.0f} s{failures}"
            return Outcome(step, error=error, seconds=time.monotonic() - begun)
        if kind == "begun":
            deadline = min(deadline, time.monotonic() + step.limit)
        elif kind == "result":
            results[rank] = value
        else:
            errors[rank] = value
            deadline = min(deadline, time.monotonic() + GRACE)
    seconds = time.monotonic() - begun
    if errors:
        failures = "".join(f"\nrank {rank}: {text}" for rank, text in sorted(errors.items()))
        return Outcome(step, error=failures.strip(), seconds=seconds)
    return Outcome(step, result=results[0], seconds=seconds)


def _work(
    steps: list[Step],
    make_context: Callable[[int, int], Context],
    rank: int,
    world: int,
    port: int,
    messages: Any,
) -> None:
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        NCCL_NVLS_ENABLE="0",
        TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
    )
    number = 0
    try:
        context = make_context(rank, world)
        for number, step in enumerate(steps):
            messages.put((rank, number, "begun", None))
            result = step.call(context, *step.arguments)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            dist.barrier()
            messages.put((rank, number, "result", result if rank == 0 else None))
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  (the parent prints it)
        messages.put((rank, number, "error", traceback.format_exc(limit=-6)))
        messages.close()
        messages.join_thread()
        os._exit(1)  # destroying the process group may hang


def gpu_context(rank: int, world: int) -> Context:
    """The context of a rank on its GPU."""
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        rank=rank,
        world_size=world,
        device_id=torch.device("cuda", rank),
        timeout=timedelta(seconds=300),
    )
    context = create_context()
    dist.barrier()
    return context


def slowest(seconds: float) -> float:
    """The maximum over ranks of a measured time."""
    value = torch.tensor(seconds, dtype=torch.float64, device="cuda")
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def efficiency(
    compute: Sequence[float], comm: Sequence[float], taken: Sequence[float]
) -> list[float]:
    """Overlap efficiency (T_compute + T_comm - T) / min(T_compute, T_comm) over rounds.

    1 if the shorter is completely hidden. Returns the lower quartile, median and upper quartile.
    """
    rounds = zip(compute, comm, taken, strict=True)
    rates = [(one + other - time) / min(one, other) for one, other, time in rounds]
    return statistics.quantiles(rates, n=4) if len(rates) > 1 else rates * 3
