"""Rules for constants, variables, casts, sums, products, quotients and extremes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir

from .arrays import apply, pure
from .casts import cast, keep
from .choices import emit_select
from .floats import float_operation
from .integers import combine, settle
from .values import Val, is_float, literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from .emitter import Emitter

_OPERATIONS = {
    ir.Add: ("+", "np.add"),
    ir.Sub: ("-", "np.subtract"),
    ir.Mul: ("*", "np.multiply"),
    ir.Div: ("/", "np.divide"),
}
_DIVISIONS = {
    ir.Div: ("trunc_div", "div"),
    ir.Mod: ("trunc_mod", "mod"),
    ir.FloorDiv: ("div", "div"),
    ir.FloorMod: ("mod", "mod"),
}


def _number(e: Emitter, node: Any) -> Val:
    del e
    return literal(node.value, node.dtype)


def _string(e: Emitter, node: ir.StringImm) -> Val:
    del e
    return Val(repr(node.value), "handle", lit=node.value)


def variable(e: Emitter, node: ir.Var) -> Val:
    """The value of a variable."""
    found = e.vars.get(node)
    if isinstance(found, str):
        raise e.refuse(found)
    if found is not None:
        for instrument in e.instruments:
            instrument.recalled(e, node, found)
        value: Val = found
        return value
    pending = e.deferred.get(node)
    if pending is not None:
        return e.expr(pending)
    raise e.refuse(f"the variable {node.name}, which nothing in the kernel defines")


def _let(e: Emitter, node: ir.Let) -> Val:
    e.vars[node.var] = keep(e, e.expr(node.value), node.var.name)
    return e.expr(node.body)


def _cast(e: Emitter, node: ir.Cast) -> Val:
    return cast(e, e.expr(node.value), node.dtype)


def _arithmetic(e: Emitter, node: ir.Binary) -> Val:
    symbol, function = _OPERATIONS[type(node)]
    dtype = node.dtype
    if dtype == "bool":
        # A product of conditions holds where both hold, a sum where one does.
        if symbol not in "*+":
            raise e.refuse("a difference of conditions")
        return e.expr((ir.And if symbol == "*" else ir.Or)(dtype, node.a, node.b))
    a, b = e.expr(node.a), e.expr(node.b)
    if is_float(dtype):
        return float_operation(e, function, symbol, a, b, dtype)
    return combine(e, symbol, a, b, dtype)


def _division(e: Emitter, node: ir.Binary) -> Val:
    if isinstance(node, ir.Div) and is_float(node.dtype):
        return _arithmetic(e, node)
    function, unsigned = _DIVISIONS[type(node)]
    a, b = settle(e, e.expr(node.a)), settle(e, e.expr(node.b))
    if is_float(node.dtype):
        raise e.refuse(f"{function} of floats")
    if a.lo is not None and a.lo >= 0 and b.lo is not None and b.lo >= 0:
        function = unsigned
    symbol = {"div": "//", "mod": "%"}.get(function, "")
    if a.lit is not None and b.lit and symbol:
        return literal(a.lit // b.lit if symbol == "//" else a.lit % b.lit, node.dtype)
    lo = hi = None
    if b.lit is not None and b.lit > 0 and symbol:
        if symbol == "//":
            lo = None if a.lo is None else a.lo // b.lit
            hi = None if a.hi is None else a.hi // b.lit
        else:
            lo, hi = 0, b.lit - 1
    elif symbol and a.lo is not None and a.lo >= 0 and b.lo is not None and b.lo >= 0:
        lo, hi = 0, a.hi
    if b.lit and symbol:
        code = f"({a.code} {symbol} {b.code})"
    else:
        code = f"{function}({a.code}, {b.code})"
    return pure(e, code, node.dtype, (a, b), lo=lo, hi=hi)


def _extreme(e: Emitter, node: ir.Binary) -> Val:
    is_min = isinstance(node, ir.Min)
    python, dtype = "min" if is_min else "max", node.dtype
    a, b = settle(e, e.expr(node.a)), settle(e, e.expr(node.b))
    if a.lit is not None and b.lit is not None:
        return literal(min(a.lit, b.lit) if is_min else max(a.lit, b.lit), dtype)
    if is_float(dtype):
        exact = a.exact and b.exact
        # Beside a literal there are no two zeros, or NumPy takes the right one, the second.
        right = a.lit or b.lit or (b.lit is not None and not is_min)
        function = f"np.f{python}" if right else f"f{python}"
        if a.scalar and b.scalar:
            return Val(f"{function}({a.code}, {b.code})", dtype, exact=exact)
        return apply(e, function, (a, b), dtype, exact=exact)
    lows = [x for x in (a.lo, b.lo) if x is not None]
    highs = [x for x in (a.hi, b.hi) if x is not None]
    if is_min:
        lo, hi = (min(lows) if len(lows) == 2 else None), min(highs, default=None)
    else:
        lo, hi = max(lows, default=None), (max(highs) if len(highs) == 2 else None)
    call = python if a.scalar and b.scalar else f"np.{python}imum"
    return pure(e, f"{call}({a.code}, {b.code})", dtype, (a, b), lo=lo, hi=hi)


RULES: dict[type, Callable[[Emitter, Any], Val]] = {
    ir.IntImm: _number,
    ir.FloatImm: _number,
    ir.StringImm: _string,
    ir.Var: variable,
    ir.Let: _let,
    ir.Cast: _cast,
    ir.Add: _arithmetic,
    ir.Sub: _arithmetic,
    ir.Mul: _arithmetic,
    ir.Div: _division,
    ir.Mod: _division,
    ir.FloorDiv: _division,
    ir.FloorMod: _division,
    ir.Min: _extreme,
    ir.Max: _extreme,
    ir.Select: emit_select,
}
