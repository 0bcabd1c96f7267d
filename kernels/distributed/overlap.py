"""When to overlap communication and computation, by operator, world size and problem size.

For small products a collective and then a GEMM is faster: barriers, flags and small copies cost
some tens of microseconds, however little there is to overlap.
"""

from tlmatrix_kernels.distributed.context import Context

MIN_FLOP = {
    "all_gather_gemm": {2: 6.0e10, 4: 8.0e10},
    "gemm_reduce_scatter": {2: 1.0e11, 4: 8.0e10},
}
"""Minimum floating-point operations of *one rank's* product, by operator and world size.

Other world sizes use the entry of the next smaller one. Measured with `benchmarks/distributed.py`,
M = N = K of the whole product, bfloat16, H200 with NVLink, 2026-11-22. Milliseconds: overlapped;
NCCL and then the project's GEMM; NCCL and then torch.matmul.

    =====  =====  =============  =====================  =====================
    ranks  size   flop per rank  all_gather_gemm        gemm_reduce_scatter
    =====  =====  =============  =====================  =====================
    2      8192   5.5e11         0.916  1.175  1.020    1.062  1.279  1.053
    2      6144   2.3e11         0.464  0.594  0.476    0.509  0.637  0.490
    2      5120   1.3e11         0.298  0.405  0.318    0.331  0.425  0.319
    2      4096   6.9e10         0.139  0.212  0.185    0.260  0.244  0.187
    2      2048   8.6e9          0.101  0.084  0.053    0.281  0.163  0.080
    4      8192   2.7e11         0.454  0.760  0.713    0.645  0.937  0.723
    4      6144   1.2e11         0.285  0.443  0.358    0.352  0.523  0.367
    4      4096   3.4e10         0.225  0.186  0.168    0.275  0.231  0.164
    4      2048   4.3e9          0.175  0.085  0.053    0.229  0.150  0.063
    =====  =====  =============  =====================  =====================

At 4096^3 and below host launch overhead dominates, so times vary (0.22 to 0.31 ms of
gemm_reduce_scatter on two ranks). More than four ranks have not been measured.
"""


def overlap_pays(operator: str, world: int, m: int, n: int, k: int) -> bool:
    """Whether overlap is faster for a product [m, k] @ [k, n] on each of `world` ranks."""
    if world == 1:
        return False
    table = MIN_FLOP[operator]
    line = max((ranks for ranks in table if ranks <= world), default=min(table))
    return 2.0 * m * n * k >= table[line]


def should_overlap(
    operator: str,
    requested: bool | None,
    context: Context,
    sizes: tuple[int, int],
    mine: int,
    total: int | None,
) -> bool:
    """Whether a call overlaps: as `requested`, else if it pays; never with a world of one.

    The result is the same on all ranks, even if their parts differ in size.

    Args:
        operator: a key of `MIN_FLOP`.
        requested: the caller's choice, or None.
        context: see `create_context`.
        sizes: m, and the one of n and k that is not split over ranks.
        mine: this rank's part of the other one.
        total: the total of `mine` over all ranks. Without it the ranks agree on the largest part in
            the first call with this second size (a collective), and reuse it.
    """
    if context.world == 1 or not context.direct:
        return False
    if requested is None:
        if context.capturing():
            return False
        if total is None:
            most = context.agreed_max((operator, sizes[1]), mine)
        else:
            most = -(-total // context.world)
        return overlap_pays(operator, context.world, *sizes, most)
    return requested
