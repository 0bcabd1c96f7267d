"""Values chosen for a whole block, slices whose ends are variables, products of conditions."""

from itertools import pairwise

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret

pytestmark = pytest.mark.usefixtures("interpreted")


def test_a_choice_that_the_block_makes_between_a_tile_and_a_number():
    """A causal convolution: before the first row there is nothing, so one factor is a number."""

    @jit_kernel(
        X="f16[rows, 40]", S="f32[rows]", W="f16[taps, 40]", Y="f32[rows, 40]", out_idx=[-1]
    )
    def convolution(X, S, W, Y, rows, taps):
        with T.Kernel(rows, threads=64) as t:
            total = T.alloc_fragment((40,), "float32")
            T.clear(total)
            for p in T.serial(taps):
                row = t - (taps - 1) + p
                for j in T.Parallel(40):
                    x = T.if_then_else(row >= 0, T.cast(X[row, j], "float32"), 0.0)
                    scale = T.if_then_else(row >= 0, S[row], 0.0)
                    total[j] += x * scale * T.cast(W[p, j], "float32")
            T.copy(total, Y[t, 0])

    x, s, w = torch.randn(9, 40).half(), torch.rand(9), torch.randn(4, 40).half()
    padded = torch.cat([torch.zeros(3, 40), x.float() * s[:, None]])
    expected = sum(padded[p : p + 9] * w[p].float() for p in range(4))
    torch.testing.assert_close(convolution(9, 4)(x, s, w), expected)


@pytest.mark.parametrize("sanitize", [False, True])
def test_a_slice_of_shared_memory_ends_at_a_variable(sanitize):
    @jit_kernel(X="f32[rows, 40]", ends="i32[groups + 1]", Y="f32[groups, 40]", out_idx=[-1])
    def sums(X, ends, Y, rows, groups):
        with T.Kernel(groups, threads=64) as g:
            s = T.alloc_shared((16, 40), "float32")
            f = T.alloc_fragment((16, 40), "float32")
            total = T.alloc_fragment((40,), "float32")
            first = T.alloc_var("int32")
            last = T.alloc_var("int32")
            first = ends[g]
            last = ends[g + 1]
            T.clear(s)
            T.copy(X[first:last, :], s[0 : last - first, :])
            T.copy(s, f)
            T.reduce_sum(f, total, dim=0)
            T.copy(total, Y[g, 0])

    x, ends = torch.randn(50, 40), [0, 3, 13, 29, 29, 30, 45]
    with interpret(sanitize=sanitize, on_report="raise"):
        got = sums(50, 6)(x, torch.tensor(ends, dtype=torch.int32))
    expected = torch.stack([x[a:b].sum(0) for a, b in pairwise(ends)])
    torch.testing.assert_close(got, expected)


def test_products_and_sums_of_conditions():
    @jit_kernel(out_idx=[-1], threads=32)
    def inside(X: T.Tensor((32,), "float32"), Y: T.Tensor((2, 32), "float32")):
        for i in T.Parallel(32):
            Y[0, i] = T.if_then_else((i > 3) * (i < 20), X[i], 0.0)
            Y[1, i] = T.if_then_else((i < 3) + (i > 20), X[i], 0.0)

    x, i = torch.randn(32), torch.arange(32)
    zero = torch.zeros(())
    both, either = (i > 3) & (i < 20), (i < 3) | (i > 20)
    expected = torch.stack([torch.where(both, x, zero), torch.where(either, x, zero)])
    assert torch.equal(inside()(x), expected)
