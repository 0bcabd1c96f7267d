"""`T.sync_grid`: every block waits until all have come."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import SCHEDULES, interpret, scheduled
from tlmatrix.interpreter.errors import DeadlockError

pytestmark = pytest.mark.usefixtures("interpreted")


# Blocks sum a row each; then block b adds up the sums of all but writes to row blocks-1-b.
@jit_kernel(A="f32[blocks, n]", Partial="f32[blocks]", Out="f32[blocks]")
def reversed_sums(A, Partial, Out, blocks, n, wait=True, absent=False):
    with T.Kernel(blocks, threads=64) as bx:
        row = T.alloc_fragment((n,), "float32")
        total = T.alloc_fragment((1,), "float32")
        T.copy(A[bx, 0:n], row)
        T.reduce_sum(row, total, dim=0)
        Partial[bx] = total[0]
        if wait:
            if absent:
                if bx > 0:
                    T.sync_grid()
            else:
                T.sync_grid()
        all_of = T.alloc_fragment((blocks,), "float32")
        T.copy(Partial, all_of)
        T.reduce_sum(all_of, total, dim=0)
        Out[blocks - 1 - bx] = total[0] * (bx + 1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_any_block_wrote_before_is_seen_by_all_after(schedule):
    a, partial, out = torch.randn(5, 32), torch.full((5,), torch.nan), torch.full((5,), torch.nan)
    with scheduled(schedule):
        reversed_sums(5, 32)(a, partial, out)
    torch.testing.assert_close(out, a.sum() * torch.arange(5, 0, -1))


def test_it_orders_blocks_for_the_sanitizers():
    def reports(wait):
        a, partial, out = torch.randn(5, 32), torch.zeros(5), torch.zeros(5)
        with interpret(sanitize=True) as run:
            reversed_sums(5, 32, wait=wait)(a, partial, out)
        return {report.sanitizer for report in run.reports}

    assert reports(wait=True) == set()
    assert reports(wait=False) == {"races"}


def test_a_block_that_does_not_come_is_a_deadlock():
    with pytest.raises(DeadlockError) as caught:
        reversed_sums(3, 32, absent=True)(torch.randn(3, 32), torch.zeros(3), torch.zeros(3))
    assert "wait at T.sync_grid, where 128 of 192 threads came" in str(caught.value)


def test_it_can_be_met_again():
    @jit_kernel(A="f32[rounds + 1, blocks]")
    def doubling(A, blocks, rounds):
        with T.Kernel(blocks, threads=32) as bx:
            for k in T.serial(rounds):
                A[k + 1, bx] = A[k, (bx + 1) % blocks] * 2.0
                T.sync_grid()

    a = torch.zeros(4, 3)
    a[0] = torch.tensor([1.0, 2.0, 3.0])
    first = a[0].clone()
    with interpret(sanitize=True) as run:
        doubling(3, 3)(a)
    assert torch.equal(a[3], first * 8)
    assert not run.reports
