"""Tile operations: what every one declares, and how one is emitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.ir.nodes import Call, Region

    from .emitter import Emitter
    from .regions import BufferRegion
    from .values import Val


@dataclass(frozen=True)
class Effect:
    """What an operation does to a region: `action` is "read", "write" or "atomic".

    Attributes:
        kind: of an atomic "add", "max" or "min".
        unless: code of a scalar under which it does not do it; None for never.
    """

    region: BufferRegion
    action: str
    unless: str | None = None
    kind: str = ""


@dataclass(frozen=True)
class Dependence:
    """How the elements an operation writes depend on those it reads; see `slices`.

    Attributes:
        rule: the name of the rule.
        sources: the regions read.
        target: the region written.
        arguments: codes of what else the rule needs.
    """

    rule: str
    sources: tuple[BufferRegion, ...]
    target: BufferRegion
    arguments: tuple[str, ...] = ()


class TileOperation:
    """One tile operation of a kernel: its operands, what it does to them, and what it emits.

    From the effects follow what sanitizers, race detection and coverage note of it. An operation
    with no rule is refused by name where a program is recorded to be explained.

    Attributes:
        name: of the operation, without `T.`.
        reads: names of the attributes that are regions it reads.
        writes: names of those that it writes.
        rule: how elements written depend on elements read (`ops.SLICES`); empty if no rule says.
        call: the call in the IR.
        clear: whether what it writes is cleared first; None for an operation that only writes.
        arguments: codes of what else the rule needs.
        predicated: regions whose elements outside of global memory are skipped.
    """

    name: ClassVar[str]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ("dst",)
    rule: ClassVar[str] = ""
    call: Call
    clear: Val | None = None
    arguments: tuple[str, ...] = ()
    predicated: Sequence[BufferRegion] = ()

    @staticmethod
    def overwritten(call: Call) -> Region | None:
        """The region that a call writes whole whatever was in it, if any."""
        del call
        return None

    @property
    def effects(self) -> Sequence[Effect]:
        """What it does to its operands, in order."""
        effects = [Effect(getattr(self, name), "read") for name in self.reads]
        written = [getattr(self, name) for name in self.writes]
        if self.clear is not None and not self.clear.lit:
            unless = self.clear.code if self.clear.lit is None else None
            effects += [Effect(region, "read", unless) for region in written]
        return [*effects, *(Effect(region, "write") for region in written)]

    @property
    def moves(self) -> tuple[BufferRegion, BufferRegion] | None:
        """Source and destination, where unwritten elements of one are unwritten in the other."""
        return None

    @property
    def dependence(self) -> Dependence | None:
        """How what it writes depends on what it reads; None if no rule says."""
        if not self.rule:
            return None
        sources = tuple(getattr(self, name) for name in self.reads)
        return Dependence(self.rule, sources, getattr(self, self.writes[0]), self.arguments)

    def emit(self, e: Emitter) -> None:
        """Write the operation."""
        raise NotImplementedError


def perform(e: Emitter, op: TileOperation) -> None:
    """Write an operation and what instruments note of it."""
    for instrument in e.instruments:
        instrument.before_tile(e, op)
    op.emit(e)
    for instrument in e.instruments:
        instrument.after_tile(e, op)
