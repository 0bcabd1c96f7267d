"""Where TileLang puts the fence between ordinary writes of shared memory and asynchronous reads.

TMA, wgmma and tcgen05 read shared memory through the asynchronous proxy, for which ordinary
stores count only after `fence.proxy.async` (PTX ISA, "Async proxy"). TileLang's pass walks a
kernel in the order of its source, whatever threads run it, and puts a fence before an
asynchronous operation that may follow an ordinary store (`src/cuda/transform/
inject_fence_proxy.cc`). Of operations whose lowering is TileLang's choice it is assumed here
that they bring every fence that they may bring.
"""

from __future__ import annotations

from typing import Any

from tlmatrix.interpreter.codegen.expressions import op_name

__all__ = ["fenced_statements"]

_NONE, _ORDINARY, _ASYNCHRONOUS = 1, 2, 4
_OPERATIONS = frozenset({"tl.tileop.tma_copy", "tl.tileop.wgmma_gemm", "tl.tileop.tcgen05_gemm"})
_REGIONS = ("tl.region", "tl.tileop.region")


def fenced_statements(body: Any) -> set[Any]:
    """The statements of a block before which TileLang puts a fence."""
    walk = _Walk()
    walk.visit(body)
    return walk.placed


def _shared(buffer: Any) -> bool:
    scope = str(buffer.scope())
    return scope in ("shared", "shared.dyn")


def _event(statement: Any) -> str:
    """What an Evaluate does: "fence", "asynchronous", "ordinary", "either" or nothing."""
    call = statement.value
    if type(call).__name__ != "Call":
        return ""
    name = op_name(call)
    if name == "tl.fence_proxy_async":
        return "fence"
    if name in _OPERATIONS:
        return "asynchronous"
    if name == "tl.tileop.gemm":
        return "either"
    reads = writes = False
    for argument in call.args:
        if type(argument).__name__ != "Call":
            continue
        inner = op_name(argument)
        if inner not in (*_REGIONS, "tl.access_ptr") or not _shared(argument.args[0].buffer):
            continue
        writing = inner == "tl.access_ptr" or bool(int(argument.args[1]) & 2)
        writes, reads = writes or writing, reads or not writing
    if writes:
        return "ordinary"
    return "either" if reads and name == "tl.tileop.copy" else ""


def _has(statement: Any) -> tuple[bool, bool]:
    """Whether a statement has ordinary stores to shared memory, and asynchronous operations."""
    from tilelang import tvm

    found = {"ordinary": False, "asynchronous": False}

    def look(node: Any) -> None:
        if isinstance(node, tvm.tirx.BufferStore):
            found["ordinary"] = found["ordinary"] or _shared(node.buffer)
        elif isinstance(node, tvm.tirx.Evaluate):
            found[_event(node)] = True

    tvm.tirx.stmt_functor.post_order_visit(statement, look)
    return found["ordinary"], found["asynchronous"]


class _Walk:
    """The pass: which proxies the last access may have gone through."""

    def __init__(self) -> None:
        self.state = _NONE
        self.placed: set[Any] = set()

    def visit(self, node: Any) -> None:
        """Go through a statement."""
        kind = type(node).__name__
        if kind == "SeqStmt":
            for child in node.seq:
                self.visit(child)
        elif kind == "BufferStore":
            if _shared(node.buffer):
                self.state = _ORDINARY
        elif kind == "Evaluate":
            self._evaluate(node)
        elif kind == "IfThenElse":
            self._branch(node)
        elif kind in ("For", "While"):
            self._loop(node)
        elif kind == "SBlockRealize":
            self.visit(node.block)
        elif kind in ("AttrStmt", "SBlock"):
            self.visit(node.body)

    def _evaluate(self, node: Any) -> None:
        event = _event(node)
        if event == "fence":
            self.state = _NONE
        elif event == "ordinary":
            self.state = _ORDINARY
        elif event in ("asynchronous", "either"):
            if self.state & _ORDINARY:
                self.placed.add(node)
            if event == "asynchronous":
                self.state = _ASYNCHRONOUS

    def _branch(self, node: Any) -> None:
        entry = self.state
        if entry & _ORDINARY and node.else_case is not None:
            cases = [_has(node.then_case), _has(node.else_case)]
            if all(asynchronous and not ordinary for ordinary, asynchronous in cases):
                self.placed.add(node)
                entry = _NONE
        self.state = entry
        self.visit(node.then_case)
        then = self.state
        self.state = entry
        if node.else_case is not None:
            self.visit(node.else_case)
        self.state |= then

    def _loop(self, node: Any) -> None:
        entry = self.state
        ordinary, asynchronous = _has(node.body)
        if entry & _ORDINARY and asynchronous and not ordinary:
            self.placed.add(node)
            entry = _NONE
        header = entry
        while True:
            self.state = header
            self.visit(node.body)
            if header | self.state == header:
                break
            header |= self.state
        self.state |= entry
