"""Writes the Python source of a device function: its threads are an axis of arrays.

A scalar of the function is an array [lanes], a vector [width, lanes]; what all lanes share and no
block changes is a Python number ("uniform"). A divergent branch is a mask. Loops that all lanes
repeat alike are Python loops; of others the mask of lanes that go on shrinks. Index arithmetic
that only depends on lanes and parameters is computed once, before the body ("fixed").
"""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.analysis.expressions import number
from tlmatrix.interpreter.analysis.usage import JUMPS
from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls, inner_statements, walk

from .expressions import EXPRESSIONS, call, compare, variable
from .program import DeviceProgram
from .values import Place, Val, is_float, split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_THREADS = {"threadIdx.x": 0, "threadIdx.y": 1, "threadIdx.z": 2}
_BLOCKS = {"blockIdx.x": 0, "blockIdx.y": 1, "blockIdx.z": 2}
_SYNC_GRID = "tl.sync_grid"
WAITS = frozenset({"tl.mbarrier_wait_parity", _SYNC_GRID})
"""Operations at which lanes wait for others that run other code."""
_SYNC = "tirx.tvm_storage_sync"
_DESCRIPTORS = {
    "tl.create_tma_descriptor": "tensor_map",
    "tl.create_tma_im2col_descriptor": "im2col_map",
}
_INTO = "tirx.handle_add_byte_offset"
_DYNAMIC = "shared.dyn"
_LARGEST_UNIT = 16
_ALIGNED = 1024
"""Bytes that the start of a buffer in shared memory is a multiple of."""


def device_parameters(kernel: ir.Kernel) -> list[ir.Var]:
    """What a function takes on the device; of one with buffers their data, and its variables."""
    if not kernel.buffer_map:
        return list(kernel.params)
    found: dict[ir.Var, None] = {}
    for parameter in kernel.params:
        buffer = kernel.buffer_map.get(parameter)
        if buffer is None:
            found[parameter] = None
            continue
        found[buffer.data] = None
        for node in walk(*buffer.shape, *buffer.strides):
            if isinstance(node, ir.Var):
                found[node] = None
    return list(found)


@dataclass(frozen=True)
class _Call:
    """A call for each item of a list, which was written as a line.

    Attributes:
        line: how many lines there were with it.
        depth: of its indentation.
        head, items, tail: its code.
    """

    line: int
    depth: int
    head: str
    items: str
    tail: str


class Emitter:
    """Writes the source of one device function.

    Attributes:
        mask: the code of which lanes are switched on; "None" for all.
        suspends: whether parts of the function wait for one another.
        by_order: whether it uses what atomics find in memory, by the order of threads.
        in_turn: whether a loop does, so that blocks may wait for one another.
        values: of variables that are bound.
        places: what variables of memory point to.
        handlers: what writes operations, by name.
        head: lines before the body.
        fixed: names of what they compute, by its code.
        written: names of memory that it writes to.
    """

    def __init__(self, kernel: ir.Kernel, handlers: Mapping[str, Any]) -> None:
        """Prepare to write `kernel`; `handlers` write operations by name."""
        self._kernel, self.handlers = kernel, handlers
        self.mask = "None"
        self.suspends = any(
            isinstance(node, ir.Call) and (node.op in WAITS or _is_partial(node))
            for node in walk(kernel.body)
        )
        self.values: dict[ir.Var, Val] = {}
        self.places: dict[ir.Var, Place] = {}
        self._lines: list[str] = []
        self._depth = 1
        self.fixed: dict[str, str] = {}
        self.head: list[str] = []
        self._views: dict[tuple[str, str], str] = {}
        self._names: set[str] = set()
        self._sites: list[ir.Location | None] = [None]
        self._location: ir.Location | None = None
        self._threads = [1, 1, 1]
        self._axes = 1
        self._barriers: dict[str, int] = {}
        self._static = 0
        self._unit = _LARGEST_UNIT
        self._parameters: list[str] = []
        self.by_order = self.in_turn = False
        self.written: set[str] = set()
        self._multiplied = {each for node in walk(kernel.body) for each in _registers(node)}
        self._watched: set[str] = set()
        self._call = _Call(0, 0, "", "", "")
        # Of each loop that lanes leave one by one the mask of those that stay in it, and masks of
        # its iteration; None for a branch that runs beside others.
        self._loops: list[tuple[str, list[str]] | None] = []

    # -- the whole

    def program(self) -> DeviceProgram:
        """The program.

        Raises:
            Unsupported: for an operation that is not modelled; names it and its line.
        """
        for parameter in device_parameters(self._kernel):
            self._parameter(parameter)
        self._statement(self._kernel.body)
        if self.suspends:
            self.line("return")
            self.line("yield")
        body = "\n".join("    " + text for text in self.head)
        source = f"def kernel({', '.join(['m', *self._parameters])}):\n{body}\n"
        source += "\n".join(self._lines or ["    pass"]) + "\n"
        return DeviceProgram(
            self._kernel.name,
            source,
            tuple(self._sites),
            (self._threads[0], self._threads[1], self._threads[2]),
            self._axes,
            self._barriers,
            self._unit,
            self._static,
            self.suspends,
            calls(self._kernel.body, _SYNC_GRID),
            self.by_order,
            self.in_turn,
            frozenset(k for k, each in enumerate(self._parameters) if each in self.written),
        )

    def _parameter(self, parameter: ir.Var) -> None:
        name = self.name(parameter.name)
        if parameter.dtype == "handle":
            scope = getattr(parameter, "scope", "global")
            kind = "descriptor" if scope == "grid_constant" else "global"
            self.places[parameter] = Place(kind, parameter.name, name)
        else:
            dtype, _ = split(parameter.dtype)
            self.values[parameter] = Val(name, dtype, uniform=True, fixed=True)
        self._parameters.append(name)

    # -- lines and names

    def line(self, text: str) -> None:
        """Write a line."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Write deeper; a block without a line gets `pass`."""
        count = len(self._lines)
        self._depth += 1
        yield
        if len(self._lines) == count:
            self.line("pass")
        self._depth -= 1

    def name(self, like: str) -> str:
        """A new Python name."""
        base = re.sub(r"\W", "_", like) or "v"
        found, number = f"{base}_", 0
        while found in self._names:
            number += 1
            found = f"{base}_{number}"
        self._names.add(found)
        return found

    def refuse(self, what: str) -> Unsupported:
        """The refusal of something, with its line."""
        where = f"\n  at {self._location}" if self._location is not None else ""
        return Unsupported(f"{what} in lowered code{where}, in kernel {self._kernel.name}")

    def site(self) -> int:
        """A number for the current line of the user's source."""
        if self._location not in self._sites:
            self._sites.append(self._location)
        return self._sites.index(self._location)

    def let(self, value: Val, like: str = "v") -> Val:
        """The value under a name."""
        if re.fullmatch(r"\w+", value.code):
            return value
        if value.fixed:
            return self.once(value)
        name = self.name(like)
        self.line(f"{name} = {value.code}")
        return replace(value, code=name)

    def once(self, value: Val) -> Val:
        """A fixed value, computed before the body."""
        if not value.fixed or re.fullmatch(r"[\w.]+", value.code):
            return value
        if value.code not in self.fixed:
            name = self.name("fixed")
            self.fixed[value.code] = name
            self.head.append(f"{name} = {value.code}")
        return replace(value, code=self.fixed[value.code])

    def gathered(self, head: str, item: str, tail: str) -> None:
        """Write a call for an item of a list, with others of the call right before this one."""
        call, here = self._call, (len(self._lines), self._depth, head, tail)
        if (call.line, call.depth, call.head, call.tail) == here:
            self._lines.pop()
            item = f"{call.items}, {item}"
        self.line(f"{head}[{item}]{tail}")
        self._call = _Call(len(self._lines), self._depth, head, item, tail)

    def _gathered_loop(self, first: int, loop: str) -> None:
        """Make a loop that begins at a line and is one such call the items of one call."""
        call = self._call
        if (len(self._lines), call.line, call.depth) == (first + 2, first + 2, self._depth + 1):
            del self._lines[first:]
            self.gathered(call.head, f"*(t {loop} for t in ({call.items},))", call.tail)

    # -- statements

    def _statement(self, node: Any) -> None:
        location = getattr(node, "location", None)
        if location is not None:
            self._location = location
        method = _STATEMENTS.get(type(node))
        if method is None:
            raise self.refuse(type(node).__name__)
        method(self, node)

    def _sequence(self, node: ir.SeqStmt, first: int = 0) -> None:
        for k, each in enumerate(node.seq[first:], first + 1):
            self._statement(each)
            if k < len(node.seq) and _jumps(each):
                self.line(f"if some({self.mask}):")
                with self.indented():
                    self._sequence(node, k)
                return

    def _attribute(self, node: ir.AttrStmt) -> None:
        if node.attr_key == "thread_extent":
            self.values[node.node.var] = self.once(self._axis(str(node.node), node))
        self._statement(node.body)

    def _axis(self, tag: str, node: ir.AttrStmt) -> Val:
        """The index of a thread or a block along an axis of the launch."""
        if tag in _THREADS:
            self._threads[_THREADS[tag]] = int(node.value.value)
            return Val(f"m.thread[{_THREADS[tag]}]", "int32", fixed=True)
        if tag not in _BLOCKS:
            raise self.refuse(f"a launch over {tag}")
        self._axes = max(self._axes, _BLOCKS[tag] + 1)
        return Val(f"m.index[{_BLOCKS[tag]}]", "int32", fixed=True)

    def _bind(self, node: ir.Bind) -> None:
        value = node.value
        if isinstance(value, ir.Call) and value.op == _INTO:
            self.places[node.var] = replace(self._into(value), name=node.var.name)
            return
        if node.var.dtype == "handle":
            made = self.descriptor(value)
            if made is None:
                raise self.refuse(f"the pointer {node.var.name}")
            self.places[node.var] = Place("descriptor", node.var.name, made)
            return
        found = self.expr(value)
        if found.fixed:
            self.values[node.var] = self.once(found)
            return
        name = self.name(node.var.name)
        copied = found.code if found.uniform else f"np.array({found.code})"
        self.line(f"{name} = {copied}")
        self.values[node.var] = replace(found, code=name)

    def _allocated(self, node: ir.AllocBuffer) -> None:
        buffer = node.buffer
        data, scope = buffer.data, buffer.scope
        if data in self.places:
            return
        size = math.prod([int(number(extent)) for extent in buffer.shape])
        dtype, width = split(buffer.dtype)
        if scope == "shared.barrier":
            first = sum(self._barriers.values())
            name = self.name(buffer.name)
            self._barriers[name] = size
            self.places[data] = Place("barrier", buffer.name, str(first))
        elif scope in (_DYNAMIC, "shared"):
            first = -(-self._static // _ALIGNED) * _ALIGNED
            self.places[data] = Place("shared", buffer.name, "", first, dtype)
            self._static = first + -(-size * width * TILE_DTYPES[dtype].bits // 8)
        elif scope.startswith("local") and scope != "local.fragment":
            name = self.name(buffer.name)
            self.head.append(f"{name} = m.local({size * width}, {dtype!r})")
            self.places[data] = Place("local", buffer.name, name, 0, dtype)
            if data in self._multiplied:
                self._watched.add(name)
        else:
            raise self.refuse(f"memory of scope {scope} ({buffer.name})")

    def _block(self, node: ir.Block) -> None:
        if node.annotations.get("barrier_init"):
            raise self.refuse("barriers without their initialization")
        for buffer in node.alloc_buffers:
            self._allocated(ir.AllocBuffer(node.location, buffer))
        self._statement(node.body)

    def _loop(self, node: ir.For) -> None:
        low, extent = self.expr(node.min), self.expr(node.extent)
        name = self.name(node.loop_var.name)
        dtype, _ = split(node.loop_var.dtype)
        if low.uniform and extent.uniform:
            first, start = self.let(low, "low"), len(self._lines)
            loop = f"for {name} in range({first.code}, {first.code} + {extent.code})"
            stay = self._staying(node)
            self.line(f"{loop}:")
            self.values[node.loop_var] = Val(name, dtype, uniform=True)
            with self.indented():
                self._iteration(node.body, stay)
            self._gathered_loop(start, loop)
            return
        extent, low = self.let(extent, "extent"), self.let(low, "low")
        outer, inner = self.mask, self.name("on")
        stay = self._staying(node)
        step = self.name("step")
        self.line(f"for {step} in count():")
        with self.indented():
            self.line(f"{inner} = within({stay or outer}, {step} < {extent.code})")
            self.line(f"if not some({inner}):")
            with self.indented():
                self.line("break")
            self.line(f"{name} = {low.code} + {step}")
            self.values[node.loop_var] = Val(
                step if low.code == "0" else name, dtype, uniform=low.uniform
            )
            self.mask = "None" if extent.uniform and outer == "None" and not stay else inner
            self._iteration(node.body, stay, inner)
            self.mask = outer

    def _staying(self, loop: ir.For) -> str | None:
        """A new mask of the lanes that stay in a loop; None if none leaves it in its body."""
        if not _jumps(loop.body):
            return None
        stay = self.name("stay")
        self.line(f"{stay} = {self.mask}")
        return stay

    def _iteration(self, body: Any, stay: str | None, start: str | None = None) -> None:
        """The body of a loop for lanes of a mask; lanes may leave `stay`, by default the mask."""
        if stay is None:
            self._statement(body)
            return
        outer, mask = self.mask, self.name("on")
        self.line(f"{mask} = {start or stay}")
        self.line(f"if not some({mask}):")
        with self.indented():
            self.line("break")
        self.mask = mask
        self._loops.append((stay, [mask]))
        self._statement(body)
        self._loops.pop()
        self.mask = outer

    def jump(self, op: str) -> None:
        """Write `break` or `continue`: lanes leave the loop, or its iteration.

        Raises:
            Unsupported: out of a branch that waits for another one.
        """
        if not self._loops or self._loops[-1] is None:
            raise self.refuse(f"{op} in a branch that waits for others")
        stay, masks = self._loops[-1]
        gone = self.name("gone")
        self.line(f"{gone} = {self.mask}")
        for each in masks if JUMPS[op] == "continue" else (stay, *masks):
            self.line(f"{each} = without(m, {each}, {gone})")

    def _while(self, node: ir.While) -> None:
        outer, inner = self.mask, self.name("on")
        self.line(f"{inner} = {outer}")
        by_order, self.by_order = self.by_order, False
        start = len(self._lines)
        self.line("while True:")
        with self.indented():
            self.mask = inner
            condition = self.expr(node.condition)
            self.line(f"{inner} = within({inner}, {condition.code})")
            self.line(f"if not some({inner}):")
            with self.indented():
                self.line("break")
            self._iteration(node.body, inner if _jumps(node.body) else None)
        if self.by_order:
            self.in_turn, count = True, self.name("count")
            indent = "    " * self._depth
            self._lines.insert(start, f"{indent}{count} = 0")
            self._lines.insert(start + 2, f"{indent}    {count} = m.iterated({count})")
        self.by_order |= by_order
        self.mask = outer

    def _branch(self, node: ir.IfThenElse) -> None:
        condition = self.expr(node.condition)
        if condition.uniform:
            self.line(f"if {condition.code}:")
            with self.indented():
                self._statement(node.then_case)
            if node.else_case is not None:
                self.line("else:")
                with self.indented():
                    self._statement(node.else_case)
            return
        condition = self.let(condition, "condition")
        outer = self.mask
        cases = [(f"within({outer}, {condition.code})", node.then_case)]
        if node.else_case is not None:
            cases.append((f"within({outer}, ~{condition.code})", node.else_case))
        if len(cases) > 1 and self.suspends and any(_suspends(case) for _, case in cases):
            self._roles(cases)
        else:
            for code, case in cases:
                name = self.name("on")
                self.line(f"{name} = {code}")
                self.line(f"if some({name}):")
                self.mask = name
                loop = self._loops[-1] if self._loops else None
                if loop is not None:
                    loop[1].append(name)
                with self.indented():
                    self._statement(case)
                if loop is not None:
                    loop[1].pop()
        self.mask = outer

    def _roles(self, cases: list[tuple[str, Any]]) -> None:
        """Branches that wait for one another: each runs beside the others."""
        roles = []
        for code, case in cases:
            mask, role = self.name("on"), self.name("role")
            self.line(f"{mask} = {code}")
            self.line(f"def {role}():")
            self.mask = mask
            with self.indented():
                self.line(f"if not some({mask}):")
                with self.indented():
                    self.line("return")
                self._loops.append(None)
                self._statement(case)
                self._loops.pop()
                self.line("return")
                self.line("yield")
            roles.append(f"{role}()")
        self.line(f"yield from side_by_side(m, [{', '.join(roles)}])")

    def _store(self, node: ir.BufferStore) -> None:
        if node.predicate is not None:
            raise self.refuse("a predicated store")
        value = self.expr(node.value)
        self.store(node.buffer, node.indices, value)

    def store(self, buffer: ir.Buffer, indices: tuple[Any, ...], value: Val) -> None:
        """Write a store of a value to an element, or a vector, of a buffer."""
        place = self.place_of(buffer.data)
        index, width = self._index(buffer, indices)
        if place.kind == "local":
            self.store_local(place, buffer.dtype, index, max(width, value.width), value)
            return
        view = self.view(place, buffer.dtype, writes=True, width=width)
        if place.kind == "shared":
            self.note_vector(split(buffer.dtype)[0], width)
        self.line(f"{view}.store({index.code}, {value.code}, {width}, {self.mask}, {self.site()})")

    def store_local(self, place: Place, dtype: str, index: Val, width: int, value: Val) -> None:
        """Store to memory of the lanes themselves, from an element on."""
        self._same_memory(place, dtype)
        self._uses(place, index, width, writes=True)
        code = value.code
        if value.dtype == "bool" and place.dtype != "bool":
            code = f"np.asarray({code}, np.int64)"
        if not index.uniform:
            at = f"{index.code} + np.arange({width})[:, None]" if width > 1 else index.code
            self.line(f"put_local(m, {place.code}, {at}, {code}, {self.mask})")
            return
        target = self._part(place, index, width)
        if self.mask == "None":
            self.line(f"{target}{'' if width == 1 else '[...]'} = {code}")
        else:
            self.line(f"put({target}, {code}, {self.mask})")

    def _uses(self, place: Place, index: Val, width: int, *, writes: bool) -> None:
        """Note an access to registers that `wgmma` uses as well."""
        if place.code in self._watched:
            size = f"len({place.code})"
            part = f"{index.code}, {index.code} + {width}" if index.uniform else f"0, {size}"
            self.line(
                f"m.registers.use({place.name!r}, ({part}, {size}), {writes}, {self.mask}, "
                f"{self.site()})"
            )

    def _part(self, place: Place, index: Val, width: int) -> str:
        if width == 1:
            return f"{place.code}[{index.code}]"
        return f"part(m, {place.code}, {index.code}, {width}, {place.name!r}, {self.site()})"

    def _same_memory(self, place: Place, dtype: str) -> None:
        if split(dtype)[0] != place.dtype:
            raise self.refuse(f"{place.name}, of {place.dtype}, as {dtype}")

    def _evaluate(self, node: ir.Evaluate) -> None:
        if isinstance(node.value, ir.Call):
            found = call(self, node.value)
            if found.code not in ("0", "None") and not re.fullmatch(r"\w+", found.code):
                self.line(found.code)

    def _nothing(self, node: Any) -> None:
        """A statement without effect here."""

    # -- expressions

    def expr(self, node: Any) -> Val:
        """The code of an expression."""
        method = EXPRESSIONS.get(type(node))
        if method is not None:
            found: Val = method(self, node)
            return found
        if isinstance(node, ir.Compare):
            return compare(self, node)
        if isinstance(node, ir.Var):
            return variable(self, node)
        raise self.refuse(type(node).__name__)

    def combined(self, template: str, dtype: str, *parts: Val, width: int | None = None) -> Val:
        """An operation on values; of fixed ones that meet others the fixed part is kept."""
        fixed = all(p.fixed for p in parts)
        if not fixed:
            parts = tuple(p if p.uniform else self.once(p) for p in parts)
        code = template.format(*(p.code for p in parts))
        found = width if width is not None else max(p.width for p in parts)
        return Val(code, dtype, found, all(p.uniform for p in parts), fixed)

    def apply(self, template: str, dtype: str, *parts: Val, width: int | None = None) -> Val:
        """As `_combined`, rounded to a dtype of low precision."""
        found = self.combined(template, dtype, *parts, width=width)
        return self.rounded(found)

    @contextmanager
    def where(self, condition: str) -> Iterator[None]:
        """What follows is evaluated for lanes of which a condition holds."""
        outer = self.mask
        name = self.name("on")
        self.line(f"{name} = within({outer}, {condition})")
        self.mask = name
        yield
        self.mask = outer

    def load(self, buffer: ir.Buffer, indices: tuple[Any, ...]) -> Val:
        """An element of a buffer, or a vector."""
        place = self.place_of(buffer.data)
        index, width = self._index(buffer, indices)
        dtype, _ = split(buffer.dtype)
        if place.kind == "local":
            return self.load_local(place, buffer.dtype, index, width)
        view = self.view(place, buffer.dtype, width=max(2, width))
        if place.kind == "shared":
            self.note_vector(dtype, width)
        code = f"{view}.load({index.code}, {width}, {self.mask}, {self.site()})"
        return Val(code, dtype, width)

    def load_local(self, place: Place, dtype: str, index: Val, width: int) -> Val:
        """What a lane has in memory of its own, from an element on."""
        self._same_memory(place, dtype)
        self._uses(place, index, width, writes=False)
        if not index.uniform:
            at = f"{index.code} + np.arange({width})[:, None]" if width > 1 else index.code
            return Val(f"get_local(m, {place.code}, {at})", place.dtype, width)
        return Val(self._part(place, index, width), place.dtype, width)

    def _index(self, buffer: ir.Buffer, indices: tuple[Any, ...]) -> tuple[Val, int]:
        """The index of the first element of an access, and how many there are."""
        own = split(buffer.dtype)[1]
        if len(indices) != 1:
            return self._flat(buffer, indices), own
        node = indices[0]
        if isinstance(node, ir.Ramp):
            stride = node.stride
            if not isinstance(stride, ir.IntImm) or stride.value != 1:
                raise self.refuse(f"an access with a stride to {buffer.name}")
            base = self.expr(node.base)
            return self._scaled(base, own), node.lanes * own
        return self._scaled(self.expr(node), own), own

    def _flat(self, buffer: ir.Buffer, indices: tuple[Any, ...]) -> Val:
        """The index in memory of an element of a buffer of several dimensions."""
        total = Val("0", "int32", uniform=True, fixed=True)
        for k, index in enumerate(indices):
            if isinstance(index, ir.Ramp):
                raise self.refuse(f"a vector of {buffer.name}")
            at = self.expr(index)
            if buffer.strides:
                step = self.expr(buffer.strides[k])
                at = self.combined("({} * {})", "int64", at, step)
                total = self.combined("({} + {})", "int64", total, at)
            else:
                extent = self.expr(buffer.shape[k])
                total = self.combined("({} * {} + {})", "int64", total, extent, at)
        return self._scaled(total, split(buffer.dtype)[1])

    def _scaled(self, index: Val, factor: int) -> Val:
        if factor != 1:
            index = self.combined(f"({{}} * {factor})", index.dtype, index)
        return index if index.uniform else self.once(index)

    # -- memory

    def place_of(self, data: ir.Var) -> Place:
        """What a variable points to."""
        found = self.places.get(data)
        if found is None:
            raise self.refuse(f"memory of {data.name}")
        return found

    def _into(self, node: ir.Call) -> Place:
        """Shared memory from some byte of a buffer on."""
        base, offset = self.place_of(node.args[0]), node.args[1]
        if base.kind != "shared" or not isinstance(offset, ir.IntImm):
            raise self.refuse(f"a pointer into {base.name}")
        return replace(base, offset=base.offset + int(offset.value))

    def view(self, place: Place, dtype: str, *, writes: bool = False, width: int = 1) -> str:
        """The name of a view of shared or global memory as elements of a dtype.

        Of elements of 4 bits the access has `width`; if that is odd it is refused.
        """
        element, _ = split(dtype)
        if writes:
            self.written.add(place.code)
        key = (f"{place.kind} {place.name} {place.offset}", element)
        if place.kind not in ("shared", "global"):
            raise self.refuse(f"{place.name} as memory of a block")
        if TILE_DTYPES[element].bits < 8 and width % 2:
            raise self.refuse(f"{place.name}, two elements of {element} a byte,")
        if place.kind == "shared" and place.offset:
            self.narrow_unit(place.offset)
        if key not in self._views:
            name = self._views[key] = self.name(place.name)
            if place.kind == "shared":
                made = f"m.shared({place.name!r}, {element!r}, {place.offset})"
            else:
                made = f"m.tensor({place.name!r}, {element!r}, {place.code})"
            self.head.append(f"{name} = {made}")
        return self._views[key]

    def narrow_unit(self, size: int) -> None:
        """Track accesses of shared memory at a granularity that divides `size` bytes."""
        self._unit = math.gcd(self._unit, size)

    def note_vector(self, dtype: str, count: int) -> None:
        """Shared memory is accessed by vectors of so many elements."""
        self.narrow_unit(max(1, TILE_DTYPES[dtype].bits * count // 8))

    def descriptor(self, node: Any) -> str | None:
        """A TMA descriptor that code gets or makes; None of what is none."""
        if isinstance(node, ir.Call) and node.op in _DESCRIPTORS:
            place = self.place_of(node.args[2])
            numbers = [self.expr(each) for each in node.args]
            name = self.name("descriptor")
            self.written.add(place.code)
            parts = ", ".join(n.code for n in (numbers[1], *numbers[3:]))
            self.head.append(f"{name} = {_DESCRIPTORS[node.op]}({place.code}, ({parts},))")
            return name
        if not isinstance(node, ir.Var):
            return None
        place = self.place_of(node)
        return place.code if place.kind == "descriptor" else None

    def rounded(self, value: Val) -> Val:
        """A value of a dtype of low precision, rounded to it."""
        codec = TILE_DTYPES[value.dtype].codec if is_float(value.dtype) else None
        return replace(value, code=f"{codec}.round({value.code})") if codec else value

    def barrier(self, node: Any) -> str:
        """The number of an mbarrier."""
        if not isinstance(node, ir.BufferLoad):
            raise self.refuse("a barrier that is no element of a buffer")
        place = self.place_of(node.buffer.data)
        if place.kind != "barrier":
            raise self.refuse(f"{place.name} as a barrier")
        index = self.expr(node.indices[0])
        return f"({place.code} + {index.code})" if place.code != "0" else index.code

    def pointer(self, node: Any) -> tuple[Place, str, Val]:
        """What an access pointer points to: memory, dtype, and the index of an element."""
        if isinstance(node, ir.Call) and node.op == "tirx.tvm_access_ptr":
            kind, data, offset = node.args[:3]
            dtype = split(kind.dtype)[0]
            place = self.place_of(data)
            return place, dtype, self._scaled(self.expr(offset), split(kind.dtype)[1])
        if isinstance(node, ir.Call) and node.op in ("tirx.address_of", "tl.access_ptr"):
            load = node.args[0]
            index, _ = self._index(load.buffer, load.indices)
            return self.place_of(load.buffer.data), split(load.buffer.dtype)[0], index
        if isinstance(node, ir.Call) and node.op == _INTO:
            place, dtype, index = self.pointer(node.args[0])
            size = max(1, TILE_DTYPES[dtype].bytes)
            more = self.combined(f"({{}} // {size})", "int64", self.expr(node.args[1]))
            return place, dtype, self.combined("({} + {})", "int64", index, more)
        if isinstance(node, ir.Var):
            place = self.place_of(node)
            return place, place.dtype, Val("0", "int32", uniform=True, fixed=True)
        raise self.refuse(f"the pointer {getattr(node, 'op', type(node).__name__)}")


def _is_partial(node: ir.Call) -> bool:
    """Whether some threads of a block wait at a barrier of their own."""
    return node.op == _SYNC and len(node.args) > 1


def _jumps(statement: Any) -> bool:
    """Whether lanes leave the loop that a statement is in, or its iteration."""
    if isinstance(statement, ir.For | ir.While):
        return False
    if isinstance(statement, ir.Evaluate):
        return isinstance(statement.value, ir.Call) and statement.value.op in JUMPS
    return any(_jumps(each) for each in inner_statements(statement))


def _suspends(statement: Any) -> bool:
    return any(
        isinstance(node, ir.Call) and (node.op in WAITS or node.op == _SYNC)
        for node in walk(statement)
    )


_WGMMA = {"tl.ptx_wgmma_ss": (10,), "tl.ptx_wgmma_rs": (5, 9)}
"""Positions of the operands of `wgmma` that are registers."""


def _registers(node: Any) -> tuple[ir.Var, ...]:
    """The arrays in registers that `wgmma` uses."""
    if not isinstance(node, ir.Call) or node.op not in _WGMMA:
        return ()
    return tuple(node.args[k] for k in _WGMMA[node.op])


# ruff: noqa: SLF001 - the table of an Emitter names its methods
_STATEMENTS: dict[type, Any] = {
    ir.SeqStmt: Emitter._sequence,
    ir.AttrStmt: Emitter._attribute,
    ir.Bind: Emitter._bind,
    ir.For: Emitter._loop,
    ir.While: Emitter._while,
    ir.IfThenElse: Emitter._branch,
    ir.BufferStore: Emitter._store,
    ir.Evaluate: Emitter._evaluate,
    ir.AssertStmt: Emitter._nothing,
    ir.DeclBuffer: Emitter._nothing,
    ir.AllocBuffer: Emitter._allocated,
    ir.Block: Emitter._block,
}
