"""Barriers on simulated ranks: nobody passes before all have come; waits without end are told."""

import on_gpus
import pytest
import torch

from tlmatrix import simulate
from tlmatrix.interpreter import DeadlockError
from tlmatrix_kernels.distributed import create_context
from tlmatrix_kernels.distributed.barriers import barrier, barrier_without_kernel

BLOCKS = 16
"""Of a rank, in `on_gpus.meet_twice`."""


def meeting(world, expected, sms=BLOCKS, rounds=3):
    """What blocks of all ranks saw too early, in meetings of `expected` arrivals each."""

    def program(_rank):
        flags = create_context().flags("test/meet", 16)
        counter = flags.on(0, [16], torch.int32)
        early = torch.zeros(BLOCKS, dtype=torch.int32)
        on_gpus.meet_twice()(counter, counter, early, 0, expected, rounds)
        barrier(flags)  # nobody gives its memory back before all are done
        return early.sum().item()

    return simulate(program, world=world, seed=3, stragglers=True, sms=sms)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_barrier_includes_all_blocks_of_all_ranks(world):
    found = meeting(world, BLOCKS * world)
    assert found.results == [0] * world
    assert found.reports == ()


def test_barrier_over_missing_blocks_is_a_deadlock():
    with pytest.raises(DeadlockError, match="to be at least 33: it is 32"):
        meeting(2, 2 * BLOCKS + 1)


def test_barrier_over_nonresident_blocks_is_a_deadlock():
    with pytest.raises(DeadlockError, match="for a free multiprocessor"):
        meeting(2, 2 * BLOCKS, sms=BLOCKS - 1)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_stream_barriers_separate_epochs(world):
    """Each rank reads what all others wrote before, call after call."""

    def program(rank):
        context = create_context()
        flags = context.flags("test/met", world)
        rows = [context.buffer(f"test/{half}", 4) for half in range(2)]
        seen = []
        for epoch in range(1, 6):
            buffer = rows[epoch % 2]
            buffer.local([1], torch.int32).fill_(10 * epoch + rank)
            barrier_without_kernel(flags, epoch)
            out = torch.empty(world, dtype=torch.int32)
            for peer in range(world):
                out[peer : peer + 1].copy_(buffer.on(peer, [1], torch.int32))
            seen.append(out)
        return [out.tolist() for out in seen]

    for seed in range(3):
        found = simulate(program, world=world, seed=seed, stragglers=True)
        assert found.reports == ()
        want = [[10 * epoch + peer for peer in range(world)] for epoch in range(1, 6)]
        assert found.results == [want] * world
