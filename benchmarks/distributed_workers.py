"""A process a GPU that run steps together, each with a time limit, for the scripts beside this one.

A step that fails on any rank, or does not end in time, ends the processes; new ones go on with the
step after it. So one hang costs one step.
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
"""Seconds for processes to start and meet."""
GRACE = 5
"""Seconds that the other ranks get to answer once one has failed."""


@dataclass(frozen=True)
class Step:
    """`call(context, *arguments)` on every rank; what rank 0 returns is the result."""

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    limit: float = 120
    """Seconds, compiling included."""


@dataclass(frozen=True)
class Outcome:
    """What became of a step."""

    step: Step
    result: Any = None
    error: str | None = None
    seconds: float = 0.0


@dataclass
class _WorkerPool:
    """Processes that work through steps, and what they say of it."""

    processes: list[Any]
    messages: Any
    early: list[tuple[int, int, str, Any]] = field(default_factory=list)
    kill: bool = True
    """Whether they are not to end by themselves."""

    def next_of(self, number: int, deadline: float) -> tuple[int, str, Any]:
        """What a rank says next of the step of that number.

        Raises:
            queue.Empty: nothing until the deadline.
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
            self.early.append((rank, of, kind, value))  # it is a step ahead of others

    def end(self) -> None:
        """End what still runs."""
        for process in self.processes:
            process.join(0.1 if self.kill else 10)
            if process.is_alive():
                process.kill()
            process.join()


def run_steps(
    steps: list[Step], world: int, make_context: Callable[[int, int], Context] | None = None
) -> Iterator[Outcome]:
    """The outcome of every step, as it comes; `world` processes run them, with a GPU each.

    `make_context(rank, world)` makes the context; `gpu_context` unless given.
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
    """Gather the ranks' answers of the step of that number, until its limit."""
    begun = time.monotonic()
    deadline = begun + step.limit + START_LIMIT
    results: dict[int, Any] = {}
    errors: dict[int, str] = {}
    while len(results) + len(errors) < world:
        try:
            rank, kind, value = pool.next_of(number, deadline)
        except queue.Empty:
            silent = [rank for rank in range(world) if rank not in results and rank not in errors]
            told = "".join(f"\nrank {rank}: {text}" for rank, text in sorted(errors.items()))
            error = f"no answer of ranks {silent} in {time.monotonic() - begun:.0f} s{told}"
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
        told = "".join(f"\nrank {rank}: {text}" for rank, text in sorted(errors.items()))
        return Outcome(step, error=told.strip(), seconds=seconds)
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
    except BaseException:  # noqa: BLE001  (whatever it is, the first process prints it)
        messages.put((rank, number, "error", traceback.format_exc(limit=-6)))
        messages.close()
        messages.join_thread()
        os._exit(1)  # the group may never end by itself


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
    """The largest of what the ranks measured."""
    value = torch.tensor(seconds, dtype=torch.float64, device="cuda")
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def efficiency(
    compute: Sequence[float], comm: Sequence[float], taken: Sequence[float]
) -> list[float]:
    """(T_compute + T_comm - T) / min(T_compute, T_comm) of the times of each round.

    With 1 the shorter is wholly hidden behind the longer. Lower quartile, median, upper quartile.
    """
    rounds = zip(compute, comm, taken, strict=True)
    rates = [(one + other - time) / min(one, other) for one, other, time in rounds]
    return statistics.quantiles(rates, n=4) if len(rates) > 1 else rates * 3
