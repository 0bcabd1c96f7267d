"""The process of one rank: `python -m tlmatrix.distributed.process`, started by `RankPool`.

It answers requests on a socket and exits when the socket closes. A request is a pickled pair of
paths to import from, and a function with its arguments, pickled by itself. The function is the name
of a method of `Rank`, or is called with (backend, rank, world, *arguments). The answer is
`("done", result)`, or `("failed", failure)` if it raises.

Symmetric memory on GPUs is guarded here, because it has an allocator of its own. Buffers are filled
with NaN and allocated with extra bytes at the end that no peer and no kernel may write. Signal pads
are enlarged in the same way.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.check.finding import Finding
from tlmatrix.distributed.failures import Failure
from tlmatrix.processes import end_with

if TYPE_CHECKING:
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


_TAIL = 4096
"""Bytes behind each buffer."""
_WATCHED = ("empty", "rendezvous", "set_signal_pad_size", "get_signal_pad_size")
_CANARY = 0xF5
_POISON = 0xFF
"""Repeated, this byte is NaN in every floating dtype and -1 in every integer dtype."""


@dataclass(frozen=True)
class _Tail:
    """The canaries behind a buffer of `count` elements."""

    buffer: str
    behind: torch.Tensor
    count: int
    itemsize: int = 4

    def element(self, byte: int) -> int:
        """The index of the element that a byte of the canaries would belong to."""
        return self.count + byte // self.itemsize


class SymmetricGuards:
    """Guards the symmetric buffers that are allocated inside `watching`."""

    def __init__(self) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self._tails: dict[int, _Tail] = {}
        self._module: Any = symmetric
        # PyTorch applies the size to later allocations and never resets it.
        self._pad: int | None = None
        if hasattr(symmetric, "set_signal_pad_size"):
            self._pad = int(symmetric.get_signal_pad_size())
            symmetric.set_signal_pad_size(self._pad + _TAIL)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Poison symmetric memory that is allocated inside, and add canaries behind it."""
        module = self._module
        originals = {name: getattr(module, name) for name in _WATCHED if hasattr(module, name)}
        original = originals["empty"]

        def empty(*size: Any, dtype: torch.dtype | None = None, device: Any = None) -> Any:  # noqa: ANN401 - PyTorch's signature
            shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
            kind = dtype or torch.get_default_dtype()
            count = torch.Size(shape).numel()
            tail = -(-_TAIL // kind.itemsize)
            whole = original(count + tail, dtype=kind, device=device)
            whole.view(torch.uint8).fill_(_POISON)
            behind = whole[count:].view(torch.uint8)
            behind.fill_(_CANARY)
            if whole.is_cuda:  # a peer may write right after the rendezvous
                torch.cuda.synchronize(whole.device)
            words = f"the symmetric {str(kind).removeprefix('torch.')} buffer {list(shape)}"
            self._tails[behind.data_ptr()] = _Tail(words, behind, count, kind.itemsize)
            return whole[:count].view(shape)

        def rendezvous(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - PyTorch's signature
            handle = originals["rendezvous"](*args, **options)
            if self._pad is not None:
                self._guard_pad(handle, self._pad)
            return handle

        def set_size(size: int) -> None:
            self._pad = size
            originals["set_signal_pad_size"](size + _TAIL)

        module.empty, module.rendezvous = empty, rendezvous
        if self._pad is not None:
            module.set_signal_pad_size = set_size
            module.get_signal_pad_size = lambda: self._pad
        try:
            yield
        finally:
            for name, each in originals.items():
                setattr(module, name, each)

    def _guard_pad(self, handle: Any, size: int) -> None:  # noqa: ANN401 - PyTorch's
        """Write canaries behind this rank's signal pad, whose visible size is `size` bytes."""
        if handle.signal_pad_size < size + _TAIL:
            return  # allocated before the size was set
        behind = handle.get_signal_pad(handle.rank, (_TAIL,), torch.uint8, size)
        if behind.data_ptr() not in self._tails:
            behind.fill_(_CANARY)
            words = f"the signal pad of rank {handle.rank}, of {size} bytes"
            self._tails[behind.data_ptr()] = _Tail(words, behind, size // 4)

    def findings(self) -> list[Finding]:
        """Report writes behind buffers, and restore the canaries so that each is reported once."""
        found = []
        for tail in self._tails.values():
            behind = tail.behind
            hit = (behind != _CANARY).nonzero().flatten()
            if not len(hit):
                continue
            first, last = int(hit[0]), int(hit[-1])
            behind.fill_(_CANARY)
            found.append(
                Finding(
                    "guards",
                    f"out-of-bounds write: bytes {first}-{last} past the end of {tail.buffer} "
                    f"were overwritten, elements {tail.element(first)}-{tail.element(last)} of "
                    f"{tail.count}",
                    pattern="behind symmetric memory",
                    wrong=len(hit),
                    hint="by this rank or a peer: the offset of another rank, or a flag too many",
                )
            )
        return found

    def forget(self) -> None:
        """Drop the buffers of a case that ended."""
        self._tails.clear()


if __name__ == "__main__":
    main()
