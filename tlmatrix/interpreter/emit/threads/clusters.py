"""Clusters of blocks: which blocks make one, and the rank of a block in it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter

_CLUSTER = "the cluster of a block"


def _extents(e: Emitter) -> tuple[int, ...]:
    """How many blocks a cluster has along x, y and z."""
    for node in walk(e.kernel.body):
        if isinstance(node, ir.Block) and "cluster_dims" in node.annotations:
            return tuple(int(getattr(n, "value", n)) for n in node.annotations["cluster_dims"])
    return (1, 1, 1)


def _indices(e: Emitter) -> list[str]:
    """Code of the block's index along x, y and z."""
    found = ["0", "0", "0"]
    for node in walk(e.kernel.body):
        if isinstance(node, ir.For) and node.thread_tag.startswith("blockIdx."):
            found["xyz".index(node.thread_tag[-1])] = e.vars[node.loop_var].code
    return found


def grid_of_clusters(e: Emitter) -> list[tuple[str, int]]:
    """For each dim of the grid, outermost first, its axis and the blocks of a cluster along it."""
    tags = (n.thread_tag for n in walk(e.kernel.body) if isinstance(n, ir.For))
    axes = [tag[-1] for tag in tags if tag.startswith("blockIdx.")]
    return [(axis, _extents(e)["xyz".index(axis)]) for axis in axes]


def blocks_of_cluster(e: Emitter) -> int:
    """How many blocks a cluster has."""
    return math.prod(_extents(e))


def refuse_sanitizers(e: Emitter, what: str) -> None:
    """Raise Unsupported under sanitizers, which know the memory of one block alone."""
    if any(i.argument == "watch" for i in e.instruments):
        raise e.refuse(f"{what} under sanitizers")


def has_cluster(e: Emitter) -> bool:
    """Whether blocks come in clusters."""
    return blocks_of_cluster(e) > 1


def has_pairs(e: Emitter) -> bool:
    """Whether a product takes the memory of two blocks."""
    return has_cluster(e) and any(
        isinstance(n, ir.Call) and n.annotations.get("use_2cta") for n in walk(e.kernel.body)
    )


def rank_in_cluster(e: Emitter) -> str:
    """Code of the rank of a block in its cluster: x runs fastest."""
    terms, step = [], 1
    for index, extent in zip(_indices(e), _extents(e), strict=False):
        if extent > 1:
            terms.append(f"{index} % {extent} * {step}")
        step *= extent
    return f"({' + '.join(terms)})" if terms else "0"


def cluster_of(e: Emitter) -> str:
    """The name of the block's cluster, which is joined before the block starts."""
    if _CLUSTER not in e.vars:
        extents = _extents(e)
        number = [f"{i} // {n}" for i, n in zip(_indices(e), extents, strict=False)]
        name = e.vars[_CLUSTER] = e.prologue.fresh("cluster")
        e.prologue.line(
            f"{name} = cta.join_cluster(({', '.join(number)}), {blocks_of_cluster(e)}, "
            f"{rank_in_cluster(e)})"
        )
    found: str = e.vars[_CLUSTER]
    return found
