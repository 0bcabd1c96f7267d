"""Where overlapping pays: by the operator, the number of ranks and the size of the product.

Below a size, a kernel after a collective is faster: barriers, flags and copies of small pieces cost
some tens of microseconds, however little there is to overlap.
"""

from tlmatrix_kernels.distributed.context import Context

__all__ = ["LEAST_FLOP", "overlap_pays", "overlaps"]

LEAST_FLOP = {
    "all_gather_gemm": {2: 6.0e10, 4: 8.0e10},
    "gemm_reduce_scatter": {2: 6.0e10, 4: 8.0e10},
}
"""By operator and ranks: floating point operations of *one rank's* product from which on it pays.

Other numbers of ranks take the line of the next smaller one. Measured with
`benchmarks/distributed.py`, M = N = K of the whole product, bfloat16, NVLink. On two H200 a product
of 4096^3, 6.9e10 a rank, is 8 % and 26 % faster overlapped than in turn, one of 2048^3 slower. On
four, milliseconds overlapped, and of NCCL and our GEMM or torch.matmul in turn:

    =====  =============  =====================  =====================
    size   flop a rank    all_gather_gemm        gemm_reduce_scatter
    =====  =============  =====================  =====================
    8192   2.7e11         0.452  0.750  0.707    0.658  0.921  0.719
    6144   1.2e11         0.285  0.443  0.358    0.358  0.520  0.368
    4096   3.4e10         0.244  0.186  0.154    0.275  0.231  0.164
    2048   4.3e9          0.175  0.085  0.053    0.229  0.150  0.063
    =====  =============  =====================  =====================

(The last two of gemm_reduce_scatter with the own rows added all at once at the end.) More than four
ranks have not been measured.
"""


def overlap_pays(operator: str, world: int, m: int, n: int, k: int) -> bool:
    """Whether `operator` overlaps a product of [m, k] and [k, n] on each of `world` ranks."""
    if world == 1:
        return False
    table = LEAST_FLOP[operator]
    line = max((ranks for ranks in table if ranks <= world), default=min(table))
    return 2.0 * m * n * k >= table[line]


def overlaps(
    operator: str,
    asked: bool | None,
    context: Context,
    sizes: tuple[int, int],
    mine: int,
    total: int | None,
) -> bool:
    """Whether a call overlaps: as `asked`, else where it pays; a world of one never does.

    All ranks answer alike, also where their shares differ.

    Args:
        operator: as in `LEAST_FLOP`.
        asked: what the caller wants; None leaves it to this function.
        context: see `create_context`.
        sizes: m, and that of n and k that all ranks have alike.
        mine: the other one, this rank's share of it.
        total: of `mine` on all ranks. Without it the ranks agree on the largest share in the first
            call with such a second size, and keep to it.

    Raises:
        RuntimeError: asked for while a CUDA graph is captured.
    """
    if context.world == 1:
        return False
    if asked is None:
        if context.capturing():
            return False
        if total is None:
            most = context.largest((operator, sizes[1]), mine)
        else:
            most = -(-total // context.world)
        return overlap_pays(operator, context.world, *sizes, most)
    if asked and context.capturing():
        raise RuntimeError(
            "overlap=True cannot be captured to a graph, whose replays would wait for the epoch of "
            "the capture: use overlap=False"
        )
    return asked
