"""Phases of mbarriers: counted pipelines are proven for all sizes, wrong counts are not."""

import pytest
import tilelang.language as T
import torch
from kernels_proven import answers, fresh

from jit_kernel import jit_kernel

_ROWS, _STAGES = 16, 3


@jit_kernel(X="f32[m, k]", Y="f32[m, k]", blocks="i32")
def copied_in_waves(X, Y, blocks, carried=True, released="all", rounded_up=True):
    """A persistent block copies its tiles through a ring that one role fills and one empties."""
    m, k = X.shape
    with T.Kernel(blocks, threads=256) as block:
        ring = T.alloc_shared((_STAGES, _ROWS, 32), "float32")
        full = T.alloc_barrier([128] * _STAGES)
        empty = T.alloc_barrier([128] * _STAGES)
        thread = T.get_thread_binding()
        steps = T.ceildiv(k, 32)
        filled = T.if_then_else(rounded_up, steps, k // 32)
        waves = T.ceildiv(T.ceildiv(m, _ROWS) - block, blocks)
        if thread >= 128:
            for wave in T.serial(waves):
                row = (block + wave * blocks) * _ROWS
                for step in T.serial(filled):
                    count = wave * filled + step if carried else step
                    s = count % _STAGES
                    T.mbarrier_wait_parity(empty[s], ((count // _STAGES) & 1) ^ 1)
                    T.copy(X[row : row + _ROWS, step * 32 : step * 32 + 32], ring[s, :, :])
                    T.mbarrier_arrive(full[s])
        else:
            for wave in T.serial(waves):
                row = (block + wave * blocks) * _ROWS
                for step in T.serial(steps):
                    count = wave * steps + step if carried else step
                    s = count % _STAGES
                    T.mbarrier_wait_parity(full[s], count // _STAGES % 2)
                    T.copy(ring[s, :, :], Y[row : row + _ROWS, step * 32 : step * 32 + 32])
                    if released == "all":
                        T.mbarrier_arrive(empty[s])
                    elif released == "others":
                        if step > 0:
                            T.mbarrier_arrive(empty[(count + _STAGES - 1) % _STAGES])
                    elif released == "large":
                        if k >= 1000:
                            T.mbarrier_arrive(empty[s])
                    elif released == "next":
                        T.mbarrier_arrive(empty[(count + 1) % _STAGES])


def _phases(**options):
    """The answers about the phases of the ring, with the reasons."""
    calls = [
        lambda n=n: copied_in_waves(**options)(torch.zeros(n, 3 * n), torch.zeros(n, 3 * n), 2)
        for n in (40, 130)
    ]
    found = answers(*calls)
    return {b: found[f"phases of {b}"] for b in ("full", "empty")}


def _given(**options):
    return {barrier: proof.answer for barrier, proof in _phases(**options).items()}


def test_a_ring_that_is_counted_through_all_tiles_is_proven():
    assert _given() == {"full": "proven", "empty": "proven"}


def test_a_count_that_starts_again_with_each_tile_is_not_proven():
    found = _phases(carried=False)
    assert {each.answer for each in found.values()} == {"unknown"}
    assert "than its number among the" in found["full"].reason
    assert found["full"].values.symbols["k"] % (32 * _STAGES)


def test_an_arrival_at_another_barrier_is_not_proven():
    assert _given(released="next") == {"full": "proven", "empty": "unknown"}


def test_a_release_that_is_left_out_in_each_tile_is_not_proven():
    assert _given(released="others")["empty"] == "unknown"


def test_a_ring_that_is_never_released_is_not_proven():
    assert _given(released="never") == {"full": "proven", "empty": "unknown"}


def test_a_ring_that_is_released_for_large_sizes_alone_is_not_proven():
    assert _given(released="large")["empty"] == "unknown"


def test_roles_whose_loops_differ_for_some_sizes_are_not_proven():
    found = _phases(rounded_up=False)
    assert found["full"].answer == "unknown"
    assert found["full"].values.symbols["k"] % 32


@jit_kernel(X="f32[m, 32]", Y="f32[m, 32]")
def with_a_toggled_phase(X, Y):
    m = X.shape[0]
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((_ROWS, 32), "float32")
        come = T.alloc_barrier(128)
        phase = T.alloc_var("int32")
        phase = 0
        for step in T.serial(T.ceildiv(m, _ROWS)):
            T.copy(X[step * _ROWS : (step + 1) * _ROWS, 0:32], tile)
            T.mbarrier_arrive(come)
            T.mbarrier_wait_parity(come, phase)
            phase = phase ^ 1
            T.copy(tile, Y[step * _ROWS : (step + 1) * _ROWS, 0:32])


def test_a_phase_that_a_loop_changes_is_unknown():
    found = answers(lambda: with_a_toggled_phase()(torch.zeros(40, 32), fresh(40, 32)))
    proof = found["phases of come"]
    assert proof.answer == "unknown"
    assert "depends on a value that is not known" in proof.reason


@jit_kernel(X="f32[m, 32]", Y="f32[m, 32]")
def with_arrivals_by_address(X, Y, more=0):
    m = X.shape[0]
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((_ROWS, 32), "float32")
        come = T.alloc_barrier([1] * 2)
        for step in T.serial(T.ceildiv(m, _ROWS)):
            T.copy(X[step * _ROWS : (step + 1) * _ROWS, 0:32], tile)
            T.tcgen05_mma_arrive(come[(step + more) % 2])
            T.mbarrier_wait_parity(come[step % 2], step // 2 % 2)
            T.copy(tile, Y[step * _ROWS : (step + 1) * _ROWS, 0:32])


@pytest.mark.parametrize(("more", "answer"), [(0, "proven"), (1, "unknown")])
def test_an_operation_that_takes_the_address_of_a_barrier_arrives_there(more, answer):
    found = answers(lambda: with_arrivals_by_address(more)(torch.zeros(40, 32), fresh(40, 32)))
    assert found["phases of come"].answer == answer


@jit_kernel(X="f32[m, 32]", Y="f32[m, 32]")
def with_unknown_steps(X, Y):
    m = X.shape[0]
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((_ROWS, 32), "float32")
        come = T.alloc_barrier(128)
        steps = T.alloc_var("int32")
        steps = 1
        for _ in T.serial(m):
            steps = steps + 1
        for outer in T.serial(2):
            for step in T.serial(steps):
                T.copy(X[step * _ROWS : (step + 1) * _ROWS, 0:32], tile)
                T.mbarrier_arrive(come)
                T.mbarrier_wait_parity(come, (outer * steps + step) % 2)
                T.copy(tile, Y[step * _ROWS : (step + 1) * _ROWS, 0:32])


def test_a_number_of_steps_that_a_loop_changes_is_unknown():
    found = answers(lambda: with_unknown_steps()(torch.zeros(40, 32), fresh(40, 32)))
    assert found["phases of come"].answer == "unknown"


@jit_kernel(X="f32[m, 32]", Y="f32[m, 32]")
def with_named_barriers(X, Y, second=1):
    """Two barriers of one array with a meaning each."""
    m = X.shape[0]
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((2, _ROWS, 32), "float32")
        come = T.alloc_barrier([128, 128])
        for step in T.serial(T.ceildiv(m, _ROWS)):
            T.copy(X[step * _ROWS : (step + 1) * _ROWS, 0:32], tile[0, :, :])
            T.mbarrier_arrive(come[0])
            T.mbarrier_wait_parity(come[0], step % 2)
            T.copy(tile[0, :, :], tile[1, :, :])
            T.mbarrier_arrive(come[1])
            T.mbarrier_wait_parity(come[1], (step + second) % 2)
            T.copy(tile[1, :, :], Y[step * _ROWS : (step + 1) * _ROWS, 0:32])


@jit_kernel(X="f32[m, 32]", Y="f32[m, 32]")
def with_both_halves_of_an_array(X, Y):
    """The first two barriers say that a stage is full, the others that it is empty."""
    m = X.shape[0]
    with T.Kernel(1, threads=256):
        ring = T.alloc_shared((2, _ROWS, 32), "float32")
        bars = T.alloc_barrier([128] * 4)
        thread = T.get_thread_binding()
        if thread >= 128:
            for step in T.serial(T.ceildiv(m, _ROWS)):
                T.mbarrier_wait_parity(bars[step % 2 + 2], ((step // 2) % 2) ^ 1)
                T.copy(X[step * _ROWS : (step + 1) * _ROWS, 0:32], ring[step % 2, :, :])
                T.mbarrier_arrive(bars[step % 2])
        else:
            for step in T.serial(T.ceildiv(m, _ROWS)):
                T.mbarrier_wait_parity(bars[step % 2], (step // 2) % 2)
                T.copy(ring[step % 2, :, :], Y[step * _ROWS : (step + 1) * _ROWS, 0:32])
                T.mbarrier_arrive(bars[step % 2 + 2])


def test_parts_of_an_array_have_phases_of_their_own():
    call = with_both_halves_of_an_array
    found = answers(lambda: call()(torch.zeros(40, 32), fresh(40, 32)))
    assert found["phases of bars[0:2]"].answer == "proven"
    assert found["phases of bars[2:4]"].answer == "proven"


def test_barriers_that_are_named_by_constants_have_phases_of_their_own():
    found = answers(lambda: with_named_barriers(0)(torch.zeros(40, 32), fresh(40, 32)))
    assert found["phases of come[0]"].answer == found["phases of come[1]"].answer == "proven"
