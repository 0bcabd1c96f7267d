"""Writes the expressions of a device function, by a function for each kind of node."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import walk

from .values import Val, is_float, split

if TYPE_CHECKING:
    from .emit import Emitter

_ARITHMETIC = {ir.Add: "+", ir.Sub: "-", ir.Mul: "*", ir.FloorDiv: "//", ir.FloorMod: "%"}


def _int(e: Emitter, node: ir.IntImm) -> Val:
    del e
    dtype, _ = split(node.dtype)
    code = str(bool(node.value)) if dtype == "bool" else str(int(node.value))
    return Val(f"({code})" if code.startswith("-") else code, dtype, uniform=True, fixed=True)


def _float(e: Emitter, node: ir.FloatImm) -> Val:
    dtype, _ = split(node.dtype)
    kind = "np.float64" if dtype == "float64" else "F32"
    value = repr(node.value)
    code = f"{kind}({value!r})" if not math.isfinite(node.value) else f"{kind}({value})"
    name = e.fixed.get(code)
    if name is None:
        name = e.fixed[code] = e.name("constant")
        e.head.append(f"{name} = {code}")
    return Val(name, dtype, uniform=True, fixed=True)


def variable(e: Emitter, node: ir.Var) -> Val:
    """The value of a variable, or the memory that it points to."""
    if node in e.places:
        return Val(e.places[node].code, "int32", uniform=True, fixed=True)
    found = e.values.get(node)
    if found is not None:
        return found
    raise e.refuse(f"the variable {node.name}")


def _arithmetic(e: Emitter, node: ir.Binary) -> Val:
    dtype, width = split(node.dtype)
    symbol = _ARITHMETIC[type(node)]
    found = e.apply(f"({{}} {symbol} {{}})", dtype, e.expr(node.a), e.expr(node.b))
    return _wrapped(replace(found, width=width))


def _wrapped(value: Val) -> Val:
    """Unsigned arithmetic is modulo two to the power of its bits."""
    kind = TILE_DTYPES[value.dtype]
    if kind.kind != "uint" or kind.bits > 32:
        return value
    return replace(value, code=f"({value.code} & {2**kind.bits - 1})")


def _divide(e: Emitter, node: ir.Binary) -> Val:
    dtype, width = split(node.dtype)
    a, b = e.expr(node.a), e.expr(node.b)
    if is_float(dtype):
        return replace(e.apply("divide({}, {})", dtype, a, b), width=width)
    function = "trunc_div" if isinstance(node, ir.Div) else "trunc_mod"
    return replace(e.apply(f"{function}({{}}, {{}})", dtype, a, b), width=width)


def _extreme(e: Emitter, node: ir.Binary) -> Val:
    dtype, width = split(node.dtype)
    a, b = e.expr(node.a), e.expr(node.b)
    low = isinstance(node, ir.Min)
    if not is_float(dtype) and a.uniform and b.uniform:
        return e.combined(f"{'min' if low else 'max'}({{}}, {{}})", dtype, a, b)
    if is_float(dtype):
        function = "fmin" if low else "fmax"
    else:
        function = "np.minimum" if low else "np.maximum"
    return replace(e.combined(f"{function}({{}}, {{}})", dtype, a, b), width=width)


def compare(e: Emitter, node: ir.Compare) -> Val:
    """A comparison."""
    a, b = e.expr(node.a), e.expr(node.b)
    return e.combined(f"({{}} {node.symbol} {{}})", "bool", a, b)


def _logic(e: Emitter, node: ir.Binary) -> Val:
    a = e.expr(node.a)
    conjunction = isinstance(node, ir.And)
    if a.uniform:
        b = e.expr(node.b)
        if b.uniform:
            return e.combined(f"({{}} {'and' if conjunction else 'or'} {{}})", "bool", a, b)
        return e.combined(f"({{}} {'&' if conjunction else '|'} {{}})", "bool", a, b)
    if _loads(node.b):
        a = e.let(a, "condition")
        with e.where(a.code if conjunction else f"~{a.code}"):
            b = e.let(e.expr(node.b))
    else:
        b = e.expr(node.b)
    return e.combined(f"({{}} {'&' if conjunction else '|'} {{}})", "bool", a, b)


def _not(e: Emitter, node: ir.Not) -> Val:
    a = e.expr(node.a)
    return e.combined("(not {})" if a.uniform else "(~{})", "bool", a)


def _cast(e: Emitter, node: ir.Cast) -> Val:
    dtype, width = split(node.dtype)
    return replace(cast(e, e.expr(node.value), dtype), width=width)


def cast(e: Emitter, value: Val, dtype: str) -> Val:
    """A value converted to a dtype."""
    if dtype == value.dtype:
        return value
    ours, theirs = TILE_DTYPES[dtype], TILE_DTYPES[value.dtype]
    whole = ("int", "uint")
    if ours.kind in whole and theirs.kind in whole:
        bigger = ours.bits > theirs.bits and (ours.kind == "int" or theirs.kind == "uint")
        if bigger or (ours.bits == theirs.bits == 64):
            return replace(value, dtype=dtype)
        return e.combined(f"narrowed({{}}, {dtype!r})", dtype, value)
    return e.combined(f"converted({{}}, {value.dtype!r}, {dtype!r})", dtype, value)


def _select(e: Emitter, node: ir.Select) -> Val:
    return choose(e, node.condition, node.true_value, node.false_value, node.dtype)


def choose(e: Emitter, condition: Any, true: Any, false: Any, dtype: str) -> Val:
    """One of two values; only that one is evaluated."""
    element, width = split(dtype)
    chosen = e.expr(condition)
    if chosen.uniform:
        if not (_loads(true) or _loads(false)):
            a, b = e.expr(true), e.expr(false)
            return replace(e.combined("({} if {} else {})", element, a, chosen, b), width=width)
        name = e.name("chosen")
        e.line(f"if {chosen.code}:")
        with e.indented():
            a = e.expr(true)
            e.line(f"{name} = {a.code}")
        e.line("else:")
        with e.indented():
            b = e.expr(false)
            e.line(f"{name} = {b.code}")
        return Val(name, element, width, a.uniform and b.uniform)
    if _loads(true) or _loads(false):
        chosen = e.let(chosen, "condition")
        values = []
        for code, case in ((chosen.code, true), (f"~{chosen.code}", false)):
            if _loads(case):
                with e.where(code):
                    values.append(e.let(e.expr(case)))
            else:
                values.append(e.expr(case))
        a, b = values
    else:
        a, b = e.expr(true), e.expr(false)
    return replace(e.combined("np.where({}, {}, {})", element, chosen, a, b), width=width)


def _ramp(e: Emitter, node: ir.Ramp) -> Val:
    base, stride = e.expr(node.base), e.expr(node.stride)
    dtype, _ = split(node.dtype)
    found = e.combined(f"({{}} + {{}} * np.arange({node.lanes})[:, None])", dtype, base, stride)
    return replace(found, width=node.lanes, uniform=False)


def _broadcast(e: Emitter, node: ir.Broadcast) -> Val:
    return replace(e.expr(node.value), width=node.lanes)


def _let(e: Emitter, node: ir.Let) -> Val:
    value = e.let(e.expr(node.value), node.var.name)
    e.values[node.var] = value
    return e.expr(node.body)


def _load(e: Emitter, node: ir.BufferLoad) -> Val:
    if node.predicate is not None:
        raise e.refuse("a predicated load")
    return e.load(node.buffer, node.indices)


def call(e: Emitter, node: ir.Call) -> Val:
    """An operation by name.

    Raises:
        Unsupported: it is not modelled.
    """
    handler = e.handlers.get(node.op)
    if handler is None:
        raise e.refuse(f"{node.op}")
    found: Val = handler(e, node)
    return found


def _loads(node: Any) -> bool:
    """Whether an expression reads memory that lanes share."""
    return any(
        isinstance(each, ir.BufferLoad) and not each.buffer.scope.startswith("local")
        for each in walk(node)
    )


EXPRESSIONS: dict[type, Any] = {
    ir.IntImm: _int,
    ir.FloatImm: _float,
    ir.Var: variable,
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    ir.Div: _divide,
    ir.Mod: _divide,
    ir.Min: _extreme,
    ir.Max: _extreme,
    ir.And: _logic,
    ir.Or: _logic,
    ir.Not: _not,
    ir.Cast: _cast,
    ir.Select: _select,
    ir.Ramp: _ramp,
    ir.Broadcast: _broadcast,
    ir.Let: _let,
    ir.BufferLoad: _load,
    ir.Call: call,
}
