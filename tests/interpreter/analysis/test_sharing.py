"""Where TileLang puts barriers between roles: by the elements they share, not by the buffer."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import DeadlockError, interpret


def two_groups(second, handshake=True):
    """Two groups of threads stage their halves of a row each in a row of one buffer.

    The first waits for the second, so that a barrier of both between them would never end.

    Args:
        second: the row of shared memory that the second group uses.
        handshake: whether the first waits.
    """

    @jit_kernel(out_idx=[-1], threads=256)
    def kernel(X: T.Tensor((2, 128), "float32"), Y: T.Tensor((2, 128), "float32")):
        s = T.alloc_shared((2, 128), "float32")
        with T.ws(0):
            if handshake:
                T.sync_threads(1, 256)
            T.copy(X[0, :], s[0, :])
            T.copy(s[0, :], Y[0, :])
        with T.ws(1):
            if handshake:
                T.named_barrier_arrive(1, 256)
            T.copy(X[1, :], s[second, :])
            T.copy(s[second, :], Y[1, :])

    return kernel()


@pytest.mark.usefixtures("interpreted")
def test_roles_in_rows_of_their_own_need_no_barrier():
    x = torch.randn(2, 128)
    with interpret(sanitize=True, on_report="raise"):
        assert torch.equal(two_groups(1)(x), x)


@pytest.mark.usefixtures("interpreted")
def test_roles_in_one_row_are_kept_apart_by_a_barrier():
    x = torch.randn(2, 128)
    with interpret(sanitize=True, on_report="raise"):
        assert torch.equal(two_groups(0, handshake=False)(x), x)


@pytest.mark.usefixtures("interpreted")
def test_a_handshake_across_that_barrier_never_ends():
    with pytest.raises(DeadlockError, match="TileLang puts between accesses to shared memory"):
        two_groups(0)(torch.randn(2, 128))
