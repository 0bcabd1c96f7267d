"""Copies and fills of tiles, and the memory they share."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel

pytestmark = pytest.mark.usefixtures("interpreted")


def test_copies_between_all_memories_with_casts_and_slices():
    @jit_kernel(X="b16[3, 64, 2, 32]", Y="f16[64, 32]", Z="f32[2, 16, 32]", out_idx=[-2, -1])
    def copies(X, Y, Z):
        with T.Kernel(2, threads=128) as bx:
            a = T.alloc_shared((32, 32), "bfloat16")
            b = T.alloc_fragment((32, 32), "float32")
            c = T.alloc_shared((2, 32, 32), "float16")
            T.copy(X[2, bx * 32 : bx * 32 + 32, 1, :], a)
            T.copy(a, b)
            T.copy(b, c[1, :, :])
            T.copy(c[1, :, :], Y[bx * 32 : bx * 32 + 32, :])
            T.copy(b[8:24, :], Z[bx, :, :])

    x = torch.randn(3, 64, 2, 32).bfloat16()
    y, z = copies()(x)
    assert torch.equal(y, x[2, :, 1].half())
    assert torch.equal(z[1], x[2, 40:56, 1].float())


def test_a_copy_of_global_to_global_and_of_single_elements():
    @jit_kernel(out_idx=[-1])
    def direct(X: T.Tensor((8, 8), "float16"), Y: T.Tensor((8, 8), "float16")):
        with T.Kernel(8, threads=32) as bx:
            T.copy(X[bx, 0:8], Y[7 - bx, 0:8])
            Y[bx, bx] = X[0, bx]

    x = torch.randn(8, 8).half()
    got = direct()(x)
    expected = x.flip(0).clone()
    for b in range(8):
        expected[b, b] = x[0, b] if 7 - b <= b else expected[b, b]
    off_diagonal = ~torch.eye(8, dtype=torch.bool)
    assert torch.equal(got[off_diagonal], x.flip(0)[off_diagonal])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_tiles_of_one_element_are_filled_copied_and_reduced_in_place(dtype):
    n = T.dynamic("n")

    @jit_kernel(out_idx=[-1])
    def row_sum(X: T.Tensor((n, 8), dtype), Y: T.Tensor((n,), dtype)):
        with T.Kernel(n, threads=32) as row:
            x = T.alloc_fragment((1, 8), dtype)
            total = T.alloc_fragment((1,), dtype)
            shared = T.alloc_shared((1,), dtype)
            T.fill(total, 1)
            T.copy(X[row, 0], x)
            T.reduce_sum(x, total, dim=1, clear=False)
            T.copy(total, shared)
            T.copy(shared, Y[row])

    x = torch.arange(24).reshape(3, 8).to(getattr(torch, dtype))
    assert torch.equal(row_sum()(x), x.sum(1).to(x.dtype) + 1)


def test_a_layout_over_a_symbolic_dimension():
    n = T.dynamic("n")

    @jit_kernel
    def rotate(X: T.Tensor((n, 8), "float32")):
        with T.Kernel(n, threads=32) as row:
            T.annotate_layout({X: T.Layout(X.shape, lambda i, j: [i, (j + i) % 8])})
            for j in T.Parallel(8):
                X[row, j] = j

    for rows in (3, 5):
        x = torch.zeros(rows, 8)
        rotate()(x)
        want = torch.stack([torch.arange(8.0).roll(i) for i in range(rows)])
        assert torch.equal(x, want)


def test_print_shows_values(capsys):
    @jit_kernel
    def shows(X: T.Tensor((4,), "float16")):
        with T.Kernel(2, threads=32) as bx:
            f = T.alloc_fragment((4,), "float16")
            T.copy(X, f)
            T.print(bx)
            if bx == 1:
                T.print(f[2], msg="{third}")
                T.print(f)
                T.print(msg="{end}")

    shows()(torch.tensor([1.0, 2.0, 3.1, 4.0]).half())
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["expr<bx>: 0", "expr<bx>: 1"]
    assert out[2].startswith("{third}: 3.09")
    assert [line.split(": ")[0] for line in out[3:-1]] == [
        f"buffer<f, float16> f[{i}]" for i in range(4)
    ]
    assert out[3].endswith(": 1.0")
    assert out[-1] == "{end}"
