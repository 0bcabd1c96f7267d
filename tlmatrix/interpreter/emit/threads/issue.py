"""Asynchronous operations: closures that the scheduler calls when they complete."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.emit.memory import buffer
from tlmatrix.interpreter.emit.tiles import perform
from tlmatrix.interpreter.ir import nodes as ir

from .axis import rank_in_cluster
from .roles import threads_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tlmatrix.interpreter.emit.emitter import Emitter
    from tlmatrix.interpreter.emit.source import Writer
    from tlmatrix.interpreter.emit.tiles import BufferRegion, TileOperation

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"^\s*(?:for )?([A-Za-z_]\w*)(?: =| in) ")


def issue(e: Emitter, kind: str, op: TileOperation, more: str = "") -> None:
    """Issue a tile operation whose work is done when the scheduler says; `more` are arguments."""
    t = threads_of(e, f"T.{op.name}")
    regions = list(raced_regions(op))
    accesses = [
        f"({region.buf.code!r}, {written}, {region.dims_code}, {region.buf.code}.shape)"
        for region, written in regions
        if t.can_race(e, region.buf)
    ]
    with writing_to(e, e.w.sharing_names(e.w.location)) as body, t.untracked():
        perform(e, op)
    issue_lines(e, kind, body, accesses, more, {region.buf.code for region, _ in regions})


def raced_regions(op: TileOperation) -> Iterator[tuple[BufferRegion, bool]]:
    """The regions that a tile operation accesses, and whether it writes each; atomics race not."""
    written = [effect.region for effect in op.effects if effect.action == "write"]
    for effect in op.effects:
        if effect.action == "write":
            yield effect.region, True
        elif effect.action == "read" and effect.region not in written:
            yield effect.region, False


@contextmanager
def writing_to(e: Emitter, writer: Writer) -> Iterator[Writer]:
    """Inside, lines are written elsewhere."""
    outer, e.w = e.w, writer
    yield writer
    e.w = outer


def issue_lines(
    e: Emitter,
    kind: str,
    body: Writer,
    accesses: Sequence[str],
    more: str = "",
    operands: Collection[str] | None = None,
) -> None:
    """Issue work given as lines: they become a closure over their values at the time of issue.

    Buffers of the block that the lines name, other than the `operands` (None: all are), are
    indices: their contents are copied when the work is issued.
    """
    used = {name for text in body.lines for name in _NAME.findall(text)}
    bound = {name: name for name in used & _assigned(e.w)}
    if operands is not None:
        bound |= {
            buf.code: f"{buf.code}.copy()"
            for buf in e.buffers.values()
            if buf.code in used - set(operands)
            and not buf.is_global
            and not buf.variable
            and not buf.scope.endswith("barrier")
        }
    captured = ", ".join(f"{name}={value}" for name, value in sorted(bound.items()))
    action = e.temp("action")
    with e.w.block(f"def {action}({captured})"):
        for text in body.lines or ["pass"]:
            e.w.line(text)
    arguments = f"{kind!r}, {action}, ({''.join(a + ', ' for a in accesses)})"
    e.w.line(f"me.issue({arguments}{', ' + more if more else ''})")
    e.w.line("yield")


def _assigned(w: Writer) -> set[str]:
    """Names that the lines of a role assign."""
    scanned, names = w.assigned
    for text in w.lines[scanned:]:
        match = _ASSIGNED.match(text)
        if match is not None:
            names.add(match.group(1))
    w.assigned = (len(w.lines), names)
    return names


# Barriers ---------------------------------------------------------------------------------


def barrier_code(e: Emitter, node: Any) -> str:
    """Code of the mbarrier that an argument names."""
    if isinstance(node, ir.BufferLoad):
        index = e.scalar(node.indices[0], "a barrier")
        return f"{buffer(e, node.buffer).code}[{index.code}]"
    name = node.op if isinstance(node, ir.Call) else type(node).__name__
    if name == "tl.access_ptr":
        return barrier_code(e, node.args[0])
    if name == "tirx.tvm_access_ptr":
        for key, buf in e.buffers.items():
            if key.data is node.args[1]:
                return f"{buf.code}[{e.scalar(node.args[2], 'a barrier').code}]"
    raise e.refuse(f"a barrier given as {name}")


def barriers_of_pair(e: Emitter, node: Any) -> list[str]:
    """Code of an mbarrier of this block and of the same one of its neighbour in the cluster."""
    code, _, index = barrier_code(e, node).partition("[")
    rank = rank_in_cluster(e)
    return [f"{code}.of_block({rank} & ~1)[{index}", f"{code}.of_block({rank} | 1)[{index}"]


def arrives_at(e: Emitter, barrier: str) -> None:
    """Note, for reports, that the role arrives at a barrier here."""
    t = threads_of(e, "an arrival")
    code = barrier.split("[", maxsplit=1)[0]
    name = next(b.name for b in e.buffers.values() if b.code == code)
    found = t.arrivals.setdefault(name, [])
    entry = (t.role, str(e.w.location or "an unknown line"))
    if entry not in found:
        found.append(entry)


def together(rule: Callable[[Emitter, ir.Call], None]) -> Callable[[Emitter, ir.Call], None]:
    """A rule whose lines are written outside of the thread axis."""

    def rule_together(e: Emitter, call: ir.Call) -> None:
        with threads_of(e, call.op).without_threads(e):
            rule(e, call)

    return rule_together


def by_active_threads(
    rule: Callable[[Emitter, ir.Call], None],
) -> Callable[[Emitter, ir.Call], None]:
    """A rule whose lines run only where some thread is active."""

    def masked(e: Emitter, call: ir.Call) -> None:
        if e.mask is None or e.mask.scalar:
            rule(e, call)
            return
        with e.w.block(f"if np.any({e.mask.code})"):
            rule(e, call)

    return masked
