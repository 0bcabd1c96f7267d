"""Products of a matrix that is stored without its zeros."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel

pytestmark = pytest.mark.usefixtures("interpreted")

M, N, K = 64, 32, 128


def compressed(dense, meta):
    """The elements that are not zero, two of four or one of two, and where they stand."""
    wide = dense.element_size() == 4
    groups = dense.view(M, -1, 2 if wide else 4)
    stored, chunks = [], []
    for row in groups.tolist():
        for four in row:
            where = [k for k, v in enumerate(four) if v] or [0]
            if wide:
                stored.append(four[where[0]])
                chunks.append(0b1110 if where[0] else 0b0100)
                continue
            if len(where) == 1:  # in any place, with a zero that is stored
                where = sorted({where[0], 3}) if where[0] != 3 else [0, 3]
            stored += [four[k] for k in where]
            chunks.append(where[0] | where[1] << 2)
    per = meta.itemsize * 2
    words = torch.tensor(chunks, dtype=torch.int64).view(M, -1, per)
    packed = (words << (4 * torch.arange(per))).sum(-1)
    return torch.tensor(stored).view(M, -1).to(dense.dtype), packed.to(meta)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("dtype", "accumulator", "meta"),
    [
        ("float16", "float32", "int16"),
        ("bfloat16", "float32", "uint8"),
        ("int8", "int32", "int32"),
        ("float32", "float32", "int16"),
    ],
)
def test_a_sparse_product_is_the_dense_one(dtype, accumulator, meta, turned):
    per = {"int16": 4, "uint8": 2, "int32": 8}[meta] * (2 if dtype == "float32" else 4)

    def shape(rows, columns):
        return (columns, rows) if turned else (rows, columns)

    @jit_kernel(threads=128)
    def kernel(
        A: T.Tensor(shape(M, K // 2), dtype),
        E: T.Tensor(shape(M, K // per), meta),
        B: T.Tensor(shape(K, N), dtype),
        C: T.Tensor((M, N), accumulator),
    ):
        a = T.alloc_shared(shape(M, K // 4), dtype)
        e = T.alloc_shared(shape(M, K // 2 // per), meta)
        b = T.alloc_shared(shape(K // 2, N), dtype)
        c = T.alloc_fragment((M, N), accumulator)
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            if turned:
                T.copy(A[k * K // 4, 0], a)
                T.copy(E[k * K // 2 // per, 0], e)
                T.copy(B[0, k * K // 2], b)
            else:
                T.copy(A[0, k * K // 4], a)
                T.copy(E[0, k * K // 2 // per], e)
                T.copy(B[k * K // 2, 0], b)
            T.gemm_sp(a, e, b, c, turned, turned, turned)
        T.copy(c, C)

    group, kept = (2, 1) if dtype == "float32" else (4, 2)
    dense = torch.randint(-4, 5, (M, K // group, group)).float()
    zeros = torch.rand(dense.shape).argsort(-1) < group - kept
    dense = dense.masked_fill(zeros, 0).view(M, K).to(getattr(torch, dtype))
    b = torch.randint(-4, 5, (K, N)).to(dense.dtype)
    stored, metadata = compressed(dense, getattr(torch, meta))
    c = torch.empty(M, N, dtype=getattr(torch, accumulator))
    arguments = [t.t().contiguous() if turned else t for t in (stored, metadata, b)]
    kernel()(*arguments, c)
    assert torch.equal(c.float(), dense.float() @ b.float())
