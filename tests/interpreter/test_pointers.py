"""Tensors that a kernel makes of addresses."""

import pytest
import tilelang
import tilelang.language as T
import torch

from tlmatrix.interpreter import InterpreterError, Unsupported, interpret

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
