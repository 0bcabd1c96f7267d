"""Kernels as operations of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.sync.dispatch import Slot

from .streams import enqueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tlmatrix.interpreter.sync.agents import Request
    from tlmatrix.interpreter.sync.dispatch import BlockLaunch

    from .streams import Stream


def enqueue_kernel(kernel: Any, running: Callable[[], Iterator[BlockLaunch]]) -> None:
    """Enqueue a launch on the current stream of this thread's rank.

    Args:
        kernel: the kernel.
        running: runs it, and yields the blocks of one that waits for flags.
    """

    def work(stream: Stream) -> Iterator[Request | None]:
        if not kernel.waits:
            yield Slot(stream.host, f"kernel {kernel.name}")
        stream.kernel = kernel.name
        for blocks in running():
            yield from blocks.run(stream)
        stream.kernel = ""

    enqueue(f"kernel {kernel.name}", work)
