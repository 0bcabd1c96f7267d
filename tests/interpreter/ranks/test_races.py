"""Races between ranks and streams: correct programs have none, each mutant has its report."""

import pytest
import ranked_kernels as kernels
import torch

from tlmatrix import simulate
from tlmatrix.interpreter import DeadlockError

N = 64
SEEDS = range(6)


class Box:
    """A symmetric buffer of two halves with flags, on every rank."""

    def __init__(self, halves=2):
        self.own, self._handle = kernels.symmetric(halves * N)
        self.flags, self._signals = kernels.symmetric(8, dtype=torch.int32)

    def half(self, peer, which=0):
        return self._handle.get_buffer(peer, (N,), torch.float32, which * N)

    def flags_of(self, peer):
        return self._signals.get_buffer(peer, (8,), torch.int32)


def sent(
    post=kernels.post,
    take=kernels.take,
    *,
    calls=3,
    buffers=2,
    function=None,
    waits=None,
    index=0,
    value=None,
    acknowledge=True,
    early=False,
):
    """Rank 0 writes to rank 1, which takes it, call after call; what rank 1 got."""

    def program(rank):
        box = Box()
        got = []
        options = {} if function is None else {"function": function}
        for call in range(1, calls + 1):
            data = torch.full((N,), float(call))
            half = call % buffers
            if rank == 0:
                if acknowledge and call > buffers:
                    # What was written `buffers` calls ago has been taken.
                    kernels.take()(data, torch.empty(N), box.flags, 1, call - buffers)
                more = {"early": True} if early else {}
                post(**options, **more)(
                    data, box.half(1, half), box.flags_of(1), index, value or call
                )
            else:
                out = torch.empty(N)
                named = {} if waits is None else {"function": waits}
                take(**named)(box.half(1, half), out, box.flags, 0, value or call)
                empty = torch.zeros(N)
                kernels.post()(empty, torch.empty(N), box.flags_of(0), 1, call)
                got.append(out)
        torch.cuda.synchronize()
        return [out[0].item() for out in got]

    return program


def reports(program, world=2, seeds=SEEDS, **options):
    found = []
    for seed in seeds:
        found += simulate(program, world, seed=seed, sanitize="races", **options).reports
    return found


@pytest.mark.parametrize("stragglers", [False, True])
def test_epochs_and_two_buffers_are_right(stragglers):
    for seed in range(12):
        found = simulate(sent(), 2, seed=seed, stragglers=stragglers)
        assert found.results[1] == [1.0, 2.0, 3.0]
        assert found.reports == ()


def test_a_signal_before_the_data_names_the_flag():
    found = reports(sent(early=True))
    assert found
    assert {r.sanitizer for r in found} == {"races"}
    message = str(found[0])
    assert "is set at" in message
    assert "set it behind what it stands for" in message


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("tlm_block_store_release_gpu", r"flags\[0\] is set with the scope of a device \(gpu\)"),
        ("tlm_block_store_relaxed_sys", r"flags\[0\] is set relaxed at .*; release it"),
    ],
)
def test_a_flag_set_too_weakly_is_no_signal(function, words):
    found = reports(sent(function=function))
    told = [r for r in found if r.kernel == "take" and r.buffer == "x"]
    assert told
    assert told[0].other.by == "rank 0, stream default"
    import re

    assert re.search(words, told[0].message)


@pytest.mark.parametrize(
    ("waits", "words"),
    [
        ("tlm_wait_ge_acquire_gpu", "is read with the scope of a device (gpu)"),
        ("tlm_wait_ge_relaxed_sys", "is read relaxed; acquire it"),
    ],
)
def test_a_flag_read_too_weakly_is_no_signal(waits, words):
    told = [r for r in reports(sent(waits=waits)) if r.kernel == "take" and r.buffer == "x"]
    assert told
    assert words in told[0].message


def test_an_atomic_of_tilelang_is_of_device_scope():
    def program(rank):
        box = Box()
        if rank == 0:
            kernels.post_atomic()(torch.ones(N), box.half(1), box.flags_of(1))
        else:
            kernels.take()(box.half(1), torch.empty(N), box.flags, 0, 1)

    found = reports(program)
    assert any("flags[0] is set with the scope of a device" in r.message for r in found)


def test_one_buffer_is_written_again_before_it_is_read():
    found = reports(sent(buffers=1, acknowledge=False))
    assert any("memory is used again before all have read it" in r.message for r in found)
    assert not reports(sent(buffers=1))


def test_a_wait_for_too_small_a_value_passes_too_early():
    # Whatever the interleaving: the flag has the value since the first call.
    found = [reports(sent(value=1), seeds=[seed]) for seed in SEEDS]
    assert all({r.sanitizer for r in each} == {"races"} for each in found)
    words = "has been at least 1 since an earlier write"
    assert any(words in r.message for each in found for r in each)


def test_a_wrong_flag_is_a_deadlock_that_shows_the_right_one():
    with pytest.raises(DeadlockError) as raised:
        simulate(sent(index=3), 2)
    message = str(raised.value)
    assert "waits for flags[0] (symmetric buffer 1 of rank 1) to be at least 1" in message
    assert "it was never written; written are flags[3]" in message


def test_equality_with_a_flag_that_is_reset_hangs_or_reads_old_data():
    def program(rank):
        box = Box(1)
        out = torch.empty(N)
        for call in range(3):
            if rank == 0:
                kernels.post()(torch.full((N,), 1.0 + call), box.half(1), box.flags_of(1), 0, 1)
            else:
                kernels.take_and_reset()(box.half(1), out, box.flags)
        return out[0].item()

    outcomes = set()
    for seed in range(20):
        try:
            found = simulate(program, 2, seed=seed, sanitize="races")
        except DeadlockError as error:
            outcomes.add(str(error))
        else:
            assert found.reports
    hung = [text for text in outcomes if "to be exactly 1: it is 0" in text]
    assert any("written last by rank 1" in text for text in hung)


def test_a_pull_without_a_barrier_before_it():
    def program(rank, barrier):
        own, handle = kernels.symmetric(N)
        own.copy_(torch.full((N,), float(rank)))
        if barrier:
            handle.barrier()
        out = torch.empty(N)
        out.copy_(handle.get_buffer(1 - rank, (N,), torch.float32))
        handle.barrier()
        return out

    assert not reports(lambda rank: program(rank, barrier=True))
    found = reports(lambda rank: program(rank, barrier=False))
    assert any("a barrier in between" in r.message for r in found)
    assert found[0].buffer.startswith("symmetric buffer 0 of rank ")
    assert "elements [0:64]" in found[0].message
    assert found[0].file == __file__
    assert found[0].rank in (0, 1)


@pytest.mark.parametrize("waits", [True, False])
def test_streams_of_one_rank_are_ordered_by_waits_alone(waits):
    def program(rank):
        side = torch.cuda.Stream()
        x = torch.empty(N)
        x.copy_(torch.ones(N))
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = torch.empty(N)
            y.copy_(x)
        torch.cuda.current_stream().wait_stream(side)
        return y.sum().item()

    found = reports(program, world=1)
    assert bool(found) is not waits
    if found:
        assert "rank 0, stream 1 must wait for rank 0, stream default" in found[0].message


def test_an_event_orders_what_came_before_it_alone():
    def program(rank, late):
        side, event = torch.cuda.Stream(), torch.cuda.Event()
        x = torch.zeros(N)
        if not late:
            x.copy_(torch.ones(N))
        event.record()
        if late:
            x.copy_(torch.ones(N))
        side.wait_event(event)
        with torch.cuda.stream(side):
            torch.empty(N).copy_(x)

    assert not reports(lambda rank: program(rank, late=False), world=1)
    assert reports(lambda rank: program(rank, late=True), world=1)


def counted(early=False, missing=0):
    """Rank 0's blocks count themselves on a flag of rank 1, which waits for all of them."""
    blocks = 4

    def program(rank):
        own, handle = kernels.symmetric(blocks, N)
        flags, signals = kernels.symmetric(8, dtype=torch.int32)
        if rank == 0:
            target = handle.get_buffer(1, (blocks, N), torch.float32)
            flag = signals.get_buffer(1, (8,), torch.int32)
            kernels.post_tiles(blocks, early=early, counted=blocks - missing)(
                torch.ones(blocks, N), target, flag
            )
        else:
            out = torch.empty(blocks * N)
            kernels.take(n=blocks * N)(own.view(-1), out, flags, 0, blocks - missing)
            return out.sum().item()
        return None

    return program


def test_tiles_counted_on_a_flag_are_released_together():
    for seed in range(8):
        found = simulate(counted(), 2, seed=seed)
        assert found.results[1] == 4 * N
        assert found.reports == ()


@pytest.mark.parametrize("missing", [0, 1])
def test_a_kernel_that_waits_orders_what_comes_behind_it_on_its_stream(missing):
    def program(rank):
        box = Box()
        blocks = 2
        if rank == 0:
            target = symm_view(box, 1, blocks)
            kernels.post_tiles(blocks)(torch.ones(blocks, N), target, box.flags_of(1))
        else:
            kernels.wait_alone()(box.flags, blocks - missing)
            out = torch.empty(blocks, N)
            out.copy_(symm_view(box, 1, blocks))

    assert bool(reports(program)) is bool(missing)


def symm_view(box, peer, blocks):
    return box._handle.get_buffer(peer, (blocks, N), torch.float32)


def test_a_tile_that_is_not_counted_races():
    assert any("elements [192:256] of x" in r.message for r in reports(counted(missing=1)))
    assert reports(counted(early=True))


def test_a_view_past_the_end_of_a_buffer_is_refused():
    from tlmatrix.interpreter import InterpreterError

    def program(rank):
        _, handle = kernels.symmetric(N)
        handle.get_buffer(1 - rank, (N,), torch.float32, 1)

    with pytest.raises(InterpreterError, match="has 256 bytes, asked for are 64 elements"):
        simulate(program, 2)


def test_a_flag_past_the_end_of_its_pad_is_an_error():
    from tlmatrix.interpreter import InterpreterError

    def program(rank):
        _, handle = kernels.symmetric(N)
        pad = handle.get_signal_pad(rank, (8,), torch.int32)
        kernels.post()(torch.ones(N), torch.empty(N), pad, 8, 1)

    with pytest.raises(InterpreterError, match=r"index out of bounds: .* flags\[8\]"):
        simulate(program, 2)


@pytest.mark.parametrize(
    ("synchronizes", "order"), [(True, "release"), (False, "release"), (False, "relaxed")]
)
def test_stores_of_all_warps_before_one_thread_releases_a_flag_for_another_stream(
    synchronizes, order
):
    def program(_rank):
        from cuda.bindings import driver

        own, _ = kernels.symmetric(N)
        flags, _ = kernels.symmetric(8, dtype=torch.int32)
        side, out = torch.cuda.Stream(), torch.empty(N)
        side.wait_stream(torch.cuda.current_stream())
        kernels.stored_then_flagged(synchronizes, order)(own, flags)
        with torch.cuda.stream(side):
            driver.cuStreamWaitValue32(side.cuda_stream, flags.data_ptr(), 1, 0)
            out.copy_(own)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    found = reports(program, world=1, seeds=range(1))
    told = [r for r in found if "x is stored by several warps" in r.message]
    assert bool(told) == (not synchronizes and order == "release")
