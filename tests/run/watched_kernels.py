"""Packed kernels with bugs that values do not show, and the problem they are tested with.

Rows of a packed x [total, dim] are doubled; sequence b owns the rows from cu_seqlens[b] on.
"""

from dataclasses import replace

import tilelang
import tilelang.language as T
import torch

from jit_kernel import jit_kernel
from tlmatrix.problem import Dim, Problem, TensorInfo

ROWS, WIDTH = 16, 8


class Doubling:
    """y = 2 x over packed rows."""

    axes = ("lengths",)

    def lint(self, spec):
        return ()

    def compile_key(self, spec, values):
        return ""

    def problem(self, spec, values, *, seed, device):
        lengths = values["lengths"]
        bounds = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int()
        total = int(bounds[-1])
        x = torch.randn(total, WIDTH, generator=torch.Generator().manual_seed(seed))
        region = [s for s, length in enumerate(lengths) for _ in range(length)]
        rows = Dim("position", total, region, bounds.tolist(), "sequence", tile=ROWS)
        dims = (rows, Dim("dim", WIDTH))
        names = {"x": x, "cu_seqlens": bounds}
        return Problem(
            values=values,
            names={**values, **names, "total": total, "longest": max(lengths)},
            inputs=names,
            outputs={"y": TensorInfo("y", dims, torch.float32, 2.0**-24)},
            returns=("y",),
            dims={"x": dims},
            reference=lambda: {"y": 2 * x.double()},
            lowp=lambda: {"y": 2 * x},
        )


class Summing(Doubling):
    """y [batch, dim] are the sums of the rows of each sequence."""

    def problem(self, spec, values, *, seed, device):
        doubling = super().problem(spec, values, seed=seed, device=device)
        bounds, x = doubling.inputs["cu_seqlens"], doubling.inputs["x"]
        batch = len(values["lengths"])

        def sums(x):
            parts = x.tensor_split(bounds[1:-1].long())
            return {"y": torch.stack([part.sum(0) for part in parts])}

        dims = (Dim("sequence", batch, region=range(batch)), Dim("dim", WIDTH))
        return replace(
            doubling,
            outputs={
                "y": TensorInfo(
                    "y",
                    dims,
                    torch.float32,
                    2.0**-24,
                    magnitude=lambda: sums(x.double().abs())["y"],
                )
            },
            reference=lambda: sums(x.double()),
            lowp=lambda: sums(x),
        )


@tilelang.jit
def packed_double(total, batch, longest, bug):
    """A block a tile of a sequence; `bug` says what is wrong with it."""
    early = 1 if bug == "unwritten" else 0

    @T.prim_func
    def doubled(
        source: T.Tensor((total, WIDTH), "float32"),
        starts: T.Tensor((batch + 1,), "int32"),
        target: T.Tensor((total, WIDTH), "float32"),
    ):
        with T.Kernel(T.ceildiv(longest, ROWS), batch, threads=128) as (tile, sequence):
            start = starts[sequence] + tile * ROWS
            end = starts[sequence + 1]
            for i, j in T.Parallel(ROWS, WIDTH):
                if bug == "next sequence":
                    if tile * ROWS < end - starts[sequence]:
                        target[start + i, j] = source[start + i, j] * 2.0  # full tile
                elif start + i < end - early:
                    target[start + i, j] = source[start + i, j] * 2.0  # guarded

    return doubled


@jit_kernel(
    source="f32[total, WIDTH]", starts="i32[batch + 1]", target="f32[batch, WIDTH]", name="masked"
)
def tiles_of_the_longest(source, starts, target, total, batch, longest, used):
    """Every block reads whole tiles, also behind the end of its sequence, and masks afterwards."""
    with T.Kernel(batch, threads=128) as sequence:
        rows = T.alloc_fragment((ROWS, WIDTH), "float32")
        sums = T.alloc_fragment((WIDTH,), "float32")
        T.clear(sums)
        for tile in T.serial(T.ceildiv(longest, ROWS)):
            T.copy(source[starts[sequence] + tile * ROWS, 0], rows)  # whole tile
            for i, j in T.Parallel(ROWS, WIDTH):
                inside = tile * ROWS + i < starts[sequence + 1] - starts[sequence] + used
                rows[i, j] = T.if_then_else(inside, rows[i, j], 0.0)
            T.reduce_sum(rows, sums, dim=0, clear=False)
        for j in T.Parallel(WIDTH):
            target[sequence, j] = sums[j]


@jit_kernel(source="f32[total, WIDTH]", target="f32[total, WIDTH]", name="overlapping")
def overlapping_double(source, target, total):
    """Blocks two rows too tall: neighbours write the same values to the same rows."""
    with T.Kernel(T.ceildiv(total, ROWS), threads=128) as tile:
        for i, j in T.Parallel(ROWS + 2, WIDTH):
            target[tile * ROWS + i, j] = source[tile * ROWS + i, j] * 2.0  # tall


@tilelang.jit
def staged_double(total, bug):
    """By way of shared memory whose last column only a maximum with what is larger hides."""
    width = WIDTH - 1 if bug else WIDTH

    @T.prim_func
    def staged(
        source: T.Tensor((total, WIDTH), "float32"), target: T.Tensor((total, WIDTH), "float32")
    ):
        with T.Kernel(total, threads=32) as row:
            stage = T.alloc_shared((WIDTH,), "float32")
            for j in T.Parallel(width):
                stage[j] = source[row, j]
            for j in T.Parallel(WIDTH):
                target[row, j] = T.max(stage[j], source[row, j]) * 2.0  # staged

    return staged


@jit_kernel(
    source="f32[total, WIDTH]",
    target="f32[total, WIDTH]",
    pass_configs={tilelang.PassConfigKey.TL_DISABLE_SAFE_MEMORY_ACCESS: True},
    name="unguarded",
)
def unguarded_double(source, target, total):
    """Stores past the end, with TileLang's guards off."""
    with T.Kernel(T.ceildiv(total, ROWS), threads=128) as tile:
        for i, j in T.Parallel(ROWS, WIDTH):
            target[tile * ROWS + i, j] = source[tile * ROWS + i, j] * 2.0  # past


@jit_kernel(source="f32[total, WIDTH]", target="f32[total, WIDTH]", name="some")
def some_rows(source, target, total, first, count):
    """Doubles `count` rows from `first` on."""
    with T.Kernel(count, threads=32) as row:
        for j in T.Parallel(WIDTH):
            target[first + row, j] = source[first + row, j] * 2.0  # some


@jit_kernel(
    work="f32[total, WIDTH]",
    source="f32[total, WIDTH]",
    target="f32[total, WIDTH]",
    name="redoubled",
)
def redoubled_through(work, source, target, total):
    """Reads a workspace; where it holds NaN, the maximum hides it."""
    with T.Kernel(total, threads=32) as row:
        for j in T.Parallel(WIDTH):
            target[row, j] = T.max(work[row, j], source[row, j] * 2.0)  # from work


def in_two_halves(x):
    """Two launches write one output, together all of it."""
    y = torch.empty_like(x)
    half = len(x) // 2
    some_rows(len(x), 0, half)(x, y)
    some_rows(len(x), half, len(x) - half)(x, y)
    return y


def onto_zeros(x):
    """A kernel writes a part of memory that starts as zeros; PyTorch adds the rest."""
    y = torch.zeros_like(x)
    some_rows(len(x), 0, 1)(x, y)
    return torch.cat([y[:1], 2 * x[1:]])


def through_workspace(x):
    """The second kernel reads rows of a workspace that the first never wrote."""
    work, y = torch.empty_like(x), torch.empty_like(x)
    some_rows(len(x), 0, len(x) - 1)(x, work)
    redoubled_through(len(x))(work, x, y)
    return y


def by_sequence(x, cu_seqlens):
    """The kernel with a workspace whose shape says nothing: two more columns."""
    total, batch = len(x), len(cu_seqlens) - 1
    longest = int(cu_seqlens.diff().max())
    work = x.new_empty(total, WIDTH + 2)
    wide_double(total, batch, longest)(x, cu_seqlens, work)
    return work[:, :WIDTH].clone()


@jit_kernel(
    source="f32[total, WIDTH]", starts="i32[batch + 1]", work="f32[total, WIDTH + 2]", name="wide"
)
def wide_double(source, starts, work, total, batch, longest):
    """Unguarded, into a workspace of another shape."""
    with T.Kernel(T.ceildiv(longest, ROWS), batch, threads=128) as (tile, sequence):
        start = starts[sequence] + tile * ROWS
        if start < starts[sequence + 1]:
            for i, j in T.Parallel(ROWS, WIDTH):
                work[start + i, j] = source[start + i, j] * 2.0  # wide


@jit_kernel(source="f32[total, WIDTH]", target="f32[total, WIDTH]", name="roles")
def with_roles(source, target, total):
    """A producer and a consumer by thread index."""
    with T.Kernel(total, threads=256) as row:
        stage = T.alloc_shared((WIDTH,), "float32")
        full = T.alloc_barrier([128])
        if T.get_thread_binding() >= 128:
            T.copy(source[row, 0:WIDTH], stage)
            T.mbarrier_arrive(full[0])
        else:
            T.mbarrier_wait_parity(full[0], 0)
            for j in T.Parallel(WIDTH):
                target[row, j] = stage[j] * 2.0


@jit_kernel(source="f32[total, WIDTH]", target="f32[total, WIDTH]", name="born")
def born_nan(source, target, total):
    """Takes logarithms of negative numbers in the first row."""
    with T.Kernel(total, threads=32) as row:
        for j in T.Parallel(WIDTH):
            if row == 0:
                target[row, j] = T.log(-T.abs(source[row, j]))  # born
            else:
                target[row, j] = source[row, j] * 2.0
