"""Simulated ranks: PyTorch's collectives, streams and symmetric memory, and kernels with flags."""

from __future__ import annotations

import pytest
import ranked_kernels as kernels
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from tlmatrix import interpret, simulate
from tlmatrix.interpreter import DeadlockError, LaunchError, SynchronizationError

WORLD = 4


def test_collectives_give_what_they_give_on_gpus():
    def program(rank):
        summed = torch.full((2,), float(rank))
        dist.all_reduce(summed)
        gathered = torch.empty(WORLD)
        dist.all_gather_single(gathered, torch.full((1,), float(rank)))
        scattered = torch.empty(1)
        dist.reduce_scatter_single(scattered, torch.arange(float(WORLD)))
        sent = torch.full((1,), float(rank))
        dist.broadcast(sent, 2)
        listed = [torch.empty(1) for _ in range(WORLD)]
        dist.all_gather(listed, torch.full((1,), float(rank)))
        objects = [None] * WORLD
        dist.all_gather_object(objects, ("rank", rank))
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        half = torch.full((1,), float(rank))
        dist.all_reduce(half, group=halves[rank // 2], op=dist.ReduceOp.MAX)
        dist.barrier()
        assert dist.get_rank() == rank
        assert dist.get_world_size() == WORLD
        return (
            *(summed[0].item(), gathered.tolist(), scattered.item(), sent.item()),
            *(torch.cat(listed).tolist(), objects, half.item()),
        )

    for seed in range(4):
        for rank, found in enumerate(simulate(program, WORLD, seed=seed).results):
            everyone = [0.0, 1.0, 2.0, 3.0]
            objects = [("rank", r) for r in range(WORLD)]
            half = 1.0 if rank < 2 else 3.0
            assert found == (6.0, everyone, 4.0 * rank, 2.0, everyone, objects, half)


def test_no_group_is_left_behind():
    simulate(lambda rank: dist.get_rank(), 2)
    assert not dist.is_initialized()


def test_backward_runs_on_its_rank():
    def program(rank):
        x = torch.full((3,), 2.0, requires_grad=True)
        (x * x * rank).sum().backward()
        total = x.grad.clone()
        dist.all_reduce(total)
        return x.grad[0].item(), total[0].item()

    assert simulate(program, 3).results == [(0.0, 12.0), (4.0, 12.0), (8.0, 12.0)]


def gathered(rank, a, b, *, rows, epoch=1, signal=True):
    """All-gather and GEMM in one, from copies on a second stream."""
    m, k = rows * WORLD, a.shape[1]
    shard, handle = kernels.symmetric(rows, k, dtype=torch.float16)
    shard.copy_(a[rank * rows : (rank + 1) * rows])
    flags = torch.zeros(WORLD, dtype=torch.int32)
    whole = torch.empty(m, k, dtype=torch.float16)
    handle.barrier(0)
    pulls = torch.cuda.Stream()
    pulls.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(pulls):
        for step in range(WORLD):
            peer = (rank + step) % WORLD
            source = handle.get_buffer(peer, (rows, k), torch.float16)
            whole[peer * rows : (peer + 1) * rows].copy_(source)
            if signal or peer != 2:
                symm_mem._SymmetricMemory.stream_write_value32(
                    flags.view(torch.uint32), peer, epoch
                )
    out = kernels.gathered_gemm(m, b.shape[1], k, WORLD)(whole, b, flags, epoch)
    torch.cuda.current_stream().wait_stream(pulls)
    handle.barrier(0)
    return out


@pytest.mark.parametrize("stragglers", [False, True])
def test_a_kernel_waits_for_what_is_pulled_beside_it(stragglers):
    torch.manual_seed(0)
    a, b = torch.randn(128, 64).half(), torch.randn(64, 64).half()
    expected = (a.float() @ b.float()).half()
    for seed in range(8):
        found = simulate(
            lambda rank: gathered(rank, a, b, rows=32), WORLD, seed=seed, stragglers=stragglers
        )
        assert found.reports == ()
        for out in found.results:
            torch.testing.assert_close(out, expected, atol=0.05, rtol=0.01)


def test_a_seed_is_one_interleaving():
    a, b = torch.randn(128, 32).half(), torch.randn(32, 32).half()
    runs = [simulate(lambda rank: gathered(rank, a, b, rows=32), WORLD, seed=3) for _ in range(2)]
    other = simulate(lambda rank: gathered(rank, a, b, rows=32), WORLD, seed=4)
    assert runs[0].steps == runs[1].steps != other.steps


def test_a_flag_that_nobody_writes_is_a_deadlock_that_names_it():
    a, b = torch.randn(128, 32).half(), torch.randn(32, 32).half()
    with interpret(sanitize=True, on_report="keep") as run, pytest.raises(DeadlockError) as raised:
        simulate(lambda rank: gathered(rank, a, b, rows=32, signal=False), WORLD)
    message = str(raised.value)
    assert "waits for flags[2] to be at least 1: it is 0" in message
    assert "it was never written; written are flags[0, 1, 3]" in message
    assert "kernel gemm, block (0, 2)" in message
    assert [r.sanitizer for r in run.reports] == ["barriers"]
    assert run.reports[0].buffer == "flags"
    assert run.reports[0].index == (2,)
    assert run.reports[0].file.endswith("ranked_kernels.py")


def test_ranks_that_call_different_collectives_are_told():
    def program(rank):
        x = torch.zeros(2 if rank else 3)
        dist.all_reduce(x)

    with pytest.raises(SynchronizationError, match=r"ranks call different collectives: rank \d"):
        simulate(program, 2)


def test_groups_that_ranks_make_in_another_order_are_told():
    def program(rank):
        halves = [[0, 1], [2, 3]]
        groups = [dist.new_group(half) for half in (halves if rank < 2 else halves[::-1])]
        dist.all_reduce(torch.zeros(2), group=groups[0])

    words = r"the same by the group 1: rank \d calls all_reduce.* of \d, \d, where rank \d calls"
    with pytest.raises(SynchronizationError, match=words):
        simulate(program, 4)


def test_a_collective_that_a_rank_leaves_out_is_a_deadlock():
    def program(rank):
        if rank != 1:
            dist.barrier()

    with pytest.raises(DeadlockError, match="in barrier of all ranks for rank 1 to call it"):
        simulate(program, 3)


def test_what_a_rank_raises_is_raised_with_its_number():
    def program(rank):
        dist.barrier()
        if rank == 2:
            raise KeyError("here")
        dist.barrier()

    with pytest.raises(KeyError) as raised:
        simulate(program, 3)
    assert raised.value.__notes__ == ["on simulated rank 2 of 3"]


def test_blocks_wait_for_each_other_without_a_simulation():
    with interpret(sanitize=True, partial=["order"]) as run:
        flags, order = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
        kernels.chain(6)(flags, order)
        assert order.tolist() == [5, 4, 3, 2, 1, 0, 0, 6]
    assert run.reports == []


def test_more_blocks_than_a_gpu_holds_cannot_wait_for_later_ones():
    def program(rank):
        flags, order = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
        kernels.chain(6)(flags, order)

    simulate(program, 1, sms=6)
    with pytest.raises(DeadlockError, match="for a free multiprocessor, to run a block of kernel"):
        simulate(program, 1, sms=5)


def test_a_loop_over_loads_ends_when_another_rank_writes():
    def program(rank):
        flags, handle = kernels.symmetric(8, dtype=torch.int32)
        if rank == 0:
            seen = torch.zeros(1, dtype=torch.int32)
            kernels.spin()(flags, seen, 3)
            return seen.item()
        remote = handle.get_buffer(0, (8,), torch.int32)
        symm_mem._SymmetricMemory.stream_write_value32(remote.view(torch.uint32), 0, 3)
        return None

    for seed in range(4):
        assert simulate(program, 2, seed=seed).results == [3, None]


def test_a_loop_that_nobody_ends_is_a_deadlock():
    def program(rank):
        kernels.spin()(torch.zeros(8, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), 3)

    with pytest.raises(DeadlockError, match=r"in a loop for flags\[0\] to change: it is 0"):
        simulate(program, 2)


@pytest.mark.timeout(60)
def test_ranks_may_trace_the_same_kernel_at_the_same_time():
    def program(rank):
        x, y = torch.empty(64, dtype=torch.float16), torch.empty(64, dtype=torch.float16)
        x.fill_(rank)  # not done yet when the kernel is traced
        kernels.shifted(0.5 + seed)(x, y)
        return y.max().item()

    for seed in range(8):
        found = simulate(program, WORLD, seed=seed, stragglers=True)
        assert found.results == [rank + seed + 0.5 for rank in range(WORLD)]


def test_the_host_waits_for_nothing_that_is_enqueued():
    def program(rank):
        own, handle = kernels.symmetric(8, dtype=torch.int32)
        torch.cuda.synchronize()
        kernels.wait_alone()(own, 1)
        # All of this is behind a wait that only what comes last ends.
        own[4:].copy_(torch.ones(4, dtype=torch.int32))
        handle.put_signal(rank, 3)
        event = torch.cuda.current_stream().record_event()
        assert not event.query()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            symm_mem._SymmetricMemory.stream_write_value32(own.view(torch.uint32), 0, 1)
        torch.cuda.synchronize()
        return own.tolist()

    for seed in range(6):
        assert simulate(program, 2, seed=seed).results[0][4:] == [1, 1, 1, 1]


def test_lines_are_counted_in_whichever_thread_a_launch_runs():
    def program(rank):
        side, x, y = torch.cuda.Stream(), torch.randn(64).half(), torch.zeros(64).half()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            kernels.shifted(rank % 2)(x, y)
        torch.cuda.current_stream().wait_stream(side)
        return y

    for sanitize in (False, True):
        with interpret(coverage=True, sanitize=sanitize) as run:
            for seed in range(4):
                simulate(program, 4, seed=seed)
        assert run.coverage


@pytest.mark.parametrize("sanitize", [False, True])
def test_a_launch_without_blocks_is_refused(sanitize):
    def program(rank):
        nothing = torch.empty(0, 64)
        kernels.post_tiles(0)(nothing, nothing, torch.zeros(8, dtype=torch.int32))

    with pytest.raises(LaunchError, match=r"post_tiles cannot be launched.*grid=\(0,1,1\)"):
        simulate(program, 2, sanitize=sanitize)


def test_an_empty_tensor_with_a_tma_descriptor_is_refused_where_the_kernel_is_called():
    def program(rank):
        a = torch.zeros(32, 32, dtype=torch.float16)
        flags = torch.ones(2, dtype=torch.int32)
        with pytest.raises(LaunchError, match=r"gemm cannot be launched.*b of shape \(32, 0\)"):
            kernels.gathered_gemm(32, 0, 32, 2)(a, a[:, :0], flags, 1)
        return rank

    assert simulate(program, 2).results == [0, 1]
