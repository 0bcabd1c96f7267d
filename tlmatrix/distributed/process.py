"""The process of one rank: `python -m tlmatrix.distributed.process`, started by `RankPool`.

It answers requests on a socket and exits when the socket closes. A request is a pickled pair of
paths to import from, and a function with its arguments, pickled by itself. The function is the name
of a method of `Rank`, or is called with (backend, rank, world, *arguments). The answer is
`("done", result)`, or `("failed", failure)` if it raises.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import pickle
import random
import signal
import sys
import time
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.distributed.failures import Failure
from tlmatrix.processes import end_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from tlmatrix.backend.backends import Backend
    from tlmatrix.distributed.rank_runner import Answer, Job, RankRunner
    from tlmatrix.spec.model.spec import Spec

_HOST_DELAY = 0.02
"""Longest delay of a straggler on the host, in seconds."""
_GPU_DELAY = 20_000_000
"""Longest delay of a straggler on its GPU, in cycles: about ten milliseconds."""


def main(arguments: list[str] | None = None) -> None:
    """Serve as one rank until the pool closes the socket."""
    parser = argparse.ArgumentParser()
    for name in ("--rank", "--world", "--socket"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--kind", "--store", "--stacks"):
        parser.add_argument(name, required=True)
    given = parser.parse_args(arguments)
    end_with(os.getppid())
    # The pool requests stacks with a signal, which also works while C code runs.
    stacks = Path(given.stacks).open("w", encoding="utf-8")  # noqa: SIM115 - open while we live
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool handles Ctrl-C
    connection = Connection(given.socket)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        _serve(connection, given)
    os._exit(0)  # destroying the process group could wait for peers that have ended


def _serve(connection: Connection, given: argparse.Namespace) -> None:
    rank: Rank | None = None
    while True:
        paths, request = pickle.loads(connection.recv_bytes())  # noqa: S301 - our pool's
        sys.path.extend(path for path in paths if path not in sys.path)
        answer: tuple[str, Any]
        try:
            # Only now: it may be of modules on these paths.
            function, arguments = pickle.loads(request)  # noqa: S301 - our pool's
            if rank is None:
                rank = Rank(given.rank, given.world, given.kind, given.store)
            answer = ("done", rank.call(function, arguments))
        except Exception as error:  # noqa: BLE001 - the pool raises it again
            answer = ("failed", Failure.of(error))
        connection.send_bytes(_pickled(answer))


def _pickled(answer: tuple[str, Any]) -> bytes:
    if answer[0] == "failed":
        return pickle.dumps(("failed", answer[1].picklable()))
    try:
        return pickle.dumps(answer)
    except Exception as error:  # noqa: BLE001 - the result cannot be pickled
        return pickle.dumps(("failed", Failure.of(error).picklable()))


class Rank:
    """The state of a rank's process, and the functions that the pool calls by name."""

    def __init__(self, rank: int, world: int, kind: str, store: str) -> None:
        import torch
        import torch.distributed as dist

        from tlmatrix.distributed.symmetric import SymmetricGuards

        self.rank, self.world, self.kind = rank, world, kind
        torch.set_num_threads(1)
        backend = "gloo"
        if kind == "cuda":
            from tlmatrix.backend.kernel_cache import share_kernels

            share_kernels()  # all ranks run the same program: one compiles a kernel, others wait
            torch.cuda.set_device(rank)
            backend = "cpu:gloo,cuda:nccl"
        dist.init_process_group(
            backend,
            init_method=f"file://{store}",
            rank=rank,
            world_size=world,
            timeout=timedelta(minutes=10),  # the pool's own limit is shorter and reports stacks
        )
        self.runner: RankRunner | None = None
        self.symmetric = SymmetricGuards() if kind == "cuda" else None
        _warm_up()

    def call(self, function: str | Callable[..., object], arguments: tuple[Any, ...]) -> object:
        """Call a method by its name, or a function."""
        if isinstance(function, str):
            result: object = getattr(self, function)(*arguments)
            return result
        return function(self._backend(), self.rank, self.world, *arguments)

    def begin(self, spec: Spec, roots: tuple[Path, ...]) -> None:
        """Begin a case with a new context."""
        import torch.distributed as dist

        from tlmatrix.backend.binding import bind
        from tlmatrix.distributed.rank_runner import RankRunner

        binding = bind(spec, self._backend(), roots=roots)
        self.runner = RankRunner(binding, self.rank, self.world, dist.group.WORLD)

    def run(self, job: Job) -> Answer:
        """Make the calls of a job."""
        from tlmatrix.distributed.rank_runner import to_device, to_host

        assert self.runner is not None
        self._lag(job)
        mine = to_device(job, self.runner.binding.backend.device)
        if self.symmetric is None:
            return to_host(self.runner.run(mine))
        with self.symmetric.watching():
            answer = self.runner.run(mine)
        found = self.symmetric.findings()
        return to_host(replace(answer, findings=(*answer.findings, *found)))

    def end(self) -> None:
        """End the case, and free its context."""
        self.runner = None
        if self.symmetric is not None:
            self.symmetric.forget()
        gc.collect()

    def _backend(self) -> Backend:
        from tlmatrix.backend.backends import CudaBackend, InterpreterBackend

        if self.kind != "cuda":
            return InterpreterBackend()
        import torch

        major, minor = torch.cuda.get_device_capability(self.rank)
        return CudaBackend(torch.device("cuda", self.rank), f"sm_{major}{minor}")

    def _lag(self, job: Job) -> None:
        """Delay this rank by a time derived from the job's seed, on the host or on the GPU."""
        if not job.straggle:
            return
        chance = random.Random(f"{job.straggle}:{self.rank}")  # noqa: S311 - reproducible
        late = chance.random() < 0.5
        if self.kind == "cuda" and late and chance.random() < 0.5:
            import torch

            hold: Any = torch.cuda._sleep  # noqa: SLF001 - there is no other
            hold(int(chance.random() * _GPU_DELAY))
        elif late:
            time.sleep(chance.random() * _HOST_DELAY)


def _warm_up() -> None:
    """Trigger PyTorch's lazy imports, so that they do not count as time of a call."""
    import torch
    import torch.distributed as dist

    from tlmatrix.check.guards import allocations_guarded

    with allocations_guarded():
        one = torch.ones(1, requires_grad=True)
        torch.autograd.grad(2 * one, one, torch.empty_like(one).fill_(1))
        dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    main()
