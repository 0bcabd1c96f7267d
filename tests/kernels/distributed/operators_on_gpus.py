"""What a rank runs of the operators in test_on_gpus.py, on real GPUs, against float64 products."""

import torch

from tlmatrix_kernels.distributed import (
    all_gather,
    all_gather_gemm,
    gemm_reduce_scatter,
    reduce_scatter,
)
from tlmatrix_kernels.distributed.partition import row_range

SIZES = [
    (1024, 512, 256),
    (130, 72, 40),
    (64, 8, 1024),
    (1000, 129, 77),
    (2048, 2048, 512),
    (3, 5, 7),
]
"""m, n and k of one rank: whole tiles and parts of them, rows of multiples of 16 bytes and not."""


def _close(out, reference, dtype):
    """Within what rounding each of a few sums once can do."""
    eps = torch.finfo(dtype).eps
    bound = 4 * eps * reference.abs().max() + 4 * eps
    return ((out.double() - reference).abs() <= bound).all()


def _calls(context, count):
    """Sizes, dtypes and a generator that every rank has alike, and a delay for some rank."""
    source = torch.Generator(device="cuda").manual_seed(11)
    for call in range(count):
        if call % 4 == context.rank:
            torch.cuda._sleep(1_000_000)
        yield call, SIZES[call % len(SIZES)], (torch.bfloat16, torch.float16)[call % 2], source


def _random(shape, dtype, source):
    return torch.randn(shape, generator=source, device="cuda").to(dtype)


def products_of_rows_that_arrive(context):
    """all_gather_gemm, overlapped and not, of shares that differ by a row."""
    right = []
    for call, (m, n, k), dtype, source in _calls(context, 48):
        rows = m + call % 3
        a, b = _random((rows, k), dtype, source), _random((k, n), dtype, source)
        mine = a[slice(*row_range(rows, context.world, context.rank))]
        transpose = bool(call // 2 % 2)
        given = b.T.contiguous() if transpose else b
        out = all_gather_gemm(
            mine, given, context=context, transpose_b=transpose, m=rows, overlap=call % 5 != 0
        )
        right.append(_close(out, a.double() @ b.double(), dtype))
    assert torch.stack(right).all(), [i for i, each in enumerate(right) if not each]


def products_whose_parts_travel(context):
    """gemm_reduce_scatter, overlapped and not, with a bias and without."""
    right = []
    for call, (least, n, k), dtype, source in _calls(context, 48):
        m = least + call % 3
        a = _random((context.world, m, k), dtype, source)
        b = _random((context.world, k, n), dtype, source)
        bias = _random((n,), dtype, source) if call // 2 % 2 else None
        out = gemm_reduce_scatter(
            a[context.rank], b[context.rank], bias, context=context, overlap=call % 5 != 0
        )
        whole = (a.double() @ b.double()).sum(0) + (0 if bias is None else bias.double())
        right.append(_close(out, whole[slice(*row_range(m, context.world, context.rank))], dtype))
    assert torch.stack(right).all(), [i for i, each in enumerate(right) if not each]


def graphs_replay_with_new_data(context):
    """all_gather, reduce_scatter and the products without overlap, captured once."""
    world, rank = context.world, context.rank
    source = torch.Generator(device="cuda").manual_seed(13)
    x, terms = (torch.zeros(shape, device="cuda").half() for shape in ((33, 64), (64, 40)))
    a, b = (torch.zeros(shape, device="cuda").half() for shape in ((32, 64), (64, 48)))

    def calls():
        return (
            all_gather(x, context=context),
            reduce_scatter(terms, context=context),
            all_gather_gemm(a, b, context=context, overlap=False),
        )

    for _ in range(3):
        calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gathered, scattered, product = calls()
    right = []
    for turn in range(50):
        if turn % 3 == rank:
            torch.cuda._sleep(1_000_000)
        whole = _random((world, 33, 64), torch.float16, source)
        everywhere = _random((world, 64, 40), torch.float16, source)
        rows, columns = (_random(s, torch.float16, source) for s in ((world, 32, 64), (64, 48)))
        x.copy_(whole[rank])
        terms.copy_(everywhere[rank])
        a.copy_(rows[rank])
        b.copy_(columns)
        graph.replay()
        right.append((gathered == whole.flatten(0, 1)).all())
        wanted = everywhere.double().sum(0)[slice(*row_range(64, world, rank))]
        right.append(_close(scattered, wanted, torch.float16))
        wanted = rows.flatten(0, 1).double() @ columns.double()
        right.append(_close(product, wanted, torch.float16))
        if turn % 5 == 0:  # between replays, calls as ever
            right.append((all_gather(x, context=context) == whole.flatten(0, 1)).all())
    assert torch.stack(right).all(), [i for i, each in enumerate(right) if not each]
