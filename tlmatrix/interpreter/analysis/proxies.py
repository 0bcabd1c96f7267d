"""Where TileLang puts the fence between ordinary writes of shared memory and asynchronous reads.

TMA, wgmma and tcgen05 read shared memory through the asynchronous proxy, for which ordinary
stores count only after `fence.proxy.async` (PTX ISA, "Async proxy"). TileLang's pass walks a
kernel in the order of its source, whatever threads run it, and puts a fence before an
asynchronous operation that may follow an ordinary store (`src/cuda/transform/
inject_fence_proxy.cc`). Operations whose lowering is TileLang's choice are assumed to bring every
fence that they may bring.
"""

from __future__ import annotations

from typing import Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

_NONE, _ORDINARY, _ASYNCHRONOUS = 1, 2, 4
_OPERATIONS = frozenset({"tl.tileop.tma_copy", "tl.tileop.wgmma_gemm", "tl.tileop.tcgen05_gemm"})


def fenced_statements(body: ir.Stmt) -> set[ir.Stmt]:
    """The statements of a block before which TileLang puts a fence."""
    walker = _Walker()
    walker.visit(body)
    return walker.fenced


def _is_shared(buffer: ir.Buffer) -> bool:
    return buffer.scope in ("shared", "shared.dyn")


def _event(call: Any) -> str:
    """What a call does: "fence", "asynchronous", "ordinary", "either" or nothing."""
    if not isinstance(call, ir.Call):
        return ""
    if call.op == "tl.fence_proxy_async":
        return "fence"
    if call.op in _OPERATIONS:
        return "asynchronous"
    if call.op == "tl.tileop.gemm":
        return "either"
    reads = writes = False
    for argument in call.args:
        if isinstance(argument, ir.Region):
            buffer, writing = argument.buffer, argument.writes
        elif isinstance(argument, ir.Call) and argument.op == "tl.access_ptr":
            buffer, writing = argument.args[0].buffer, True
        else:
            continue
        if _is_shared(buffer):
            writes, reads = writes or writing, reads or not writing
    if writes:
        return "ordinary"
    return "either" if reads and call.op == "tl.tileop.copy" else ""


def _contains(statement: ir.Stmt) -> tuple[bool, bool]:
    """Whether a statement has ordinary stores to shared memory, and asynchronous operations."""
    nodes = list(walk(statement))
    events = {_event(node.value) for node in nodes if isinstance(node, ir.Evaluate)}
    stores = any(isinstance(n, ir.BufferStore) and _is_shared(n.buffer) for n in nodes)
    return stores or "ordinary" in events, "asynchronous" in events


class _Walker:
    """The pass: which proxies the last access may have gone through."""

    def __init__(self) -> None:
        self.state = _NONE
        self.fenced: set[ir.Stmt] = set()

    def visit(self, node: ir.Stmt) -> None:
        """Go through a statement."""
        if isinstance(node, ir.SeqStmt):
            for child in node.seq:
                self.visit(child)
        elif isinstance(node, ir.BufferStore):
            if _is_shared(node.buffer):
                self.state = _ORDINARY
        elif isinstance(node, ir.Evaluate):
            self._evaluate(node)
        elif isinstance(node, ir.IfThenElse):
            self._branch(node)
        elif isinstance(node, (ir.For, ir.While)):
            self._loop(node)
        elif isinstance(node, (ir.AttrStmt, ir.Block)):
            self.visit(node.body)

    def _evaluate(self, node: ir.Evaluate) -> None:
        event = _event(node.value)
        if event == "fence":
            self.state = _NONE
        elif event == "ordinary":
            self.state = _ORDINARY
        elif event in ("asynchronous", "either"):
            if self.state & _ORDINARY:
                self.fenced.add(node)
            if event == "asynchronous":
                self.state = _ASYNCHRONOUS

    def _branch(self, node: ir.IfThenElse) -> None:
        entry = self.state
        if entry & _ORDINARY and node.else_case is not None:
            cases = [_contains(node.then_case), _contains(node.else_case)]
            if all(asynchronous and not ordinary for ordinary, asynchronous in cases):
                self.fenced.add(node)
                entry = _NONE
        self.state = entry
        self.visit(node.then_case)
        then = self.state
        self.state = entry
        if node.else_case is not None:
            self.visit(node.else_case)
        self.state |= then

    def _loop(self, node: ir.For | ir.While) -> None:
        entry = self.state
        ordinary, asynchronous = _contains(node.body)
        if entry & _ORDINARY and asynchronous and not ordinary:
            self.fenced.add(node)
            entry = _NONE
        header = entry
        while True:
            self.state = header
            self.visit(node.body)
            if header | self.state == header:
                break
            header |= self.state
        self.state |= entry
