"""Each property is proven of a right kernel, and not of one with a fault that breaks it."""

import pytest
import tilelang.language as T
import torch
from kernels_proven import answers, fresh, offsets

from jit_kernel import jit_kernel


@jit_kernel(X="f32[n]", Y="f32[n]")
def doubled(X, Y, step):
    n = X.shape[0]
    with T.Kernel(T.ceildiv(n, step), threads=128) as tile:
        for i in T.Parallel(64):
            Y[tile * step + i] = 2 * X[tile * step + i]


def _double(step):
    return answers(*[lambda n=n: doubled(step)(torch.zeros(n), fresh(n)) for n in (5, 130)])


def test_disjoint_tiles_are_free_of_races_and_cover_the_output():
    found = _double(64)
    assert found["races of Y"].answer == "proven"
    assert found["coverage of Y"].answer == "proven"
    assert found["overflow"].answer == "proven"


def test_overlapping_tiles_are_no_proof_and_name_values():
    found = _double(32)["races of Y"]
    assert found.answer == "unknown"
    assert "two blocks may write and write one element" in found.reason
    assert found.values.symbols["n"] > 32
    assert "test_properties.py" in found.place


def test_a_gap_between_tiles_is_no_proof_of_coverage():
    found = _double(96)
    assert found["races of Y"].answer == "proven"
    assert found["coverage of Y"].answer == "unknown"
    assert found["coverage of Y"].values.symbols["n"] > 64


@jit_kernel(X="f32[total, 8]", CU="i32[bounds]", longest="i32", Y="f32[total, 8]")
def packed(X, CU, longest, Y, guarded, reversed_tiles=False):
    bounds = CU.shape[0]
    with T.Kernel(T.ceildiv(longest, 32), bounds - 1, threads=128) as (tile, b):
        first = T.if_then_else(reversed_tiles, CU[b + 1] - 32 * (tile + 1), CU[b] + 32 * tile)
        for i, d in T.Parallel(32, 8):
            row = first + i
            if guarded and row >= CU[b] and row < CU[b + 1]:
                Y[row, d] = X[row, d]
            if not guarded:
                Y[row, d] = X[row, d]


def _packed(guarded, *, shortest=False, **options):
    def call(*lengths):
        total = sum(lengths)
        longest = min(lengths) if shortest else max(lengths)
        kernel = packed(guarded, **options)
        kernel(torch.zeros(total, 8), offsets(*lengths), longest, fresh(total, 8))

    return answers(lambda: call(3, 40, 1), lambda: call(70, 5), lambda: call(33, 33, 0, 8))


def test_guarded_rows_of_packed_sequences_are_proven_for_all_lengths():
    found = _packed(guarded=True)
    assert {str(p): p.answer for p in found.values() if p.answer != "proven"} == {}
    assert "own sequence of Y" in found
    facts = found["coverage of Y"].facts
    assert any("CU is 0 first, never decreasing, total last" in each for each in facts)
    assert any("no step of CU is larger than longest" in each for each in facts)


def test_tiles_from_the_end_of_a_sequence_cover_it():
    found = _packed(guarded=True, reversed_tiles=True)
    assert found["coverage of Y"].answer == "proven"
    assert found["races of Y"].answer == "proven"


def test_a_tile_over_the_end_of_its_sequence_is_found():
    found = _packed(guarded=False)
    assert found["own sequence of Y"].answer == "unknown"
    assert "rows outside of sequence" in found["own sequence of Y"].reason
    assert found["races of Y"].answer == "unknown"


def test_a_grid_of_the_shortest_sequence_is_no_proof_of_coverage():
    """The launches contradict that no sequence is longer, so it is no fact."""
    found = _packed(guarded=True, shortest=True)
    assert found["races of Y"].answer == "proven"
    assert found["coverage of Y"].answer == "unknown"


@jit_kernel(X="f32[parts, n]", Y="f32[n]")
def summed(X, Y):
    parts, n = X.shape
    with T.Kernel(n, threads=128) as column:
        weights = T.alloc_shared((64,), "float32")
        total = T.alloc_fragment((1,), "float32")
        T.clear(total)
        for i in T.Parallel(64):
            weights[i] = 1.0
        for part in T.serial(parts):
            total[0] += weights[part] * X[part, column]
        Y[column] = total[0]


def _sum(**options):
    calls = [lambda p=p: summed()(torch.zeros(p, 3), fresh(3)) for p in (2, 64)]
    return answers(*calls, **options)


def test_shared_memory_that_grows_with_a_size_needs_a_bound_from_the_spec():
    found = _sum()["bounds of shared memory"]
    assert found.answer == "unknown"
    assert found.values.symbols["parts"] > 64
    given = _sum(given={"parts <= 64": "the operator refuses more"})["bounds of shared memory"]
    assert given.answer == "proven"
    assert "parts <= 64" in given.facts


def test_a_given_bound_that_a_launch_contradicts_is_no_fact():
    found = _sum(given={"parts <= 63": "wrong"})["bounds of shared memory"]
    assert found.answer == "unknown"


@jit_kernel(X="f32[n]", Y="f32[n]")
def copied_along_y(X, Y, blocks_a_row=1):
    n = X.shape[0]
    with T.Kernel(T.ceildiv(n, 64), n * blocks_a_row, threads=64) as (bx, by):
        if by == 0:
            for i in T.Parallel(64):
                if bx * 64 + i < n:
                    Y[bx * 64 + i] = X[bx * 64 + i]


@pytest.mark.parametrize(("blocks", "sizes"), [(1, 1 << 15), (2, 1 << 12), (60, 1 << 10)])
def test_a_grid_is_launched_up_to_the_sizes_that_are_named(blocks, sizes):
    kernel = lambda n: copied_along_y(blocks)(torch.zeros(n), fresh(n))  # noqa: E731
    found = answers(lambda: kernel(5), lambda: kernel(70))
    assert found[f"grid of blocks, sizes to {sizes}"].answer == "proven"


def test_more_blocks_along_y_than_cuda_launches_are_no_proof():
    kernel = lambda n: copied_along_y(1000)(torch.zeros(n), fresh(n))  # noqa: E731
    found = answers(lambda: kernel(5), lambda: kernel(70))
    proof = next(proof for name, proof in found.items() if name.startswith("grid"))
    assert proof.answer == "unknown"
    assert "more than 65535 blocks along y" in proof.reason
    assert proof.values.symbols["n"] >= 66


@jit_kernel(CU="i32[batch + 1]", Y="f32[total]")
def ones(CU, Y):
    with T.Kernel(CU.shape[0] - 1, threads=32) as b:
        for k in T.serial(CU[b + 1] - CU[b]):
            Y[CU[b] + k] = 1.0


def test_a_symbol_that_only_a_sum_in_a_shape_binds_has_facts():
    found = answers(*[lambda n=n: ones()(offsets(*[5] * n), fresh(5 * n)) for n in (2, 7)])
    assert found["coverage of Y"].answer == "proven"
    assert any("batch + 1 >= 1" in fact for fact in found["coverage of Y"].facts)


@jit_kernel(CU="i32[bounds]", Y="f32[batch]")
def lengths(CU, Y):
    with T.Kernel(Y.shape[0], threads=32) as b:
        Y[b] = T.cast(CU[b + 1] - CU[b], "float32")


def test_there_is_one_offset_more_than_sequences():
    found = answers(*[lambda n=n: lengths()(offsets(*[5] * n), fresh(n)) for n in (2, 7)])
    assert found["bounds of tables"].answer == "proven"
    assert "bounds == batch + 1" in " ".join(found["bounds of tables"].facts)


@jit_kernel(X="f32[n, 64]", ROWS="i32[n]", Y="f32[m, 64]")
def scattered(X, ROWS, Y):
    with T.Kernel(ROWS.shape[0], threads=64) as row:
        for d in T.Parallel(64):
            T.atomic_add(Y[ROWS[row], d], X[row, d])


def test_atomic_sums_of_several_blocks_have_no_equal_bits():
    rows = torch.tensor([0, 1, 1], dtype=torch.int32)
    found = answers(lambda: scattered()(torch.zeros(3, 64), rows, torch.zeros(2, 64)))
    assert found["equal bits of Y"].answer == "unknown"


def test_atomic_sums_of_distinct_rows_have_equal_bits():
    def call(*rows):
        indices = torch.tensor(rows, dtype=torch.int32)
        scattered()(torch.zeros(len(rows), 64), indices, torch.zeros(9, 64))

    found = answers(lambda: call(2, 0, 1), lambda: call(5, 7))["equal bits of Y"]
    assert found.answer == "proven"
    assert any("the entries of ROWS are distinct (in all 2" in each for each in found.facts)


@jit_kernel(C="f32[m, n]", blocks="i32")
def persistent(C, blocks):
    m, n = C.shape
    with T.Kernel(blocks, threads=128) as block:
        columns = T.ceildiv(n, 32)
        tiles = T.ceildiv(m, 32) * columns
        for wave in T.serial(T.ceildiv(tiles - block, blocks)):
            tile = block + wave * blocks
            row = tile // columns * 32
            column = tile % columns * 32
            for i, j in T.Parallel(32, 32):
                C[row + i, column + j] = 1.0


def test_persistent_blocks_share_tiles_by_division_with_symbolic_sizes():
    calls = [
        lambda m=m, n=n, b=b: persistent()(fresh(m, n), b)
        for m, n, b in ((40, 100, 3), (33, 1, 2), (128, 64, 5))
    ]
    found = answers(*calls)
    assert found["races of C"].answer == "proven"
    assert found["coverage of C"].answer == "proven"


@jit_kernel(X="f32[n]", Y="f32[n]")
def assuming(X, Y, least):
    n = X.shape[0]
    with T.Kernel(T.ceildiv(n, 64), threads=128) as tile:
        T.assume(n - tile * 64 >= least)
        for i in T.Parallel(64):
            Y[tile * 64 + i] = X[tile * 64 + i]


def test_what_a_kernel_assumes_is_proven_and_not_believed():
    def call(least):
        return answers(*[lambda n=n: assuming(least)(torch.zeros(n), fresh(n)) for n in (5, 99)])

    assert call(1)["assumptions of T.assume"].answer == "proven"
    assert call(2)["assumptions of T.assume"].answer == "unknown"
