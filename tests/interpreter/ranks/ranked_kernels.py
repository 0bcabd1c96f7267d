"""Kernels whose blocks wait for flags and raise them."""

import tilelang
import tilelang.language as T


@tilelang.jit(out_idx=[-1])
def gathered_gemm(m, n, k, world, owner=None):
    """A GEMM whose tiles wait until the rows that they read have come."""
    rows = m // world
    owner = owner or (lambda row: row // rows)

    @T.prim_func
    def gemm(
        a: T.Tensor((m, k), "float16"),
        b: T.Tensor((k, n), "float16"),
        flags: T.Tensor((world,), "int32"),
        epoch: T.int32,
        c: T.Tensor((m, n), "float16"),
    ):
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32), threads=128) as (bx, by):
            a_shared = T.alloc_shared((32, 32), "float16")
            b_shared = T.alloc_shared((32, 32), "float16")
            acc = T.alloc_fragment((32, 32), "float32")
            T.call_extern(
                "int32",
                "tlm_wait_ge_acquire_sys",
                T.address_of(flags[owner(by * 32)]),
                epoch,
            )
            T.clear(acc)
            for i in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(a[by * 32, i * 32], a_shared)
                T.copy(b[i * 32, bx * 32], b_shared)
                T.gemm(a_shared, b_shared, acc)
            T.copy(acc, c[by * 32, bx * 32])

    return gemm


@tilelang.jit(out_idx=[])
def post(function="tlm_block_store_release_sys", n=64, early=False):
    """Writes a tile, and raises a flag for it."""

    @T.prim_func
    def post(
        x: T.Tensor((n,), "float32"),
        y: T.Tensor((n,), "float32"),
        flags: T.Tensor((8,), "int32"),
        index: T.int32,
        value: T.int32,
    ):
        with T.Kernel(1, threads=64) as _:
            tile = T.alloc_fragment((n,), "float32")
            if early:
                T.call_extern("handle", function, T.address_of(flags[index]), value)
            T.copy(x, tile)
            T.copy(tile, y)
            if not early:
                T.call_extern("handle", function, T.address_of(flags[index]), value)

    return post


@tilelang.jit(out_idx=[])
def take(function="tlm_wait_ge_acquire_sys", n=64):
    """Waits for a flag, and copies what it stands for."""

    @T.prim_func
    def take(
        x: T.Tensor((n,), "float32"),
        y: T.Tensor((n,), "float32"),
        flags: T.Tensor((8,), "int32"),
        index: T.int32,
        value: T.int32,
    ):
        with T.Kernel(1, threads=64) as _:
            tile = T.alloc_fragment((n,), "float32")
            T.call_extern("int32", function, T.address_of(flags[index]), value)
            T.copy(x, tile)
            T.copy(tile, y)

    return take


@tilelang.jit(out_idx=[])
def take_and_reset(n=64):
    """Waits until a flag is raised, copies, and lowers it again: what epochs are for."""

    @T.prim_func
    def take_and_reset(
        x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32"), flags: T.Tensor((8,), "int32")
    ):
        with T.Kernel(1, threads=64) as _:
            tile = T.alloc_fragment((n,), "float32")
            T.call_extern("int32", "tlm_wait_eq_acquire_sys", T.address_of(flags[0]), 1)
            T.copy(x, tile)
            T.copy(tile, y)
            T.call_extern("handle", "tlm_block_store_release_sys", T.address_of(flags[0]), 0)

    return take_and_reset


@tilelang.jit(out_idx=[])
def post_atomic(n=64):
    """As `post`, with TileLang's own atomic: of device scope."""

    @T.prim_func
    def post_atomic(
        x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32"), flags: T.Tensor((8,), "int32")
    ):
        with T.Kernel(1, threads=1) as _:
            tile = T.alloc_fragment((n,), "float32")
            T.copy(x, tile)
            T.copy(tile, y)
            T.atomic_add(flags[0], 1, memory_order="release")
            # What makes its blocks tasks; nobody waits for it.
            T.call_extern("handle", "tlm_block_store_relaxed_gpu", T.address_of(flags[7]), 0)

    return post_atomic


@tilelang.jit(out_idx=[])
def post_tiles(blocks, n=64, early=False, counted=None):
    """Every block writes a tile, and counts itself on one flag."""
    counted = counted or blocks

    @T.prim_func
    def post_tiles(
        x: T.Tensor((blocks, n), "float32"),
        y: T.Tensor((blocks, n), "float32"),
        flags: T.Tensor((8,), "int32"),
    ):
        with T.Kernel(blocks, threads=64) as bx:
            tile = T.alloc_fragment((n,), "float32")
            T.copy(x[bx, 0], tile)
            if early:
                T.call_extern(
                    "handle", "tlm_block_fetch_add_release_sys", T.address_of(flags[0]), 1
                )
            T.copy(tile, y[bx, 0])
            if not early and bx < counted:
                T.call_extern(
                    "handle", "tlm_block_fetch_add_release_sys", T.address_of(flags[0]), 1
                )

    return post_tiles


@tilelang.jit(out_idx=[])
def locked():
    """Functions of the user's own: a lock around a sum that is no atomic."""

    @T.prim_func
    def locked(lock: T.Tensor((1,), "int32"), total: T.Tensor((1,), "int32")):
        with T.Kernel(6, threads=32) as bx:
            T.call_extern("int32", "test_acquire", T.address_of(lock[0]))
            before = T.alloc_var("int32")
            before = total[0]
            total[0] = before + T.call_extern("int32", "test_double", bx)
            T.call_extern("handle", "test_release", T.address_of(lock[0]))

    return locked


@tilelang.jit(out_idx=[])
def unknown():
    """Calls what nobody models."""

    @T.prim_func
    def unknown(x: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=32) as _:
            x[0] = T.call_extern("int32", "test_unknown", 1)

    return unknown


@tilelang.jit(out_idx=[])
def roles_and_flags():
    """A flag in a kernel whose threads do different things."""

    @T.prim_func
    def roles_and_flags(x: T.Tensor((64,), "int32"), flags: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=64) as _:
            x[T.get_thread_binding()] = 1
            T.call_extern("int32", "tlm_wait_ge_acquire_sys", T.address_of(flags[0]), 1)

    return roles_and_flags


@tilelang.jit(out_idx=[])
def spin_atomically():
    """Spins on a flag with TileLang's own atomic load."""

    @T.prim_func
    def spin_atomically(flags: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32) as _:
            while T.atomic_load(flags[0], memory_order="acquire") < 1:
                T.evaluate(0)

    return spin_atomically


@tilelang.jit(out_idx=[])
def wait_alone():
    """Waits for a flag, and does nothing else: what comes behind it on the stream reads."""

    @T.prim_func
    def wait_alone(flags: T.Tensor((8,), "int32"), value: T.int32):
        with T.Kernel(1, threads=32) as _:
            T.call_extern("int32", "tlm_wait_ge_acquire_sys", T.address_of(flags[0]), value)

    return wait_alone


@tilelang.jit(out_idx=[])
def spin(function="tlm_load_acquire_sys"):
    """Reads a flag in a loop until it has a value."""

    @T.prim_func
    def spin(flags: T.Tensor((8,), "int32"), seen: T.Tensor((1,), "int32"), value: T.int32):
        with T.Kernel(1, threads=64) as _:
            while T.call_extern("int32", function, T.address_of(flags[0])) < value:
                T.evaluate(0)
            seen[0] = T.call_extern("int32", function, T.address_of(flags[0]))

    return spin


@tilelang.jit(out_idx=[])
def chain(blocks, n=8):
    """Every block waits for the one after it; the last one starts."""

    @T.prim_func
    def chain(flags: T.Tensor((n,), "int32"), order: T.Tensor((n,), "int32")):
        with T.Kernel(blocks, threads=64) as bx:
            if bx < blocks - 1:
                T.call_extern("int32", "tlm_wait_ge_acquire_gpu", T.address_of(flags[bx + 1]), 1)
            order[bx] = T.call_extern(
                "int32", "tlm_fetch_add_acq_rel_gpu", T.address_of(order[n - 1]), 1
            )
            T.call_extern("handle", "tlm_block_store_release_gpu", T.address_of(flags[bx]), 1)

    return chain


@tilelang.jit
def shifted(by):
    """Adds `by`, a literal, which code generation rounds with PyTorch."""

    @T.prim_func
    def main(x: T.Tensor((64,), "float16"), y: T.Tensor((64,), "float16")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                y[i] = x[i] + T.float16(by)

    return main
