"""The accesses of a traced kernel: which elements, under which conditions, in which loops.

`accesses_of` executes the statements of one block symbolically. Indices and conditions of an access
are expressions over the symbolic dims and scalar parameters, `Range` variables and loads of tensors
that the kernel only reads, such as `cu_seqlens[b + 1]`. Bound variables and integers that a block
keeps in local memory are replaced by their values.

The model is exact but for: unknown values, conditions on floats (an unknown boolean each), and
loops that end early (an unknown boolean for each iteration). All of them admit more executions than
there are. `Access.certain` says whether there are none on the path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.threads import (
    launched_threads,
    with_boolean_conditions,
    without_returns,
)
from tlmatrix.interpreter.ir.walk import any_of, children, same, walk

from .expressions import UNKNOWN, evaluate, interval, is_negative_under, is_true, number
from .usage import has_jumps

if TYPE_CHECKING:
    from .expressions import Interval

Kind = Literal["read", "write", "atomic"]

_ZERO, _ONE = ir.IntImm("int32", 0), ir.IntImm("int32", 1)
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
_EXACT = ("int32", "int64", "bool")
"""Arithmetic of others wraps around; no property asks whether it does."""
_MOST_STEPS = 32
"""Iterations of a loop over scalars that are executed one by one."""
_LARGEST_TABLE = 64
"""Elements of local integer memory that are followed one by one."""


@dataclass(frozen=True, eq=False)
class Range:
    """A variable of the model: `low <= var < low + extent`, without bounds if `extent` is None.

    Attributes:
        kind: what it counts: "block" of a grid axis, "thread", iterations of a "loop" or of a
            "parallel" (or vectorized) one, elements of a "tile", or an "unknown" value.
        axis: of a block: "blockIdx.x".
    """

    var: ir.Var
    low: ir.Expr
    extent: ir.Expr | None
    kind: Literal["block", "thread", "loop", "parallel", "tile", "unknown"]
    axis: str = ""


_Part = tuple[ir.Expr, ir.Expr, Range | None]
"""Of one dim of a tile: start, extent, and the variable of its elements if there are several."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Executed:
    """What a block executes, for all values of its variables.

    Attributes:
        path: the conditions under which it happens.
        ranges: its variables, outer ones first.
        certain: whether all conditions and bounds are exact.
        location: the user's line.
    """

    path: tuple[ir.Expr, ...]
    ranges: tuple[Range, ...]
    certain: bool
    location: ir.Location | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Access(Executed):
    """An access of one element.

    Attributes:
        buffer: the buffer.
        kind: what is done to the element.
        index: one expression for each dim.
        box: start and extent of each dim of the tile that the element belongs to; of accesses
            through an address, the element there.
        operation: the operation, such as "copy"; "" for a load or a store.
        grid: the number of the launch in a function of several.
    """

    buffer: ir.Buffer
    kind: Kind
    index: tuple[ir.Expr, ...]
    box: tuple[tuple[ir.Expr, ir.Expr], ...]
    operation: str = ""
    grid: int = 0

    @property
    def blocks(self) -> tuple[Range, ...]:
        """The variables of the grid."""
        return tuple(r for r in self.ranges if r.kind == "block")


@dataclass(frozen=True, eq=False, kw_only=True)
class Claim(Executed):
    """A condition that the kernel states (`T.assume`)."""

    condition: ir.Expr


@dataclass(frozen=True, eq=False, kw_only=True)
class Event(Executed):
    """An arrival at an mbarrier, or a wait for one of its phases.

    Attributes:
        barrier: the array of mbarriers.
        index: which of them.
        parity: that of the phase that is waited for; None of an arrival.
    """

    barrier: ir.Buffer
    index: ir.Expr
    parity: ir.Expr | None


@dataclass
class Accesses:
    """What a kernel accesses.

    Attributes:
        kernel: the kernel, normalized.
        constants: the data of parameters that it reads and never writes.
        found: all accesses, in the order of the source.
        claims: what the kernel assumes.
        events: arrivals at mbarriers and waits for them, in the order of the source.
        comparisons: of integers, wherever they are evaluated.
        flows: by data of memory, and by unknown value, what it may come from.
    """

    kernel: ir.Kernel
    constants: frozenset[ir.Var]
    found: list[Access] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    comparisons: list[ir.Compare] = field(default_factory=list)
    flows: dict[ir.Var, list[Any]] = field(default_factory=dict)

    def of(self, buffer: ir.Buffer, *kinds: Kind) -> list[Access]:
        """The accesses of the memory of a buffer."""
        data = buffer.data
        return [a for a in self.found if a.buffer.data is data and (not kinds or a.kind in kinds)]

    @property
    def variables(self) -> dict[ir.Var, Range]:
        """The variables of all accesses."""
        return {each.var: each for access in self.found for each in access.ranges}


def constants_of(kernel: ir.Kernel) -> frozenset[ir.Var]:
    """The data of global parameters that a kernel reads and never writes."""
    data = {buffer.data for buffer in kernel.buffer_map.values()}
    return frozenset(data - _written(kernel.body))


def accesses_of(kernel: ir.Kernel) -> Accesses:
    """The accesses of a kernel.

    Raises:
        Unsupported: for a return inside a loop.
    """
    kernel = with_boolean_conditions(without_returns(kernel))
    divided: frozenset[ir.Var] = frozenset()
    while True:
        found = Accesses(kernel, constants_of(kernel))
        block = _Block(found, divided)
        block.run(kernel.body)
        if block.divided <= divided:
            return found
        divided |= block.divided


def _written(statements: Any) -> frozenset[ir.Var]:
    """The data of memory that statements may write."""
    found: set[ir.Var] = set()
    for node in walk(statements):
        if isinstance(node, ir.BufferStore) or (isinstance(node, ir.Region) and node.writes):
            found.add(node.buffer.data)
        elif isinstance(node, ir.Call) and node.op in _POINTERS:
            found.update(_pointed(node))
        elif isinstance(node, ir.Call) and "atomic" in node.op:
            found.update(a.buffer.data for a in node.args[1:2] if isinstance(a, ir.Region))
    return frozenset(found)


def _pointed(pointer: ir.Call) -> Iterator[ir.Var]:
    """The data of the memory that a pointer is of."""
    for argument in pointer.args:
        if isinstance(argument, ir.BufferLoad):
            yield argument.buffer.data
        elif isinstance(argument, ir.Var) and argument.dtype == "handle":
            yield argument


_POINTERS = ("tl.access_ptr", "tirx.address_of", "tirx.tvm_access_ptr")
_LINEAR = (ir.Add, ir.Sub, ir.Mul, ir.Min, ir.Max)
_DIVIDED = (ir.FloorDiv, ir.FloorMod)
_LOOPS: dict[int, Any] = {
    ir.PARALLEL: "parallel", ir.VECTORIZED: "parallel", ir.THREAD_BINDING: "thread"
}  # fmt: skip
_BITS = ("tirx.shift_left", "tirx.shift_right", "tirx.bitwise_and", "tirx.bitwise_xor")


@dataclass
class _State:
    """What a block knows at a statement: values of variables and elements, and as `Executed`."""

    values: dict[Any, ir.Expr] = field(default_factory=dict)
    path: tuple[ir.Expr, ...] = ()
    ranges: tuple[Range, ...] = ()
    certain: bool = True

    def inner(self, *conditions: ir.Expr) -> _State:
        """A copy under further conditions."""
        return replace(self, values=dict(self.values), path=(*self.path, *conditions))


class _Block:
    """Executes the statements of one block."""

    def __init__(self, found: Accesses, divided: frozenset[ir.Var] = frozenset()) -> None:
        """Create it; what threads write that others may read is not followed (`divided`)."""
        self._found = found
        self.divided = divided
        self._s = _State()
        self._location: ir.Location | None = None
        self._grid = -1
        self._threads: list[Range] = []
        self._count = 0
        self._free: dict[ir.Var, Range] = {}
        """Unknown values and threads: they are in scope wherever an expression has them."""
        self._buffers = {b.data: b for b in found.kernel.buffer_map.values()}

    # Statements ----------------------------------------------------------------------------

    def run(self, node: Any) -> None:
        """Execute a statement."""
        self._location = node.location
        match node:
            case ir.SeqStmt():
                with self._under():
                    for child in node.seq:
                        self.run(child)
                        if has_jumps(child):
                            # What follows is executed only in iterations that have not left.
                            left = self._unknown("bool")
                            self._s.path = (*self._s.path, left)
            case ir.Block():
                for buffer in node.alloc_buffers:
                    self._forget(buffer.data)
                    if buffer.scope != "shared.tmem":
                        self._buffers.setdefault(buffer.data, buffer)
                self.run(node.body)
            case ir.Bind():
                self._bind(node)
            case ir.For():
                self._loop(node)
            case ir.While():
                self._while(node)
            case ir.IfThenElse():
                self._branch(node)
            case ir.AttrStmt():
                self.run(node.body)
            case ir.AssertStmt():
                self._value(node.condition)
            case ir.Evaluate(value=ir.Call(op="tirx.assume", args=(claimed, *_))):
                found, compared = self._found.found, self._found.comparisons
                before = len(found), len(compared)
                condition = self._value(claimed)
                del found[before[0] :], compared[before[1] :]  # it is for the compiler
                claim = Claim(condition=condition, **self._executed(condition))
                self._found.claims.append(claim)
            case ir.Evaluate():
                self._value(node.value)
            case ir.BufferStore():
                self._store(node)
            case _:
                raise Unsupported(f"the accesses of {type(node).__name__} are not modelled")

    @contextmanager
    def _under(self, *conditions: ir.Expr) -> Iterator[None]:
        """What is executed meanwhile has further conditions."""
        before = self._s.path
        self._s.path = (*before, *conditions)
        yield
        self._s.path = before

    def _bind(self, node: ir.Bind) -> None:
        value = node.value
        if isinstance(value, ir.Call) and value.op == "tl.launch_thread_idx":
            self._values_set(node.var, self._threads[number(value.args[0])].var)
            return
        known = self._value(value)
        if node.var.dtype in _INTEGERS:
            self._values_set(node.var, known)
        else:
            self._flow(node.var, value)

    def _launch(self, grid: ir.For) -> None:
        """Have variables for the threads of a launch, whose numbers an annotation in it has."""
        self._grid += 1
        self._threads = []
        for axis, extent in zip("xyz", launched_threads(grid.body) or (1, 1, 1), strict=True):
            count = ir.IntImm("int32", extent)
            thread = Range(ir.Var("int32", f"thread.{axis}"), _ZERO, count, "thread")
            self._threads.append(thread)
            self._free[thread.var] = thread

    def _loop(self, node: ir.For) -> None:
        low, extent = self._value(node.min), self._value(node.extent)
        grid = node.kind == ir.THREAD_BINDING and node.thread_tag.startswith("blockIdx")
        if grid and not self._s.ranges:
            self._launch(node)
        kind: Any = "block" if grid else _LOOPS.get(node.kind, "loop")
        repeats = kind in ("loop", "parallel")
        var = ir.Var(node.loop_var.dtype, node.loop_var.name)
        step = number(node.step) if node.step is not None else 1
        known: ir.Expr = var
        counted = step is not None and step > 0
        if not counted:
            known = self._unknown(var.dtype)
        elif step != 1:
            # The variable counts iterations.
            size = ir.IntImm("int32", step)
            above = ir.Add("int32", extent, ir.IntImm("int32", step - 1))
            extent = ir.FloorDiv("int32", above, size)
            known = ir.Add("int32", low, ir.Mul("int32", var, size))
            low = _ZERO
        outside, changed = self._s, _written(node.body)
        if kind == "loop" and self._computes(node, changed):
            first = number(node.min)
            for k in range(first, first + number(node.extent)):
                self._values_set(node.loop_var, ir.IntImm(var.dtype, k))
                self.run(node.body)
            return
        self._s = outside.inner()
        if repeats:
            self._havoc(changed)
            self._s.certain &= counted and not has_jumps(node.body)
        axis = node.thread_tag if grid else ""
        counts = Range(var, low, extent if counted else None, kind, axis)
        self._s.ranges = (*outside.ranges, counts)
        self._values_set(node.loop_var, known)
        self.run(node.body)
        self._s = outside.inner()
        if repeats:
            self._havoc(changed)

    def _computes(self, node: ir.For, changed: frozenset[ir.Var]) -> bool:
        """Whether a loop of few iterations computes scalars alone: it is executed as it stands."""
        first, count, step = (number(n) for n in (node.min, node.extent, node.step or _ONE))
        scopes = {b.scope if (b := self._buffers.get(data)) else "" for data in changed}
        few = None not in (first, count) and step == 1 and 0 < count <= _MOST_STEPS
        return few and scopes == {"local.var"} and not has_jumps(node.body)

    def _while(self, node: ir.While) -> None:
        outside, changed = self._s, _written(node.body)
        self._s = replace(outside.inner(), certain=False)
        self._havoc(changed)
        with self._under(self._value(node.condition)):
            self.run(node.body)
        self._s, self._location = outside.inner(), node.location
        self._havoc(changed)
        self._value(node.condition)

    def _branch(self, node: ir.IfThenElse) -> None:
        condition = self._value(node.condition)
        outside = self._s
        self._s = outside.inner(condition)
        self.run(node.then_case)
        then = self._s.values
        self._s = outside.inner(ir.Not("bool", condition))
        if node.else_case is not None:
            self.run(node.else_case)
        other = self._s.values
        merged = dict(outside.values)
        for key in then.keys() | other.keys():
            a, b = then.get(key), other.get(key)
            if a is b and a is not None:
                merged[key] = a
            elif a is not None and b is not None:
                merged[key] = ir.Select(a.dtype, condition, a, b)
            elif key in outside.values or not isinstance(key, ir.Var):
                merged.pop(key, None)
        self._s = replace(outside, values=merged)

    def _store(self, node: ir.BufferStore) -> None:
        buffer = node.buffer
        value = self._value(node.value)
        tile = list(map(self._element, node.indices))
        guard = () if node.predicate is None else (self._value(node.predicate),)
        with self._under(*guard):
            self._access(buffer, "write", tile)
        self._flow(buffer.data, node.value)
        place = self._place(buffer, tile)
        if place is None or node.value.dtype not in _INTEGERS or guard:
            self._forget(buffer.data)
            return
        ranges = (*self._s.ranges, *self._free.values())
        of_threads = {r.var for r in ranges if r.kind in ("parallel", "thread")}
        differs = any(each in of_threads for each in walk(value, *self._s.path))
        if buffer.scope.startswith("shared") and differs:
            # Other threads do not have the value that this one has for their own index.
            self.divided |= {buffer.data}
        self._forget(buffer.data, but=buffer)
        self._values_set(place, value)

    # Values --------------------------------------------------------------------------------

    def _values_set(self, key: Any, value: ir.Expr) -> None:
        self._s.values[key] = value
        self._flow(key if isinstance(key, ir.Var) else key[0], value)

    def _flow(self, target: ir.Var, source: Any) -> None:
        self._found.flows.setdefault(target, []).append(source)

    def _place(self, buffer: ir.Buffer, tile: Sequence[_Part]) -> Any:
        """The key of an element of integers that one block keeps for itself; None if it is none."""
        sizes = [number(n) for n in buffer.shape]
        followed = (
            buffer.scope in ("local.var", "local", "local.fragment", "shared", "shared.dyn")
            and buffer.dtype in _INTEGERS
            and buffer.data not in self.divided
            and None not in sizes
            and prod(sizes) <= _LARGEST_TABLE
        )
        numbers = tuple(number(index) for index, *_ in tile) if followed else (None,)
        return None if None in numbers else (buffer.data, buffer, *numbers)

    def _elements(self, *data: ir.Var) -> list[Any]:
        """The keys of the elements of memory that are followed."""
        return [k for k in self._s.values if isinstance(k, tuple) and k[0] in data]

    def _forget(self, data: ir.Var, but: ir.Buffer | None = None) -> None:
        for key in self._elements(data):
            if key[1] is not but:
                del self._s.values[key]

    def _havoc(self, changed: frozenset[ir.Var]) -> None:
        """Forget the values of memory that a loop changes."""
        for key in self._elements(*changed):
            self._values_set(key, self._unknown(self._s.values[key].dtype, key[0]))

    def _unknown(self, dtype: str, source: Any = None) -> ir.Var:
        """A value of which only that it may come from `source` is known."""
        self._count += 1
        found = ir.Var(dtype, f"unknown.{self._count}")
        self._free[found] = Range(found, _ZERO, None, "unknown")
        if source is not None:
            self._flow(found, source)
        return found

    def _executed(self, *values: ir.Expr | None, own: Sequence[Range] = ()) -> Any:
        """What is common to all that a statement executes, for values and variables of its own."""
        scope = (*self._s.ranges, *own)
        bounds = [e for r in scope for e in (r.low, r.extent) if e is not None]
        nodes = (n for n in walk(*values, *self._s.path, *bounds) if type(n) is ir.Var)
        # Unknown values and threads that these depend on.
        free = dict.fromkeys(self._free[node] for node in nodes if node in self._free)
        return {
            "path": self._s.path,
            "ranges": (*free, *scope),
            "certain": self._s.certain and not any(r.kind == "unknown" for r in free),
            "location": self._location,
        }

    def _value(self, node: Any) -> Any:
        """An integer as an expression over the variables of the model, of others the node.

        What the evaluation accesses is added, and each comparison.
        """
        match node:
            case ir.Var():
                return self._s.values.get(node, node)
            case ir.BufferLoad():
                return self._loaded(node)
            case ir.Let():
                self._values_set(node.var, self._value(node.value))
                return self._value(node.body)
            case ir.Call():
                return self._called(node)
            case ir.And() | ir.Or():
                first = self._value(node.a)
                with self._under(first if isinstance(node, ir.And) else ir.Not("bool", first)):
                    return _folded(type(node), node.dtype, first, self._value(node.b))
            case ir.Compare():
                a, b = self._value(node.a), self._value(node.b)
                if node.a.dtype not in _INTEGERS:
                    return self._unknown("bool")
                compared = ir.Compare("bool", a, b, node.symbol)
                self._found.comparisons.append(compared)
                return compared
            case ir.Select():
                parts = (node.condition, node.true_value, node.false_value)
                return _chosen(node, *map(self._value, parts))
            case ir.Not():
                return ir.Not(node.dtype, self._value(node.a))
            case ir.Cast():
                return self._cast(node)
        operands = [self._value(child) for child in children(node)]
        if getattr(node, "dtype", "") not in _INTEGERS or isinstance(node, ir.IntImm):
            return node
        exact = node.dtype in _EXACT or not isinstance(node, (ir.Add, ir.Sub, ir.Mul))
        if isinstance(node, ir.BINARY) and exact:
            return _folded(type(node), node.dtype, *operands)
        return self._unknown(node.dtype, node)

    def _cast(self, node: ir.Cast) -> Any:
        inner, value = node.value, self._value(node.value)
        if inner.dtype not in _INTEGERS:
            return self._unknown(node.dtype, inner) if node.dtype in _INTEGERS else node
        if node.dtype == "bool":
            return ir.Compare("bool", value, ir.IntImm(inner.dtype, 0), "!=")
        if (inner.dtype, node.dtype) == ("int64", "int32"):
            return ir.Cast("int32", value)  # that it fits is asked, as of arithmetic
        if node.dtype not in _INTEGERS:
            return node
        least, most = interval(value, {})
        fits = np.can_cast(inner.dtype, node.dtype) or (least >= 0 and most < 1 << 7)
        return value if fits else self._unknown(node.dtype)

    def _called(self, node: ir.Call) -> Any:
        if node.op == "tirx.if_then_else":
            condition, true, false = node.args
            test = self._value(condition)
            with self._under(test):
                a = self._value(true)
            with self._under(ir.Not("bool", test)):
                return _chosen(node, test, a, self._value(false))
        if node.op not in _BITS or node.dtype not in _INTEGERS:
            self._call(node)
            return self._unknown(node.dtype, node) if node.dtype in _INTEGERS else node

        def folded(kind: type[ir.Binary], a: ir.Expr, b: ir.Expr | int) -> ir.Expr:
            b = ir.IntImm("int32", b) if isinstance(b, int) else b
            return _folded(kind, node.dtype, a, b)

        a, b = map(self._value, node.args)
        bits, name = number(b), node.op.rpartition(".")[2]
        if name == "shift_right" or (name == "shift_left" and node.dtype in _EXACT):
            # A division by a power of two, or a product, whatever the exponent.
            power = ir.Call(node.dtype, "power_of_two", (b,), {}) if bits is None else 1 << bits
            return folded(ir.FloorDiv if name == "shift_right" else ir.Mul, a, power)
        if name == "bitwise_and" and bits is not None and bits & (bits + 1) == 0 <= bits:
            return folded(ir.FloorMod, a, bits + 1)
        if name == "bitwise_xor" and bits == 1:
            twice = folded(ir.Mul, folded(ir.FloorMod, a, 2), 2)
            return folded(ir.Sub, folded(ir.Add, a, 1), twice)
        return self._unknown(node.dtype, node)

    def _loaded(self, node: ir.BufferLoad) -> Any:
        """The value of an element: of a constant tensor the load itself."""
        buffer = node.buffer
        tile = list(map(self._element, node.indices))
        if buffer.scope not in ("local.var", "shared.barrier"):
            self._access(buffer, "read", tile)
        if node.dtype not in _INTEGERS:
            return node
        of_parameter = buffer.data in self._found.constants and not any_of(node, ir.Ramp)
        if of_parameter and alike(buffer, self._buffers[buffer.data]):
            return ir.BufferLoad(node.dtype, buffer, tuple(index for index, *_ in tile))
        place = self._place(buffer, tile)
        return self._s.values[place] if place in self._s.values else self._unknown(node.dtype, node)

    # Accesses ------------------------------------------------------------------------------

    def _call(self, node: ir.Call) -> None:
        """Add what an operation accesses, and what it does to an mbarrier that it is passed."""
        name = node.op.rpartition(".")[2]
        atomic = "atomic" in node.op
        parity = None
        barriers = []
        for k, argument in enumerate(node.args):
            if isinstance(argument, ir.Region):
                self._region(argument, name, atomic=atomic and k == 1)
            elif barrier := self._barrier(argument):
                barriers.append(barrier)
            elif isinstance(argument, ir.Call) and argument.op in _POINTERS:
                self._pointer(node, argument, name)
            elif isinstance(argument, ir.Var) and argument.dtype == "handle":
                self._pointer(node, ir.Call("handle", _POINTERS[-1], (argument,), {}), name)
            elif isinstance(argument, ir.Expr):
                value = self._value(argument)
                parity = value if k == 1 and node.op == "tl.mbarrier_wait_parity" else parity
        for argument in node.annotations.values():
            if isinstance(argument, ir.Expr):
                self._value(argument)
        for buffer, index in barriers if node.op != "tl.mbarrier_expect_tx" else ():
            where = self._executed(index, parity)
            self._found.events.append(Event(barrier=buffer, index=index, parity=parity, **where))
        if name.endswith("copy") and all(isinstance(a, ir.Region) for a in node.args[:2]):
            self._flow(node.args[1].buffer.data, node.args[0])

    def _barrier(self, argument: Any) -> tuple[ir.Buffer, ir.Expr] | None:
        """The array and the number of an mbarrier that an operation is passed, or its address."""
        pointer = isinstance(argument, ir.Call) and argument.op in _POINTERS
        load = argument.args[0] if pointer else argument
        if isinstance(load, ir.BufferLoad):
            buffer, index = load.buffer, load.indices[0]
        elif pointer and argument.args[1] in self._buffers:
            buffer, index = self._buffers[argument.args[1]], argument.args[2]
        else:
            return None
        return (buffer, self._value(index)) if "barrier" in buffer.scope else None

    def _pointer(self, node: ir.Call, pointer: ir.Call, name: str) -> None:
        load = next((a for a in pointer.args if isinstance(a, ir.BufferLoad)), None)
        tile = [] if load is None else list(map(self._element, load.indices))
        for argument in pointer.args:
            if argument is not load:
                self._value(argument)
        for data in _pointed(pointer):
            self._forget(data)
        if load is not None and "atomic" in node.op and pointer.op == "tl.access_ptr":
            # The first is what is updated; vectors are of neighbours in the last dim.
            kind: Kind = "atomic" if node.args[0] is pointer else "read"
            lanes = re.search(r"x([24])_", node.op)
            if lanes is not None:
                tile[-1] = self._tile(tile[-1][0], ir.IntImm("int32", int(lanes.group(1))))
            self._access(load.buffer, kind, tile, operation=name)
            return
        # An address: what is done to the memory from it on is not known.
        for data in _pointed(pointer):
            buffer = load.buffer if load is not None else self._buffers.get(data)
            if buffer is None:
                continue  # tensor memory
            whole = [self._tile(_ZERO, extent) for extent in buffer.shape]
            starts = [start for start, *_ in tile] or [_ZERO] * len(buffer.shape)
            there = tuple((start, _ONE) for start in starts)
            declared = number(pointer.args[2]) if pointer.op == "tl.access_ptr" else None
            bits: list[tuple[int, Kind]] = [(1, "read"), (2, "write")]  # of its mode
            for kind in (kind for bit, kind in bits if declared is None or declared & bit):
                self._access(buffer, kind, whole, operation=name, box=there)

    def _region(self, region: ir.Region, name: str, *, atomic: bool) -> None:
        tile = [
            self._tile(self._value(start), self._value(extent))
            for start, extent in zip(region.indices, region.extents, strict=True)
        ]
        usual: list[tuple[Kind, bool]] = [("read", region.reads), ("write", region.writes)]
        kinds: list[Kind] = ["atomic"] if atomic else [kind for kind, does in usual if does]
        for kind in kinds:
            self._access(region.buffer, kind, tile, operation=name)
        if region.writes or atomic:
            self._forget(region.buffer.data)

    def _tile(self, start: ir.Expr, extent: ir.Expr) -> _Part:
        if number(extent) == 1:
            return start, extent, None
        self._count += 1
        var = ir.Var("int32", f"tile.{self._count}")
        return start, extent, Range(var, _ZERO, extent, "tile")

    def _element(self, index: Any) -> _Part:
        """One element of a dim, or a vector of them."""
        if not isinstance(index, ir.Ramp):
            return self._value(index), _ONE, None
        start, step = self._value(index.base), self._value(index.stride)
        lane = self._tile(_ZERO, ir.IntImm("int32", index.lanes))[2]
        assert lane is not None
        return ir.Add("int32", start, ir.Mul("int32", lane.var, step)), _ONE, lane

    def _access(
        self,
        buffer: ir.Buffer,
        kind: Kind,
        tile: Sequence[_Part],
        *,
        operation: str = "",
        box: tuple[tuple[ir.Expr, ir.Expr], ...] | None = None,
    ) -> None:
        """Add an access; with a `box` of its own it is one through an address."""
        index, parts = [], []
        for dim, (at, extent, element) in enumerate(tile):
            start = self._wrapped(at, buffer, dim)
            parts.append((start, extent))
            if element is not None and element.var not in walk(start):
                start = _folded(ir.Add, "int32", start, element.var)
            index.append(start)
        where = self._executed(*index, own=[each for *_, each in tile if each is not None])
        where["certain"] &= box is None
        access = Access(
            buffer=buffer,
            kind=kind,
            index=tuple(index),
            box=box or tuple(parts),
            operation=operation,
            grid=max(self._grid, 0),
            **where,
        )
        self._found.found.append(access)

    def _wrapped(self, index: ir.Expr, buffer: ir.Buffer, dim: int) -> ir.Expr:
        """An index that TileLang may count from the end, because it finds that it is negative."""
        if buffer.scope != "global" or dim >= len(buffer.shape):
            return index
        bounds = {r.var: interval_of(r) for r in self._s.ranges}
        if interval(index, bounds)[0] >= 0:
            return index
        if not is_negative_under(index, [(test, True) for test in self._s.path], bounds):
            return index
        end = ir.Add(index.dtype, index, buffer.shape[dim])
        return ir.Select(index.dtype, self._unknown("bool"), end, index)


def interval_of(values: Range) -> Interval:
    """The least and the largest value, as far as constants say."""
    if values.extent is None:
        return UNKNOWN
    low, extent = interval(values.low, {}), interval(values.extent, {})
    return low[0], low[1] + extent[1] - 1


def alike(a: ir.Buffer, b: ir.Buffer) -> bool:
    """Whether equal indices into two buffers of one memory are the same element."""
    return a is b or (
        a.dtype == b.dtype
        and same(a.shape, b.shape)
        and same(a.strides, b.strides)
        and (a.offset is b.offset or same(a.offset or _ZERO, b.offset or _ZERO))
    )


def _chosen(node: ir.Expr, test: ir.Expr, a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """The value of a choice between two."""
    known = number(test)
    if known is not None:
        return a if known else b
    return ir.Select(node.dtype, test, a, b) if node.dtype in _INTEGERS else node


def _folded(kind: type[ir.Binary], dtype: str, a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """An operation, computed if both operands are constants."""
    x, y = number(a), number(b)
    node = kind(dtype, a, b)
    if None not in (x, y) and (kind in _LINEAR or (kind in _DIVIDED and y > 0)):
        return ir.IntImm(dtype, int(evaluate(node, {})))
    if kind in (ir.Add, ir.Sub) and y == 0:
        return a
    if kind is ir.Add and x == 0:
        return b
    if kind is ir.And and (is_true(a) or is_true(b)):
        return b if is_true(a) else a
    return node
