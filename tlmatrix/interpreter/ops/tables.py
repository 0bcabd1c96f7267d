"""What a family of operations declares, and the tables of all families."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.expressions import number
from tlmatrix.interpreter.emit.emitter import Rules
from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.threads import threads_of
from tlmatrix.interpreter.emit.tiles import perform
from tlmatrix.interpreter.ir import nodes as ir

if TYPE_CHECKING:
    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.tiles import TileOperation
    from tlmatrix.interpreter.runtime.codecs import Array
    from tlmatrix.interpreter.runtime.elements import Event, Tile

    Effect = Callable[[Emitter, ir.Call], None]
    Slice = Callable[[Event, Tile, Array, Tile, int], Array]


@dataclass(frozen=True, kw_only=True)
class Operations:
    """A family of operations: what is written for each, and what the source calls.

    Attributes:
        tiles: tile operations by name.
        rules: rules of other operations, and of statements that the family takes over.
        of_threads: rules of blocks whose threads have roles, in place of those or beside them.
        asynchronous: rules of operations of such blocks that complete later.
        synchronizing: operations that threads wait at, or arrive at.
        each_thread: operations that every thread does where no parallel loop distributes them.
        functions: what the generated source calls.
        slices: by `Dependence.rule`, the elements read that elements written depend on: a function
            of the event, what it wrote, the elements of that, a read and its number.
    """

    tiles: Mapping[str, type[TileOperation]] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    of_threads: Rules = field(default_factory=Rules)
    asynchronous: Mapping[str, Effect] = field(default_factory=dict)
    synchronizing: Collection[str] = ()
    each_thread: Collection[str] = ()
    functions: tuple[Callable[..., Any], ...] = ()
    slices: Mapping[str, Slice] = field(default_factory=dict)


class Tables:
    """The operations of some families.

    Attributes:
        rules: rules of a block that is one agent.
        of_threads: what else, and what otherwise, where a block has several roles.
        asynchronous, synchronizing, each_thread: as in `Operations`.
        functions: what the generated source calls, by name.
        slices: as in `Operations`.
    """

    def __init__(self, base: Rules, families: Iterable[Operations]) -> None:
        self._tiles: dict[str, type[TileOperation]] = {}
        self.rules, self.of_threads = base, Rules()
        self.asynchronous: set[str] = set()
        self.synchronizing: set[str] = set()
        self.each_thread: set[str] = set()
        self.functions: dict[str, Callable[..., Any]] = {}
        self.slices: dict[str, Slice] = {}
        for family in families:
            tiles, later = family.tiles, family.asynchronous
            self._tiles |= tiles
            alone = Rules(effects={op: _tile_rule(make) for op, make in tiles.items()})
            shared = {op: tile_rule_of_threads(make) for op, make in tiles.items()}
            self.rules = self.rules.overlaid(alone).overlaid(family.rules)
            self.of_threads = self.of_threads.overlaid(Rules(effects={**shared, **later}))
            self.of_threads = self.of_threads.overlaid(family.of_threads)
            self.asynchronous.update(later)
            self.synchronizing.update(family.synchronizing)
            self.each_thread.update(family.each_thread)
            self.functions |= {function.__name__: function for function in family.functions}
            self.slices |= family.slices

    @cached_property
    def thread_operations(self) -> frozenset[str]:
        """Operations that need several agents, or the thread index."""
        found = self.of_threads.calls.keys() | self.of_threads.effects.keys()
        return frozenset(found - (self.rules.calls.keys() | self.rules.effects.keys()))

    def overwritten(self, call: ir.Call) -> ir.Region | None:
        """The region that a tile operation writes whole whatever was in it, if any."""
        make = self._tiles.get(call.op)
        return None if make is None else make.overwritten(call)


# How a call of a tile operation is emitted --------------------------------------------------


def _tile_rule(
    make: Callable[[Emitter, ir.Call], TileOperation],
) -> Effect:
    """The rule of a tile operation in a block of one agent; `make` makes it of a call."""

    def rule(e: Emitter, call: ir.Call) -> None:
        if not e.axes:
            perform(e, make(e, call))
        elif _is_private(e, call):
            e.stmt(_element_loops(e, call))
        else:
            name = call.op.removeprefix("tl.tileop.")
            raise e.refuse(f"the tile operation T.{name} inside T.Parallel")

    return rule


def tile_rule_of_threads(
    make: Callable[[Emitter, ir.Call], TileOperation],
) -> Effect:
    """The same where the block has several roles: all threads of one do it together."""
    rule = _tile_rule(make)

    def rule_of_threads(e: Emitter, call: ir.Call) -> None:
        t = threads_of(e, call.op)
        if _is_private(e, call):
            name = call.op.removeprefix("tl.tileop.")
            t.thread_axis(e, f"T.{name} of a thread's own memory")
            e.stmt(_element_loops(e, call))
            return
        with t.without_threads(e):
            rule(e, call)

    return rule_of_threads


# `T.fill` and `T.copy` of memory that each thread or iteration has for itself -------------

# Longer copies of a thread are no longer a handful of registers.
_LONGEST = 512


def _is_private(e: Emitter, call: ir.Call) -> bool:
    """Whether a fill or copy has an operand of which every thread or iteration has its own."""
    return call.op in ("tl.tileop.fill", "tl.tileop.copy") and any(
        bool(buffer(e, arg.buffer).private_axes)
        for arg in call.args[:2]
        if isinstance(arg, ir.Region)
    )


def _element_loops(e: Emitter, call: ir.Call) -> ir.Stmt:
    """A fill or copy as loops over elements, which any thread can run for itself."""
    is_fill = call.op == "tl.tileop.fill"
    regions = call.args[: 1 if is_fill else 2]
    loops: list[tuple[ir.Var, Any]] = []
    indices: list[tuple[Any, ...]] = []
    for k, region in enumerate(regions):
        own: list[Any] = []
        position = 0
        for base, extent in zip(region.indices, region.extents, strict=True):
            if number(extent) == 1:
                own.append(base)
                continue
            if k == 0:
                loops.append((ir.Var("int32", f"e{position}"), extent))
            elif position >= len(loops):
                raise e.refuse("T.copy between regions of different rank")
            var, known = loops[position]
            if number(known) is None:
                loops[position] = (var, extent)  # `start + 8 - start` in the other region
            own.append(ir.Add(base.dtype, base, var))
            position += 1
        indices.append(tuple(own))
    if math.prod(int(number(extent) or _LONGEST + 1) for _, extent in loops) > _LONGEST:
        name = "fill" if is_fill else "copy"
        raise e.refuse(f"T.{name} of more than {_LONGEST} elements of a thread")
    target, location = regions[-1].buffer, e.w.location
    source = regions[0].buffer
    value = call.args[1] if is_fill else ir.BufferLoad(source.dtype, source, indices[0])
    if value.dtype != target.dtype:
        value = ir.Cast(target.dtype, value)
    body: ir.Stmt = ir.BufferStore(location, target, value, indices[-1])
    for var, extent in reversed(loops):
        body = ir.For(location, var, ir.IntImm("int32", 0), extent, ir.SERIAL, body)
    return body
