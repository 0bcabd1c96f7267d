"""Visits, compares, rewrites and renders the tile IR."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from . import nodes as ir

_EXPRESSIONS: dict[type, tuple[str, ...]] = {
    ir.Cast: ("value",),
    ir.Not: ("a",),
    ir.Select: ("condition", "true_value", "false_value"),
    ir.Ramp: ("base", "stride"),
    ir.Broadcast: ("value",),
    ir.Let: ("value", "body"),
    ir.BufferLoad: ("indices", "predicate"),
    ir.Region: ("indices", "extents"),
    ir.Call: ("args",),
    **dict.fromkeys((*ir.BINARY, ir.Compare), ("a", "b")),
}
_STATEMENTS: dict[type, tuple[str, ...]] = {
    ir.SeqStmt: ("seq",),
    ir.Bind: ("value",),
    ir.For: ("min", "extent", "step", "body"),
    ir.While: ("condition", "body"),
    ir.IfThenElse: ("condition", "then_case", "else_case"),
    ir.AttrStmt: ("value", "body"),
    ir.AssertStmt: ("condition",),
    ir.Evaluate: ("value",),
    ir.BufferStore: ("value", "indices", "predicate"),
    ir.Block: ("body",),
}
_CHILDREN = _EXPRESSIONS | _STATEMENTS


def walk(*roots: Any) -> Iterator[Any]:
    """Every node at or below `roots`, in the order of the source, parents first."""
    return chain.from_iterable(map(_below, roots))


@lru_cache(maxsize=1 << 15)
def _below(node: Any) -> tuple[Any, ...]:
    """A node and all below it: analyses of one kernel ask for the same ones again and again."""
    found: list[Any] = [node]
    for name in _CHILDREN.get(type(node), ()):
        child = getattr(node, name)
        if type(child) is tuple:
            for each in child:
                found += _below(each)
        elif child is not None:
            found += _below(child)
    return tuple(found)


def any_of(node: Any, *kinds: type) -> bool:
    """Whether a node of one of `kinds` is at or below `node`."""
    return any(isinstance(child, kinds) for child in walk(node))


def calls(node: Any, *names: str) -> bool:
    """Whether an operation of one of `names` is called at or below `node`."""
    return any(isinstance(child, ir.Call) and child.op in names for child in walk(node))


def children(node: Any) -> Iterator[Any]:
    """The nodes directly below one."""
    for name in _CHILDREN.get(type(node), ()):
        child = getattr(node, name)
        if type(child) is tuple:
            yield from child
        elif child is not None:
            yield child


def inner_statements(node: ir.Stmt) -> Sequence[ir.Stmt]:
    """The statements directly inside a statement."""
    if isinstance(node, ir.SeqStmt):
        return node.seq
    if isinstance(node, ir.IfThenElse):
        return [c for c in (node.then_case, node.else_case) if c is not None]
    if isinstance(node, (ir.For, ir.While, ir.AttrStmt, ir.Block)):
        return [node.body]
    return ()


def same(a: Any, b: Any) -> bool:
    """Whether two expressions have one structure; variables and buffers are equal by identity."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is tuple:
        return len(a) == len(b) and all(map(same, a, b))
    if not isinstance(a, ir.Expr) or isinstance(a, ir.Var):
        return bool(a == b)
    return all(same(getattr(a, f), getattr(b, f)) for f in _fields(kind))


_FIELDS: dict[type, tuple[str, ...]] = {}


def _fields(kind: type) -> tuple[str, ...]:
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(f.name for f in dataclasses.fields(kind))
    return _FIELDS[kind]


def transform(node: Any, rewrite: Callable[[Any], Any]) -> Any:
    """`node` with each node replaced by what `rewrite` returns for it; None keeps it.

    Children are rewritten before their parents. Nodes without a change stay the same objects.
    """
    changes: dict[str, Any] = {}
    for name in _CHILDREN.get(type(node), ()):
        child = getattr(node, name)
        if type(child) is tuple:
            new: Any = tuple([transform(each, rewrite) for each in child])
            changed = any(x is not y for x, y in zip(new, child, strict=True))
        else:
            new = None if child is None else transform(child, rewrite)
            changed = new is not child
        if changed:
            changes[name] = new
    if changes:
        node = dataclasses.replace(node, **changes)
    found = rewrite(node)
    return node if found is None else found


def substitute(node: Any, values: dict[ir.Var, Any]) -> Any:
    """`node` with variables replaced by expressions."""
    return transform(node, lambda n: values.get(n) if type(n) is ir.Var else None)


# Expressions of the IR as text, for messages ------------------------------------------------------

_SYMBOLS: dict[type, str] = {
    ir.Add: "+",
    ir.Sub: "-",
    ir.Mul: "*",
    ir.Div: "/",
    ir.Mod: "%",
    ir.FloorDiv: "//",
    ir.FloorMod: "%",
    ir.And: "and",
    ir.Or: "or",
}


def text_of(node: Any) -> str:
    """An expression as Python would write it."""
    if isinstance(node, ir.StringImm):
        return f'"{node.value}"'
    if isinstance(node, (ir.IntImm, ir.FloatImm)):
        return str(node.value)
    if isinstance(node, ir.Var):
        return node.name
    if isinstance(node, ir.Compare):
        return f"{text_of(node.a)} {node.symbol} {text_of(node.b)}"
    if type(node) in _SYMBOLS:
        return f"{_part(node.a)} {_SYMBOLS[type(node)]} {_part(node.b)}"
    if isinstance(node, ir.Binary):
        return f"{type(node).__name__.lower()}({text_of(node.a)}, {text_of(node.b)})"
    if isinstance(node, ir.Not):
        return f"not {_part(node.a)}"
    if isinstance(node, ir.Cast):
        return f"{node.dtype}({text_of(node.value)})"
    if isinstance(node, (ir.BufferLoad, ir.Region)):
        return f"{node.buffer.name}[{', '.join(map(text_of, node.indices))}]"
    if isinstance(node, ir.Call):
        return f"{node.op}({', '.join(map(text_of, node.args))})"
    return type(node).__name__


def _part(node: Any) -> str:
    text = text_of(node)
    compound = isinstance(node, ir.Compare) or type(node) in _SYMBOLS
    return f"({text})" if compound else text
