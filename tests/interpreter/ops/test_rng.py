"""Random numbers of threads: Philox of cuRAND, exact."""

import numpy as np
import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Unsupported

pytestmark = pytest.mark.usefixtures("interpreted")

MASK = (1 << 32) - 1


def philox(seed, sequence, index):
    """Philox4x32-10 as its authors define it, in Python's integers."""
    block, key = index // 4, [seed & MASK, seed >> 32]
    c = [block & MASK, block >> 32, sequence & MASK, sequence >> 32]
    for _ in range(10):
        one, two = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [two >> 32 ^ c[1] ^ key[0], two & MASK, one >> 32 ^ c[3] ^ key[1], one & MASK]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return c[index % 4]


def test_the_reference_gives_the_known_answer_of_random123():
    words = [philox(0, 0, k) for k in range(4)]
    assert [f"{w:08x}" for w in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


def test_every_thread_has_a_sequence_of_its_own():
    @jit_kernel
    def kernel(Y: T.Tensor((2, 32, 6), "uint32")):
        with T.Kernel(2, threads=32) as bx:
            tx = T.get_thread_binding()
            T.rng_init(42)
            for k in T.serial(6):
                if tx > k:
                    Y[bx, tx, k] = T.rng_rand()

    y = torch.zeros(2, 32, 6, dtype=torch.uint32)
    kernel()(y)
    expected = np.zeros((2, 32, 6), np.uint32)
    for b, t in np.ndindex(2, 32):
        for k in range(min(6, t)):
            expected[b, t, k] = philox(42, t + 32 * b, k)
    assert (y.numpy() == expected).all()


def test_iterations_of_one_thread_draw_in_order():
    @jit_kernel(threads=1)
    def kernel(Y: T.Tensor((10,), "uint32"), Z: T.Tensor((5, 2), "float32")):
        T.rng_init(7, 3, 2)
        for i in T.Parallel(10):
            if i % 3 > 0:
                Y[i] = T.rng_rand()
        for i, j in T.Parallel(5, 2):
            Z[i, j] = T.rng_rand_float()

    y, z = torch.zeros(10, dtype=torch.uint32), torch.empty(5, 2)
    kernel()(y, z)
    words = [philox(7, 3, 2 + k) for k in range(16)]
    assert [v for v in y.tolist() if v] == words[:6]
    uniform = np.array(words[6:], np.float32) * np.float32(2**-32) + np.float32(2**-33)
    assert z.reshape(-1).tolist() == uniform.tolist()


@pytest.mark.parametrize("bit", [32, 64])
def test_uniform_and_normal_numbers_have_their_distributions(bit):
    dtype = f"float{bit}"

    @jit_kernel(threads=256)
    def kernel(U: T.Tensor((256, 40), dtype), N: T.Tensor((256, 40), dtype)):
        tx = T.get_thread_binding()
        T.rng_init(1)
        for k in T.serial(40):
            U[tx, k] = T.rng_rand_float(bit=bit)
            N[tx, k] = T.rng_rand_float(bit=bit, dist="normal")

    u, n = (torch.empty(256, 40, dtype=getattr(torch, dtype)) for _ in "un")
    kernel()(u, n)
    assert 0 < u.min() < 0.01
    assert 0.99 < u.max() <= 1
    assert abs(u.mean() - 0.5) < 0.02
    assert abs(n.mean()) < 0.04
    assert abs(n.std() - 1) < 0.03
    assert len(n.unique()) > 10200


def test_what_depends_on_the_layout_of_a_loop_is_refused():
    @jit_kernel(threads=32)
    def kernel(Y: T.Tensor((64,), "uint32")):
        T.rng_init(1)
        for i in T.Parallel(64):
            Y[i] = T.rng_rand()

    with pytest.raises(Unsupported, match=r"T\.Parallel of several threads"):
        kernel()(torch.zeros(64, dtype=torch.uint32))
