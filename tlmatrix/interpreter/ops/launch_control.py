"""Cluster launch control: a running block takes over a cluster that has not started.

The response has 16 bytes in shared memory. Their encoding is not documented, so here they are the
index of the first block (x, y, z) and whether a cluster was canceled; kernels decode them by
`T.clc_is_canceled` and `T.clc_get_first_ctaid_x`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.emit.regions import checked_view, region
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.threads.clusters import (
    blocks_of_cluster,
    cluster_of,
    grid_of_clusters,
    refuse_sanitizers,
)
from tlmatrix.interpreter.emit.threads.issue import barrier_code, by_active_threads, issue
from tlmatrix.interpreter.emit.tiles import TileOperation, perform
from tlmatrix.interpreter.emit.values import Val
from tlmatrix.interpreter.errors import SynchronizationError

from .gemm_pair import part_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.ir.nodes import Call
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.sync.blocks import Block
    from tlmatrix.interpreter.sync.clusters import Cluster

_BYTES = 16
_FIELDS = {"tl.clc_is_canceled": 3} | {
    f"tl.clc_get_first_ctaid_{axis}": k for k, axis in enumerate("xyz")
}


class _Request(TileOperation):
    """`T.clc_try_cancel(response, mbarrier)`."""

    name = "clc_try_cancel"
    writes = ("response",)

    def __init__(self, e: Emitter, call: Call) -> None:
        self.call = call
        self.response = region(e, call.args[0])
        self.for_all = call.op.endswith("multicast") and blocks_of_cluster(e) > 1
        if self.for_all:
            refuse_sanitizers(e, "T.clc_try_cancel_multicast")

    def emit(self, e: Emitter) -> None:
        """Write the request."""
        grid = grid_of_clusters(e)
        extents = tuple(n for _, n in grid)
        axes = tuple("xyz".index(axis) for axis, _ in grid)
        view = checked_view(e, self.response)
        if self.for_all:
            response = f"({self.response.buf.code!r}, {self.response.dims_code})"
            e.w.line(f"cancel_launch_for_all(cta, {extents}, {axes}, {cluster_of(e)}, {response})")
        else:
            e.w.line(f"cancel_launch(cta, {extents}, {axes}, {view})")


def _try_cancel(e: Emitter, call: Call) -> None:
    t = threads_of(e, "T.clc_try_cancel")
    e.w.line(f"check_one_thread({t.active_threads(e)})")
    with t.without_threads(e):
        request = _Request(e, call)
        code = barrier_code(e, call.args[1])
        barriers = f"({code},)"
        if request.for_all:
            allocation, _, index = code.partition("[")
            ranks = f"range({blocks_of_cluster(e)})"
            barriers = f"[{allocation}.of_block(r)[{index} for r in {ranks}]"
        issue(e, "launch control", request, f"delivers={barriers}, size={_BYTES}")


class _Response(TileOperation):
    """A field of the response, as the value of `code`."""

    name = "clc_response"
    reads, writes = ("response",), ()

    def __init__(self, e: Emitter, call: Call) -> None:
        self.call = call
        self.response = region(e, call.args[0])
        self.code = e.temp("field")

    def emit(self, e: Emitter) -> None:
        """Write the read."""
        e.w.line(f"{self.code} = {checked_view(e, self.response)}.item({_FIELDS[self.call.op]})")


def _field(e: Emitter, call: Call) -> Val:
    response = _Response(e, call)
    e.w.line(f"{response.code} = 0")
    with threads_of(e, "a response of launch control").without_threads(e):
        perform(e, response)
    return Val(response.code, call.dtype, lo=0)


def check_one_thread(threads: int) -> None:
    """Raise where several threads ask for a cluster each."""
    if threads != 1:
        raise SynchronizationError(
            f"T.clc_try_cancel by {threads} threads, each of which cancels a cluster: one should"
        )


def cancel_launch(
    block: Block, extents: tuple[int, ...], axes: Sequence[int], *responses: Array
) -> None:
    """Cancel a cluster that has not started, and write the response.

    Args:
        block: that runs.
        extents: how many blocks of a cluster there are along each dim of the grid.
        axes: for each dim of the grid 0, 1 or 2 for x, y or z.
        responses: where the response goes.
    """
    first = block.launch.cancel(extents)
    words = [0, 0, 0, first is not None]
    for axis, index in zip(axes, first or (), strict=False):
        words[axis] = index
    for response in responses:
        response[...] = words


def cancel_launch_for_all(
    block: Block,
    extents: tuple[int, ...],
    axes: Sequence[int],
    cluster: Cluster,
    response: tuple[str, Any],
) -> None:
    """`cancel_launch` with the response in every block of the cluster."""
    responses = [part_of(cluster, response, rank) for rank in range(cluster.size)]
    cancel_launch(block, extents, axes, *responses)


ASYNCHRONOUS = dict.fromkeys(
    ("tl.clc_try_cancel", "tl.clc_try_cancel_multicast"), by_active_threads(_try_cancel)
)
EFFECTS = ASYNCHRONOUS
SYNCHRONIZING = frozenset(EFFECTS)
CALLS = dict.fromkeys(_FIELDS, _field)
FUNCTIONS = (cancel_launch, cancel_launch_for_all, check_one_thread)
