"""The process of one rank: `python -m tlmatrix.backend.ranks.process`, started by a crew.

It reads requests from a socket that it was given, and answers each; when the socket closes, it
ends. Requests and answers are pickled tuples, whose first entry says what they are:

    ("begin", spec, roots, paths, asked)   -> ("ready",)          a case begins, on a new context
    ("job", job)                           -> ("done", answer)    see `tlmatrix.backend.ranks.job`
    ("end",)                               -> ("ready",)          the case ended: its context goes
    ("work", function, arguments, paths)   -> ("done", result)    `module:function` of ours, called
                                                                  with (backend, rank, world, …)

In place of an answer comes `("failed", failure)`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
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
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.ranks.failure import Failure

if TYPE_CHECKING:
    from tlmatrix.backend.backends import Backend
    from tlmatrix.backend.ranks.job import Job
    from tlmatrix.backend.ranks.member import Member

__all__ = ["main"]

_LONGEST = 0.02
"""Seconds that a rank is behind at most, where stragglers are asked for."""
_CYCLES = 20_000_000
"""Cycles that its GPU is, about ten milliseconds."""
_KILL = 9
_PDEATHSIG = 1


def main(arguments: list[str] | None = None) -> None:
    """Serve as one rank until the crew closes the socket."""
    parser = argparse.ArgumentParser()
    for name in ("--rank", "--world", "--socket"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--kind", "--store", "--stacks"):
        parser.add_argument(name, required=True)
    given = parser.parse_args(arguments)
    _die_with_parent()
    # The crew asks with a signal what a rank is doing; C code cannot hold that up.
    stacks = Path(given.stacks).open("w", encoding="utf-8")  # noqa: SIM115 - open while we live
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the crew's to hear
    connection = Connection(given.socket)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        _serve(connection, given)
    os._exit(0)  # a process group may wait for peers that are gone


def _serve(connection: Connection, given: argparse.Namespace) -> None:
    worker: _Worker | None = None
    while True:
        kind, *rest = pickle.loads(connection.recv_bytes())  # noqa: S301 - from our own crew
        try:
            if worker is None:
                worker = _Worker(given.rank, given.world, given.kind, given.store)
            answer = worker.answer(kind, rest)
        except Exception as error:  # noqa: BLE001 - the crew tells them apart
            answer = ("failed", Failure.of(error))
        connection.send_bytes(_pickled(answer))


def _pickled(answer: tuple[Any, ...]) -> bytes:
    if answer[0] == "failed":
        return pickle.dumps(("failed", answer[1].travelling()))
    try:
        return pickle.dumps(answer)
    except Exception as error:  # noqa: BLE001 - a result that holds what cannot travel
        return pickle.dumps(("failed", Failure.of(error).travelling()))


class _Worker:
    """A rank, as long as its process lives."""

    def __init__(self, rank: int, world: int, kind: str, store: str) -> None:
        import torch
        import torch.distributed as dist

        from tlmatrix.backend.ranks.compiling import compile_in_turn
        from tlmatrix.backend.ranks.symmetric import SymmetricGuards

        self.rank, self.world, self.kind = rank, world, kind
        torch.set_num_threads(1)
        backend = "gloo"
        if kind == "cuda":
            compile_in_turn(Path(store).with_name("compiling"))
            torch.cuda.set_device(rank)
            backend = "cpu:gloo,cuda:nccl"
        dist.init_process_group(
            backend,
            init_method=f"file://{store}",
            rank=rank,
            world_size=world,
            timeout=timedelta(minutes=10),  # the crew's watchdog is sooner, and says more
        )
        self.member: Member | None = None
        self.symmetric = SymmetricGuards() if kind == "cuda" else None
        _warm_up()

    def answer(self, kind: str, rest: list[Any]) -> tuple[Any, ...]:
        match kind:
            case "begin":
                self._begin(*rest)
                return ("ready",)
            case "job":
                return ("done", _on_host(self._run(*rest)))
            case "end":
                self.member = None
                if self.symmetric is not None:
                    self.symmetric.forget()
                gc.collect()
                return ("ready",)
            case "work":
                return ("done", self._work(*rest))
        raise ValueError(f"no request {kind!r}")

    def _begin(self, spec: Any, roots: tuple[Path, ...], paths: list[str]) -> None:  # noqa: ANN401
        import torch.distributed as dist

        from tlmatrix.backend.binding import bind
        from tlmatrix.backend.ranks.member import Member

        sys.path.extend(path for path in paths if path not in sys.path)
        binding = bind(spec, self._backend(), roots=roots)
        self.member = Member(binding, self.rank, self.world, dist.group.WORLD)

    def _work(self, function: str, arguments: tuple[Any, ...], paths: list[str]) -> Any:  # noqa: ANN401
        sys.path.extend(path for path in paths if path not in sys.path)
        module, _, name = function.partition(":")
        return getattr(import_module(module), name)(
            self._backend(), self.rank, self.world, *arguments
        )

    def _backend(self) -> Backend:
        from tlmatrix.backend.backends import CudaBackend, InterpreterBackend

        if self.kind != "cuda":
            return InterpreterBackend()
        import torch

        major, minor = torch.cuda.get_device_capability(self.rank)
        return CudaBackend(torch.device("cuda", self.rank), f"sm_{major}{minor}")

    def _run(self, job: Job) -> Any:  # noqa: ANN401 - an Answer
        assert self.member is not None
        self._lag(job)
        mine = _on_device(job, self.member.binding.backend.device)
        if self.symmetric is None:
            return self.member.run(mine)
        with self.symmetric.watching():
            answer = self.member.run(mine)
        found = self.symmetric.findings()
        return replace(answer, findings=(*answer.findings, *found))

    def _lag(self, job: Job) -> None:
        """Fall behind by a time that the job's seed says: on the host, or on the GPU."""
        if not job.straggle:
            return
        chance = random.Random(f"{job.straggle}:{self.rank}")  # noqa: S311 - reproducible
        late = chance.random() < 0.5
        if self.kind == "cuda" and late and chance.random() < 0.5:
            import torch

            hold: Any = torch.cuda._sleep  # noqa: SLF001 - there is no other
            hold(int(chance.random() * _CYCLES))
        elif late:
            time.sleep(chance.random() * _LONGEST)


def _warm_up() -> None:
    """Have PyTorch import what it imports late, so that no call is charged for it."""
    import torch
    import torch.distributed as dist

    from tlmatrix.check.memory import allocations_guarded

    with allocations_guarded():
        one = torch.ones(1, requires_grad=True)
        torch.autograd.grad(2 * one, one, torch.empty_like(one).fill_(1))
        dist.all_reduce(torch.ones(1))


def _on_device(job: Job, device: Any) -> Job:  # noqa: ANN401 - a torch.device
    from tlmatrix.backend.ranks.job import moved

    return moved(job, device)


def _on_host(answer: Any) -> Any:  # noqa: ANN401 - an Answer
    from tlmatrix.backend.ranks.job import on_host

    return on_host(answer)


def _die_with_parent() -> None:
    """Let Linux end this process when its crew's process ends, whatever it hangs in."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, _KILL)


if __name__ == "__main__":
    main()
