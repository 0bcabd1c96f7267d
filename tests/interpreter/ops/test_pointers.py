"""Tensors that a kernel makes of addresses."""

import pytest
import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import ArgumentError, InterpreterError, Unsupported, interpret

pytestmark = pytest.mark.usefixtures("interpreted")


@tilelang.jit
def swapped(dtype):
    @T.prim_func
    def main(sources: T.Tensor([2], T.ptr), targets: T.Tensor([2], T.ptr)):
        with T.Kernel(2, threads=32) as bx:
            source = T.make_tensor(sources[bx], (4, 8), dtype)
            target = T.make_tensor(targets[1 - bx], (4, 8), dtype)
            tile = T.alloc_shared((4, 8), dtype)
            T.copy(source, tile)
            for i, j in T.Parallel(4, 8):
                tile[i, j] = tile[i, j] + 1.0
            T.copy(tile, target)

    return main


def addresses(tensors):
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_table_of_pointers(dtype):
    sources = [torch.randn(4, 8).to(getattr(torch, dtype)) for _ in range(2)]
    targets = [torch.zeros_like(s) for s in sources]
    swapped(dtype)(addresses(sources), addresses(targets))
    for source, target in zip(sources, reversed(targets), strict=True):
        assert torch.equal(target, source + 1)


def test_an_asynchronous_copy_from_an_address():
    @jit_kernel(threads=32)
    def kernel(sources: T.Tensor([2], T.ptr), Y: T.Tensor((2, 4, 8), "float32")):
        tile = T.alloc_shared((4, 8), "float32")
        for k in T.serial(2):
            source = T.make_tensor(sources[k], (4, 8), "float32")
            T.async_copy(source[0, 0], tile)
            T.ptx_wait_group(0)
            T.copy(tile, Y[k, :, :])

    sources, y = [torch.randn(4, 8) for _ in range(2)], torch.empty(2, 4, 8)
    kernel()(addresses(sources), y)
    assert torch.equal(y, torch.stack(sources))


def test_an_address_that_no_tensor_holds():
    sources = [torch.randn(4, 8) for _ in range(2)]
    short = [torch.zeros(3, 8), torch.zeros(4, 8)]
    with pytest.raises(InterpreterError, match="source is 128 bytes at address 0x0, which no"):
        swapped("float32")(torch.zeros(2, dtype=torch.int64), addresses(short))
    with pytest.raises(InterpreterError, match="target is 128 bytes at address"):
        swapped("float32")(addresses(sources), addresses(short))


def test_memory_at_an_address_has_no_sanitizers():
    sources = [torch.randn(4, 8) for _ in range(2)]
    with interpret(sanitize=True), pytest.raises(Unsupported, match="memory at an address"):
        swapped("float32")(addresses(sources), addresses(sources))


@tilelang.jit
def doubled(dtype="float32"):
    @T.prim_func
    def main(x_ptr: T.ptr, n: T.int32, y_ptr: T.ptr, Z: T.Tensor((4,), "float32")):
        X = T.make_tensor(x_ptr, (n, 4), dtype)
        Y = T.make_tensor(y_ptr, (n, 4), dtype)
        with T.Kernel(n, threads=32) as bx:
            for j in T.Parallel(4):
                Y[bx, j] = X[bx, j] * 2
                Z[j] = 0

    return main


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sanitize", [False, True])
def test_pointers_are_passed_as_addresses_or_tensors(dtype, sanitize):
    x = torch.randn(5, 4).to(getattr(torch, dtype))
    y, z = torch.zeros(7, 4, dtype=x.dtype), torch.ones(4)
    with interpret(sanitize=sanitize) as session:
        doubled(dtype)(x[1:].data_ptr(), 4, y[2:].data_ptr(), z)
        assert torch.equal(y[2:6], x[1:] * 2)
        assert not y[:2].any()
        assert not y[6:].any()
        doubled(dtype)(x, 5, y[:5], z)
    assert torch.equal(y[:5], x * 2)
    assert {report.sanitizer for report in session.reports} <= {"races"}  # every block writes Z


def test_addresses_that_are_refused():
    x, y, z = torch.randn(5, 4), torch.zeros(5, 4), torch.ones(4)
    with pytest.raises(ArgumentError, match=r"Y is 80 bytes at 0x.*, which no tensor holds"):
        doubled()(x.data_ptr(), 5, y[1:].data_ptr(), z)
    with pytest.raises(ArgumentError, match="X of dtype float32 is not aligned"):
        doubled()(x.data_ptr() + 2, 4, y.data_ptr(), z)
    with pytest.raises(TypeError, match="Z must be a tensor, got int"):
        doubled()(x, 5, y, z.data_ptr())
    with pytest.raises(TypeError, match="X must be a tensor, got bool"):
        doubled()(True, 5, y, z)
