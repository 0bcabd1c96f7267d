"""The emitter: the state of one emission, and dispatch to the rules for each kind of node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypedDict, Unpack

from tlmatrix.interpreter.errors import Unsupported, remedy
from tlmatrix.interpreter.ir.walk import text_of

from .instrument import Instrument
from .source import Writer
from .values import Affine, Code, Val, literal, numpy_name

if TYPE_CHECKING:
    from tlmatrix.interpreter.ir.nodes import Buffer, Call, Kernel, Layout, Var

    from .access import Buf
    from .sharing import Invariants


# How the threads of a block run: as one agent, or as several with waits between them --------------


class Agents:
    """One agent: what the threads of a block do has one order, and threads have no index.

    `threads.Threads` is the other kind.
    """

    several = False

    def in_threads(self, e: Emitter) -> bool:
        """Whether statements are run for every thread, along the thread axis."""
        del e
        return False

    def statement(self, e: Emitter, node: Any, write: Callable[[Emitter, Any], None]) -> None:
        """Write a statement."""
        write(e, node)

    def fold(self, e: Emitter, node: Any) -> Val | None:
        """The value of an expression that is the same for all threads; None for any other."""
        del e, node
        return None

    def uniform(self, e: Emitter, value: Val, what: str) -> Val:
        """A value that differs between iterations as one that does not.

        Raises:
            Unsupported: where there is no such value.
        """
        del value
        raise e.refuse(f"{what} that differs between iterations of a parallel loop")

    def varies(self, var: Any) -> None:
        """Note that the iterations in force, or threads, have different values of a variable."""

    def jump(self, e: Emitter, call: Any) -> bool:
        """Write a jump of the active threads; False where the whole block jumps."""
        del e, call
        return False

    def set_registers(self, e: Emitter, count: int) -> None:
        """Write a `setmaxnreg`."""
        del e, count

    def untracked(self) -> AbstractContextManager[None]:
        """Inside, accesses are not noted for race detection."""
        return nullcontext()


# The emitter: the state of one emission, and dispatch to the rules for each kind of node ----------


@dataclass(frozen=True)
class Rules:
    """What to write for each kind of node.

    Attributes:
        statements: by class of the statement.
        expressions: by class of the expression.
        calls: by operation, for a call whose value is used, or nothing else is known of.
        effects: by operation, for a call that is a statement.
    """

    statements: Mapping[type, Callable[[Emitter, Any], None]] = field(default_factory=dict)
    expressions: Mapping[type, Callable[[Emitter, Any], Val]] = field(default_factory=dict)
    calls: Mapping[str, Callable[[Emitter, Call], Val]] = field(default_factory=dict)
    effects: Mapping[str, Callable[[Emitter, Call], None]] = field(default_factory=dict)

    def overlaid(self, other: Rules) -> Rules:
        """These rules, with those of `other` in place of them where it has some."""
        return Rules(
            {**self.statements, **other.statements},
            {**self.expressions, **other.expressions},
            {**self.calls, **other.calls},
            {**self.effects, **other.effects},
        )


@dataclass(frozen=True)
class Facts:
    """What analyses found of a kernel.

    Attributes:
        usage: what it does with each memory (`analysis.usage`).
        addressed: buffers that a tile operation or a pointer refers to, which must be arrays.
        mixed_views: data accessed under several dtypes, one of them a low-precision one.
        initialized: data of buffers that are written whole before anything reads them.
        loop_layout: gives the threads of a parallel loop in which iterations meet, if known.
    """

    usage: Mapping[Var, frozenset[str]]
    addressed: frozenset[Buffer]
    mixed_views: frozenset[Var]
    initialized: frozenset[Var]
    loop_layout: Callable[[Any], Any]


@dataclass(frozen=True)
class Axis:
    """A parallel loop in force: a dimension of every array its body computes."""

    position: int
    extent: Val
    iota: Val


@dataclass
class Dest:
    """The view a statement stores to, while its value may still be computed into it."""

    view: str
    name: str
    np_dtype: str
    axes: frozenset[int]
    reads_left: int
    live: int = 0


@dataclass
class Atomic:
    """The atomic operation that is being written.

    Attributes:
        is_access: whether it is an atomic load or store.
        order: what it orders: "acquire", "release", "both", "neither"; "unsaid" where it does
            not say.
        kind: "add", "max" and so on; "" for a load or store.
        reorderable: whether its result does not depend on the order of several, because all have
            the same operand.
    """

    is_access: bool = False
    order: str = ""
    kind: str = ""
    reorderable: bool = False


class Stored(NamedTuple):
    """Of a value that is about to be stored, the iterations whose store is not skipped.

    Attributes:
        every: code of whether they are all; "" where that is not known.
        iterations: a mask of them.
    """

    every: str
    iterations: Val


class Scope(TypedDict, total=False):
    """What holds where a statement or an expression stands; see `Emitter`."""

    axes: list[Axis]
    rank: int
    mask: Val | None
    dest: Dest | None
    stored: Stored | None
    conditions: tuple[tuple[Any, bool], ...]
    atomic: Atomic
    host_integers: bool
    wide_indices: bool
    speculative: bool


@dataclass(frozen=True)
class Snapshot:
    """What is known of a program, to go back to where code is emitted a second time.

    Attributes:
        tables: what the emitter knows by name, by its attribute.
        views: the views that are made once, of each buffer.
        lines: how many lines the prologue has.
        instruments: their own.
    """

    tables: dict[str, Any]
    views: list[tuple[Buf, dict[str, str]]]
    lines: int
    instruments: list[Any]


P = ParamSpec("P")
_TABLES = ("buffers", "vars", "deferred", "fixed", "iotas", "_made")


@dataclass
class Emitter:
    """The state of one emission.

    Attributes:
        kernel: what is emitted.
        rules: what to write for each kind of node.
        instruments: what is woven into the program.
        agents: how the threads of a block run.
        facts: what analyses found of the kernel.
        guard: whether TileLang guards global accesses.
        barriers: whether TileLang orders the threads of a block that share memory.
        invariants: shares integers that stay the same while a block runs; None where nothing is.
        w: the lines of the program; `prologue` those before the grid, or a block.
        vars: the values of variables; a string says what is refused at a use of one.
        deferred: expressions that are evaluated where a variable is used.
        conditions: those of the branches around, each with whether it holds.
        axes: the parallel loops in force; `rank` how many dimensions their arrays have.
        mask: the iterations that are active; None for all.
        dest: the view that the value at hand is stored to.
        stored: the iterations that store the value at hand; None for all.
        host_integers: whether integers have 64 bits, as shapes and strides on the host.
        speculative: whether an operand is emitted for all iterations that another one may exclude.
        wide_indices: whether an index is emitted that TileLang computes in 64 bits.
        atomic: the atomic operation at hand.
        safe_values: safe values that a block annotates for buffers it allocates.
        layouts: global buffers with an annotated layout.
        vector_atomics: how many elements of a row a vector atomic takes, by buffer.
        reducers: how reducers combine contributions, by buffer.
        fixed: arrays and views made once, before the grid.
        from_zero: a fill with zeros and the product after it that starts from them.
    """

    kernel: Kernel
    rules: Rules
    instruments: Sequence[Instrument]
    agents: Agents
    facts: Facts
    guard: bool
    barriers: bool = True
    invariants: Invariants | None = None
    w: Writer = field(default_factory=Writer)
    vars: dict[Any, Any] = field(default_factory=dict)
    deferred: dict[Any, Any] = field(default_factory=dict)
    buffers: dict[Buffer, Buf] = field(default_factory=dict)
    conditions: tuple[tuple[Any, bool], ...] = ()
    axes: list[Axis] = field(default_factory=list)
    rank: int = 0
    mask: Val | None = None
    dest: Dest | None = None
    stored: Stored | None = None
    host_integers: bool = False
    wide_indices: bool = False
    speculative: bool = False
    atomic: Atomic = field(default_factory=Atomic)
    safe_values: dict[str, Any] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    vector_atomics: dict[str, int] = field(default_factory=dict)
    reducers: dict[str, str] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    from_zero: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.prologue = self.w.sharing_names()
        self.launch_prologue = self.prologue
        """Before the grid, where `prologue` is before each block."""
        self.iotas: dict[tuple[str, int, int], str] = {}
        self.reports_bounds = any(i.reports_bounds for i in self.instruments)
        self.may_shorten = not self.agents.several and not any(
            i.sees_writes for i in self.instruments
        )
        self.decides_comparisons = not any(i.sees_comparisons for i in self.instruments)
        self.reuses_stores = not any(i.sees_values for i in self.instruments)
        self._made: dict[tuple[str, str], str] = {}

    # -- dispatch

    def stmt(self, node: Any) -> None:
        """Write one statement."""
        self.notify(Instrument.before_statement, node)
        self.agents.statement(self, node, write_statement)
        self.notify(Instrument.after_statement, node)

    def expr(self, node: Any) -> Val:
        """The value of an expression."""
        folded = self.agents.fold(self, node)
        if folded is not None:
            return folded
        rule = self.rules.expressions.get(type(node))
        if rule is None:
            raise self.refuse(f"the expression {type(node).__name__}: {text_of(node)}")
        value = rule(self, node)
        return value if self.invariants is None else self.invariants.shared(self, node, value)

    def scalar(self, node: Any, what: str) -> Val:
        """The value of an expression that must be the same in every iteration."""
        value = self.expr(node)
        return value if value.scalar else self.agents.uniform(self, value, what)

    @contextmanager
    def inside(self, **scope: Unpack[Scope]) -> Iterator[None]:
        """Inside, other things hold than around it."""
        outer = {name: getattr(self, name) for name in scope}
        self._set(scope)
        try:
            yield
        finally:
            self._set(outer)

    def _set(self, scope: Mapping[str, Any]) -> None:
        for name, value in scope.items():
            setattr(self, name, value)

    def where(self, condition: Any, *, holds: bool) -> AbstractContextManager[None]:
        """Inside, a condition holds, or does not."""
        return self.inside(conditions=(*self.conditions, (condition, holds)))

    # -- names and errors

    def notify(
        self,
        event: Callable[Concatenate[Instrument, Emitter, P], None],
        *args: P.args,
        **kw: P.kwargs,
    ) -> None:
        """Call a method of every instrument, given as that of `Instrument`."""
        for instrument in self.instruments:
            getattr(instrument, event.__name__)(self, *args, **kw)

    def refuse(self, what: str) -> Unsupported:
        """The error for an operation that is not modelled, with the user's line."""
        location = self.w.location
        where = f" ({location})" if location is not None else f", in kernel {self.kernel.name}"
        return Unsupported(f"the interpreter does not model {what}{where}{remedy(what)}")

    def temp(self, stem: str = "t") -> str:
        """A fresh name."""
        return self.w.fresh(stem)

    @property
    def mask_code(self) -> str:
        """Code of the mask in force, or None."""
        return self.mask.code if self.mask is not None else "None"

    # -- arrays that are made once

    def tensor(self, code: str, scratch: str = "") -> str:
        """Code of torch's view of an array, made once where the array is.

        With `scratch` that of a tensor of the same shape and of this dtype, for temporary values.
        """
        if code not in self.fixed:
            return f"torch.from_numpy({code})"
        made = f"torch.from_numpy({code})"
        if scratch:
            made = f"torch.empty_like({self.tensor(code)}, dtype=torch.{scratch})"
        return self._once(self.prologue, f"{code}_{scratch or 't'}", made)

    def constant(self, value: Val) -> str:
        """Code of a constant as an array of its own precision, which NumPy need not convert."""
        made = f"np.array({value.code}, {numpy_name(value.dtype)!r})"
        return self._once(self.launch_prologue, "c", made)

    def transposed(self, code: str) -> str | None:
        """Code of torch's transposed view of an array; None where it would be made at every use."""
        if code not in self.fixed:
            return None
        return self._once(self.prologue, f"{code}_turned", f"{self.tensor(code)}.t()")

    def _once(self, writer: Writer, stem: str, code: str) -> str:
        """The name of what `code` makes, made where the lines of `writer` stand."""
        key = stem, code
        if key not in self._made:
            name = self._made[key] = writer.fresh(stem)
            writer.line(f"{name} = {code}")
        return self._made[key]

    def hoisted(self, buf: Buf, code: str) -> str:
        """A view that never changes, made once."""
        if buf.is_global or buf.private_axes or code == buf.code:
            return code
        name = buf.views.get(code)
        if name is None:
            name = buf.views[code] = self.prologue.fresh(f"{buf.code}_v")
            self.prologue.line(f"{name} = {code}")
            self.fixed.add(name)
        return name

    # -- axes

    def axis_at(self, position: int) -> Axis:
        """The axis in force at a position."""
        for axis in self.axes:
            if axis.position == position:
                return axis
        raise self.refuse("a value of an inner parallel loop used outside of it")

    def push_axis(self, extent: Val) -> Axis:
        """Enter a parallel loop."""
        position = len(self.axes)
        if extent.lit is not None:
            key = (extent.code, position, self.rank)
            if key not in self.iotas:
                name = self.iotas[key] = self.prologue.fresh(f"i{position}_{extent.code}")
                self.prologue.line(f"{name} = iota({extent.code}, {position}, {self.rank})")
            code: str = Code(self.iotas[key], (f"i{position}of{self.rank}_{extent.code}",))
        else:
            code = self.temp(f"i{position}")
            self.w.line(f"{code} = iota({extent.code}, {position}, {self.rank})")
        iota = Val(
            code,
            "int32",
            frozenset({position}),
            affine=Affine(literal(0, "int32"), ((position, 1),)),
            lo=0,
            hi=extent.hi - 1 if extent.hi is not None else None,
            below=extent.code,
        )
        axis = Axis(position, extent, iota)
        self.axes.append(axis)
        return axis

    def shape_of(self, axes: frozenset[int]) -> str:
        """Code of the broadcast shape of a value that varies over `axes`."""
        extents = [self.axis_at(p).extent.code if p in axes else "1" for p in range(self.rank)]
        return "(" + ", ".join(extents) + ("," if len(extents) == 1 else "") + ")"

    @property
    def all_axes(self) -> frozenset[int]:
        """The axes in force."""
        return frozenset(axis.position for axis in self.axes)

    @property
    def mask_axes(self) -> frozenset[int]:
        """The axes over which the mask in force varies."""
        return self.mask.axes if self.mask is not None else frozenset()

    # -- repeated emission

    def snapshot(self) -> Snapshot:
        """The state to go back to, where code is emitted a second time."""
        return Snapshot(
            {name: copy(getattr(self, name)) for name in _TABLES},
            [(buf, dict(buf.views)) for buf in self.buffers.values()],
            len(self.prologue.lines),
            [instrument.snapshot() for instrument in self.instruments],
        )

    def restore(self, saved: Snapshot) -> None:
        """Go back to a state."""
        for name, table in saved.tables.items():
            setattr(self, name, copy(table))
        self.prologue.take(saved.lines)
        for buf, views in saved.views:
            buf.views = dict(views)
        for instrument, state in zip(self.instruments, saved.instruments, strict=True):
            instrument.restore(state)


def write_statement(e: Emitter, node: Any) -> None:
    """Write a statement by its rule."""
    # A statement that the reader does not know is a call of its name, without a location.
    e.w.location = getattr(node, "location", None) or e.w.location
    rule = e.rules.statements.get(type(node))
    if rule is None:
        raise e.refuse(f"the statement {getattr(node, 'op', type(node).__name__)}")
    e.notify(Instrument.before_rule, node)
    rule(e, node)
    e.notify(Instrument.after_rule, node)
