"""Kernels with warp roles, each of which takes the name of a mutant: the one bug in it.

The line of a bug carries its name: `# HERE: name`. Without a bug (an empty name) no sanitizer has
anything to say, under any schedule. Of a race the line is that of either party, which of them
comes second is the schedule's.
"""

import tilelang
import tilelang.language as T
import torch
from sanitizer_mutants import BOUNDARIES, CU, mutants_of

N = 32


def half(*shape):
    return torch.ones(*shape).half()


# -- TMA loads through stages of shared memory


@mutants_of(
    {
        "stage never primed": ("barriers", "empty"),
        "no wait before a stage is loaded again": ("races", "As", "barriers"),
        "wait for the wrong parity": ("uninitialised", "As", "races barriers"),
        "no wait for the data": ("uninitialised", "As", "races barriers"),
        "wait for another stage": ("races", "As", "uninitialised barriers"),
        "released before it is read": ("races", "As"),
        "one thread too few": ("barriers", "full"),
        "one warp arrives": ("barriers", "full"),
        "nobody arrives": ("barriers", "full"),
        "nobody releases": ("barriers", "empty"),
        "phase half as long": ("barriers", "full", "uninitialised races"),
        "more bytes than come": ("barriers", "full"),
        "half a tile loaded": ("uninitialised", "As"),
        "stage past the last": ("bounds", "As", "uninitialised races"),
        "accumulator not cleared": ("uninitialised", "acc"),
        "two blocks one tile": ("races", "C", "unwritten"),
        "half a tile stored": ("unwritten", "C"),
        "sum beyond the largest": ("nonfinite", "acc"),
    }
)
def loaded_with_tma(bug):
    stages, steps = 2, 5
    few = 129 if bug == "one thread too few" else 64 if bug == "phase half as long" else 128

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(A: T.Tensor((2 * N, steps * N), "float16"), C: T.Tensor((2 * N, N), "float32")):
            with T.Kernel(2, threads=256) as bx:
                As = T.alloc_shared((stages, N, N), "float16")
                acc = T.alloc_fragment((N, N), "float32")
                full = T.alloc_barrier([few] * stages)
                empty = T.alloc_barrier([128] * stages)
                tx = T.get_thread_binding()
                if tx >= 128:
                    for i in T.serial(steps):
                        s = i % stages
                        p = i // stages % 2
                        if bug == "stage never primed":
                            T.mbarrier_wait_parity(empty[s], p)  # HERE: stage never primed
                        elif bug == "nobody releases":
                            T.mbarrier_wait_parity(empty[s], 1 - p)  # HERE: nobody releases
                        elif bug != "no wait before a stage is loaded again":
                            T.mbarrier_wait_parity(empty[s], 1 - p)
                        if bug == "half a tile loaded":
                            T.tma_copy(
                                A[bx * N : bx * N + N // 2, i * N : (i + 1) * N],
                                As[s, 0 : N // 2, :],
                                barrier=full[s],
                            )
                        elif bug == "stage past the last":
                            T.tma_copy(  # HERE: stage past the last
                                A[bx * N : (bx + 1) * N, i * N : (i + 1) * N],
                                As[i, :, :],
                                barrier=full[s],
                            )
                        else:
                            T.tma_copy(  # HERE: no wait before a stage is loaded again
                                A[bx * N : (bx + 1) * N, i * N : (i + 1) * N],
                                As[s, :, :],
                                barrier=full[s],
                            )
                        if bug == "more bytes than come":
                            T.mbarrier_expect_tx(full[s], 16)
                        if bug == "one warp arrives":
                            if tx < 160:
                                T.mbarrier_arrive(full[s])
                        elif bug != "nobody arrives":
                            T.mbarrier_arrive(full[s])
                else:
                    if bug != "accumulator not cleared":
                        T.clear(acc)
                    for i in T.serial(steps):
                        s = i % stages
                        p = i // stages % 2
                        if bug == "one thread too few":
                            T.mbarrier_wait_parity(full[s], p)  # HERE: one thread too few
                        elif bug == "one warp arrives":
                            T.mbarrier_wait_parity(full[s], p)  # HERE: one warp arrives
                        elif bug == "nobody arrives":
                            T.mbarrier_wait_parity(full[s], p)  # HERE: nobody arrives
                        elif bug == "more bytes than come":
                            T.mbarrier_wait_parity(full[s], p)  # HERE: more bytes than come
                        elif bug == "wait for the wrong parity":
                            T.mbarrier_wait_parity(full[s], 1 - p)
                        elif bug == "wait for another stage":
                            T.mbarrier_wait_parity(full[1 - s], p)
                        elif bug != "no wait for the data":
                            T.mbarrier_wait_parity(full[s], p)  # HERE: phase half as long
                        if bug == "released before it is read":
                            T.mbarrier_arrive(empty[s])
                            T.gemm(  # HERE: released before it is read
                                As[s, :, :], As[s, :, :], acc
                            )
                        elif bug == "wait for the wrong parity":
                            T.gemm(As[s, :, :], As[s, :, :], acc)  # HERE: wait for the wrong parity
                        elif bug == "no wait for the data":
                            T.gemm(As[s, :, :], As[s, :, :], acc)  # HERE: no wait for the data
                        elif bug == "wait for another stage":
                            T.gemm(As[s, :, :], As[s, :, :], acc)  # HERE: wait for another stage
                        elif bug == "half a tile loaded":
                            T.gemm(As[s, :, :], As[s, :, :], acc)  # HERE: half a tile loaded
                        elif bug == "accumulator not cleared":
                            T.gemm(  # HERE: accumulator not cleared
                                As[s, :, :], As[s, :, :], acc
                            )
                        else:
                            T.gemm(As[s, :, :], As[s, :, :], acc)  # HERE: sum beyond the largest
                        if bug not in ("nobody releases", "released before it is read"):
                            T.mbarrier_arrive(empty[s])
                    if bug == "two blocks one tile":
                        T.copy(acc, C[0, 0])  # HERE: two blocks one tile
                    elif bug == "half a tile stored":
                        T.copy(acc[0 : N // 2, :], C[bx * N, 0])  # HERE: half a tile stored
                    else:
                        T.copy(acc, C[bx * N, 0])

        return main

    a = half(2 * N, steps * N)
    if bug == "sum beyond the largest":
        a[0, 0] = float("inf")
        a[1, 0] = -1.0
        a[0, 1] = 0.0
    kernel()(a)


# -- products into tensor memory


@mutants_of(
    {
        "read before it is done": ("races", "D", "uninitialised barriers"),
        "product never committed": ("barriers", "done"),
        "result overwritten before it is read": ("races", "D", "barriers"),
        "operand released before it is used": ("races", "As", "barriers"),
        "result never cleared": ("uninitialised", "D"),
        "freed too early": ("races", "D"),
        "result past tensor memory": ("bounds", "D"),
        "too many columns": ("budget", "D"),
        "product beyond the largest": ("nonfinite", "D"),
    },
    arch="sm_100a",
)
def multiplied_in_tensor_memory(bug):
    stages, steps, tiles = 2, 3, 4
    slots = 20 if bug == "too many columns" else 2
    released = 32 if bug == "operand released before it is used" else 1

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(
            A: T.Tensor((tiles * N, steps * N), "bfloat16"), C: T.Tensor((tiles * N, N), "float32")
        ):
            with T.Kernel(1, threads=256):
                As = T.alloc_shared((stages, N, N), "bfloat16")
                D = T.alloc_tmem((slots, N, N), "float32")  # HERE: too many columns
                acc = T.alloc_fragment((N, N), "float32")
                full = T.alloc_barrier([32] * stages)
                empty = T.alloc_barrier([released] * stages)
                done = T.alloc_barrier([1, 1])
                free = T.alloc_barrier([128, 128])
                tx = T.get_thread_binding()
                if tx < 32:
                    for turn in T.serial(tiles * steps):
                        s = turn % stages
                        T.mbarrier_wait_parity(empty[s], (turn // stages + 1) % 2)
                        T.tma_copy(  # HERE: operand released before it is used
                            A[
                                turn // steps * N : turn // steps * N + N,
                                turn % steps * N : turn % steps * N + N,
                            ],
                            As[s, :, :],
                            barrier=full[s],
                        )
                        T.mbarrier_arrive(full[s])
                elif tx < 64:
                    for t in T.serial(tiles):
                        if bug != "result overwritten before it is read":
                            T.mbarrier_wait_parity(free[t % 2], (t // 2 + 1) % 2)
                        for i in T.serial(steps):
                            s = (t * steps + i) % stages
                            T.mbarrier_wait_parity(full[s], ((t * steps + i) // stages) % 2)
                            if bug == "operand released before it is used":
                                T.tcgen05_gemm(
                                    As[s, :, :],
                                    As[s, :, :],
                                    D[t % 2, :, :],
                                    mbar=done[1],
                                    clear_accum=i == 0,
                                )
                                T.mbarrier_arrive(empty[s])
                            elif bug == "result never cleared":
                                T.tcgen05_gemm(  # HERE: result never cleared
                                    As[s, :, :], As[s, :, :], D[t % 2, :, :], mbar=empty[s]
                                )
                            elif bug == "result past tensor memory":
                                T.tcgen05_gemm(  # HERE: result past tensor memory
                                    As[s, :, :],
                                    As[s, :, :],
                                    D[t, :, :],
                                    mbar=empty[s],
                                    clear_accum=i == 0,
                                )
                            elif bug == "product beyond the largest":
                                T.tcgen05_gemm(  # HERE: product beyond the largest
                                    As[s, :, :],
                                    As[s, :, :],
                                    D[t % 2, :, :],
                                    mbar=empty[s],
                                    clear_accum=i == 0,
                                )
                            else:
                                T.tcgen05_gemm(  # HERE: result overwritten before it is read
                                    As[s, :, :],
                                    As[s, :, :],
                                    D[t % 2, :, :],
                                    mbar=empty[s],
                                    clear_accum=i == 0,
                                )
                        if bug != "product never committed":
                            T.tcgen05_mma_arrive(done[t % 2])
                elif tx >= 128:
                    for t in T.serial(tiles):
                        q = t // 2 % 2
                        if bug == "product never committed":
                            T.mbarrier_wait_parity(done[t % 2], q)  # HERE: product never committed
                        elif bug == "operand released before it is used":
                            T.mbarrier_wait_parity(done[0], t % 2)
                        elif bug != "read before it is done":
                            T.mbarrier_wait_parity(done[t % 2], (t // 2) % 2)
                        T.copy(D[t % 2, :, :], acc)  # HERE: read before it is done; freed too early
                        T.mbarrier_arrive(free[t % 2])
                        T.copy(acc, C[t * N, 0])
                if bug != "freed too early":
                    T.sync_threads()

        return main

    a = torch.ones(tiles * N, steps * N).bfloat16()
    if bug == "product beyond the largest":
        a[:] = 3e38
    kernel()(a)


# -- the fence between ordinary stores and what reads asynchronously


def _written_for(reader, bug):
    """One role writes a tile with ordinary stores, another gives it to `reader`."""

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((N, N), "float16"), Y: T.Tensor((N, N), "float16")):
            with T.Kernel(1, threads=256):
                s = T.alloc_shared((N, N), "float16")
                acc = T.alloc_fragment((N, N), "float32")
                D = T.alloc_tmem((N, N), "float32")
                ready = T.alloc_barrier(128)
                done = T.alloc_barrier(1)
                tx = T.get_thread_binding()
                if tx < 128:
                    for i, j in T.Parallel(N, N):
                        s[i, j] = X[i, j] * 2
                    if not bug:
                        T.fence_proxy_async()
                    T.mbarrier_arrive(ready)
                else:
                    T.mbarrier_wait_parity(ready, 0)
                    if reader == "a TMA store":
                        T.tma_copy(s, Y)  # HERE: no fence before a TMA store
                        T.tma_store_wait(0)
                    elif reader == "wgmma":
                        T.wgmma_gemm(s, s, acc, clear_accum=True)  # HERE: no fence before wgmma
                        T.wait_wgmma(0)
                        T.copy(acc, Y)
                    else:
                        T.tcgen05_gemm(  # HERE: no fence before tcgen05
                            s, s, D, mbar=done, clear_accum=True
                        )
                        T.mbarrier_wait_parity(done, 0)
                        T.copy(D, acc)
                        T.copy(acc, Y)
                T.sync_threads()

        return main

    kernel()(half(N, N))


@mutants_of({"no fence before a TMA store": ("races", "s")}, source=_written_for)
def stored_with_tma(bug):
    _written_for("a TMA store", bug)


@mutants_of({"no fence before wgmma": ("races", "s")}, source=_written_for)
def multiplied_with_wgmma(bug):
    _written_for("wgmma", bug)


@mutants_of({"no fence before tcgen05": ("races", "s")}, source=_written_for, arch="sm_100a")
def multiplied_with_tcgen05(bug):
    _written_for("tcgen05", bug)


# -- TMA stores, cp.async and wgmma that one role issues


@mutants_of(
    {
        "source written before it is stored": ("races", "s"),
        "block ends before it is stored": ("barriers", "s"),
        "read back before it is stored": ("races", "Y", "uninitialised barriers"),
        "read back when its source is read": ("races", "Y", "uninitialised"),
    }
)
def stored_in_turns(bug):
    @tilelang.jit(out_idx=[1, 2])
    def kernel():
        @T.prim_func
        def main(
            X: T.Tensor((3, N), "float32"),
            Y: T.Tensor((3, N), "float32"),
            Z: T.Tensor((N,), "float32"),
        ):
            with T.Kernel(1, threads=128):
                s = T.alloc_shared((N,), "float32")
                for t in T.serial(3):
                    for i in T.Parallel(N):
                        s[i] = X[t, i] + 1  # HERE: source written before it is stored
                    T.tma_copy(s, Y[t, :])  # HERE: block ends before it is stored
                    if bug == "read back when its source is read":
                        T.tma_store_wait(0)
                    elif bug == "block ends before it is stored":
                        if t < 2:
                            T.tma_store_wait(0)
                    elif bug == "source written before it is stored":
                        if t == 2:
                            T.tma_store_wait(0, read=False)
                    elif bug == "":
                        T.tma_store_wait(0, read=False)
                if bug == "read back before it is stored":
                    for i in T.Parallel(N):
                        Z[i] = Y[2, i]  # HERE: read back before it is stored
                elif bug == "block ends before it is stored":
                    for i in T.Parallel(N):
                        Z[i] = X[2, i]
                else:
                    for i in T.Parallel(N):
                        Z[i] = Y[2, i]  # HERE: read back when its source is read

        return main

    kernel()(torch.ones(3, N))


@mutants_of(
    {
        "no wait for cp.async": ("races", "s", "uninitialised barriers"),
        "one group too many in flight": ("races", "s", "uninitialised"),
    }
)
def copied_ahead(bug):
    left = 2 if bug == "one group too many in flight" else 1

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((4, N), "float32"), Y: T.Tensor((4, N), "float32")):
            with T.Kernel(1, threads=128):
                s = T.alloc_shared((4, N), "float32")
                T.async_copy(X[0, :], s[0, :])
                for t in T.serial(3):
                    T.async_copy(X[t + 1, :], s[t + 1, :])
                    if bug == "no wait for cp.async":
                        for i in T.Parallel(N):
                            Y[t, i] = s[t, i] * 2  # HERE: no wait for cp.async
                    else:
                        T.ptx_wait_group(left)
                        for i in T.Parallel(N):
                            Y[t, i] = s[t, i] * 2  # HERE: one group too many in flight
                if bug != "no wait for cp.async":
                    T.ptx_wait_group(0)
                for i in T.Parallel(N):
                    Y[3, i] = s[3, i] * 2

        return main

    kernel()(torch.ones(4, N))


@mutants_of(
    {
        "no wait for wgmma": ("races", "acc", "uninitialised"),
        "operand written while wgmma reads": ("races", "s"),
    }
)
def multiplied_ahead(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(A: T.Tensor((N, N), "float16"), C: T.Tensor((N, N), "float32")):
            with T.Kernel(1, threads=128):
                s = T.alloc_shared((N, N), "float16")
                acc = T.alloc_fragment((N, N), "float32")
                T.copy(A, s)
                T.wgmma_gemm(s, s, acc, clear_accum=True)
                if bug == "operand written while wgmma reads":
                    for i, j in T.Parallel(N, N):
                        s[i, j] = 0.0  # HERE: operand written while wgmma reads
                if bug != "no wait for wgmma":
                    T.wait_wgmma(0)
                T.copy(acc, C)  # HERE: no wait for wgmma

        return main

    kernel()(half(N, N))


# -- barriers of threads


@mutants_of(
    {
        "no T.sync_threads": ("races", "s", "uninitialised"),
        "one role skips T.sync_threads": ("barriers", "T.sync_threads"),
        "named barrier waits for too many": ("barriers", "named barrier 1"),
        "named barrier waits for too few": ("races", "s", "uninitialised barriers"),
    }
)
def handed_over(bug):
    count = {"named barrier waits for too many": 96, "named barrier waits for too few": 32}
    named = count.get(bug, 64)

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
            with T.Kernel(1, threads=96):
                s = T.alloc_shared((2, N), "float32")
                ready = T.alloc_barrier(32)
                tx = T.get_thread_binding()
                if tx < 32:
                    for i in T.Parallel(N):
                        s[0, i] = X[i]
                    T.sync_threads(1, named)  # HERE: named barrier waits for too many
                    if bug != "no T.sync_threads":
                        T.sync_threads()
                elif tx < 64:
                    T.sync_threads(1, named)
                    for i in T.Parallel(N):
                        s[1, i] = s[0, i] * 2  # HERE: named barrier waits for too few
                    if bug != "no T.sync_threads":
                        T.sync_threads()  # HERE: one role skips T.sync_threads
                    T.mbarrier_arrive(ready)
                else:
                    if bug == "one role skips T.sync_threads":
                        T.mbarrier_wait_parity(ready, 0)
                    elif bug != "no T.sync_threads":
                        T.sync_threads()
                    for i in T.Parallel(N):
                        Y[i] = s[1, i]  # HERE: no T.sync_threads

        return main

    kernel()(torch.ones(N))


# -- flags in global memory


@mutants_of(
    {
        "flag set without release": ("races", "X"),
        "flag read without acquire": ("races", "X"),
        "flag set by a plain store": ("races", "F"),
        "flag set before the others have written": ("races", "X"),
        "nobody reads the flag": ("races", "X"),
        "flag never set": ("barriers", ""),
    }
)
def flagged(bug):
    release = "relaxed" if bug == "flag set without release" else "release"
    acquire = "relaxed" if bug == "flag read without acquire" else "acquire"

    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(
            X: T.Tensor((N,), "float32"), F: T.Tensor((1,), "int32"), Y: T.Tensor((N,), "float32")
        ):
            with T.Kernel(2, threads=64) as bx:
                tx = T.get_thread_binding()
                if bx == 0:
                    if tx >= 32:
                        for i in T.Parallel(N):
                            X[i] = i
                    if bug != "flag set before the others have written":
                        T.sync_threads()
                    if tx == 0:
                        if bug == "flag set by a plain store":
                            F[0] = 1  # HERE: flag set by a plain store
                        elif bug != "flag never set":
                            T.atomic_add(F[0], 1, memory_order=release)
                else:
                    if tx == 0 and bug != "nobody reads the flag":
                        while T.atomic_load(F[0], acquire) < 1:  # HERE: flag never set
                            T.evaluate(0)
                    T.sync_threads()
                    if bug == "flag set without release":
                        for i in T.Parallel(N):
                            Y[i] = X[i]  # HERE: flag set without release
                    elif bug == "flag read without acquire":
                        for i in T.Parallel(N):
                            Y[i] = X[i]  # HERE: flag read without acquire
                    elif bug == "nobody reads the flag":
                        for i in T.Parallel(N):
                            Y[i] = X[i]  # HERE: nobody reads the flag
                    elif bug != "flag set by a plain store":
                        for i in T.Parallel(N):
                            Y[i] = X[i]  # HERE: flag set before the others have written

        return main

    kernel()(torch.zeros(N), torch.zeros(1, dtype=torch.int32), torch.zeros(N))


# -- memory of threads and roles


@mutants_of(
    {
        "past shared memory": ("bounds", "s", "uninitialised"),
        "last thread idle": ("unwritten", "Y"),
        "threads that differ store to one element": ("lanes", "s"),
        "own memory unset": ("uninitialised", "mine"),
        "element that no thread writes": ("uninitialised", "s"),
        "plain store beside atomics": ("races", "Sum"),
        "exponent too large": ("nonfinite", "mine"),
    }
)
def by_thread(bug):
    shift = 1 if bug == "past shared memory" else 0
    last = 31 if bug == "last thread idle" else 32
    half_set = 16 if bug == "own memory unset" else 32
    written = 31 if bug == "element that no thread writes" else 32

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(
            X: T.Tensor((32,), "float32"),
            Y: T.Tensor((32,), "float32"),
            Sum: T.Tensor((1,), "float32"),
        ):
            with T.Kernel(2, threads=32) as bx:
                s = T.alloc_shared((32,), "float32")
                mine = T.alloc_local((1,), "float32")
                tx = T.get_thread_binding()
                if tx < half_set:
                    mine[0] = T.exp(X[tx])  # HERE: exponent too large
                if bug == "threads that differ store to one element":
                    s[tx // 2] = X[tx]  # HERE: threads that differ store to one element
                T.sync_threads()
                if tx < written:
                    s[tx + shift] = mine[0] + bx  # HERE: past shared memory; own memory unset
                T.sync_threads()
                if bx == 0 and tx < last:
                    if bug == "element that no thread writes":
                        Y[tx] = s[31 - tx]  # HERE: element that no thread writes
                    else:
                        Y[tx] = s[tx]  # HERE: last thread idle
                if tx == 0:
                    if bug == "plain store beside atomics" and bx == 0:
                        Sum[0] = 1.0  # HERE: plain store beside atomics
                    T.atomic_add(Sum[0], mine[0])

        return main

    x = torch.arange(32.0)
    if bug == "exponent too large":
        x[3] = 200.0
    kernel()(x, torch.zeros(1))


@mutants_of(
    {
        "tile of another sequence loaded": ("sequences", "X"),
        "row of the next sequence written": ("sequences", "Out", "races"),
    },
    sequences={"X": BOUNDARIES, "Out": BOUNDARIES},
)
def packed_rows(bug):
    L = 48

    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(
            X: T.Tensor((96, 16), "float32"),
            Cu: T.Tensor((4,), "int32"),
            Out: T.Tensor((96, 16), "float32"),
        ):
            with T.Kernel(3, threads=256) as b:
                s = T.alloc_shared((L, 16), "float32")
                full = T.alloc_barrier(128)
                tx = T.get_thread_binding()
                if tx >= 128:
                    start = Cu[b]
                    size = Cu[b + 1] - start
                    if bug == "tile of another sequence loaded":
                        for i, j in T.Parallel(L, 16):
                            s[i, j] = X[  # HERE: tile of another sequence loaded
                                (start + 60 + i % 16) % 96, j
                            ]
                    else:
                        for i, j in T.Parallel(L, 16):
                            if i < size:
                                s[i, j] = X[start + i, j]
                            else:
                                s[i, j] = 0.0
                    T.mbarrier_arrive(full)
                else:
                    start2 = Cu[b]
                    size2 = Cu[b + 1] - start2
                    T.mbarrier_wait_parity(full, 0)
                    if bug == "row of the next sequence written":
                        for i, j in T.Parallel(L, 16):
                            if start2 + i < 96:
                                Out[  # HERE: row of the next sequence written
                                    start2 + i, j
                                ] = s[i, j]
                    else:
                        for i, j in T.Parallel(L, 16):
                            if i < size2:
                                Out[start2 + i, j] = s[i, j]

        return main

    kernel()(torch.ones(96, 16), CU, torch.zeros(96, 16))


@mutants_of({"stages that do not fit": ("budget", "As")})
def stages_of_shared_memory(bug):
    stages = 8 if bug else 2

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(A: T.Tensor((128, 128), "float16"), C: T.Tensor((128, 128), "float16")):
            with T.Kernel(1, threads=256):
                As = T.alloc_shared((stages, 128, 128), "float16")  # HERE: stages that do not fit
                full = T.alloc_barrier(128)
                tx = T.get_thread_binding()
                if tx >= 128:
                    T.tma_copy(A, As[stages - 1, :, :], barrier=full)
                    T.mbarrier_arrive(full)
                else:
                    T.mbarrier_wait_parity(full, 0)
                    T.copy(As[stages - 1, :, :], C)

        return main

    kernel()(half(128, 128))
