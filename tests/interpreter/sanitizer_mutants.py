"""Small kernels, each with one memory bug: `bug=True` mutants it at the line marked HERE.

Without the bug no sanitizer has anything to say. `MUTANTS` lists them with the sanitizer and the
buffer that the report must name.
"""

import inspect
from dataclasses import dataclass, field
from typing import Any

import tilelang
import tilelang.language as T
import torch

MUTANTS = []
ROLE_MUTANTS = []
GUARDS_OFF = {tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True}
BOUNDARIES = (0, 20, 50, 96)
CU = torch.tensor(BOUNDARIES, dtype=torch.int32)


@dataclass(frozen=True)
class Mutant:
    run: Any
    sanitizer: str
    buffer: str
    also: frozenset
    options: dict = field(default_factory=dict)
    # Of a kernel that takes one of several bugs its name, and what it is written in.
    name: str = ""
    source: Any = None

    def __str__(self):
        return self.name or self.run.__name__

    @property
    def line(self):
        lines, first = inspect.getsourcelines(self.source or self.run)
        (found,) = (
            first + k
            for k, (_, mark, names) in enumerate(text.partition("# HERE") for text in lines)
            if mark and (not self.name or self.name in names.strip(": \n").split("; "))
        )
        return found

    @property
    def file(self):
        return inspect.getsourcefile(self.source or self.run)


def mutant(sanitizer, buffer, also=(), **options):
    """Register a mutant; `also` are sanitizers that see another side of the same bug."""

    def register(run):
        MUTANTS.append(Mutant(run, sanitizer, buffer, frozenset(also), options))
        return run

    return register


def mutants_of(bugs, source=None, **options):
    """Note the bugs of one kernel: by name the sanitizer, the buffer, and who sees it too."""

    def register(run):
        for name, (sanitizer, buffer, *also) in bugs.items():
            seen = frozenset(" ".join(also).split())
            ROLE_MUTANTS.append(Mutant(run, sanitizer, buffer, seen, options, name, source or run))
        return run

    return register


# -- bounds


@mutant("bounds", "s")
def load_past_shared_memory(bug):
    off = 8 if bug else 0

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((32,), "float32")
                T.copy(X, s)
                for i in T.Parallel(32):
                    Y[i] = s[i + off]  # HERE

        return main

    kernel()(torch.ones(32))


@mutant("bounds", "s")
def store_past_shared_memory(bug):
    off = 1 if bug else 0

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((32,), "float32")
                T.clear(s)
                for i in T.Parallel(32):
                    s[i + off] = X[i]  # HERE
                T.copy(s, Y)

        return main

    kernel()(torch.ones(32))


@mutant("fragments", "f")
def fill_past_a_fragment(bug):
    width = 32 if bug else 16

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
            with T.Kernel(1, threads=32):
                f = T.alloc_fragment((16,), "float32")
                for i in T.Parallel(width):
                    f[i] = 0.0  # HERE
                for i in T.Parallel(16):
                    Y[i] = X[i] + f[i]

        return main

    kernel()(torch.ones(16))


@mutant("bounds", "X")
def constant_index_past_a_tensor(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        n = T.dynamic("n")

        @T.prim_func
        def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((4,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(4):
                    Y[i] = X[7]  # HERE

        return main

    kernel()(torch.ones(7 if bug else 8))


@mutant("bounds", "X")
def unguarded_load_past_a_tensor(bug):
    @tilelang.jit(out_idx=[1], pass_configs=GUARDS_OFF)
    def kernel():
        n = T.dynamic("n")

        @T.prim_func
        def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((32,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(32):
                    Y[i] = X[i]  # HERE

        return main

    kernel()(torch.ones(31 if bug else 32))


@mutant("bounds", "Y")
def unguarded_store_past_a_tensor(bug):
    @tilelang.jit(pass_configs=GUARDS_OFF)
    def kernel():
        n = T.dynamic("n")

        @T.prim_func
        def main(Y: T.Tensor((n,), "float16")):
            with T.Kernel(2, threads=32) as bx:
                for i in T.Parallel(32):
                    Y[bx * 32 + i] = 1.0  # HERE

        return main

    kernel()(torch.zeros(50 if bug else 64).half())


@mutant("bounds", "s")
def negative_index_into_shared_memory(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((16,), "float32"), back: T.int32):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((32,), "float32")
                T.copy(X, s)
                for i in T.Parallel(16):
                    Y[i] = s[i + 2 - back]  # HERE

        return main

    kernel()(torch.ones(32), 3 if bug else 2)


@mutant("bounds", "s")
def gathered_index_past_shared_memory(bug):
    @tilelang.jit(out_idx=[2])
    def kernel():
        @T.prim_func
        def main(
            X: T.Tensor((32,), "float32"),
            At: T.Tensor((32,), "int32"),
            Y: T.Tensor((32,), "float32"),
        ):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((32,), "float32")
                T.copy(X, s)
                for i in T.Parallel(32):
                    Y[i] = s[At[i]]  # HERE

        return main

    kernel()(torch.ones(32), torch.arange(32, dtype=torch.int32) + (1 if bug else 0))


@mutant("bounds", "s")
def serial_loop_one_too_long(bug):
    steps = 9 if bug else 8

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((8,), "float32"), Y: T.Tensor((1,), "float32")):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((8,), "float32")
                total = T.alloc_var("float32", init=0.0)
                T.copy(X, s)
                for k in T.serial(steps):
                    total = total + s[k]  # HERE
                Y[0] = total

        return main

    kernel()(torch.ones(8))


@mutant("bounds", "ring")
def ring_without_modulo(bug):
    wrap = 1000 if bug else 2

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((4, 16), "float32"), Y: T.Tensor((4, 16), "float32")):
            with T.Kernel(1, threads=32):
                ring = T.alloc_shared((2, 16), "float32")
                for k in T.serial(4):
                    for i in T.Parallel(16):
                        ring[k % wrap, i] = X[k, i]  # HERE
                    for i in T.Parallel(16):
                        Y[k, i] = ring[k % 2, i]

        return main

    kernel()(torch.ones(4, 16))


# -- uninitialised


@mutant("uninitialised", "acc")
def accumulator_never_cleared(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((4, 32), "float32"), Y: T.Tensor((32,), "float32")):
            with T.Kernel(1, threads=32):
                acc = T.alloc_fragment((32,), "float32")
                if not bug:
                    T.clear(acc)
                for k in T.serial(4):
                    for i in T.Parallel(32):
                        acc[i] += X[k, i]  # HERE
                T.copy(acc, Y)

        return main

    kernel()(torch.ones(4, 32))


@mutant("uninitialised", "c")
def product_into_an_accumulator_never_cleared(bug):
    @tilelang.jit(out_idx=[2])
    def kernel():
        @T.prim_func
        def main(
            A: T.Tensor((32, 32), "float16"),
            B: T.Tensor((32, 32), "float16"),
            C: T.Tensor((32, 32), "float32"),
        ):
            with T.Kernel(1, threads=128):
                a = T.alloc_shared((32, 32), "float16")
                b = T.alloc_shared((32, 32), "float16")
                c = T.alloc_fragment((32, 32), "float32")
                T.copy(A, a)
                T.copy(B, b)
                if not bug:
                    T.clear(c)
                T.gemm(a, b, c)  # HERE
                T.copy(c, C)

        return main

    kernel()(torch.ones(32, 32).half(), torch.ones(32, 32).half())


@mutant("uninitialised", "s")
def shared_memory_read_before_its_copy(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((32,), "float32")
                if not bug:
                    T.copy(X, s)
                for i in T.Parallel(32):
                    Y[i] = s[i] * 2.0  # HERE
                if bug:
                    T.copy(X, s)

        return main

    kernel()(torch.ones(32))


@mutant("uninitialised", "f")
def reduction_over_a_half_written_tile(bug):
    rows = 8 if bug else 16

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((16, 32), "float32"), Y: T.Tensor((32,), "float32")):
            with T.Kernel(1, threads=32):
                f = T.alloc_fragment((16, 32), "float32")
                total = T.alloc_fragment((32,), "float32")
                for i, j in T.Parallel(rows, 32):
                    f[i, j] = X[i, j]
                T.reduce_sum(f, total, dim=0)  # HERE
                T.copy(total, Y)

        return main

    kernel()(torch.ones(16, 32))


@mutant("uninitialised", "m")
def running_maximum_without_a_start(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((16, 32), "float32"), Y: T.Tensor((16,), "float32")):
            with T.Kernel(1, threads=32):
                f = T.alloc_fragment((16, 32), "float32")
                m = T.alloc_fragment((16,), "float32")
                T.copy(X, f)
                if not bug:
                    T.fill(m, -T.infinity("float32"))
                T.reduce_max(f, m, dim=1, clear=False)  # HERE
                T.copy(m, Y)

        return main

    kernel()(torch.ones(16, 32))


@mutant("uninitialised", "f")
def unwritten_tile_copied_out_through_shared_memory(bug):
    rows = 15 if bug else 16

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((16, 32), "float32"), Y: T.Tensor((16, 32), "float32")):
            with T.Kernel(1, threads=32):
                f = T.alloc_fragment((16, 32), "float32")
                for i, j in T.Parallel(rows, 32):
                    f[i, j] = X[i, j]
                T.copy(f, Y)  # HERE

        return main

    kernel()(torch.ones(16, 32))


@mutant("uninitialised", "Y")
def output_read_before_it_is_written(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
            with T.Kernel(1, threads=32):
                if not bug:
                    for i in T.Parallel(32):
                        Y[i] = 0.0
                for i in T.Parallel(32):
                    Y[i] = Y[i] + X[i]  # HERE

        return main

    kernel()(torch.ones(32))


@mutant("uninitialised", "Y")
def atomics_onto_an_output_never_cleared(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
            with T.Kernel(1, threads=32):
                if not bug:
                    for i in T.Parallel(32):
                        Y[i] = 0.0
                for i in T.Parallel(32):
                    T.atomic_add(Y[i], X[i])  # HERE

        return main

    kernel()(torch.ones(32))


@mutant("uninitialised", "f")
def last_lane_never_written(bug):
    active = 31 if bug else 32

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
            with T.Kernel(1, threads=32):
                f = T.alloc_fragment((32,), "float32")
                for i in T.Parallel(32):
                    if i < active:
                        f[i] = X[i]
                for i in T.Parallel(32):
                    Y[i] = f[i] + 1.0  # HERE

        return main

    kernel()(torch.ones(32))


@mutant("uninitialised", "s")
def second_block_relies_on_the_first_ones_memory(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((2, 32), "float32"), only: T.int32):
            with T.Kernel(2, threads=32) as bx:
                s = T.alloc_shared((32,), "float32")
                if bx < only:
                    T.copy(X, s)
                for i in T.Parallel(32):
                    Y[bx, i] = s[i] * 3.0  # HERE

        return main

    kernel()(torch.ones(32), 1 if bug else 2)


# -- unwritten


@mutant("unwritten", "Y")
def last_column_never_written(bug):
    width = 31 if bug else 32

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((16, 32), "float32"), Y: T.Tensor((16, 32), "float32")):
            with T.Kernel(1, threads=32):
                for i, j in T.Parallel(16, width):
                    Y[i, j] = X[i, j]  # HERE

        return main

    kernel()(torch.ones(16, 32))


@mutant("unwritten", "Y")
def grid_without_its_last_tile(bug):
    up = 0 if bug else 31

    @tilelang.jit(out_idx=[1])
    def kernel():
        n = T.dynamic("n")

        @T.prim_func
        def main(X: T.Tensor((n,), "float16"), Y: T.Tensor((n,), "float16")):
            with T.Kernel((n + up) // 32, threads=32) as bx:
                for i in T.Parallel(32):
                    Y[bx * 32 + i] = X[bx * 32 + i]  # HERE

        return main

    kernel()(torch.ones(70).half())


@mutant("unwritten", "Y")
def guard_off_by_one(bug):
    less = 1 if bug else 0

    @tilelang.jit
    def kernel():
        n = T.dynamic("n")

        @T.prim_func
        def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
            with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
                for i in T.Parallel(32):
                    if bx * 32 + i < n - less:
                        Y[bx * 32 + i] = X[bx * 32 + i]  # HERE

        return main

    kernel()(torch.ones(70), torch.empty(70))


@mutant("unwritten", "Y")
def rows_of_an_empty_loop_never_written(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(Lens: T.Tensor((4,), "int32"), Y: T.Tensor((4, 8), "float32")):
            with T.Kernel(4, threads=32) as bx:
                if Lens[bx] > 0 or not bug:
                    for i in T.Parallel(8):
                        Y[bx, i] = 1.0  # HERE

        return main

    kernel()(torch.tensor([3, 0, 1, 2], dtype=torch.int32))


# -- races between blocks


@mutant("races", "Y")
def two_blocks_write_one_row(bug):
    share = 2 if bug else 1

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((4, 32), "float32"), Y: T.Tensor((4, 32), "float32")):
            with T.Kernel(4, share, threads=32) as (bx, by):  # noqa: RUF059
                for i in T.Parallel(32):
                    Y[bx, i] = X[bx, i]  # HERE

        return main

    kernel()(torch.ones(4, 32))


@mutant("races", "Y")
def tiles_overlap(bug):
    stride = 24 if bug else 32

    @tilelang.jit(out_idx=[1])
    def kernel():
        n = 2 * stride + 32

        @T.prim_func
        def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
            with T.Kernel(3, threads=32) as bx:
                f = T.alloc_fragment((32,), "float32")
                T.copy(X[bx * stride], f)
                T.copy(f, Y[bx * stride : bx * stride + 32])  # HERE

        return main

    kernel()(torch.ones(2 * stride + 32))


@mutant("races", "Y")
def start_value_beside_atomics(bug):
    starters = 1 if bug else 0

    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((4, 32), "float32"), Y: T.Tensor((32,), "float32")):
            with T.Kernel(4, threads=32) as bx:
                if bx < starters:
                    for i in T.Parallel(32):
                        Y[i] = 0.0
                for i in T.Parallel(32):
                    T.atomic_add(Y[i], X[bx, i])  # HERE

        return main

    kernel()(torch.ones(4, 32), torch.zeros(32))


@mutant("races", "X")
def stencil_in_place(bug):
    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((128,), "float32"), Z: T.Tensor((128,), "float32")):
            with T.Kernel(4, threads=32) as bx:
                f = T.alloc_fragment((32,), "float32")
                for i in T.Parallel(32):
                    f[i] = X[T.max(bx * 32 + i - 1, 0)]  # HERE
                for i in T.Parallel(32):
                    if bug:
                        X[bx * 32 + i] = f[i]
                    else:
                        Z[bx * 32 + i] = f[i]

        return main

    kernel()(torch.ones(128), torch.zeros(128))


@mutant("races", "X")
def block_reads_ahead_of_its_writer(bug):
    step = 1 if bug else 0

    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((5, 32), "float32")):
            with T.Kernel(4, threads=32) as bx:
                f = T.alloc_fragment((32,), "float32")
                for i in T.Parallel(32):
                    f[i] = X[bx + step, i]
                for i in T.Parallel(32):
                    X[bx, i] = f[i] * 2.0  # HERE

        return main

    kernel()(torch.ones(5, 32))


@mutant("races", "Y")
def sum_without_an_atomic(bug):
    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((4,), "float32"), Y: T.Tensor((1,), "float32")):
            with T.Kernel(4, threads=32) as bx:
                if bug:
                    Y[0] = X[bx]  # HERE
                else:
                    T.atomic_add(Y[0], X[bx])

        return main

    kernel()(torch.ones(4), torch.zeros(1))


@mutant("races", "Part")
def last_block_sums_without_waiting(bug):
    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(
            X: T.Tensor((4,), "float32"),
            Part: T.Tensor((4,), "float32"),
            Ready: T.Tensor((1,), "int32"),
            Y: T.Tensor((1,), "float32"),
        ):
            with T.Kernel(4, threads=1) as bx:
                before = T.alloc_var("int32", init=3)
                Part[bx] = X[bx]
                if not bug:
                    before = T.atomic_add(Ready[0], 1, return_prev=True)
                if bx == 3 and before == 3:
                    total = T.alloc_var("float32", init=0.0)
                    for k in T.serial(4):
                        total = total + Part[k]  # HERE
                    Y[0] = total

        return main

    kernel()(torch.ones(4), torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(1))


# -- lanes of one parallel loop


@mutant("lanes", "Y")
def two_lanes_for_one_element(bug):
    half = 2 if bug else 1

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32 // half,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(32):
                    Y[i // half] = X[i]  # HERE

        return main

    kernel()(torch.ones(32))


@mutant("lanes", "m")
def row_value_from_every_column(bug):
    columns = 32 if bug else 1

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((16, 32), "float32"), Y: T.Tensor((16,), "float32")):
            with T.Kernel(1, threads=32):
                m = T.alloc_fragment((16,), "float32")
                for i, j in T.Parallel(16, columns):
                    m[i] = X[i, j]  # HERE
                T.copy(m, Y)

        return main

    kernel()(torch.ones(16, 32))


@mutant("lanes", "Y", also={"unwritten"})
def scatter_with_a_repeated_index(bug):
    @tilelang.jit
    def kernel():
        @T.prim_func
        def main(
            X: T.Tensor((32,), "float32"),
            At: T.Tensor((32,), "int32"),
            Y: T.Tensor((32,), "float32"),
        ):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(32):
                    Y[At[i]] = X[i]  # HERE

        return main

    at = torch.arange(31, -1, -1, dtype=torch.int32)
    if bug:
        at[3] = at[7]
    kernel()(torch.ones(32), at, torch.zeros(32))


@mutant("lanes", "s")
def ring_smaller_than_the_loop(bug):
    ring = 16 if bug else 32

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((ring,), "float32")):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((ring,), "float32")
                for i in T.Parallel(32):
                    s[i % ring] = X[i]  # HERE
                T.copy(s, Y)

        return main

    kernel()(torch.ones(32))


@mutant("lanes", "m")
def guard_that_lets_two_lanes_through(bug):
    lanes = 2 if bug else 1

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((16, 32), "float32"), Y: T.Tensor((16,), "float32")):
            with T.Kernel(1, threads=32):
                m = T.alloc_shared((16,), "float32")
                for i, j in T.Parallel(16, 32):
                    if j < lanes:
                        m[i] = X[i, j]  # HERE
                T.copy(m, Y)

        return main

    kernel()(torch.ones(16, 32))


# -- packed sequences


@mutant("sequences", "Out", also={"races"}, sequences={"Out": BOUNDARIES, "X": BOUNDARIES})
def tile_stored_past_its_sequence(bug):
    @tilelang.jit
    def kernel():
        n = T.dynamic("n")

        @T.prim_func
        def main(
            X: T.Tensor((n, 8), "float16"),
            Cu: T.Tensor((4,), "int32"),
            Out: T.Tensor((n, 8), "float16"),
        ):
            with T.Kernel(3, threads=32) as b:
                start = Cu[b]
                length = Cu[b + 1] - start
                f = T.alloc_fragment((80, 8), "float16")
                T.copy(X[start : start + 80, 0:8], f)
                if bug:
                    T.copy(f, Out[start : start + 80, 0:8])  # HERE
                else:
                    for i, j in T.Parallel(80, 8):
                        if i < length:
                            Out[start + i, j] = f[i, j]

        return main

    # Blocks run in order here, and each writes its own rows last: the values are right by luck.
    kernel()(torch.ones(96, 8).half(), CU, torch.zeros(96, 8).half())


@mutant("sequences", "X", sequences={"X": BOUNDARIES})
def start_of_the_wrong_sequence(bug):
    late = 1 if bug else 0

    @tilelang.jit(out_idx=[2])
    def kernel():
        n = T.dynamic("n")

        @T.prim_func
        def main(
            X: T.Tensor((n,), "float32"),
            Cu: T.Tensor((4,), "int32"),
            Y: T.Tensor((2,), "float32"),
        ):
            with T.Kernel(2, threads=32) as b:
                length = Cu[b + 1] - Cu[b]
                f = T.alloc_fragment((16,), "float32")
                total = T.alloc_fragment((1,), "float32")
                for i in T.Parallel(16):
                    f[i] = T.if_then_else(i < length, X[Cu[b + late] + i], 0.0)  # HERE
                T.reduce_sum(f, total)
                Y[b] = total[0]

        return main

    kernel()(torch.ones(96), CU)


@mutant("sequences", "Sum", sequences={"Sum": torch.tensor(BOUNDARIES)})
def atomics_past_their_sequence(bug):
    more = 1 if bug else 0

    @tilelang.jit
    def kernel():
        n = T.dynamic("n")

        @T.prim_func
        def main(Cu: T.Tensor((4,), "int32"), Sum: T.Tensor((n, 4), "float32")):
            with T.Kernel(3, threads=32) as b:
                for i, j in T.Parallel(80, 4):
                    if i < Cu[b + 1] - Cu[b] + more:
                        T.atomic_add(Sum[Cu[b] + i, j], 1.0)  # HERE

        return main

    kernel()(CU, torch.zeros(96, 4))


@mutant("sequences", "Lse", also={"races"}, sequences={"Lse": (BOUNDARIES, 1)})
def statistic_past_its_sequence(bug):
    more = 1 if bug else 0

    @tilelang.jit
    def kernel():
        n = T.dynamic("n")

        @T.prim_func
        def main(Cu: T.Tensor((4,), "int32"), Lse: T.Tensor((2, n), "float32")):
            with T.Kernel(3, 2, threads=32) as (b, head):
                for i in T.Parallel(80):
                    if i < Cu[b + 1] - Cu[b] + more:
                        Lse[head, Cu[b] + i] = 1.0  # HERE

        return main

    kernel()(CU, torch.zeros(2, 96))


# -- budgets


@mutant("budget", "a", arch="sm_80")
def more_shared_memory_than_there_is(bug):
    rows = 384 if bug else 128

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((rows, 256), "float16"), Y: T.Tensor((rows, 256), "float16")):
            with T.Kernel(1, threads=128):
                a = T.alloc_shared((rows, 256), "float16")  # HERE
                T.copy(X, a)
                T.copy(a, Y)

        return main

    kernel()(torch.ones(rows, 256).half())


@mutant("budget", "a")
def too_many_stages(bug):
    stages = 8 if bug else 3

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((1024, 128), "float16"), Y: T.Tensor((128,), "float32")):
            with T.Kernel(1, threads=128):
                a = T.alloc_shared((128, 128), "float16")  # HERE
                total = T.alloc_fragment((128,), "float32")
                part = T.alloc_fragment((128,), "float32")
                T.clear(total)
                for k in T.Pipelined(8, num_stages=stages):
                    T.copy(X[k * 128 : k * 128 + 128, 0:128], a)
                    for j in T.Parallel(128):
                        part[j] = T.cast(a[0, j], "float32")
                    for j in T.Parallel(128):
                        total[j] += part[j]
                T.copy(total, Y)

        return main

    kernel()(torch.ones(1024, 128).half())


# -- values that are not finite


@mutant("nonfinite", "Y")
def mean_of_an_empty_row(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(Lens: T.Tensor((4,), "float32"), Y: T.Tensor((4,), "float32")):
            with T.Kernel(1, threads=32):
                total = T.alloc_fragment((4,), "float32")
                T.clear(total)
                for i in T.Parallel(4):
                    Y[i] = total[i] / Lens[i]  # HERE

        return main

    kernel()(torch.tensor([1.0, 2.0, 0.0 if bug else 1.0, 3.0]))


@mutant("nonfinite", "p")
def softmax_of_a_row_that_sees_nothing(bug):
    seen = 0 if bug else 1

    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((4, 8), "float32"), Y: T.Tensor((4, 8), "float32")):
            with T.Kernel(1, threads=32):
                s = T.alloc_fragment((4, 8), "float32")
                p = T.alloc_fragment((4, 8), "float32")
                m = T.alloc_fragment((4,), "float32")
                for i, j in T.Parallel(4, 8):
                    s[i, j] = T.if_then_else(j < i + seen, X[i, j], -T.infinity("float32"))
                T.reduce_max(s, m, dim=1)
                for i, j in T.Parallel(4, 8):
                    p[i, j] = T.exp(s[i, j] - m[i])  # HERE
                T.copy(p, Y)

        return main

    kernel()(torch.ones(4, 8))


@mutant("nonfinite", "h")
def sum_too_large_for_half_precision(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((4, 8), "float32"), Y: T.Tensor((4,), "float16")):
            with T.Kernel(1, threads=32):
                f = T.alloc_fragment((4, 8), "float32")
                total = T.alloc_fragment((4,), "float32")
                h = T.alloc_fragment((4,), "float16")
                T.copy(X, f)
                T.reduce_sum(f, total, dim=1)
                T.copy(total, h)  # HERE
                T.copy(h, Y)

        return main

    kernel()(torch.full((4, 8), 10000.0 if bug else 1.0))


@mutant("nonfinite", "c")
def product_that_overflows(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((32, 32), "float32"), Y: T.Tensor((32, 32), "float32")):
            with T.Kernel(1, threads=128):
                a = T.alloc_shared((32, 32), "float32")
                c = T.alloc_fragment((32, 32), "float32")
                T.copy(X, a)
                T.clear(c)
                T.gemm(a, a, c, transpose_B=True)  # HERE
                T.copy(c, Y)

        return main

    kernel()(torch.full((32, 32), 1e30 if bug else 1.0))


@mutant("nonfinite", "Y")
def logarithm_of_zero(bug):
    @tilelang.jit(out_idx=[1])
    def kernel():
        @T.prim_func
        def main(X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float32")):
            with T.Kernel(2, threads=32) as bx:
                for i in T.Parallel(4):
                    Y[bx * 4 + i] = T.log(X[bx * 4 + i])  # HERE

        return main

    x = torch.ones(8)
    x[5] = 0.0 if bug else 2.0
    kernel()(x)
