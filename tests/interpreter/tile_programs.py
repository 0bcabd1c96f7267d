"""Random tile programs, run by the interpreter and by TileLang's own C backend.

A program is TileLang source, so a difference is shown as a kernel that a person can read. The C
backend gets the same traced kernel with every scope local and every loop serial; it lowers tile
operations and legalizes accesses as for a GPU, so it is a second opinion on both.

Two kinds of program: `exact` ones compute on small integers and halves, where float32 makes no
error and both must agree to the bit; the others use real numbers and agree to rounding. Elements
that no block may write hold a sentinel, and must hold it still.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tilelang
import torch
from tilelang import tvm

from tlmatrix.interpreter import interpreted

if TYPE_CHECKING:
    import random
    from pathlib import Path

SENTINEL = 777.0
_modules = itertools.count()


@dataclass(frozen=True)
class TileProgram:
    """A kernel `main(A, B, V, I, Out, Row, Num)` and the sizes of its arguments.

    Attributes:
        source: TileLang source of a PrimFunc.
        shape: rows and columns of A [m, n], Out, Num (int32), and of V [n], I [m] (int32), Row [m].
        inner: B is [inner, n].
        exact: whether every value is a small multiple of a power of two.
        seed: of the values of the arguments.
    """

    source: str
    shape: tuple[int, int]
    inner: int
    exact: bool
    seed: int

    def arguments(self) -> list[torch.Tensor]:
        """New tensors, the same every time."""
        m, n = self.shape
        generator = torch.Generator().manual_seed(self.seed)

        def values(*shape: int) -> torch.Tensor:
            if self.exact:
                return torch.randint(-4, 5, shape, generator=generator).float()
            return torch.randn(shape, generator=generator)

        return [
            values(m, n),
            values(self.inner, n),
            values(n),
            torch.randint(-3, m + 3, (m,), generator=generator, dtype=torch.int32),
            torch.full((m, n), SENTINEL),
            torch.full((m,), SENTINEL),
            torch.full((m, n), int(SENTINEL), dtype=torch.int32),
        ]


class NotCompiledError(RuntimeError):
    """The C backend cannot compile a program, so that there is nothing to compare."""


def differences(program: TileProgram, folder: Path) -> list[str]:
    """What the interpreter and the C backend do not agree on.

    Raises:
        NotCompiledError: if the C backend cannot compile the program.
    """
    func = traced(program, folder)
    ours, theirs = program.arguments(), program.arguments()
    interpreted(func)(*ours)
    try:
        kernel = compiled(func)
    except Exception as error:
        raise NotCompiledError(str(error)) from error
    kernel(*theirs)
    found = []
    for name, a, b in zip(("A", "B", "V", "I", "Out", "Row", "Num"), ours, theirs, strict=True):
        if program.exact or not a.is_floating_point():
            same = (a == b) | (a.isnan() & b.isnan())
        else:
            scale = torch.where(b.isfinite() & (b != SENTINEL), b.abs(), 0.0).max()
            same = torch.isclose(a, b, rtol=1e-4, atol=1e-5 * float(scale), equal_nan=True)
            same &= (a == SENTINEL) == (b == SENTINEL)
        if not same.all():
            where = tuple((~same).nonzero()[0].tolist())
            found.append(
                f"{name}{list(where)} is {a[where].item()} interpreted, {b[where].item()} in C "
                f"({int((~same).sum())} of {same.numel()} differ)"
            )
    return found


def traced(program: TileProgram, folder: Path) -> tvm.tirx.PrimFunc:
    """The PrimFunc of a program, for the target that `interpret` names."""
    path = folder / f"tile_program_{next(_modules)}.py"
    path.write_text(program.source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}):
        spec.loader.exec_module(module)
    return module.main


def compiled(func: tvm.tirx.PrimFunc) -> tilelang.JITKernel:
    """The kernel compiled by TileLang's C backend."""
    body = _OnTheCpu().visit_stmt(func.body)
    logging.getLogger("tilelang").setLevel(logging.WARNING)
    # The C backend has no vectors of some widths, which it would make of parallel copies.
    plain = {"tirx.disable_vectorize": True}
    return tilelang.compile(
        func.with_body(body), target="c", execution_backend="cython", pass_configs=plain
    )


@tvm.tirx.functor.mutator
class _OnTheCpu(tvm.tirx.PyStmtExprMutator):
    """Scopes become local, loops serial; layouts, pipelines and thread indices go."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tvm.tirx.Buffer, tvm.tirx.Buffer] = {}

    def visit_sblock_(self, op: tvm.tirx.SBlock) -> tvm.tirx.SBlock:
        for buffer in op.alloc_buffers:
            kind = tvm.ir.PointerType(tvm.ir.PrimType(str(buffer.dtype)), "local")
            data = tvm.tirx.Var(buffer.name, kind)
            self.buffers[buffer] = tvm.tirx.decl_buffer(
                buffer.shape, buffer.dtype, buffer.name, data=data, scope="local"
            )
        allocated = [self.buffers[buffer] for buffer in op.alloc_buffers]
        body = self.visit_stmt(op.body)
        return tvm.tirx.SBlock([], [], [], op.name_hint, body, None, allocated, [], {})

    def visit_sblock_realize_(self, op: tvm.tirx.SBlockRealize) -> tvm.tirx.SBlockRealize:
        return tvm.tirx.SBlockRealize([], op.predicate, self.visit_stmt(op.block))

    def visit_for_(self, op: tvm.tirx.For) -> tvm.tirx.For:
        extents = self.visit_expr(op.min), self.visit_expr(op.extent)
        body, serial = self.visit_stmt(op.body), tvm.tirx.ForKind.SERIAL
        return tvm.tirx.For(op.loop_var, *extents, serial, body, None, {}, op.step)

    def visit_bind_(self, op: tvm.tirx.Bind) -> tvm.tirx.Stmt:
        call = op.value
        if isinstance(call, tvm.tirx.Call) and call.op.name == "tl.launch_thread_idx":
            return tvm.tirx.Evaluate(tvm.tirx.IntImm("int32", 0))
        return tvm.tirx.Bind(op.var, self.visit_expr(op.value))

    def visit_buffer_load_(self, op: tvm.tirx.BufferLoad) -> tvm.tirx.BufferLoad:
        indices = [self.visit_expr(i) for i in op.indices]
        return tvm.tirx.BufferLoad(self.buffers.get(op.buffer, op.buffer), indices)

    def visit_buffer_store_(self, op: tvm.tirx.BufferStore) -> tvm.tirx.BufferStore:
        indices = [self.visit_expr(i) for i in op.indices]
        value = self.visit_expr(op.value)
        return tvm.tirx.BufferStore(self.buffers.get(op.buffer, op.buffer), value, indices)


# Programs -----------------------------------------------------------------------------------


def tile_program(choices: random.Random) -> TileProgram:
    """A program made of the choices: Hypothesis's (`st.randoms`), or a seeded generator's."""
    return _Builder(choices).build()


class _Builder:
    """Writes one program."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices
        self.lines: list[str] = []
        self.depth = 2
        self.exact = self.chance(0.6)
        self.bm, self.bn = self.one((4, 8, 16, 5)), self.one((4, 8, 16, 6))
        self.bk = self.one((4, 8, 3))
        self.loops: list[str] = []

    # -- choosing and writing

    def one(self, options: tuple) -> object:
        return options[self.choices.randrange(len(options))]

    def chance(self, probability: float) -> bool:
        return self.choices.randrange(100) < probability * 100

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def build(self) -> TileProgram:
        m, n, inner = (self.choices.randrange(1, 41) for _ in range(3))
        names = []
        # So few rows that a guard and a shift prove an index negative count as one block.
        self.single = m <= max(self.bm, 6), n <= max(self.bn, 6)
        for name, value in (("M", m), ("N", n), ("K", inner)):
            dynamic = self.chance(0.3)
            names.append(
                f'{name} = T.dynamic("{name.lower()}")' if dynamic else f"{name} = {value}"
            )
        more = self.one(("", " + 1"))
        grid = f"T.ceildiv(M, {self.bm}){more}, T.ceildiv(N, {self.bn})"
        header = [
            *("import tilelang.language as T", "", *names, "", ""),
            "@T.prim_func",
            "def main(",
            '    A: T.Tensor((M, N), "float32"),',
            '    B: T.Tensor((K, N), "float32"),',
            '    V: T.Tensor((N,), "float32"),',
            '    I: T.Tensor((M,), "int32"),',
            '    Out: T.Tensor((M, N), "float32"),',
            '    Row: T.Tensor((M,), "float32"),',
            '    Num: T.Tensor((M, N), "int32"),',
            "):",
            f"    with T.Kernel({grid}, threads=128) as (bx, by):",
        ]
        bm, bn, bk = self.bm, self.bn, self.bk
        for name in ("S0", "S1"):
            self.line(f'{name} = T.alloc_shared(({bm}, {bn}), "float32")')
        for name in ("F0", "F1"):
            self.line(f'{name} = T.alloc_fragment(({bm}, {bn}), "float32")')
        for name, extent in (("R0", bm), ("R1", bm), ("C0", bn)):
            self.line(f'{name} = T.alloc_fragment(({extent},), "float32")')
        self.transposed = self.chance(0.3), self.chance(0.3)
        left = f"({bk}, {bm})" if self.transposed[0] else f"({bm}, {bk})"
        right = f"({bn}, {bk})" if self.transposed[1] else f"({bk}, {bn})"
        self.line(f'P = T.alloc_local(({min(bn, 4)},), "float32")')
        self.line(f'W = T.alloc_shared(({bm}, {bn}), "int32")')
        self.line(f'Q = T.alloc_shared(({bn}, {bm}), "float32")')
        self.line('v = T.alloc_var("int32")')
        self.line("v = 0")
        self.line(f"T.fill(W, {self.one((3, -70001))})")
        self.line(f'GA = T.alloc_shared({left}, "float32")')
        self.line(f'GB = T.alloc_shared({right}, "float32")')
        for name in ("S0", "S1", "F0", "F1", "R0", "R1", "C0", "GA", "GB"):
            self.line(f"T.fill({name}, {self.number()})")
        for _ in range(self.choices.randrange(2, 8)):
            self.statement()
        self.leave()
        source = "\n".join([*header, *self.lines]) + "\n"
        return TileProgram(source, (m, n), inner, self.exact, self.choices.randrange(1 << 30))

    def leave(self) -> None:
        """Write what was computed where it shows."""
        rows, columns = (
            self.offset("bx", self.bm, whole=True),
            self.offset("by", self.bn, whole=True),
        )
        self.line(f"T.copy({self.tile()}, Out[{rows}, {columns}])")
        with_guard = self.chance(0.5)
        self.line(f"for i in T.Parallel({self.bm}):")
        self.depth += 1
        if with_guard:
            self.line(f"if bx * {self.bm} + i < M - {self.one((0, 1, 3))}:")
            self.depth += 1
        value = self.one(("R0[i]", "R1[i]", "R0[i] + R1[i]"))
        self.line(f"Row[{self.offset('bx', self.bm)} + i] = {value}")
        self.depth -= 2 if with_guard else 1

    # -- statements

    def statement(self) -> None:
        kinds = [self.load, self.move, self.elementwise, self.elementwise, self.reduce, self.gemm]
        kinds += [self.rows, self.store, self.slices, self.integers, self.clear, self.row_copy]
        kinds += [
            self.sequential,
            self.part,
            self.atomic,
            self.transpose,
            self.count,
            self.wrapping,
            self.vectors,
            self.vectorized,
            self.private,
        ]
        if len(self.loops) < 2:
            kinds += [self.loop, self.loop, self.branch]
        self.one(tuple(kinds))()

    def load(self) -> None:
        rows, columns = (
            self.offset("bx", self.bm, whole=True),
            self.offset("by", self.bn, whole=True),
        )
        if self.chance(0.3) and self.loops:
            rows = f"{self.loops[-1]} * {self.bm}"
            self.line(f"T.copy(B[{rows}, {columns}], {self.tile()})")
        elif self.chance(0.2):
            self.line(f"T.copy(V[{columns}], C0)")
        else:
            self.line(f"T.copy(A[{rows}, {columns}], {self.tile()})")

    def move(self) -> None:
        self.line(f"T.copy({self.tile()}, {self.tile()})")

    def slices(self) -> None:
        """A part of a tile to a part of another, inside both."""
        h, w = self.choices.randrange(1, self.bm + 1), self.choices.randrange(1, self.bn + 1)
        parts = []
        for _ in range(2):
            r, c = (self.choices.randrange(n - k + 1) for n, k in ((self.bm, h), (self.bn, w)))
            parts.append(f"[{r}:{r + h}, {c}:{c + w}]")
        names = self.one((("S0", "F0"), ("F1", "S1"), ("S1", "F1"), ("S0", "S1"), ("F0", "F1")))
        self.line(f"T.copy({names[0]}{parts[0]}, {names[1]}{parts[1]})")

    def clear(self) -> None:
        self.line(f"T.fill({self.one(('S0', 'F0', 'F1', 'R0', 'C0'))}, {self.number()})")

    def elementwise(self) -> None:
        target = self.tile()
        self.line(f"for i, j in T.Parallel({self.bm}, {self.bn}):")
        self.depth += 1
        guarded = self.chance(0.25)
        if guarded:
            self.line(f"if {self.condition()}:")
            self.depth += 1
        self.line(f"{target}[i, j] = {self.bounded(self.expression(3))}")
        if guarded and self.chance(0.4):
            self.depth -= 1
            self.line("else:")
            self.depth += 1
            self.line(f"{target}[i, j] = {self.bounded(self.expression(1))}")
        self.depth -= 2 if guarded else 1

    def rows(self) -> None:
        target, column = self.one(("R0", "R1")), self.choices.randrange(self.bn)
        self.line(f"for i in T.Parallel({self.bm}):")
        choices = (
            f"R0[i] + {self.tile()}[i, {column}]",
            "T.max(R0[i], R1[i])",
            f"A[I[{self.offset('bx', self.bm)} + i], by * {self.bn}]",
            f"T.if_then_else(I[bx * {self.bm} + i] > 2, R0[i], {self.number()})",
            "R1[i] - V[I[i]]",
        )
        self.line(f"    {target}[i] = {self.bounded(self.one(choices))}")

    def store(self) -> None:
        rows, columns = self.offset("bx", self.bm), self.offset("by", self.bn)
        self.line(f"for i, j in T.Parallel({self.bm}, {self.bn}):")
        self.depth += 1
        if self.chance(0.5):
            self.line(f"if {self.condition()}:")
            self.depth += 1
        self.line(f"Out[{rows} + i, {columns} + j] = {self.expression(2)}")
        self.depth = 2 + self.nesting

    def integers(self) -> None:
        """Integer arithmetic of indices, stored as it is."""
        a = self.one(("i", "j", f"(bx * {self.bm} + i)", f"(i - {self.bm // 2})", "(i * 7 + j)"))
        b = self.one(("3", "5", "(j + 1)", "(i + 2)"))
        forms = (
            f"{a} // {b}",
            f"{a} % {b}",
            f"T.truncdiv({a}, {b})",
            f"T.truncmod({a}, {b})",
            f"({a} & {b}) | (j ^ 5)",
            f"{a} * {b} - j",
            f"T.min({a}, {b}) + T.max(i, j)",
            f"({a} << 3) >> 1",
            f"T.if_then_else({a} < {b}, i, -j)",
            f"T.Cast('int32', A[bx * {self.bm} + i, by * {self.bn} + j] * 1.5)",
            f"I[{a}] + 1",
        )
        self.line(f"for i, j in T.Parallel({self.bm}, {self.bn}):")
        self.line(f"    Num[bx * {self.bm} + i, by * {self.bn} + j] = {self.one(forms)}")

    def reduce(self) -> None:
        kind = self.one(("sum", "max", "min", "abssum", "absmax"))
        dim = self.one((0, 1, 1))
        source = self.one(("F0", "F1"))
        clear = self.one(("", "", ", clear=False")) if not kind.startswith("abs") else ""
        target = self.one(("R0", "R1")) if dim == 1 else "C0"
        self.line(f"T.reduce_{kind}({source}, {target}, dim={dim}{clear})")

    def gemm(self) -> None:
        bk = self.bk
        step = self.loops[-1] if self.loops and self.chance(0.6) else self.one(("0", "1"))
        ta, tb = self.transposed
        left = f"{step} * {bk}, by * {self.bn}" if ta else f"bx * {self.bm}, {step} * {bk}"
        right = f"by * {self.bn}, {step} * {bk}" if tb else f"{step} * {bk}, by * {self.bn}"
        self.line(f"T.copy(A[{left}], GA)")
        self.line(f"T.copy({self.one(('A', 'B'))}[{right}], GB)")
        flags = f"transpose_A={ta}, transpose_B={tb}, clear_accum={self.chance(0.3)}"
        self.line(f"T.gemm(GA, GB, {self.one(('F0', 'F1'))}, {flags})")

    def row_copy(self) -> None:
        """One row or column of a buffer: a single index beside a range."""
        rows, columns = self.offset("bx", self.bm), self.offset("by", self.bn)
        self.line(
            self.one(
                (
                    f"T.copy(A[{rows}, {columns} : {columns} + {self.bn}], C0)",
                    f"T.copy(A[{rows} : {rows} + {self.bm}, {columns}], R0)",
                    f"T.copy(C0, Out[{rows}, {columns}])",
                    f"T.copy(A[I[bx * {self.bm}], {columns}], C0)",
                    f"T.copy({self.tile()}[{self.choices.randrange(self.bm)}, 0], C0)",
                )
            )
        )

    def part(self) -> None:
        """Part of a global tile to part of a local one."""
        h, w = self.choices.randrange(1, self.bm + 1), self.choices.randrange(1, self.bn + 1)
        r, c = self.choices.randrange(self.bm - h + 1), self.choices.randrange(self.bn - w + 1)
        rows, columns = self.offset("bx", self.bm), self.offset("by", self.bn)
        there = f"[{rows} : {rows} + {h}, {columns} : {columns} + {w}]"
        here = f"{self.tile()}[{r}:{r + h}, {c}:{c + w}]"
        self.line(
            f"T.copy(A{there}, {here})" if self.chance(0.7) else f"T.copy({here}, Out{there})"
        )

    def sequential(self) -> None:
        """Serial loops over elements, each of which may see the one before."""
        tile = self.tile()
        self.line(f"for i in T.serial({self.bm}):")
        self.line(f"    for j in T.serial({self.bn}):")
        before = f"T.if_then_else(j > 0, {tile}[i, j - 1], {self.number()})"
        self.depth += 2
        if self.chance(0.4):
            self.line(f"if {self.condition()}:")
            self.depth += 1
        self.line(f"{tile}[i, j] = {self.bounded(f'{before} + {self.expression(1)}')}")
        self.depth = 2 + self.nesting

    def atomic(self) -> None:
        rows, columns = self.offset("bx", self.bm), self.offset("by", self.bn)
        if self.chance(0.5):
            self.line(f"T.atomic_add(Out[{rows}, {columns}], {self.one(('S0', 'S1'))})")
            return
        self.line(f"for i, j in T.Parallel({self.bm}, {self.bn}):")
        self.line(f"    T.atomic_add(Out[{rows} + i, {columns} + j], {self.bounded('F0[i, j]')})")

    def transpose(self) -> None:
        self.line(f"T.transpose({self.one(('S0', 'S1'))}, Q)")
        self.line(f"for i, j in T.Parallel({self.bm}, {self.bn}):")
        self.line(f"    F0[i, j] = {self.bounded('F0[i, j] - Q[j, i]')}")

    def count(self) -> None:
        """A variable, a loop that ends by it, and its use as an index."""
        self.line("v = 0")
        self.line(f"while v < {self.one(('3', 'bx + 1', 'I[bx]'))}:")
        self.line(f"    R1[v % {self.bm}] = R1[v % {self.bm}] + A[v, by * {self.bn}]")
        self.line("    v = v + 1")
        self.line(f"Row[v + bx * {self.bm}] = R1[0]")

    def wrapping(self) -> None:
        """32-bit integers that pass their limits."""
        forms = (
            "W[i, j] * W[i, j] + i",
            "W[i, j] * 65599 - j",
            "(W[i, j] << 7) ^ (i * 1000003)",
            "(W[i, j] + 2000000000) // 7",
            "T.max(W[i, j] * 3, W[i, j] + 1500000000)",
            "T.if_then_else(W[i, j] < 0, W[i, j] >> 3, W[i, j] - 2147483000)",
        )
        loop = self.one(("T.Parallel({}, {})", "T.grid({}, {})"))
        self.line(f"for i, j in {loop.format(self.bm, self.bn)}:")
        self.line(f"    W[i, j] = {self.one(forms)}")
        self.line(f"T.copy(W, Num[bx * {self.bm}, by * {self.bn}])")

    def vectors(self) -> None:
        """Vector stores of one value (C has no vector loads that are not aligned)."""
        lanes = self.one(tuple(n for n in (2, 4, 8) if n <= self.bn))
        start = self.choices.randrange(self.bn - lanes + 1)
        target, source = self.one((("S0", "F0"), ("F0", "S1"), ("F1", "S0"), ("S1", "F1")))
        value = self.one((f"R0[i] + {source}[i, {start}]", "R1[i] * 0.5", self.number()))
        spread = f"T.Broadcast(T.Cast('float32', {self.bounded(value)}), {lanes})"
        self.line(f"for i in T.serial({self.bm}):")
        self.line(f"    {target}[i, T.Ramp({start}, 1, {lanes})] = {spread}")

    def vectorized(self) -> None:
        """A vectorized loop inside loops over rows, serial or parallel."""
        target = self.tile()
        outer = self.one(("T.serial({})", "T.Parallel({})")).format(self.bm)
        lanes = self.one(tuple(n for n in (1, 2, 4, 8) if n <= self.bn))
        self.line(f"for i in {outer}:")
        self.line(f"    for e in T.vectorized({lanes}):")
        value = self.one((f"{self.tile()}[i, e]", "C0[e] + R0[i]", f"{self.number()} * e"))
        self.line(f"        {target}[i, e] = {self.bounded(value)}")

    def private(self) -> None:
        """Memory of which every iteration of a parallel loop has its own."""
        size = min(self.bn, 4)
        self.line(f"for i in T.Parallel({self.bm}):")
        if self.chance(0.5):
            self.line(f"    T.fill(P, {self.number()})")
        else:
            self.line(f"    T.copy({self.tile()}[i, 0:{size}], P)")
        for k in range(size):
            if self.chance(0.6):
                self.line(f"    P[{k}] = {self.bounded(f'P[{size - 1 - k}] + R0[i]')}")
        self.line(f"    R1[i] = {self.bounded(' - '.join(f'P[{k}]' for k in range(size)))}")

    def loop(self) -> None:
        name = f"k{len(self.loops)}"
        kind = self.one(("T.serial(3)", "T.serial(1, 3)", "T.Pipelined(2, num_stages=2)"))
        if self.chance(0.3):
            kind = f"T.serial(T.min(bx + 1, {self.one((2, 3))}))"
        self.block(f"for {name} in {kind}:", name)

    def branch(self) -> None:
        self.block(f"if {self.one(('bx != 1', 'by % 2 == 0', 'I[bx] > 2', 'bx < by'))}:", "")

    def block(self, opening: str, name: str) -> None:
        self.line(opening)
        self.loops.append(name or (self.loops[-1] if self.loops else "0"))
        self.depth += 1
        for _ in range(self.choices.randrange(1, 3)):
            self.statement()
        self.depth -= 1
        self.loops.pop()

    @property
    def nesting(self) -> int:
        return len(self.loops)

    # -- expressions

    def tile(self) -> str:
        return self.one(("S0", "S1", "F0", "F1"))

    def number(self) -> str:
        return self.one(("0.0", "1.0", "-2.0", "0.5", "3.0"))

    def offset(self, index: str, block: int, *, whole: bool = False) -> str:
        """Where a block's tile starts; some starts are outside on one side or the other.

        In a grid of one block the start is a constant: only ranges are guarded then, and what is
        provably negative, be it only under a condition, counts from the end. There a shift is
        left to copies of whole tiles outside conditions.
        """
        shifts = ["", "", "", " - 3", " + 2", f" + {block}", " - 1"]
        single = self.single[0 if index == "bx" else 1]
        shift = self.one(tuple(shifts[:3] if single and not (whole and not self.loops) else shifts))
        return f"{index} * {block}{shift}"

    def condition(self) -> str:
        return self.one(
            (
                "i < j",
                f"bx * {self.bm} + i < M - 2",
                f"by * {self.bn} + j >= 3",
                f"(i + j) % {self.one((2, 3))} == 0",
                f"bx * {self.bm} + i < M and by * {self.bn} + j < N",
                f"i >= {self.bm // 2} or j == 0",
                f"I[bx * {self.bm} + i] > 0",
            )
        )

    def leaf(self) -> str:
        rows, columns = self.offset("bx", self.bm), self.offset("by", self.bn)
        return self.one(
            (
                f"{self.tile()}[i, j]",
                f"{self.tile()}[i, j]",
                "R0[i]",
                "C0[j]",
                self.number(),
                f"A[{rows} + i, {columns} + j]",
                f"V[{columns} + j]",
                f"A[I[bx * {self.bm} + i], {columns} + j]",
                "T.Cast('float32', i - j)",
            )
        )

    def expression(self, depth: int) -> str:
        if depth == 0 or self.chance(0.2):
            return self.leaf()
        a, b = self.expression(depth - 1), self.expression(depth - 1)
        forms = [f"({a} + {b})", f"({a} - {b})", f"T.max({a}, {b})", f"T.min({a}, {b})"]
        forms += [
            f"T.max({a}, -{a})",
            f"T.if_then_else({self.condition()}, {a}, {b})",
            f"({a} * 0.5)",
        ]
        forms += [f"T.Select({self.condition()}, {a}, {b})", f"(-{a})"]
        if not self.exact:
            forms += [f"({a} * {b})", f"T.exp2({self.squashed(a)})", f"T.exp({self.squashed(b)})"]
            forms += [f"T.sqrt(({a} * {a}))", f"({a} / (({b} * {b}) + 1.0))", f"T.tanh({a})"]
            forms += [f"T.sigmoid({a})", f"T.log(({a} * {a}) + 1.0)", f"T.rsqrt(({a} * {a}) + 1.0)"]
        return self.one(tuple(forms))

    def squashed(self, code: str) -> str:
        return f"T.min(T.max({code}, -8.0), 8.0)"

    def bounded(self, code: str) -> str:
        """Small enough that sums of sums stay exact."""
        return f"T.min(T.max({code}, -64.0), 64.0)"
