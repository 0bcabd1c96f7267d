"""Nodes of the tile IR: expressions, statements, buffers and the kernel.

The classes carry the names and fields of TVM's TIR, with what TileLang adds to it: a region of a
buffer is a node of its own. Nodes are immutable and compare by identity; `walk.same` compares
structure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, dataclass_transform

SERIAL, PARALLEL, VECTORIZED, UNROLLED, THREAD_BINDING = range(5)
"""Kinds of loops, numbered as in TVM."""


@dataclass_transform(frozen_default=True, eq_default=False)
def node(kind: type[Any]) -> type[Any]:
    """Make a class of nodes; frozen for mypy alone, as a frozen one takes three times as long."""
    return dataclass(slots=True, eq=False)(kind)


@dataclass(frozen=True)
class Location:
    """A line of the user's kernel."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@node
class Expr:
    """An expression; `dtype` is the name that TVM has for it."""

    dtype: str


@node
class IntImm(Expr):
    """An integer or boolean constant."""

    value: int


@node
class FloatImm(Expr):
    """A float constant."""

    value: float


@node
class StringImm(Expr):
    """A string constant."""

    value: str


@node
class Var(Expr):
    """A variable."""

    name: str


@node
class Cast(Expr):
    """A conversion to `dtype`."""

    value: Expr


@node
class Not(Expr):
    """A negated condition."""

    a: Expr


@node
class Binary(Expr):
    """An operation of two operands."""

    a: Expr
    b: Expr


class Add(Binary):
    """`a + b`."""

    __slots__ = ()


class Sub(Binary):
    """`a - b`."""

    __slots__ = ()


class Mul(Binary):
    """`a * b`."""

    __slots__ = ()


class Div(Binary):
    """`a / b`; of integers truncated, as in C."""

    __slots__ = ()


class Mod(Binary):
    """The remainder of the truncated division."""

    __slots__ = ()


class FloorDiv(Binary):
    """`a // b`, rounded down."""

    __slots__ = ()


class FloorMod(Binary):
    """The remainder of the division that rounds down."""

    __slots__ = ()


class Min(Binary):
    """The smaller operand."""

    __slots__ = ()


class Max(Binary):
    """The larger operand."""

    __slots__ = ()


class And(Binary):
    """Both conditions; `b` is evaluated only where `a` holds."""

    __slots__ = ()


class Or(Binary):
    """Either condition; `b` is evaluated only where `a` does not hold."""

    __slots__ = ()


BINARY = (Add, Sub, Mul, Div, Mod, FloorDiv, FloorMod, Min, Max, And, Or)
"""Operations of two operands and nothing else."""


@node
class Compare(Binary):
    """A comparison; `symbol` is Python's."""

    symbol: str


@node
class Select(Expr):
    """`true_value` where the condition holds, else `false_value`."""

    condition: Expr
    true_value: Expr
    false_value: Expr


@node
class Ramp(Expr):
    """A vector of `lanes` integers, `stride` apart."""

    base: Expr
    stride: Expr
    lanes: int


@node
class Broadcast(Expr):
    """A vector of `lanes` equal elements."""

    value: Expr
    lanes: int


@node
class Let(Expr):
    """`body` with a variable bound."""

    var: Var
    value: Expr
    body: Expr


@node
class Buffer:
    """A buffer; buffers with one `data` share memory.

    Attributes:
        strides: empty for a compact buffer.
        offset: of the first element, in elements; None for 0.
        scope: TileLang's memory scope.
        location: the user's line of the allocation.
    """

    name: str
    data: Var
    dtype: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr | None
    scope: str
    location: Location | None


@node
class BufferLoad(Expr):
    """One element of a buffer, or a vector of them."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    predicate: Expr | None = None


@node
class Region(Expr):
    """A box of a buffer: the operand of a tile operation, and what that does to it."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    extents: tuple[Expr, ...]
    reads: bool
    writes: bool


@node
class Call(Expr):
    """A call of an operation by name, such as "tl.tileop.copy" or "tirx.exp2"."""

    op: str
    args: tuple[Any, ...]
    annotations: Mapping[str, Any]


@node
class CommReducer:
    """How a reduction over threads combines values: the class of its result."""

    combiner: type[Expr]


@node
class Layout:
    """A layout: an index of `shape` maps to `index`, over the variables of its placeholders."""

    shape: tuple[Expr, ...]
    index: tuple[Expr, ...]
    thread: Expr | None = None
    replicate: int = 1


@node
class Stmt:
    """A statement; `location` is the user's line, None for TileLang's own macros."""

    location: Location | None


@node
class SeqStmt(Stmt):
    """Statements one after another."""

    seq: tuple[Stmt, ...]


@node
class Bind(Stmt):
    """A variable bound for all that follows in its block."""

    var: Var
    value: Expr


@node
class For(Stmt):
    """A loop; `kind` is one of SERIAL, PARALLEL, VECTORIZED, UNROLLED, THREAD_BINDING."""

    loop_var: Var
    min: Expr
    extent: Expr
    kind: int
    body: Stmt
    step: Expr | None = None
    thread_tag: str = ""
    annotations: Mapping[str, Any] | None = None


@node
class While(Stmt):
    """A loop while a condition holds."""

    condition: Expr
    body: Stmt


@node
class IfThenElse(Stmt):
    """A branch."""

    condition: Expr
    then_case: Stmt
    else_case: Stmt | None


class ThreadTag(str):
    """The axis of a launch that a variable is the index of: "threadIdx.x"."""

    __slots__ = ("var",)
    var: Var


@node
class AttrStmt(Stmt):
    """A statement with an attribute."""

    node: Any
    attr_key: str
    value: Any
    body: Stmt


@node
class AllocBuffer(Stmt):
    """Memory of a lowered kernel, for all that follows in its scope."""

    buffer: Buffer


@node
class DeclBuffer(Stmt):
    """A buffer of a lowered kernel in memory that is there."""

    buffer: Buffer


@node
class AssertStmt(Stmt):
    """An assertion."""

    condition: Expr


@node
class Evaluate(Stmt):
    """An expression evaluated for its effect."""

    value: Any


@node
class BufferStore(Stmt):
    """A store of one element, or a vector of them."""

    buffer: Buffer
    value: Expr
    indices: tuple[Expr, ...]
    predicate: Expr | None = None


@node
class Block(Stmt):
    """A scope that allocates buffers."""

    alloc_buffers: tuple[Buffer, ...]
    annotations: Mapping[str, Any]
    body: Stmt


@node
class Kernel:
    """A traced kernel.

    Attributes:
        name: its global symbol.
        params: one for each parameter, in order; the handle of a tensor.
        buffer_map: the buffer of each parameter that is a tensor.
        body: what it does.
        ends_early: whether threads may end before others (`T.thread_return`), in branches of it.
    """

    name: str
    params: tuple[Var, ...]
    buffer_map: Mapping[Var, Buffer]
    body: Stmt
    ends_early: bool = False
