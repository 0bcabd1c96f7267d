"""Random tile programs: answers of `tlmatrix prove` against all launches of small sizes.

    python tests/prove/brute_force.py [--programs 200] [--first 0] [--seed 0] [--only K]

A program is TileLang source of symbolic dims: tiles, guards, offsets of packed sequences,
persistent loops, variables, with tiles that overlap, guards that are missing and gaps put in on
purpose. What is proven of it is compared with what the interpreter does: an observer of its own
notes which block reads, writes and adds to which element, for all dims up to 5, all `cu` of up to
three sequences of up to four rows, and float inputs of either sign. A property that is proven and
that a launch violates is printed; the exit code is 1 then. Other answers claim nothing; they are
counted.

The access model of `prove` has no part in it. Index arithmetic is evaluated from the text of the
program, for sizes to the largest that are claimed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("TLMATRIX_PROGRAMS", "off")

import numpy as np
import torch
from tilelang import tvm

from tlmatrix.interpreter import interpret, interpreted
from tlmatrix.interpreter.errors import InterpreterError, LaunchError
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.read import saved
from tlmatrix.interpreter.ir.walk import walk
from tlmatrix.interpreter.runtime.elements import block_of, lanes_inside, lanes_of
from tlmatrix.interpreter.watch import registry
from tlmatrix.interpreter.watch.observer import Observer, mask_of
from tlmatrix.prove.facts import Observation
from tlmatrix.prove.kernels import prove_kernel
from tlmatrix.prove.launches import KernelUse

LARGEST = 5
"""Of a dim of a launch."""
MOST_LAUNCHES = 400
"""Of one program; where there are more, some are drawn."""
_modules = itertools.count()
_TABLES = ("cu", "order")


@dataclass
class Program:
    """A program `main` and what is known of it by its text.

    Attributes:
        source: TileLang source of a PrimFunc.
        dims: the symbolic dims that are free, and integer scalars.
        parameters: shape and dtype by name, the shape as Python over the dims.
        packed: whether `total` and `cu` are those of packed sequences.
        owner: the sequence of a block, as Python over its indices; "" without one.
        grid: the extents of the grid, as Python over the dims.
        indices: index expressions, with (variable, extent) of those in scope, outer ones first.
    """

    source: str = ""
    dims: tuple[str, ...] = ()
    parameters: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    packed: bool = False
    owner: str = ""
    grid: tuple[str, ...] = ()
    indices: list[tuple[str, tuple[tuple[str, str], ...]]] = field(default_factory=list)


# Programs -----------------------------------------------------------------------------------------


def program_of(seed: int, number: int) -> Program:
    """The program of a number."""
    return _Builder(random.Random(f"{seed}:{number}")).build()


_OUTPUTS = ("Out", "Row", "Acc", "Num")


class _Builder:
    """Writes one program."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices
        self.lines: list[str] = []
        self.depth = 2
        self.program = Program()
        self.scope: list[tuple[str, str]] = []
        self.names: list[str] = []
        """Integers that may be used in expressions."""
        self.variables = 0

    def one(self, *options: Any) -> Any:
        return options[self.choices.randrange(len(options))]

    def chance(self, probability: float) -> bool:
        return self.choices.random() < probability

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, letter: str) -> str:
        self.variables += 1
        return f"{letter}{self.variables}"

    def build(self) -> Program:
        p = self.program
        p.packed = self.chance(0.35)
        scalar = self.chance(0.3)
        p.dims = ("m",) if p.packed else self.one(("n",), ("n", "m"), ("n", "m"))
        rows = "total" if p.packed else "n"
        columns = "m" if "m" in p.dims else str(self.one(4, 6))
        self.rows, self.columns = rows, columns
        p.parameters = {
            "X": ((rows, columns), "float32"),
            "Out": ((rows, columns), "float32"),
            "Row": ((rows,), "float32"),
            "Acc": ((rows, columns), "float32"),
            "Num": ((rows,), "int32"),
        }
        if p.packed:
            p.parameters["cu"] = (("batch + 1",), "int32")
        else:
            p.parameters["order"] = ((rows,), "int32")
        if scalar:
            p.dims = (*p.dims, "k")
        self.bm, self.bn = self.one(2, 3, 4), self.one(2, 3, 4)
        self.names = [rows, *(["m"] if columns == "m" else []), *(["k"] if scalar else [])]
        body = self.packed if p.packed else self.one(self.tiled, self.tiled, self.persistent)
        body()
        symbols = dict.fromkeys(
            [rows, *(["batch"] if p.packed else []), *(["m"] if columns == "m" else [])]
        )
        header = ["import tilelang.language as T", ""]
        header += [f'{name} = T.dynamic("{name}")' for name in symbols]
        header += ["", "", "@T.prim_func", "def main("]
        for name, (shape, dtype) in p.parameters.items():
            header.append(f'    {name}: T.Tensor(({", ".join(shape)},), "{dtype}"),')
        header += ["    k: T.int32,"] if scalar else []
        header.append("):")
        p.source = "\n".join([*header, *self.lines]) + "\n"
        return p

    # -- grids

    def kernel(self, *grid: str) -> tuple[str, ...]:
        blocks = ("bx", "by", "bz")[: len(grid)]
        self.program.grid = grid
        self.line(
            f"with T.Kernel({', '.join(grid)}, threads={self.one(32, 64)}) as "
            f"({', '.join(blocks)}{',' if len(grid) == 1 else ''}):"
        )
        self.depth += 1
        self.scope += zip(blocks, grid, strict=True)
        self.names += blocks
        self.allocate()
        if self.chance(0.25):
            self.claim()
        return blocks

    def allocate(self) -> None:
        self.line(f'S = T.alloc_shared(({self.bm}, {self.bn}), "float32")')
        self.line(f'F = T.alloc_fragment(({self.bm}, {self.bn}), "float32")')
        self.line('W = T.alloc_shared((8,), "int32")')
        self.line('v = T.alloc_var("int32")')
        self.line("v = 0")
        self.line("T.fill(S, 1.0)")
        self.line("T.fill(F, 2.0)")
        self.line("T.fill(W, 0)")

    def count(self, size: str, tile: int) -> str:
        """A number of tiles: mostly right, at times one more, one less, or rounded down."""
        exact = f"T.ceildiv({size}, {tile})"
        return self.one(
            *[exact] * 8, f"{exact} + 1", f"{size} // {tile}", f"T.max({exact} - 1, 1)",
            f"T.min({exact}, 2)", f"({size} + {tile}) // {tile}",
        )  # fmt: skip

    def claim(self) -> None:
        a = self.expression(1)
        b = self.expression(1)
        text = self.one(
            f"bx < {self.rows}", f"{a} >= 0", f"{a} <= {b}", f"bx * {self.bm} < {self.rows}",
            f"{a} < {b} + {self.one(1, 5)}",
        )  # fmt: skip
        self.line(f"T.assume({text})")

    def tiled(self) -> None:
        """Tiles of rows, and of columns, at a block's index; in any order."""
        rows, columns = self.count(self.rows, self.bm), self.count(self.columns, self.bn)
        form = self.one("two", "two", "one", "flat", "swapped")
        if form == "two":
            self.kernel(rows, columns)
            r, c = "bx", "by"
        elif form == "swapped":
            self.kernel(columns, rows)
            r, c = self.one(("by", "bx"), ("by", "bx"), ("bx", "by"))
        elif form == "flat":
            self.kernel(f"({rows}) * ({columns})")
            divisor = self.one(columns, columns, columns, rows)
            r, c = self.bind(f"bx // ({divisor})"), self.bind(f"bx % ({divisor})")
        else:
            self.kernel(rows)
            r, c = "bx", ""
        if self.chance(0.15):
            r = self.bind(f"{rows} - 1 - {r}")
        self.statements(f"{r} * {self.bm}", f"{c} * {self.bn}" if c else "")

    def persistent(self) -> None:
        """Fewer blocks than tiles, each with a stride over them."""
        rows, columns = self.count(self.rows, self.bm), self.count(self.columns, self.bn)
        blocks = self.one("2", "3", "k" if "k" in self.names else "2")
        self.kernel(blocks)
        tiles = f"({rows}) * ({columns})"
        step = self.one(*[blocks] * 6, f"({blocks} + 1)")
        trips = self.one(
            f"T.ceildiv({tiles}, {blocks})", f"T.ceildiv({tiles} - bx, {blocks})",
            f"({tiles} + {blocks} - 1 - bx) // {blocks}", f"T.ceildiv({tiles}, {blocks})",
        )  # fmt: skip
        w = self.loop(trips)
        tile = self.bind(self.one(f"bx + {w} * {step}", f"{w} * {step} + bx"))
        divisor = self.one(columns, columns, columns, rows)
        guarded = self.chance(0.7)
        if guarded:
            self.enter(f"{tile} < {tiles}")
        r, c = self.bind(f"{tile} // ({divisor})"), self.bind(f"{tile} % ({divisor})")
        if self.chance(0.2):
            r = self.bind(f"T.min({r}, {rows} - 1)")
        self.statements(f"{r} * {self.bm}", f"{c} * {self.bn}")

    def packed(self) -> None:
        """A block for each sequence and tile of it, or for each sequence."""
        per_tile = self.chance(0.5)
        sequence = self.one("bx", "bx", "batch - 1 - bx")
        tiles = self.one(f"T.ceildiv(total, {self.bm})", f"T.ceildiv(total, {self.bm})", "2")
        grid = ["batch", *([tiles] if per_tile else [])]
        if per_tile and self.chance(0.2):
            grid.reverse()
            sequence = self.one("by", "by", "bx")
        self.kernel(*grid)
        self.names.append("batch")
        self.program.owner = sequence
        b = self.bind(sequence)
        start = self.bind(f"cu[{b}]")
        end = self.bind(f"cu[{b} + 1]")
        length = self.bind(self.one(*[f"{end} - {start}"] * 6, f"{end} - {start} + 1"))
        if per_tile:
            tile = "by" if sequence != "by" else "bx"
            if self.chance(0.2):
                tile = self.bind(f"T.ceildiv({length}, {self.bm}) - 1 - {tile}")
            offset = f"{tile} * {self.bm}"
            if self.chance(0.5):
                self.enter(f"{offset} < {length}")
        else:
            w = self.loop(self.count(length, self.bm))
            offset = f"{w} * {self.bm}"
        first = self.one(*[start] * 12, self.one(*self.names))
        self.statements(f"{first} + {offset}", "", limit=end, offset=offset, length=length)

    # -- pieces

    def bind(self, text: str) -> str:
        name = self.fresh("e")
        self.index(text)
        self.line(f"{name} = {text}")
        self.program.indices[-1] = (text, tuple(self.scope))
        self.scope.append((name, f"={text}"))
        self.names.append(name)
        return name

    def index(self, text: str) -> str:
        self.program.indices.append((text, tuple(self.scope)))
        return text

    def loop(self, extent: str, *, kind: str = "T.serial") -> str:
        name = self.fresh("w")
        self.index(extent)
        form = self.one(0, 0, 0, 1, 2)
        if form == 0 or kind != "T.serial":
            self.line(f"for {name} in {kind}({extent}):")
            self.scope.append((name, extent))
        elif form == 1:
            self.line(f"for {name} in T.serial(0, {extent}, step=1):")
            self.scope.append((name, extent))
        else:
            self.line(f"for {name} in T.Pipelined({extent}, num_stages=2):")
            self.scope.append((name, extent))
        self.depth += 1
        self.names.append(name)
        return name

    def enter(self, condition: str) -> None:
        self.line(f"if {condition}:")
        self.depth += 1

    @contextmanager
    def inside(self):
        depth, scope, names = self.depth, list(self.scope), list(self.names)
        yield
        self.depth, self.scope, self.names = depth, scope, names

    def expression(self, depth: int) -> str:
        """An integer expression."""
        if depth == 0 or self.chance(0.3):
            return self.one(*self.names, *self.names, str(self.choices.randrange(5)))
        a, b = self.expression(depth - 1), self.expression(depth - 1)
        tile = self.one(2, 3, 4)
        return self.one(
            f"({a} + {b})", f"({a} - {b})", f"{a} * {tile}", f"({a}) // {tile}", f"({a}) % {tile}",
            f"T.min({a}, {b})", f"T.max({a}, {b})", f"T.max({a}, 0) // T.max({b}, 1)",
            f"({a} + {tile - 1}) // {tile}", f"({a}) * ({b})", f"T.max({a}, 0) % T.max({b}, 1)",
            f"T.if_then_else({a} < {b}, {a}, {b} + 1)",
        )  # fmt: skip

    def condition(self) -> str:
        a, b = self.expression(1), self.expression(1)
        simple = f"{a} {self.one('<', '<=', '>=', '==', '!=')} {b}"
        return self.one(
            simple, simple, simple, f"{self.rows} > {self.one(1, 2, 3)}", f"bx == {self.one(0, 1)}",
            f"({simple}) and bx < 2", f"T.Or({simple}, bx > 0)", f"X[0, {self.one(0, 1)}] > 0.0",
            "v == 0", f"v < {a}", f"W[{self.one(0, 1)}] == {self.one(0, 1)}",
        )  # fmt: skip

    # -- statements

    def statements(self, row: str, column: str, **packed: str) -> None:
        """What a block does with its tile, at `row` and `column`; or at all columns."""
        for _ in range(self.choices.randrange(1, 4)):
            with self.inside():
                self.statement(row, column, **packed)

    def statement(self, row: str, column: str, **packed: str) -> None:
        if self.chance(0.2):
            with self.inside():
                self.other()
        if self.chance(0.15):
            self.enter(self.condition())
            if self.chance(0.4):
                with self.inside():
                    self.store(row, column, **packed)
                self.depth -= 1
                self.line("else:")
                self.depth += 1
        self.store(row, column, **packed)

    def shift(self) -> str:
        """Mostly nothing: else what makes tiles overlap, or leaves gaps."""
        return self.one(
            *[""] * 14, " + 1", " - 1", f" + {self.one(*self.names)}", " + v", " + W[1]"
        )

    def store(self, row: str, column: str, **packed: str) -> None:
        row += self.shift()
        forms = ["element", "element", "element", "copy", "row", "add", "number", "thread"]
        if not packed:
            forms += ["copy", "slice"]
        form = self.one(*forms)
        if not column and form in ("copy", "slice"):
            j = self.loop(self.count(self.columns, self.bn))
            column = f"{j} * {self.bn}"
        if form in ("copy", "slice"):
            source = self.one("S", "S", "F")
            if self.chance(0.3):
                self.line(f"T.copy(X[{row}, {column}], {source})")
            if form == "copy":
                if packed and self.chance(0.7):
                    self.enter(f"{packed['offset']} + {self.bm} <= {packed['length']}")
                self.line(f"T.copy({source}, Out[{self.index(row)}, {self.index(column)}])")
            else:
                low = self.one(f"{row}", f"{row}", f"T.max({row}, 0)")
                self.line(
                    f"T.copy({source}, Out[{low} : {low} + {self.bm}, "
                    f"{column} : {column} + {self.bn}])"
                )
            return
        if form in ("row", "number"):
            self.parallel(row, "", form, **packed)
            return
        if form == "thread":
            thread = self.fresh("t")
            self.line(f"{thread} = T.get_thread_binding()")
            self.enter(f"{thread} < {self.one(self.bm, self.bm, self.bm + 1)}")
            if packed:
                self.enter(f"{packed['offset']} + {thread} < {packed['length']}")
            self.line(f"Row[{row} + {thread}] = {self.one('1.0', 'X[0, 0]')}")
            return
        if not column:
            if self.chance(0.5):
                j = self.loop(self.columns)
                self.parallel(row, j, form, single=True, **packed)
                return
            j = self.loop(self.count(self.columns, self.bn))
            column = f"{j} * {self.bn}"
        self.parallel(row, column, form, **packed)

    def parallel(
        self, row: str, column: str, form: str, *, single: bool = False, **packed: str
    ) -> None:
        i, j = self.fresh("i"), self.fresh("j")
        extent = self.one(*[self.bm] * 8, self.bm - 1, self.bm + 1)
        flat = form in ("row", "number") or single
        if flat:
            self.line(f"for {i} in T.Parallel({extent}):")
        else:
            self.line(f"for {i}, {j} in T.Parallel({extent}, {self.bn}):")
        self.scope.append((i, str(extent)))
        self.names.append(i)
        if not flat:
            self.scope.append((j, str(self.bn)))
        self.depth += 1
        if packed and self.chance(0.85):
            limit = self.one(
                *[f"{packed['offset']} + {i} < {packed['length']}"] * 4,
                f"{row} + {i} < {packed['limit']}",
                f"{packed['offset']} + {i} <= {packed['length']}",
            )
            self.enter(limit)
        elif not packed and self.chance(0.3):
            self.enter(self.one(f"{row} + {i} < {self.rows}", f"{row} + {i} < {self.rows} - 1"))
        if self.chance(0.12):
            self.enter(self.condition())
        value = self.value(i, j if not flat else "", extent)
        at = self.index(f"{row} + {i}" if self.chance(0.93) else f"({row} + {i}) // 2")
        if form == "row":
            self.line(f"{self.one('Row', 'Row', 'Row')}[{at}] = {value}")
        elif form == "number":
            if "order" in self.program.parameters and self.chance(0.4):
                at = self.index(f"order[{row} + {i}]")
            self.line(f"Num[{at}] = {self.expression(1)}")
        else:
            place = column if single else f"{column} + {j}"
            self.index(place)
            if form == "add" and self.chance(0.8):
                self.line(f"T.atomic_add(Acc[{at}, {place}], {value})")
            else:
                target = self.one("Out", "Out", "Out", "Acc")
                self.line(f"{target}[{at}, {place}] = {value}")

    def value(self, i: str, j: str, extent: int) -> str:
        del extent
        options = ["1.0", "2.0"]
        if j:
            options += [f"S[{i}, {j}]", f"S[{i}, {j}]", f"F[{i}, {j}]"]
        if self.chance(0.15):
            a = self.expression(1)
            options += [f"X[{a}, 0]", f"Out[{a}, 0]", f"Row[{a}]", f"Acc[{a}, 0]"] * 2
            options += (
                [f"X[order[{a}], 0]", f"S[{a}, 0]"] if not self.program.packed else [f"S[{a}, 0]"]
            )
        return self.one(*options)

    def other(self) -> None:
        """A statement that changes integers or shared memory."""
        form = self.one(
            "var", "var", "var", "shared", "loop", "table", "branch", "atomic", "tile", "thread",
            "view", "cast",
        )  # fmt: skip
        if form == "var":
            self.line(f"v = {self.expression(2)}")
        elif form == "shared":
            self.line(f"W[{self.one('0', '1', self.one(*self.names))}] = {self.expression(1)}")
        elif form == "loop":
            self.loop(str(self.one(2, 3, *self.names)))
            self.line(self.one("v = v + 1", f"v = {self.expression(1)}", "W[1] = W[1] + 1"))
        elif form == "table":
            self.line(f"v = Num[{self.one('0', '0', self.one(*self.names))}]")
        elif form == "branch":
            self.enter(self.condition())
            self.line(f"v = {self.expression(1)}")
            if self.chance(0.5):
                self.depth -= 1
                self.line("else:")
                self.depth += 1
                self.line(f"v = {self.expression(1)}")
        elif form == "thread":
            self.line(f"if T.get_thread_binding() == {self.one(0, 5)}:")
            self.line(f"    W[{self.one(0, 1)}] = {self.expression(1)}")
            self.line("T.sync_threads()")
        elif form == "view":
            view = self.fresh("view")
            self.line(f"{view} = T.reshape(W, (2, 4))")
            self.line(f"{view}[0, 1] = {self.expression(1)}")
        elif form == "cast":
            dtype = self.one("int8", "uint8")
            self.line(f'v = T.cast(T.cast({self.expression(1)}, "{dtype}"), "int32")')
        elif form == "atomic":
            i = self.fresh("i")
            self.line(f"for {i} in T.Parallel({self.one(1, 2)}):")
            self.line(f"    T.atomic_add(W[{self.one(0, 1, i)}], {self.one(0, 1, 2)})")
        else:
            i = self.fresh("i")
            self.line(f"for {i} in T.Parallel({self.one(2, 4)}):")
            self.line(f"    S[{i} + {self.expression(1)}, 0] = 3.0")


# What launches do ---------------------------------------------------------------------------------


class BlockAccesses(Observer):
    """Writes calls of a `Noted` beside all accesses."""

    name = "blocks"
    argument = "noted"
    functions: ClassVar = {}
    reports_bounds = True
    sees_reads = True
    sees_every_read = True
    sees_writes = True

    def __init__(self, kernel, options, sites):
        super().__init__(kernel, options, sites)
        loops = (node for node in walk(kernel.body) if isinstance(node, ir.For))
        self._grid = [n.loop_var for n in loops if n.thread_tag.startswith("blockIdx")]

    def _about(self, e, buf, action):
        """Arguments that say which block does what to which buffer."""
        at = ", ".join(e.vars[var].code for var in self._grid)
        return f"({at},), {buf.name!r}, {buf.scope!r}, {action!r}"

    def read_scalar(self, e, access, code):
        """A single element is read in the middle of an expression."""
        buf = access.buf
        if buf.private_axes:
            return code
        about = self._about(e, buf, "read")
        return f"noted.one({about}, ({access.element},), {buf.code}.shape, {code})"

    def access(self, e, access, action):
        """Elements are about to be accessed."""
        buf = access.buf
        if buf.private_axes or buf.variable:
            return
        about = self._about(e, buf, action)
        if access.block and action != "atomic":
            mask = mask_of(e, access, e.mask)
            e.w.line(f"noted.block({about}, {access.dims_code}, {mask}, {buf.code}.shape)")
        else:
            extents = e.shape_of(e.all_axes) if e.axes else "()"
            index = access.index_code
            e.w.line(f"noted.lanes({about}, {index}, {e.mask_code}, {buf.code}.shape, {extents})")

    def before_tile(self, e, op):
        """A tile operation is about to access its operands; copies are clipped."""
        clips = op.moves is not None
        for effect in op.effects:
            r = effect.region
            about = self._about(e, r.buf, effect.action)
            e.w.line(f"noted.block({about}, {r.dims_code}, None, {r.buf.code}.shape, {clips})")


class Noted:
    """Which block accessed which elements in one launch.

    Attributes:
        seen: by (buffer, action) and the index of a block, flags of the elements.
        outside: buffers, with their scope, of which an index was outside.
        doubled: buffers to an element of which one statement of a block adds more than once.
        assumed: whether every `T.assume` held; one that does not ends the launch.
    """

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], dict[tuple[int, ...], np.ndarray]] = {}
        self.outside: set[tuple[str, str]] = set()
        self.doubled: set[str] = set()
        self.assumed = True

    def _mark(self, at, name, scope, action, place, shape):
        if place is None or scope != "global":
            return
        where, mask = place
        flags = self.seen.setdefault((name, action), {}).setdefault(
            tuple(map(int, at)), np.zeros(shape, bool)
        )
        if mask is None:
            flags[where] = True
        else:
            flags[where] |= mask

    def one(self, at, name, scope, action, index, shape, value):
        if all(0 <= i < n for i, n in zip(index, shape, strict=True)):
            self._mark(at, name, scope, action, (tuple(index), None), shape)
        else:
            self.outside.add((name, scope))
        return value

    def block(self, at, name, scope, action, dims, mask, shape, clipped=False):
        if mask is not None and not np.any(mask):
            return
        self._mark(at, name, scope, action, block_of(dims, mask, shape), shape)
        for d, n in zip(dims, shape, strict=True):
            first, count, step = d if isinstance(d, tuple) else (d, 1, 1)
            ranged = isinstance(d, tuple)
            if count > 0 and (first < 0 or first + (count - 1) * step >= n) and not clipped:
                if mask is not None and ranged:
                    continue  # which of them are active is not asked: one violation less is seen
                self.outside.add((name, scope))

    def lanes(self, at, name, scope, action, index, mask, shape, extents):
        self._mark(at, name, scope, action, lanes_of(index, mask, shape, extents), shape)
        inside = lanes_inside(index, mask, shape, extents)
        active = np.broadcast_to(True if mask is None else mask, inside.shape)
        if (active & ~inside).any():
            self.outside.add((name, scope))
        if action == "atomic":
            flat = [np.broadcast_to(i, inside.shape)[inside] for i in index]
            elements = list(zip(*(part.tolist() for part in flat), strict=True))
            if len(set(elements)) < len(elements):
                self.doubled.add(name)


@dataclass(frozen=True)
class Launch:
    """Values of dims and scalars, and the integer tensors that hold them."""

    symbols: dict[str, int]
    tables: dict[str, np.ndarray]

    def __str__(self) -> str:
        tables = (f"{name}={table.tolist()}" for name, table in self.tables.items())
        return ", ".join([*(f"{k}={v}" for k, v in self.symbols.items()), *tables])


def launches(program: Program, choices: random.Random) -> list[Launch]:
    """All launches of small sizes."""
    found = []
    ranges = [range(1, 4) if name == "k" else range(1, LARGEST + 1) for name in program.dims]
    for sizes in itertools.product(*ranges):
        symbols = dict(zip(program.dims, sizes, strict=True))
        if program.packed:
            if symbols["m"] > 3:
                continue
            for batch in (1, 2, 3):
                for lengths in itertools.product(range(5), repeat=batch):
                    cu = np.cumsum([0, *lengths])
                    if cu[-1]:
                        more = {"batch": batch, "total": int(cu[-1])}
                        found.append(Launch({**symbols, **more}, {"cu": cu}))
        else:
            n = symbols["n"]
            order = np.array(choices.sample(range(n), n))
            found.append(Launch(symbols, {"order": order}))
            if n > 1:
                found.append(Launch(symbols, {"order": order[::-1].copy()}))
    if len(found) > MOST_LAUNCHES:
        found = choices.sample(found, MOST_LAUNCHES)
    return found


def evaluated(text: str, values: dict[str, Any]) -> Any:
    """A text of a program as Python."""
    return eval(text, {"T": _Python}, values)


class _Python:
    """`T` of the expressions of a program, over Python integers."""

    max = staticmethod(max)
    min = staticmethod(min)
    ceildiv = staticmethod(lambda a, b: (a + b - 1) // b)
    if_then_else = staticmethod(lambda test, a, b: a if test else b)
    Or = staticmethod(lambda a, b: a or b)


def shape_of(program: Program, name: str, symbols: dict[str, int]) -> tuple[int, ...]:
    """The shape of a parameter."""
    return tuple(evaluated(text, dict(symbols)) for text in program.parameters[name][0])


def run(program: Program, kernel: Any, launch: Launch, sign: int) -> Noted | None:
    """What a launch does; None if host code refuses it."""
    generator = torch.Generator().manual_seed(sign)
    arguments = []
    for name, (_, dtype) in program.parameters.items():
        shape = shape_of(program, name, launch.symbols)
        if name in launch.tables:
            tensor = torch.from_numpy(launch.tables[name].astype(np.int32))
        elif dtype == "int32":
            tensor = torch.randint(-1, 3, shape, generator=generator, dtype=torch.int32)
        elif name == "X" and sign:
            tensor = torch.randn(shape, generator=generator)
        else:
            tensor = torch.full(shape, -1.0)
        arguments.append(tensor)
    arguments += [launch.symbols["k"]] if "k" in launch.symbols else []
    noted = Noted()
    with interpret() as session:
        session.observers["blocks"] = lambda _plan: noted
        try:
            kernel(*arguments)
        except LaunchError:
            return None
        except InterpreterError as error:
            if "does not hold" not in str(error):
                raise
            noted.assumed = False
    return noted


# Answers ------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """What became of one program.

    Attributes:
        answers: how many properties have each answer.
        wrong: proven properties that a launch violates, in words.
        missed: properties that are not proven and that no launch violates.
    """

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


@contextmanager
def observed():
    """Programs may be observed by `BlockAccesses` inside."""
    before = list(registry.OBSERVERS)
    registry.OBSERVERS.append(BlockAccesses)
    try:
        yield
    finally:
        registry.OBSERVERS[:] = before


def traced(source: str, folder: Path) -> Any:
    """The PrimFunc of a program."""
    path = folder / f"brute_force_{next(_modules)}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}):
        spec.loader.exec_module(module)
    return module.main


def proofs_of(program: Program, func: Any, every: list[Launch]) -> Any:
    """The answers about a program."""
    observations = [
        Observation(
            launch.symbols,
            launch.tables,
            frozenset(launch.tables),
            frozenset(_OUTPUTS),
            tuple(program.parameters),
        )
        for launch in every
    ]
    traced = {"sm_90a": "case"}
    use = KernelUse("main", saved(func), "case", traced, observations, observations)
    return prove_kernel(use, {})


def judged(program: Program, folder: Path, seed: int = 0, *, show: bool = False) -> Verdict:
    """The answers about a program, compared with its launches."""
    choices = random.Random(seed)
    func = traced(program.source, folder)
    every = launches(program, choices)
    answers = proofs_of(program, func, every)
    verdict = Verdict()
    if answers.unsupported:
        verdict.answers["unsupported"] += 1
    violated: dict[tuple[str, str], str] = {}
    with observed():
        kernel = interpreted(func)
        for launch in every:
            for sign in (0, 1):
                noted = run(program, kernel, launch, sign)
                if noted is not None:
                    for key in violations(program, noted, launch):
                        violated.setdefault(key, str(launch))
                if sign == 0 and "X[" not in program.source:
                    break
    for proof in answers.proofs:
        key = (proof.name, proof.subject)
        if proof.name == "overflow":
            launch = overflowing(program, proof.subject, choices)
            if launch and proof.answer == "proven":
                violated[key] = launch
        verdict.answers[proof.answer] += 1
        broken = violated.get(key)
        if show:
            print(f"{proof}: {proof.answer}; {broken or 'no launch violates it'} {proof.reason}")
        if proof.answer == "proven" and broken:
            verdict.answers["wrong"] += 1
            verdict.wrong.append(f"{proof} is proven, but: {broken}; with {proof.facts}")
        elif proof.answer != "proven" and not broken:
            verdict.missed.append(f"{proof}: {proof.reason} {proof.values or ''}")
        if proof.answer != "proven" and broken:
            verdict.answers["violated"] += 1
    return verdict


def violations(program: Program, noted: Noted, launch: Launch) -> list[tuple[str, str]]:
    """The properties, by name and subject, that a launch violates."""
    found = []
    for buffer, (_, dtype) in program.parameters.items():
        kinds = {a: noted.seen.get((buffer, a), {}) for a in ("write", "read", "atomic")}
        if _conflict(kinds["write"], kinds["write"]) or any(
            _conflict(kinds[a], kinds[b])
            for a, b in (("write", "read"), ("write", "atomic"), ("atomic", "read"))
        ):
            found.append(("races", buffer))
        written = sum(kinds["write"].values(), np.zeros(shape_of(program, buffer, launch.symbols)))
        if not written.all() and noted.assumed:
            found.append(("coverage", buffer))
        if "float" in dtype and (
            _conflict(kinds["atomic"], kinds["atomic"]) or buffer in noted.doubled
        ):
            found.append(("equal bits", buffer))
        if program.owner:
            cu = launch.tables["cu"]
            for kind in ("write", "atomic"):
                for indices, flags in kinds[kind].items():
                    names = dict(zip(("bx", "by"), indices, strict=False))
                    own = evaluated(program.owner, {**launch.symbols, **names})
                    rows = np.flatnonzero(flags.reshape(len(flags), -1).any(1))
                    if any(not cu[own] <= row < cu[own + 1] for row in rows):
                        found.append(("own sequence", buffer))
    scopes = {scope for _, scope in noted.outside}
    if any(scope.startswith("shared") for scope in scopes):
        found.append(("bounds", "shared memory"))
    if any(scope.startswith("local") for scope in scopes):
        found.append(("bounds", "fragments"))
    if any(name in _TABLES for name, _ in noted.outside):
        found.append(("bounds", "tables"))
    if not noted.assumed:
        found.append(("assumptions", "T.assume"))
    return found


def _conflict(some: dict[Any, np.ndarray], others: dict[Any, np.ndarray]) -> bool:
    return any(a != b and bool((x & y).any()) for a, x in some.items() for b, y in others.items())


# Arithmetic of large sizes ------------------------------------------------------------------------


class _OverflowError(Exception):
    """A value of int32 arithmetic is outside its range."""


class _Int:
    """An integer whose sums and products must fit int32."""

    def __init__(self, value: int) -> None:
        self.value = value

    @staticmethod
    def _of(value: Any) -> int:
        return value.value if isinstance(value, _Int) else int(value)


def _checked(name: str) -> Any:
    def operation(self: _Int, other: Any) -> Any:
        value = getattr(int, name)(self.value, _Int._of(other))
        if not -(1 << 31) <= value < 1 << 31:
            raise _OverflowError
        return _Int(value)

    return operation


for _name in ("add", "sub", "mul", "floordiv", "mod", "radd", "rsub", "rmul"):
    setattr(_Int, f"__{_name}__", _checked(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(
        _Int,
        f"__{_name}__",
        lambda self, other, _name=_name: getattr(int, f"__{_name}__")(self.value, _Int._of(other)),
    )


def overflowing(program: Program, subject: str, choices: random.Random) -> str:
    """Values for which an index of the program overflows, with sizes to those of the subject."""
    most = int(subject.rpartition(" ")[2])
    for _ in range(40):
        values: dict[str, Any] = {}
        for name in (*program.dims, "n", "m", "total", "batch"):
            values[name] = _Int(choices.choice((1, 2, 7, most // 2, most - 1, most)))
        if program.packed:
            values["cu"] = _Cu(values["total"].value, choices)
        values["order"] = _Cu(values["n"].value - 1, choices)
        for text, scope in program.indices:
            local = dict(values)
            try:
                for name, extent in scope:
                    if extent.startswith("="):
                        local[name] = evaluated(extent[1:], local)
                        continue
                    count = _Int._of(evaluated(extent, local))
                    if count <= 0:
                        break
                    local[name] = _Int(choices.choice((0, count - 1, count // 2)))
                else:
                    if "v" not in text and "W" not in text:
                        evaluated(text, local)
            except _OverflowError:
                sizes = {k: v.value for k, v in local.items() if isinstance(v, _Int)}
                return f"{text} with {sizes}"
            except (NameError, ZeroDivisionError, TypeError):
                continue
    return ""


class _Cu:
    """Offsets of sequences, or other elements below a size."""

    def __init__(self, total: int, choices: random.Random) -> None:
        self.total, self.choices = max(total, 0), choices

    def __getitem__(self, _index: Any) -> _Int:
        return _Int(self.choices.choice((0, self.total, self.total // 2)))


# The command --------------------------------------------------------------------------------------


def main() -> int:
    """Judge programs; the exit code is 1 if something proven is violated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.programs)
    if arguments.only is not None:
        numbers = [arguments.only]
    counts: Counter[str] = Counter()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            program = program_of(arguments.seed, number)
            show = arguments.only is not None
            if show:
                print(program.source)
            try:
                verdict = judged(program, Path(folder), number, show=show)
            except Exception as error:
                print(f"program {number}: {type(error).__name__}: {error}"[:600], flush=True)
                counts["failed"] += 1
                if show:
                    raise
                continue
            counts += verdict.answers
            counts["programs"] += 1
            for words in verdict.wrong:
                print(f"program {number}: WRONG: {words}", flush=True)
            counts["missed"] += len(verdict.missed)
    print(
        f"{counts['programs']} programs, {counts['failed']} not run; "
        f"{counts['proven']} properties proven, of which a launch violates {counts['wrong']}; "
        f"{counts['unknown']} not proven, of which a launch violates {counts['violated']}; "
        f"{time.process_time() - began:.0f} s"
    )
    return 1 if counts["wrong"] or counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
