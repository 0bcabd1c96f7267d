"""Sequences, bindings, branches, attributes, assertions, and calls for their effect."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.analysis.initialization import sums_from_zero
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.rewrites.fragments import is_thread_index
from tlmatrix.interpreter.ir.walk import walk

from .casts import keep
from .integers import settle
from .logic import both, invert, uniform
from .masks import keep_mask

if TYPE_CHECKING:
    from collections.abc import Callable

    from .emitter import Emitter
    from .values import Val

# Hints to the compiler that do not change what a kernel computes.
_IGNORED_ATTRIBUTES = frozenset(
    {
        "threadblock_swizzle_pattern",
        "tl.assume",
        "tirx.assume",
        "tir.assume",
        "pragma_unroll",
        "tl.min_blocks_per_sm",
        "async_scope",  # TVM's: TileLang has no pass that looks at it
    }
)


def emit_sequence(e: Emitter, node: ir.SeqStmt) -> None:
    """A `SeqStmt`."""
    for child, following in pairwise([*node.seq, None]):
        assert child is not None
        if e.may_shorten and sums_from_zero(child, following):
            assert isinstance(child, ir.Evaluate)
            assert isinstance(following, ir.Evaluate)
            e.from_zero = (child.value, following.value)
        e.stmt(child)


def emit_bind(e: Emitter, node: ir.Bind) -> None:
    """A `Bind`: evaluated here, or where it is used if a variable of it is not bound yet."""
    if is_thread_index(node.value):
        e.vars[node.var] = "the thread index (threadIdx) used as data"  # refused at its use
        return
    if _is_undefined(e, node.value):
        e.deferred[node.var] = node.value
        e.vars.pop(node.var, None)
        return
    # The variable is an `int` in C, whatever the width of the index that it is used in.
    e.vars[node.var] = keep(e, settle(e, e.expr(node.value)), node.var.name)
    for instrument in e.instruments:
        instrument.bound(e, node.var, e.vars[node.var])


def _is_undefined(e: Emitter, value: Any) -> bool:
    return any(
        (node not in e.vars and node not in e.deferred) or isinstance(e.vars.get(node), str)
        for node in walk(value)
        if isinstance(node, ir.Var) and node.dtype != "handle"
    )


def emit_branch(e: Emitter, node: ir.IfThenElse) -> None:
    """An `IfThenElse`: a branch, or both sides under masks."""
    outer = e.mask
    tests = uniform(e, node.condition) if e.axes and outer is None else None
    test = e.expr(node.condition)
    for instrument in e.instruments:
        test = instrument.guard(e, "if", node.condition, test)
    if test.lit is not None:
        case = node.then_case if test.lit else node.else_case
        if case is not None:
            e.stmt(case)
        return
    if test.scalar:
        with e.w.block(f"if {test.code}"), e.where(node.condition, holds=True):
            e.stmt(node.then_case)
        if node.else_case is not None:
            with e.w.block("else"), e.where(node.condition, holds=False):
                e.stmt(node.else_case)
        return
    if tests is None:
        _emit_masked(e, node, test, outer)
        return
    every, none = tests
    with e.w.block(f"if {every}"):
        e.stmt(node.then_case)
    with e.w.block(f"elif not {none}"):
        # The condition is written again: this branch may not see temporaries of another.
        _emit_masked(e, node, e.expr(node.condition), outer)
    if node.else_case is not None:
        with e.w.block("else"):
            e.stmt(node.else_case)


def _emit_masked(e: Emitter, node: ir.IfThenElse, test: Val, outer: Val | None) -> None:
    """Both branches, each under its mask."""
    for instrument in e.instruments:
        test = instrument.mask(e, node.condition, test)
    test = keep_mask(e, test)
    inverted = invert(e, test) if node.else_case is not None else None
    if inverted is not None and test.inverse is None:
        inverted = keep_mask(e, inverted)
    e.mask = test if outer is None else keep_mask(e, both(e, outer, test))
    e.stmt(node.then_case)
    if node.else_case is not None and inverted is not None:
        e.mask = inverted if outer is None else keep_mask(e, both(e, outer, inverted))
        e.stmt(node.else_case)
    e.mask = outer


def emit_attribute(e: Emitter, node: ir.AttrStmt) -> None:
    """An `AttrStmt`, if it is a hint to the compiler."""
    key = node.attr_key
    if key not in _IGNORED_ATTRIBUTES and not key.startswith("pragma_"):
        raise e.refuse(f"the attribute {key}")
    e.stmt(node.body)


def _emit_assertion(e: Emitter, node: ir.AssertStmt) -> None:
    test = e.scalar(node.condition, "an assertion")
    with e.w.block(f"if not {test.code}"):
        e.w.line("raise AssertionError")


def emit_evaluate(e: Emitter, node: ir.Evaluate) -> None:
    """An `Evaluate`: an operation for its effect; a value that nothing uses is dropped."""
    call = node.value
    if not isinstance(call, ir.Call):
        return
    effect = e.rules.effects.get(call.op)
    if effect is not None:
        effect(e, call)
    elif call.op.startswith("tl.tileop."):
        raise e.refuse(f"the tile operation T.{call.op.removeprefix('tl.tileop.')}")
    else:
        e.expr(call)


def emit_call(e: Emitter, node: ir.Call) -> Val:
    """A call whose value is used."""
    rule = e.rules.calls.get(node.op)
    if rule is None:
        raise e.refuse(f"the operation {node.op}")
    return rule(e, node)


RULES: dict[type, Callable[[Emitter, Any], None]] = {
    ir.SeqStmt: emit_sequence,
    ir.Bind: emit_bind,
    ir.IfThenElse: emit_branch,
    ir.AttrStmt: emit_attribute,
    ir.AssertStmt: _emit_assertion,
    ir.Evaluate: emit_evaluate,
}
