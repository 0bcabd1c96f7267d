"""Kernels that index by thread: every thread of a block is a lane, as on a GPU."""

import pytest
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.interpreter import InterpreterError, Unsupported, interpret

pytestmark = pytest.mark.usefixtures("interpreted")


def test_a_thread_indexes_global_and_shared_memory():
    @jit_kernel(X="f32[n]", Y="f32[n]", out_idx=[-1])
    def reversed_blocks(X, Y, n):
        with T.Kernel(T.ceildiv(n, 64), threads=64) as bx:
            s = T.alloc_shared((64,), "float32")
            tx = T.get_thread_binding()
            s[tx] = X[bx * 64 + tx]
            T.sync_threads()
            Y[bx * 64 + tx] = s[63 - tx] * 2.0

    x = torch.randn(192)
    assert torch.equal(reversed_blocks(192)(x), x.reshape(3, 64).flip(1).reshape(-1) * 2)


@pytest.mark.parametrize("n", [1, 63, 100])
def test_accesses_outside_are_guarded_lane_by_lane(n):
    m = T.dynamic("m")

    @jit_kernel(out_idx=[-1])
    def copy(X: T.Tensor((m,), "float16"), Y: T.Tensor((m,), "float16")):
        with T.Kernel(T.ceildiv(m, 64), threads=64) as bx:
            tx = T.get_thread_binding()
            Y[bx * 64 + tx] = X[bx * 64 + tx]

    x = torch.randn(n).half()
    assert torch.equal(copy()(x), x)


def test_threads_have_variables_and_buffers_of_their_own():
    @jit_kernel(A="f16[rows, cols]", X="f16[cols]", Y="f32[rows]", out_idx=[-1])
    def dot(A, X, Y, rows, cols):
        with T.Kernel(rows // 32, threads=32) as bx:
            tx = T.get_thread_binding()
            total = T.alloc_local((1,), "float32")
            part = T.alloc_local((4,), "float16")
            total[0] = 0
            for k in T.serial(cols // 4):
                for v in T.vectorized(4):
                    part[v] = A[bx * 32 + tx, k * 4 + v]
                for v in T.serial(4):
                    total[0] += T.cast(part[v], "float32") * T.cast(X[k * 4 + v], "float32")
            Y[bx * 32 + tx] = total[0]

    a, x = torch.randn(64, 20).half(), torch.randn(20).half()
    torch.testing.assert_close(dot(64, 20)(a, x), a.float() @ x.float(), rtol=1e-5, atol=1e-5)


def test_a_block_of_threads_in_two_dimensions():
    @jit_kernel(out_idx=[-1])
    def transpose(X: T.Tensor((8, 16), "int32"), Y: T.Tensor((16, 8), "int32")):
        with T.Kernel(1, threads=(16, 8)) as bx:
            tx = T.get_thread_binding(0)
            ty = T.get_thread_binding(1)
            Y[tx, ty] = X[ty, tx] + bx

    x = torch.arange(128, dtype=torch.int32).reshape(8, 16)
    assert torch.equal(transpose()(x), x.T)


def test_a_tree_reduction_in_shared_memory():
    @jit_kernel(out_idx=[-1])
    def total(X: T.Tensor((4, 128), "float32"), Y: T.Tensor((4,), "float32")):
        with T.Kernel(4, threads=128) as bx:
            s = T.alloc_shared((128,), "float32")
            tx = T.get_thread_binding()
            s[tx] = X[bx, tx]
            T.sync_threads()
            for k in T.serial(7):
                if tx < (64 >> k):
                    s[tx] += s[tx + (64 >> k)]
                T.sync_threads()
            if tx == 0:
                Y[bx] = s[0]

    x = torch.randn(4, 128)
    torch.testing.assert_close(total()(x), x.sum(1))


def test_shuffles_move_values_between_lanes():
    @jit_kernel(out_idx=[-1], threads=64)
    def moved(X: T.Tensor((64,), "int32"), Y: T.Tensor((7, 64), "int32")):
        tx = T.get_thread_binding()
        Y[0, tx] = T.shfl_xor(X[tx], 1)
        Y[1, tx] = T.shfl_down(X[tx], 2)
        Y[2, tx] = T.shfl_up(X[tx], 3)
        Y[3, tx] = T.shfl_sync(X[tx], 5)
        Y[4, tx] = T.shfl_down(X[tx], 2, width=8)
        Y[5, tx] = T.shfl_xor(X[tx], 8, width=8)
        Y[6, tx] = T.shfl_down(X[tx], 33)

    x = torch.randint(0, 1000, (64,), dtype=torch.int32)
    lane = torch.arange(64)
    warp, inside = lane // 32 * 32, lane % 32
    expected = torch.stack(
        [
            x[lane ^ 1],
            x[torch.where(inside + 2 < 32, lane + 2, lane)],
            x[torch.where(inside >= 3, lane - 3, lane)],
            x[warp + 5],
            x[torch.where(lane % 8 + 2 < 8, lane + 2, lane)],
            x[torch.where(lane & 8 > 0, lane - 8, lane)],  # earlier segments alone
            x[torch.where(inside + 1 < 32, lane + 1, lane)],  # 33 modulo 32
        ]
    )
    assert torch.equal(moved()(x), expected)
    with interpret(lowered=True, arch="sm_80"):
        assert torch.equal(moved()(x), expected)


def test_a_lane_that_is_switched_off_has_nothing_to_give():
    @jit_kernel(out_idx=[-1], threads=32)
    def half(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        tx = T.get_thread_binding()
        Y[tx] = 0.0
        if tx % 32 < 16:
            Y[tx] = T.shfl_down(X[tx], 8)

    x = torch.randn(32)
    got = half()(x)
    assert torch.equal(got[:8], x[8:16])
    assert got[8:16].isnan().all()
    assert got[16:].eq(0).all()


def test_votes_and_reductions_of_a_warp():
    @jit_kernel(X="i32[64]", Y="i32[6, 64]", B="u64[64]", out_idx=[-2, -1], threads=64)
    def votes(X, Y, B):
        tx = T.get_thread_binding()
        Y[0, tx] = T.any_sync(X[tx] > 0)
        Y[1, tx] = T.all_sync(X[tx] > 0)
        Y[2, tx] = T.syncthreads_count(X[tx] > 0)
        Y[3, tx] = T.warp_reduce_sum(X[tx])
        Y[4, tx] = T.warp_reduce_max(X[tx])
        Y[5, tx] = T.syncthreads_or(X[tx] > 0)
        B[tx] = T.ballot(X[tx] > 0)

    x = torch.randint(-5, 5, (64,), dtype=torch.int32)
    x[32:] = x[32:].abs() + 1
    y, b = votes()(x)
    positive = (x > 0).reshape(2, 32)
    spread = lambda t: t.to(torch.int32).repeat_interleave(32)  # noqa: E731
    assert torch.equal(y[0], spread(positive.any(1)))
    assert torch.equal(y[1], spread(positive.all(1)))
    assert y[2].eq(int(positive.sum())).all()
    assert torch.equal(y[3], spread(x.reshape(2, 32).sum(1)))
    assert torch.equal(y[4], spread(x.reshape(2, 32).amax(1)))
    assert y[5].eq(1).all()
    bits = [sum(int(p) << k for k, p in enumerate(row)) for row in positive]
    assert [int(b[0]), int(b[32])] == bits


def test_loops_and_branches_that_differ_between_threads():
    @jit_kernel(out_idx=[-1], threads=64)
    def collatz(X: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "int32")):
        tx = T.get_thread_binding()
        n = T.alloc_var("int32")
        steps = T.alloc_var("int32", init=0)
        n = X[tx]
        while n != 1:
            if n % 2 == 0:  # noqa: SIM108  # a branch is the point
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
        for _k in T.serial(tx % 3):
            steps += 100
        Y[tx] = steps

    x = torch.arange(1, 65, dtype=torch.int32)
    expected = []
    for lane, start in enumerate(x.tolist()):
        n, steps = start, 0
        while n != 1:
            n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
        expected.append(steps + 100 * (lane % 3))
    assert collatz()(x).tolist() == expected


def test_atomics_of_every_thread():
    @jit_kernel(X="i32[128]", H="i32[8]", N="i32[1]")
    def histogram(X, H, N):
        with T.Kernel(2, threads=64) as bx:
            tx = T.get_thread_binding()
            T.atomic_add(H[X[bx * 64 + tx]], 1)
            T.atomic_add(N[0], 1)

    x = torch.randint(0, 8, (128,), dtype=torch.int32)
    h, n = torch.zeros(8, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    histogram()(x, h, n)
    assert torch.equal(h, torch.bincount(x, minlength=8).int())
    assert n.item() == 128


def test_tile_operations_between_statements_of_threads():
    @jit_kernel(out_idx=[-1], threads=64)
    def mixed(X: T.Tensor((32, 32), "float32"), Y: T.Tensor((32, 32), "float32")):
        tx = T.get_thread_binding()
        s = T.alloc_shared((32, 32), "float32")
        f = T.alloc_fragment((32, 32), "float32")
        T.copy(X, s)
        if tx < 32:
            s[tx, tx] = 0.0
        T.copy(s, f)
        for i, j in T.Parallel(32, 32):
            f[i, j] = f[i, j] + 1.0
        T.copy(f, Y)

    x = torch.randn(32, 32)
    expected = x.clone().fill_diagonal_(0) + 1
    assert torch.equal(mixed()(x), expected)


def test_a_nan_that_all_threads_have_is_the_same_for_all():
    @jit_kernel(X="f32[64]", first="f32[1]", Y="f32[64]", threads=64)
    def scaled(X, first, Y):
        factor = T.alloc_var("float32")
        factor = X[0] * 2.0
        if T.get_thread_binding() == 0:
            first[0] = factor
        for i in T.Parallel(64):
            Y[i] = X[i] * factor

    x, y = torch.full((64,), torch.nan), torch.empty(64)
    scaled()(x, torch.empty(1), y)
    assert y.isnan().all()


def test_what_threads_do_together_must_be_the_same_for_all():
    @jit_kernel(out_idx=[-1], threads=64)
    def row_of_thread(X: T.Tensor((64, 32), "float32"), Y: T.Tensor((32,), "float32")):
        tx = T.get_thread_binding()
        T.copy(X[tx, 0:32], Y)

    with pytest.raises(Unsupported, match="thread index"):
        row_of_thread()(torch.randn(64, 32))


def test_warp_and_lane_numbers():
    @jit_kernel(out_idx=[-1], threads=128)
    def numbers(Y: T.Tensor((3, 128), "int32")):
        tx = T.get_thread_binding()
        Y[0, tx] = T.get_lane_idx()
        Y[1, tx] = T.get_warp_idx()
        if T.shuffle_elect(64):
            Y[2, tx] = 1
        else:
            Y[2, tx] = 0

    y = numbers()()
    lane = torch.arange(128, dtype=torch.int32)
    assert torch.equal(y, torch.stack([lane % 32, lane // 32, (lane % 64 == 0).int()]))


def test_fills_and_copies_of_a_threads_own_memory():
    @jit_kernel(out_idx=[-1], threads=64)
    def rows(X: T.Tensor((64, 8), "float16"), Y: T.Tensor((64, 8), "float32")):
        tx = T.get_thread_binding()
        part = T.alloc_local((8,), "float16")
        total = T.alloc_local((8,), "float32")
        T.clear(total)
        T.copy(X[tx, 0:8], part)
        for k in T.serial(8):
            total[k] += T.cast(part[k], "float32") * tx
        T.copy(total, Y[tx, 0:8])

    x = torch.randn(64, 8).half()
    assert torch.equal(rows()(x), x.float() * torch.arange(64.0)[:, None])


@pytest.mark.parametrize("dtype", ["float32", "int8", "int32"])
def test_a_reduction_over_one_dimension_of_the_threads(dtype):
    @jit_kernel(out_idx=[-1])
    def columns(X: T.Tensor((8, 16), dtype), Y: T.Tensor((8,), dtype)):
        with T.Kernel(1, threads=(8, 16)):
            tn = T.get_thread_binding(0)
            tk = T.get_thread_binding(1)
            mine = T.alloc_local((1,), dtype)
            total = T.alloc_local((1,), dtype)
            mine[0] = X[tn, tk]
            with T.attr(
                T.comm_reducer(lambda x, y: x + y, [T.cast(0, dtype)]),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            ):
                T.evaluate(
                    T.tvm_thread_allreduce(T.uint32(1), mine[0], True, total[0], tk, dtype="handle")
                )
            Y[tn] = total[0]

    x = (torch.randn(8, 16) * 100).to(getattr(torch, dtype))
    torch.testing.assert_close(columns()(x), x.sum(1).to(x.dtype))  # integers wrap


def test_threads_leave_a_loop_one_by_one():
    @jit_kernel(out_idx=[-1], threads=64)
    def searched(X: T.Tensor((64, 10), "int32"), Y: T.Tensor((3, 64), "int32")):
        tx = T.get_thread_binding()
        first = T.alloc_var("int32", init=-1)
        odd = T.alloc_var("int32", init=0)
        turns = T.alloc_var("int32", init=0)
        for k in T.serial(10):
            if X[tx, k] == 7:
                first = k
                break
            turns += 1
            if X[tx, k] % 2 == 0:
                continue
            odd += 1
        Y[0, tx] = first
        Y[1, tx] = turns
        Y[2, tx] = odd

    x = torch.randint(0, 10, (64, 10), dtype=torch.int32)
    expected = []
    for row in x.tolist():
        seen = row[: row.index(7)] if 7 in row else row
        first = len(seen) if 7 in row else -1
        expected.append([first, len(seen), sum(v % 2 for v in seen)])
    assert searched()(x).T.tolist() == expected


def test_a_loop_over_the_threads_is_the_thread_index():
    @jit_kernel(Out="i32[n]", out_idx=[-1])
    def kernel(Out, threads, n):
        with T.Kernel(T.ceildiv(n, threads), threads=threads) as bx:
            tx = T.thread_binding(0, threads, thread="threadIdx.x")
            if bx * threads + tx < n:
                Out[bx * threads + tx] = tx

    assert torch.equal(kernel(64, 100)(), (torch.arange(100) % 64).int())


@pytest.mark.parametrize("dtype", ["float16", "int32"])
@pytest.mark.parametrize("rows", [32, 21])
def test_a_copy_whose_predicate_fails_reads_nothing_and_writes_zeros(rows, dtype):
    width = 4

    @jit_kernel(A="dtype[rows, width]", Out="dtype[32, width]", out_idx=[-1], threads=32)
    def kernel(A, Out, rows):
        tx = T.get_thread_binding()
        shared = T.alloc_shared((32, width), dtype)
        T.ptx_cp_async(
            T.access_ptr(shared[tx, 0], "w", width),
            T.access_ptr(A[tx, 0], "r", width),
            width,
            tx < rows and tx != 3,
        )
        T.ptx_commit_group()
        T.ptx_wait_group(0)
        T.sync_threads()
        for i in T.serial(width):
            Out[tx, i] = shared[tx, i]

    a = torch.randint(1, 9, (rows, width)).to(getattr(torch, dtype))
    expected = torch.zeros(32, width, dtype=a.dtype)
    expected[:rows] = a
    expected[3] = 0
    with interpret(sanitize=True) as run:
        got = kernel(rows)(a)
    assert torch.equal(got, expected)
    assert not run.reports


def row_of(rows, pick):
    """A kernel that copies the row that `pick` makes of each thread's number of a row."""

    @jit_kernel(threads=64)
    def kernel(
        X: T.Tensor((rows, 64), "float32"),
        chosen: T.Tensor((64,), "int32"),
        Y: T.Tensor((64,), "float32"),
    ):
        tx = T.get_thread_binding()
        f = T.alloc_fragment((64,), "float32")
        mine = T.alloc_local((1,), "int32")
        mine[0] = chosen[tx]
        row = pick(mine[0], tx)
        if row >= 0:
            T.copy(X[row, :], f)
            for i in T.Parallel(64):
                f[i] = f[i] + T.cast(row, "float32")
            T.copy(f, Y)

    return kernel()


def test_what_every_thread_has_the_same_of_may_index_a_tile():
    x, y = torch.randn(6, 64), torch.empty(64)
    row_of(6, lambda row, tx: row % 6)(x, torch.full((64,), 10, dtype=torch.int32), y)
    assert torch.equal(y, x[4] + 4)


def test_threads_that_do_not_come_need_not_agree():
    x, y = torch.randn(6, 64), torch.empty(64)
    chosen = torch.full((64,), -7, dtype=torch.int32)
    chosen[5] = 3
    row_of(6, lambda row, tx: T.if_then_else(tx % 2 == 1, row, -1))(x, chosen, y)
    assert torch.equal(y, x[3] + 3)


def test_threads_that_come_with_different_tiles_are_told():
    chosen = torch.arange(64, dtype=torch.int32) % 2
    with pytest.raises(InterpreterError, match="row differs between the threads that do it"):
        row_of(6, lambda row, tx: row)(torch.randn(6, 64), chosen, torch.empty(64))


@pytest.mark.parametrize("sanitize", [False, True])
def test_memory_of_a_thread_is_a_lanes_own_in_a_parallel_loop(sanitize):
    @jit_kernel(X="f32[4, 64]", Y="f32[4, 64]", Z="f32[64]", threads=64)
    def kernel(X, Y, Z):
        tx = T.get_thread_binding()
        v = T.alloc_var("float32")
        w = T.alloc_local((2,), "float32")
        v = 2.0
        w[0] = 3.0
        for i, j in T.Parallel(4, 64):
            w[1] = X[i, j] * v
            Y[i, j] = w[1] + w[0]
        Z[tx] = w[0] + v

    x, y, z = torch.randn(4, 64), torch.empty(4, 64), torch.empty(64)
    with interpret(sanitize=sanitize, on_report="raise"):
        kernel()(x, y, z)
    assert torch.equal(y, x * 2 + 3)
    assert z.eq(5).all()
