"""Elementary functions of tiles."""

import pytest
import tilelang
import tilelang.language as T
import torch

pytestmark = pytest.mark.usefixtures("interpreted")


def test_exp_is_nearly_always_correctly_rounded():
    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((4096,), "float32"), Y: T.Tensor((4096,), "float32")):
            with T.Kernel(1, threads=128):
                for i in T.Parallel(4096):
                    Y[i] = T.exp(X[i])

        return main

    x, y = torch.linspace(-20, 20, 4096), torch.empty(4096)
    kernel()(x, y)
    exact = torch.exp(x.double()).float()
    assert (y == exact).float().mean() > 0.97
    torch.testing.assert_close(y, exact, rtol=2**-22, atol=0)
