"""Launches whose blocks use flags are followed after the fact: their waits are over by then."""

import pytest
import ranked_kernels as kernels
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix import interpret, simulate
from tlmatrix.interpreter import Unsupported


@jit_kernel(x="f32[64]", y="f32[64]", z="f32[64]", flags="i32[8]", out_idx=[])
def relay(x, y, z, flags):
    """Block 0 writes what block 1 waits for and reads."""
    with T.Kernel(2, threads=64) as bx:
        tile = T.alloc_fragment((64,), "float32")
        if bx == 0:
            T.copy(x, tile)
            T.copy(tile, y)
            T.call_extern("handle", "tlm_block_store_release_gpu", T.address_of(flags[0]), 1)
        else:
            T.call_extern("int32", "tlm_wait_ge_acquire_gpu", T.address_of(flags[0]), 1)
            T.copy(y, tile)
            T.copy(tile, z)


def handed_over(rank):
    """Rank 0 writes into a buffer of rank 1, which waits for it and copies it out."""
    data, buffers = kernels.symmetric(64)
    flags, signals = kernels.symmetric(8, dtype=torch.int32)
    data.fill_(-1)
    buffers.barrier()
    out = torch.zeros(64)
    if rank == 0:
        there = buffers.get_buffer(1, (64,), torch.float32)
        flag = signals.get_buffer(1, (8,), torch.int32)
        kernels.post()(torch.arange(64.0), there, flag, 2, 1)
    else:
        kernels.take()(data, out, flags, 2, 1)
    torch.cuda.synchronize()
    return out


@pytest.mark.parametrize("seed", range(4))
def test_a_launch_that_waited_is_followed_with_what_had_come(seed):
    with interpret(trace=True) as session:
        out = simulate(handed_over, 2, seed=seed).results[1]
        explanation = session.explain(out, (5,))
    assert (explanation.kernel, explanation.rank) == ("take", 1)
    assert explanation.value == explanation.exact == 5.0
    assert f"y[5] of kernel take, launch {explanation.launch} on rank 1" in str(explanation)


def test_a_launch_that_signalled_is_followed_into_the_memory_of_the_other_rank():
    with interpret(trace=True) as session:
        simulate(handed_over, 2)
        (launch,) = (each for each in session.log.launches if each.rank == 0)
        explanation = session.explain(launch.live["y"], (7,))
    assert (explanation.kernel, explanation.rank, explanation.value) == ("post", 0, 7.0)


def test_blocks_that_tell_each_other_by_flags_are_refused():
    y, z, flags = torch.empty(64), torch.empty(64), torch.zeros(8, dtype=torch.int32)
    with interpret(trace=True) as session:
        relay()(torch.ones(64), y, z, flags)
        assert (z == 1).all()
        with pytest.raises(Unsupported, match="use flags, and read what the kernel writes"):
            session.explain(z, (3,))


def test_a_value_that_is_made_of_a_flag_is_refused_by_name():
    flags, seen = torch.ones(8, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with interpret(trace=True) as session:
        kernels.spin()(flags, seen, 1)
        with pytest.raises(Unsupported, match="tlm_load_acquire_sys"):
            session.explain(seen, (0,))
