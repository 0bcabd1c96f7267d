"""Where overlapping pays: by the operator, the number of ranks and the size of the product.

Below a size, a kernel after a collective is faster: barriers, flags and copies of small pieces cost
some tens of microseconds, however little there is to overlap.
"""

from tlmatrix_kernels.distributed.context import Context

__all__ = ["LEAST_FLOP", "overlap_pays", "overlaps"]

LEAST_FLOP = {
    "all_gather_gemm": {2: 2.0e11, 4: 1.0e11, 8: 1.0e11},
    "gemm_reduce_scatter": {2: 2.0e11, 4: 1.0e11, 8: 1.0e11},
}
"""By operator and ranks: floating point operations of *one rank's* product from which on it pays.

Other numbers of ranks take the line of the next smaller one. Estimates from the speed of NVLink and
of the kernels, not measurements: `benchmarks/distributed.py` says where the lines are.
"""


def overlap_pays(operator: str, world: int, m: int, n: int, k: int) -> bool:
    """Whether `operator` overlaps a product of [m, k] and [k, n] on each of `world` ranks."""
    if world == 1:
        return False
    table = LEAST_FLOP[operator]
    line = max((ranks for ranks in table if ranks <= world), default=min(table))
    return 2.0 * m * n * k >= table[line]


def overlaps(operator: str, asked: bool | None, context: Context, m: int, n: int, k: int) -> bool:
    """Whether a call overlaps: as `asked`, else where it pays; a world of one never does.

    Raises:
        RuntimeError: asked for while a CUDA graph is captured.
    """
    if asked is None:
        pays = overlap_pays(operator, context.world, m, n, k)
        return pays and not context.capturing()
    if asked and context.world > 1 and context.capturing():
        raise RuntimeError(
            "overlap=True cannot be captured to a graph, whose replays would wait for the epoch of "
            "the capture: use overlap=False"
        )
    return asked and context.world > 1
