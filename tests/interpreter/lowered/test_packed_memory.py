"""Memory of elements of 4 bits, two in a byte, and memory that host code allocates."""

from functools import partial

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import Unsupported, interpret

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@jit_kernel(X="f32[16, 64]", Q="float4_e2m1fn[16, 64]", Y="f32[16, 64]", threads=128)
def rounded(X, Q, Y, reads):
    part = T.alloc_shared((16, 64), "float4_e2m1fn")
    held = T.alloc_fragment((16, 64), "float4_e2m1fn")
    if reads == "tensor":
        T.copy(Q, part, disable_tma=True)  # by cp.async
        for i, j in T.Parallel(16, 64):
            Y[i, j] = part[i, 63 - j]
    else:
        for i, j in T.Parallel(16, 64):
            held[i, j] = X[i, j]
        T.copy(held, part)
        T.copy(part, Q, disable_tma=True)


@jit_kernel(X="int4[16, 64]", Y="i32[16, 64]", threads=128)
def widened(X, Y):
    for i, j in T.Parallel(16, 64):
        Y[i, j] = X[i, j] * 3


@jit_kernel(X="f32[64]", Q="float4_e2m1fn[64]", threads=64)
def one_by_one(X, Q):
    thread = T.get_thread_binding()
    Q[thread] = T.cast(X[thread], "float4_e2m1fn")


def run(arch, factory, *arguments):
    with interpret(arch=arch, lowered=True, sanitize=True) as session:
        factory()(*arguments)
    assert session.reports == []


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_two_elements_of_a_byte(arch):
    codes = torch.randint(0, 16, (16, 64))
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
    q = torch.zeros(16, 32, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    x, y = VALUES[codes], torch.zeros(16, 64)
    run(arch, partial(rounded, "values"), x, q, y)
    assert torch.equal(q.view(torch.uint8), packed)
    run(arch, partial(rounded, "tensor"), x, q, y)
    assert torch.equal(y, x.flip(1))


def test_integers_of_four_bits_have_a_sign():
    x = torch.randint(-8, 8, (16, 64))
    packed = ((x[:, ::2] & 15) | (x[:, 1::2] & 15) << 4).to(torch.uint8).view(torch.int8)
    y = torch.zeros(16, 64, dtype=torch.int32)
    run("sm_80", widened, packed, y)
    assert torch.equal(y, x.int() * 3)


def test_the_store_of_half_a_byte_is_refused():
    q = torch.zeros(32, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(Unsupported, match="Q, two elements of float4_e2m1fn a byte"):
        run("sm_80", one_by_one, torch.ones(64), q)


# `T.alloc_global` ---------------------------------------------------------------------------------


@jit_kernel(X="f32[4, 64, 64]", Y="f32[64, 64]")
def sum_of_parts(X, Y, rows):
    parts = T.alloc_global((4, rows, 64), "float32")
    with T.Kernel(4, threads=128) as block:
        tile = T.alloc_shared((64, 64), "float32")
        T.copy(X[block, 0, 0], tile)
        T.copy(tile, parts[block, 0, 0])  # by TMA on sm_90a
    with T.Kernel(1, threads=128):
        for i, j in T.Parallel(64, 64):
            Y[i, j] = parts[0, i, j] + parts[1, i, j] + parts[2, i, j] + parts[3, i, j]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_memory_that_host_code_allocates(arch):
    x, y = torch.randint(-9, 9, (4, 64, 64)).float(), torch.zeros(64, 64)
    run(arch, partial(sum_of_parts, 64), x, y)
    assert torch.equal(y, x.sum(0))
