"""Symmetric memory of simulated ranks: what lies outside of it, and what has been given back."""

import importlib.util
import sys
from contextlib import suppress

import pytest
import ranked_kernels as kernels
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from tlmatrix import interpret, simulate
from tlmatrix.interpreter import DeadlockError, InterpreterError, SynchronizationError

N = 64
SEEDS = range(6)


class Box:
    """A symmetric buffer of every rank, cleared."""

    def __init__(self):
        self.own, self.handle = kernels.symmetric(N)

    def of(self, peer):
        return self.handle.get_buffer(peer, (N,), torch.float32)


def told(program, world=2, **options):
    """All reports of some interleavings."""
    return {
        str(report)
        for seed in SEEDS
        for report in simulate(program, world=world, seed=seed, **options).reports
    }


@pytest.mark.parametrize("index", [-1, 8])
@pytest.mark.parametrize("sanitize", [True, False])
def test_a_flag_outside_of_a_signal_pad_is_an_error_that_names_pad_rank_and_sizes(index, sanitize):
    def program(rank):
        box = Box()
        if rank == 0:
            pad = box.handle.get_signal_pad(1).view(torch.int32)[-8:]
            kernels.post()(torch.zeros(N), torch.empty(N), pad, index, 1)
        torch.cuda.synchronize()

    words = (
        rf"flags\[{index}\] is taken, but flags has shape \(8,\), bytes 2016 to 2048 of signal "
        r"pad 0 of rank 1, which has 2048 bytes"
    )
    with pytest.raises(InterpreterError, match=words):
        simulate(program, world=2, sanitize=sanitize)


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (lambda h: h.get_signal_pad(1, (8,), torch.int32, 505), "signal pad 0 of rank 1 has 2048"),
        (lambda h: h.get_buffer(1, (N,), torch.float32, 1), "symmetric buffer 0 of rank 1 has 256"),
        (lambda h: h.put_signal(1, 300), "beyond signal pad 0 of rank 1, which has 512 signals"),
    ],
)
def test_views_and_signals_past_the_end_are_errors(view, words):
    with pytest.raises(InterpreterError, match=words):
        simulate(lambda _rank: view(Box().handle), world=2)


def regrown(*, meets=True, waits=True, keeps=False):
    """Every rank reads its neighbour's buffer, then makes another one in the place of its own."""

    def program(rank):
        box, other = Box(), 1 - rank
        got = torch.empty(N)
        box.own.fill_(float(rank))
        box.handle.barrier()
        got.copy_(box.of(other))
        if meets:
            box.handle.barrier()
        if waits:
            torch.cuda.synchronize()
        kept = [box] if keeps else []
        box = None
        Box()
        kept.clear()
        return got[0].item()

    return program


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int32])
def test_memory_is_aligned_as_that_of_a_gpu(dtype):
    begins = []

    def program(rank):
        for size in (1, 3, 100):
            own = symm_mem.empty((size,), dtype=dtype)
            symm_mem.rendezvous(own, dist.group.WORLD)
            begins.append(own.data_ptr())

    simulate(program, world=2)
    assert len(begins) == 6
    assert all(begin % 512 == 0 for begin in begins)


def test_memory_that_all_are_done_with_may_be_given_back():
    assert told(regrown()) == told(regrown(), stragglers=True) == set()
    assert simulate(regrown(), world=2).results == [1.0, 0.0]


def test_memory_that_is_kept_is_not_given_back():
    assert told(regrown(meets=False, waits=False, keeps=True)) == set()


@pytest.mark.parametrize("what", [{"meets": False}, {"waits": False}])
def test_memory_that_is_given_back_while_a_rank_reads_it_is_told(what):
    """The ranks have not met, or their hosts did not wait until they have."""
    reports = told(regrown(**what))
    words = "which dropped it"
    freed = [report for report in reports if words in report]
    assert any("symmetric buffer 0 of rank" in report for report in freed), reports
    assert any("test_symmetric.py" in report for report in freed)


def new_memory(*, waits="", late=False):
    """A program that signals through new memory; `late`: with work before it on one rank."""

    def program(rank):
        if late and rank == 1:
            torch.empty(N).fill_(1.0)
        own = symm_mem.empty((N,), dtype=torch.float32)
        if waits == "before":
            torch.cuda.synchronize()
        handle = symm_mem.rendezvous(own, dist.group.WORLD)
        if waits == "behind":
            dist.barrier()
        handle.barrier()
        torch.cuda.synchronize()

    return program


def test_a_signal_may_be_lost_in_memory_that_is_still_being_zeroed():
    """Found in every interleaving, whether the signal is lost there or not."""
    lost = 0
    for seed in range(20):
        with interpret(sanitize=True, on_report="keep") as session, suppress(DeadlockError):
            simulate(new_memory(), world=2, seed=seed)
        races = [str(report) for report in session.reports if report.sanitizer == "races"]
        assert any("signal pad 0 of rank" in race for race in races)
        for race in races:
            assert "zeroed by rank" in race
            assert "call torch.cuda.synchronize() between empty and rendezvous" in race
        lost += len(races) != len(session.reports)
    assert 0 < lost < 20


def test_a_lost_signal_is_a_deadlock_that_tells_who_zeroed_it():
    """As on a GPU, where a rank that has other work to do zeroes its signal pad late."""
    ends = []
    for seed in range(20):
        try:
            simulate(new_memory(late=True), world=2, seed=seed, sanitize=False)
        except DeadlockError as error:
            ends.append(str(error))
    assert 0 < len(ends) < 20
    for end in ends:
        assert "to be exactly 1: it is 0" in end
        assert "zeroed after that by rank" in end
        assert "call torch.cuda.synchronize() between empty and rendezvous" in end


@pytest.mark.parametrize("waits", ["before", "behind"])
def test_memory_that_is_zero_before_peers_see_it_is_no_race(waits):
    assert told(new_memory(waits=waits, late=True), world=3) == set()


@pytest.mark.parametrize("met", [True, False])
def test_memory_that_was_never_used_is_given_back_without_a_word(met):
    def program(rank):
        own = symm_mem.empty((N,), dtype=torch.float32)
        if met:
            symm_mem.rendezvous(own, dist.group.WORLD)
        del own
        torch.empty(N).fill_(1.0)
        torch.cuda.synchronize()

    assert told(program) == set()


def test_new_memory_is_refused_while_its_stream_is_captured():
    def program(rank):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            symm_mem.empty((N,), dtype=torch.float32)

    with pytest.raises(RuntimeError, match=r"symmetric_memory.empty: operation not permitted"):
        simulate(program, world=2)


@pytest.mark.parametrize("shared", [True, False])
def test_a_signal_of_another_group_is_told(shared):
    """Rank 2 is number 1 of its group, as rank 1 is of all ranks: both have one signal."""

    def program(rank):
        few = dist.new_group([0, 2])
        own, other = (symm_mem.empty((N,), dtype=torch.float32) for _ in range(2))
        torch.cuda.synchronize()
        every = symm_mem.rendezvous(own, dist.group.WORLD)
        if rank == 1:
            every.put_signal(0)
        dist.barrier()
        if rank != 1:
            pair = symm_mem.rendezvous(own if shared else other, few)
            if rank == 0:
                pair.wait_signal(1)
            else:
                pair.put_signal(0)
        if rank == 0:
            every.wait_signal(1)
        torch.cuda.synchronize()

    if not shared:
        assert told(program, world=3) == set()
        return
    words = (
        "rank 0 takes a signal of rank 1 .* for one of rank 2: all groups that meet over a buffer"
    )
    with pytest.raises(SynchronizationError, match=words):
        simulate(program, world=3)


def test_what_is_used_after_it_was_given_back_is_told_with_who_gave_it_back():
    def program(rank):
        box, other = Box(), 1 - rank
        there = box.of(other)
        dist.barrier()
        if rank == 1:
            box = Box.__new__(Box)  # lets go of the first one
            box.own = symm_mem.empty((N,), dtype=torch.float32)
        dist.barrier()
        if rank == 0:
            there.fill_(1.0)
        torch.cuda.synchronize()

    (report,) = told(program)
    assert "symmetric buffer 0 of rank 1 are freed by rank 1" in report
    assert "then written by rank 0, stream default (fill)" in report
    assert "all uses must end before, or the tensor be kept" in report


def wait_by_the_stream(flags, index, value, compare=0):
    from cuda.bindings import driver

    stream = torch.cuda.current_stream().cuda_stream
    assert driver.cuStreamWaitValue32(stream, flags.data_ptr() + 4 * index, value, compare) == (0,)


def write_by_the_stream(flags, index, value, how="CU_STREAM_WRITE_VALUE_DEFAULT"):
    from cuda.bindings import driver

    stream = torch.cuda.current_stream().cuda_stream
    kind = driver.CUstreamWriteValue_flags[how]
    (error,) = driver.cuStreamWriteValue32(stream, flags.data_ptr() + 4 * index, value, kind)
    assert error is driver.CUresult.CUDA_SUCCESS


@pytest.mark.parametrize(
    ("how", "orders"),
    [("CU_STREAM_WRITE_VALUE_DEFAULT", True), ("CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER", False)],
)
def test_a_write_of_the_stream_itself_orders_what_was_before_it(how, orders):
    def program(rank):
        from cuda.bindings import driver

        own, handle = kernels.symmetric(8, dtype=torch.int32)
        box = Box()
        if rank == 0:
            box.own.fill_(3)
            write_by_the_stream(handle.get_buffer(1, (8,), torch.int32), 5, 2, how)
            handle.wait_signal(1)
            return None
        wait_by_the_stream(own, 5, 2, driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
        out = torch.empty(N)
        out.copy_(box.of(0))
        handle.put_signal(0)
        return out

    found = simulate(program, world=2)
    assert bool(found.reports) is not orders


@pytest.mark.parametrize("waits", [True, False])
def test_what_follows_a_wait_of_the_stream_itself_is_ordered_and_what_does_not_is_a_race(waits):
    def program(rank):
        own, handle = kernels.symmetric(8, dtype=torch.int32)
        box = Box()
        if rank == 0:
            box.own.fill_(3)
            there = handle.get_buffer(1, (8,), torch.int32)
            symm_mem._SymmetricMemory.stream_write_value32(there.view(torch.uint32), 5, 2)
            handle.wait_signal(1)
            return None
        if waits:
            wait_by_the_stream(own, 5, 2)
        out = torch.empty(N)
        out.copy_(box.of(0))
        handle.put_signal(0)
        return out

    for seed in SEEDS:
        found = simulate(program, world=2, seed=seed)
        if waits:
            assert found.reports == ()
            assert found.results[1].tolist() == [3] * N
    assert bool(told(program)) is not waits


def test_a_wait_of_the_stream_itself_needs_no_multiprocessor():
    def program(rank):
        own, handle = kernels.symmetric(8, dtype=torch.int32)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        kernels.wait_alone()(own, 1)  # the only multiprocessor
        with torch.cuda.stream(side):
            there = handle.get_buffer(1 - rank, (8,), torch.int32)
            symm_mem._SymmetricMemory.stream_write_value32(there.view(torch.uint32), 2, 1)
            wait_by_the_stream(own, 2, 1)
            symm_mem._SymmetricMemory.stream_write_value32(own.view(torch.uint32), 0, 1)
        torch.cuda.synchronize()

    for seed in SEEDS:
        assert simulate(program, world=2, seed=seed, sms=1).reports == ()


@pytest.mark.parametrize("value", [-1, 2**32])
@pytest.mark.parametrize("waits", [True, False])
def test_a_flag_of_a_stream_is_a_uint32(waits, value):
    def program(rank):
        own, _ = kernels.symmetric(8, dtype=torch.int32)
        if waits:
            wait_by_the_stream(own, 1, value)
        else:
            symm_mem._SymmetricMemory.stream_write_value32(own.view(torch.uint32), 1, value)

    error = OverflowError if waits else RuntimeError
    with pytest.raises(error, match=f"value must be .* got {value}; pass its low 32 bits"):
        simulate(program, world=2, seed=0)


def test_a_wait_of_the_stream_itself_that_nobody_ends_is_a_deadlock():
    def program(rank):
        own, _ = kernels.symmetric(8, dtype=torch.int32)
        wait_by_the_stream(own, 1, 4)
        torch.cuda.synchronize()

    with pytest.raises(DeadlockError, match=r"for flags\[1\] .* to be at least 4: it is 0"):
        simulate(program, world=2)


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (lambda own: wait_by_the_stream(own, 0, 1, 2), "must be 0 .* or 1 .*, got 2"),
        (lambda own: wait_by_the_stream(torch.zeros(8), 0, 1), "no flag .* in symmetric memory"),
        (lambda own: _of_stream(own, 12345), "rank 0 has no stream 12345"),
    ],
)
def test_a_wait_of_the_stream_itself_that_is_not_modelled_is_refused(wait, words):
    with pytest.raises(InterpreterError, match=words):
        simulate(lambda _rank: wait(kernels.symmetric(8, dtype=torch.int32)[0]), world=1)


def _of_stream(own, stream):
    from cuda.bindings import driver

    driver.cuStreamWaitValue32(stream, own.data_ptr(), 1, 0)


def test_only_ranks_get_what_this_machine_lacks():
    simulate(
        lambda _rank: wait_by_the_stream(kernels.symmetric(8, dtype=torch.int32)[0], 0, 0), world=1
    )
    if importlib.util.find_spec("cuda") is None:
        assert not [name for name in sys.modules if name.split(".")[0] == "cuda"]
