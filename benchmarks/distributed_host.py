"""Host time per call of the overlapped operators: Python overhead before the GPU has work.

    python benchmarks/distributed_host.py [--profile]

Needs no GPU: kernels, copies, streams and peers are replaced by stubs that do nothing, so only the
operators' checks, views and cache look-ups remain. On a GPU, launches add some 5 us each
(`benchmarks/distributed.py` times whole calls).
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from tilelang.jit import JITImpl

from tlmatrix_kernels.distributed import all_gather_gemm, gemm_reduce_scatter, pull
from tlmatrix_kernels.distributed import context as contexts
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.distributed.memory import SymmetricBuffer

WORLD = 2
SIZE = 64


class Stream:
    """A stub stream."""

    def wait_stream(self, stream: object) -> None:
        """Do nothing."""


class Peers:
    """A symmetric memory handle whose peers are all this process."""

    def __init__(self, storage: torch.Tensor) -> None:
        self.storage = storage

    def get_buffer(
        self, _peer: int, shape: Sequence[int], dtype: torch.dtype, offset: int
    ) -> torch.Tensor:
        """A view of the local buffer."""
        count = torch.Size(shape).numel()
        return self.storage.view(dtype)[offset : offset + count].view(shape)

    def barrier(self, channel: int) -> None:
        """Do nothing."""


def allocate(
    size: int, device: torch.device, _group: object, rank: int, world: int
) -> SymmetricBuffer:
    """A buffer in the memory of this process."""
    storage = torch.zeros(size, dtype=torch.uint8, device=device)
    return SymmetricBuffer(storage, Peers(storage), rank, world)


def nothing(*_args: object, **_options: object) -> None:
    """Stub of GPU work."""


def replaced() -> list[Any]:
    """The patches that replace GPU work."""
    caller = Stream()
    streams = mock.patch.multiple(
        torch.cuda,
        current_stream=lambda: caller,
        Stream=lambda **_: Stream(),
        stream=lambda _: nullcontext(),
        is_current_stream_capturing=lambda: False,
    )
    memory = mock.Mock(stream_write_value32=nothing, memset32=nothing)
    return [
        streams,
        mock.patch.object(contexts, "allocate", allocate),
        mock.patch.object(pull.symm_mem, "_SymmetricMemory", memory),
        mock.patch.object(JITImpl, "compile", return_value=nothing),
        mock.patch.object(torch.Tensor, "copy_", nothing),
    ]


def calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """(name, call) of each operator."""
    context = Context(None, 0, WORLD, torch.device("cpu"))
    rows, whole = (torch.zeros(m, SIZE, dtype=torch.float16) for m in (SIZE // WORLD, SIZE))
    columns = torch.zeros(SIZE, SIZE // WORLD, dtype=torch.float16)
    gather = {"context": context, "overlap": True}
    yield "all_gather_gemm", lambda: all_gather_gemm(rows, columns, **gather)
    yield "gemm_reduce_scatter", lambda: gemm_reduce_scatter(whole, whole, **gather)


def main() -> None:
    """Time both operators."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true", help="profile the calls")
    profile = parser.parse_args().profile
    patches = replaced()
    for patch in patches:
        patch.start()
    try:
        for name, call in calls():
            best = float("inf")
            for _ in range(30):
                begin = time.perf_counter()
                for _call in range(50):
                    call()
                best = min(best, (time.perf_counter() - begin) / 50)
            print(f"{name:20} {best * 1e6:6.1f} us a call")
            if profile:
                watched = cProfile.Profile()
                watched.runcall(lambda call=call: [call() for _ in range(1000)])
                pstats.Stats(watched).sort_stats("cumulative").print_stats(20)
    finally:
        for patch in patches:
            patch.stop()


if __name__ == "__main__":
    main()
