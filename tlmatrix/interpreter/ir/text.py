"""Expressions of the IR as text, for messages."""

from __future__ import annotations

from typing import Any

from . import nodes as ir

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
