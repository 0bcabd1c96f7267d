"""Scans of shared memory, whose templates lowered code calls."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import interpret


@jit_kernel(X="f32[h, w]", Y="f32[h, w - 16]")
def scan_of_a_part(X, Y, h, w, dim, reverse):
    with T.Kernel(1, threads=128):
        x = T.alloc_shared((h, w), "float32")
        T.copy(X, x)
        T.cumsum(src=x[0:h, 0 : w - 16], dim=dim, reverse=reverse)
        T.copy(x[0:h, 0 : w - 16], Y)


@jit_kernel(X="i32[200]", Y="i32[200]", threads=64)
def greatest_so_far(X, Y):
    x = T.alloc_shared((200,), "int32")
    T.copy(X, x)
    T.cummax(src=x, dim=0)
    T.copy(x, Y)


@pytest.mark.parametrize(("dim", "reverse"), [(0, False), (1, False), (1, True)])
def test_a_part_of_a_buffer(dim, reverse):
    # https://github.com/tile-ai/tilelang/issues/2523 and 2284
    x, y = torch.randint(-9, 9, (40, 64)).float(), torch.empty(40, 48)
    with interpret(arch="sm_80", lowered=True, sanitize=True) as run:
        scan_of_a_part(40, 64, dim, reverse)(x, y)
    part = x[:, :48]
    expected = part.flip(dim).cumsum(dim).flip(dim) if reverse else part.cumsum(dim)
    assert torch.equal(y, expected)
    assert run.reports == []


def test_maxima_of_several_segments():
    x, y = torch.randint(-99, 99, (200,), dtype=torch.int32), torch.zeros(200, dtype=torch.int32)
    with interpret(arch="sm_80", lowered=True, sanitize=True) as run:
        greatest_so_far()(x, y)
    assert torch.equal(y, x.cummax(0).values)
    assert run.reports == []
