"""Rules of expressions: constants, variables, arithmetic, conditions, choices."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import any_of

from .instrument import Instrument
from .numbers import (
    add,
    apply,
    as_scalar,
    cast,
    combine,
    consume,
    float_operation,
    free_dest,
    is_last_use,
    keep,
    named,
    pure,
    result,
    scalar_affine,
    settle,
    subtract,
    times,
)
from .sharing import keep_mask
from .values import (
    Val,
    expression,
    integer_code,
    is_float,
    is_int,
    literal,
    numpy_name,
    numpy_type,
    parts_of,
)

if TYPE_CHECKING:
    from .emitter import Emitter


# Rules for constants, variables, casts, sums, products, quotients and extremes --------------------

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
        e.notify(Instrument.recalled, node, found)
        value: Val = found
        unknown = value.scalar and is_int(value.dtype) and parts_of(value.code) is None
        if unknown and value.code.isidentifier():
            return replace(value, code=integer_code(value.code))
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
        code = expression(f"({{}} {symbol} {{}})", a, b)
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


# Conditions: comparisons, boolean operations, and tests of a condition for all iterations ---------

_INVERSE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPARE = {**_ORDER, "==": operator.eq, "!=": operator.ne}


def _compare(e: Emitter, node: ir.Compare) -> Val:
    symbol = node.symbol
    a, b = settle(e, e.expr(node.a)), settle(e, e.expr(node.b))
    if a.lit is not None and b.lit is not None:
        return literal(_COMPARE[symbol](a.lit, b.lit), "bool")
    known = _decided(symbol, a, b) if e.decides_comparisons else None
    if known is not None:
        return literal(known, "bool")
    code = expression(f"({{}} {symbol} {{}})", a, b)
    if is_float(a.dtype):
        if a.scalar and b.scalar:
            return Val(code, "bool")
        return named(e, code, "bool", (a, b))
    inverse = expression(f"({{}} {_INVERSE[symbol]} {{}})", a, b)
    return pure(e, code, "bool", (a, b), inverse=inverse)


def _decided(symbol: str, a: Val, b: Val) -> bool | None:
    """What a comparison is for all integers that its sides can be; None where that differs."""
    if symbol not in _ORDER or a.lo is None or a.hi is None or b.lo is None or b.hi is None:
        return None
    corners = {_ORDER[symbol](x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)}
    return corners.pop() if len(corners) == 1 else None


def _connective(e: Emitter, node: ir.Binary) -> Val:
    """`a and b`, or `a or b`."""
    is_or = isinstance(node, ir.Or)
    word, symbol = ("or", "|") if is_or else ("and", "&")
    a = e.expr(node.a)
    if a.lit is not None:
        # The second operand is not evaluated where the first decides.
        return a if a.lit == is_or else e.expr(node.b)
    if a.scalar:
        b = _second(e, a, node.b, word)
    else:
        mask = both(e, e.mask, replace(invert(e, a), owned=False) if is_or else a)
        with e.inside(mask=mask):
            b = e.expr(node.b)
    if b.lit is not None:
        return b if b.lit == is_or else a
    if a.scalar and b.scalar:
        return Val(f"({a.code} {word} {b.code})", "bool")
    return pure(e, expression(f"({{}} {symbol} {{}})", a, b), "bool", (a, b))


def _second(e: Emitter, first: Val, node: Any, word: str) -> Val:
    """The second operand, evaluated only where the first, a scalar, does not decide."""
    start = len(e.w.lines)
    value = e.expr(node)
    written = e.w.take(start)
    if not written:
        return value
    name = e.temp()
    with e.w.block(f"if {first.code if word == 'and' else f'not {first.code}'}"):
        e.w.indented(written)
        e.w.line(f"{name} = {value.code}")
    decided = repr(word == "or")
    with e.w.block("else"):
        whole = f"np.full({e.shape_of(value.axes)}, {decided})"
        e.w.line(f"{name} = {decided if value.scalar else whole}")
    consume(e, value)
    return Val(name, "bool", value.axes)


def _not(e: Emitter, node: ir.Not) -> Val:
    return invert(e, e.expr(node.a))


def invert(e: Emitter, value: Val) -> Val:
    """The negation of a condition."""
    if value.lit is not None:
        return literal(not value.lit, "bool")
    if value.inverse is not None and value.alias is None:
        return replace(value, code=value.inverse, inverse=value.code, owned=False)
    if value.scalar:
        return Val(expression("(not {})", value), "bool")
    return pure(e, f"np.logical_not({value.code})", "bool", (value,))


def both(e: Emitter, a: Val | None, b: Val) -> Val:
    """Both of two conditions; None stands for true."""
    if a is None:
        return b
    if a.scalar and b.scalar:
        return pure(e, f"({a.code} and {b.code})", "bool", (a, b))
    return pure(e, expression("({} & {})", a, b), "bool", (a, b))


def uniform(e: Emitter, node: Any) -> tuple[str, str] | None:
    """Scalar tests that a condition holds in all iterations, and in none, where cheap to say."""
    if isinstance(node, (ir.And, ir.Or)):
        left = uniform(e, node.a)
        with e.inside(speculative=True):
            right = uniform(e, node.b)
        if left is None or right is None:
            return None
        word, dual = ("and", "or") if isinstance(node, ir.And) else ("or", "and")
        return f"({left[0]} {word} {right[0]})", f"({left[1]} {dual} {right[1]})"
    if isinstance(node, ir.Not):
        inner = uniform(e, node.a)
        return None if inner is None else (inner[1], inner[0])
    if not (isinstance(node, ir.Compare) and node.symbol in _ORDER and is_int(node.a.dtype)):
        if any_of(node, ir.BufferLoad, ir.Call):
            return None
        value = e.expr(node)
        return (value.code, f"(not {value.code})") if value.scalar else None
    if any_of(node, ir.Call):
        return None
    ends = _difference(e, settle(e, e.expr(node.a)), settle(e, e.expr(node.b)))
    if ends is None:
        return None
    low, high = ends[0].code, ends[1].code
    return {
        "<": (f"{high} < 0", f"{low} >= 0"),
        "<=": (f"{high} <= 0", f"{low} > 0"),
        ">": (f"{low} > 0", f"{high} <= 0"),
        ">=": (f"{low} >= 0", f"{high} < 0"),
    }[node.symbol]


def _difference(e: Emitter, a: Val, b: Val) -> tuple[Val, Val] | None:
    """Scalars `min(a - b)` and `max(a - b)` over all iterations, where both are affine."""
    left, right = a.affine or scalar_affine(a), b.affine or scalar_affine(b)
    if left is None or right is None:
        return None
    coefficients: dict[int, int] = dict(left.coefficients)
    for axis, c in right.coefficients:
        coefficients[axis] = coefficients.get(axis, 0) - c
    low = high = subtract(left.base, right.base)
    for axis, c in coefficients.items():
        if c == 0:
            continue
        span = times(add(e.axis_at(axis).extent, literal(-1, "int32")), c)
        if c > 0:
            high = add(high, span)
        else:
            low = add(low, span)
    return low, high


# Choices (`T.if_then_else`, `T.Select`): each value evaluated where it is chosen ------------------


def root_choice(value: Any) -> tuple[Any, Any, Any] | None:
    """Condition and both values of an expression that is a choice."""
    if isinstance(value, ir.Call) and value.op == "tirx.if_then_else":
        return value.args[0], value.args[1], value.args[2]
    if isinstance(value, ir.Select):
        return value.condition, value.true_value, value.false_value
    return None


def emit_select(e: Emitter, choice: Any) -> Val:
    """A `Select`, or a call of `T.if_then_else`; each value is evaluated under its mask."""
    parts = root_choice(choice)
    assert parts is not None
    condition, if_true, if_false = parts
    test = e.expr(condition)
    for instrument in e.instruments:
        test = instrument.guard(e, "select", condition, test)
    if test.lit is not None:
        return e.expr(if_true if test.lit else if_false)

    if test.scalar:
        return _by_scalar(e, test, choice)
    if not test.code.isidentifier():
        kept = keep_mask(e, test)
        test = kept if kept.inverse is not None else replace(kept, inverse=test.inverse)
    with e.inside(mask=both(e, e.mask, test)):
        a = _value(e, choice, holds=True)
    with e.inside(mask=both(e, e.mask, replace(invert(e, test), owned=False))):
        b = _value(e, choice, holds=False)
    return _by_mask(e, test, a, b, choice.dtype)


def _value(e: Emitter, choice: Any, *, holds: bool) -> Val:
    """The value that a choice has where its condition holds, or does not."""
    parts = root_choice(choice)
    assert parts is not None
    condition, if_true, if_false = parts
    node = if_true if holds else if_false
    if isinstance(choice, ir.Select):  # its condition proves nothing to TileLang
        return e.expr(node)
    with e.where(condition, holds=holds):
        return e.expr(node)


def _by_scalar(e: Emitter, test: Val, choice: Any) -> Val:
    dtype = choice.dtype
    start = len(e.w.lines)
    with e.inside(dest=None):
        a = _value(e, choice, holds=True)
        a_lines = e.w.take(start)
        b = _value(e, choice, holds=False)
        b_lines = e.w.take(start)
    if e.dest is not None:
        e.dest.reads_left = 1 << 30  # views of it may be read in either branch: do not reuse it
    exact = a.exact and b.exact
    axes = a.axes | b.axes
    if not a_lines and not b_lines and not axes:
        code = f"({a.code} if {test.code} else {b.code})"
        if a.lit is not None and b.lit is not None and is_float(dtype) and dtype != "float64":
            code = f"F32{code}"
        lo = None if a.lo is None or b.lo is None else min(a.lo, b.lo)
        hi = None if a.hi is None or b.hi is None else max(a.hi, b.hi)
        return Val(code, dtype, exact=exact, lo=lo, hi=hi)
    name = e.temp()
    for header, value, lines in ((f"if {test.code}", a, a_lines), ("else", b, b_lines)):
        with e.w.block(header):
            e.w.indented(lines)
            chosen = as_scalar(value)
            if value.axes != axes:
                chosen = f"np.full({e.shape_of(axes)}, {chosen}, np.{numpy_type(dtype)})"
            e.w.line(f"{name} = {chosen}")
    return Val(name, dtype, axes, exact=exact)


def _by_mask(e: Emitter, test: Val, a: Val, b: Val, dtype: str) -> Val:
    """`a` where the mask holds, else `b`, in a place that is free."""
    axes = test.axes | a.axes | b.axes
    exact = a.exact and b.exact
    np_dtype = numpy_name(dtype)
    for kept, other, where in ((a, b, invert(e, test)), (b, a, test)):
        same = kept.axes == axes and numpy_name(kept.dtype) == np_dtype
        if same and (is_last_use(e, kept) or (kept.owned and kept.alias is None)):
            consume(e, kept, other)
            e.w.line(f"np.copyto({kept.code}, {other.code}, where={where.code})")
            return result(e, kept.code, dtype, axes, exact=exact)
    consume(e, a, b)
    out = free_dest(e, axes, np_dtype)
    if out is not None and a.alias is None and b.alias is None:
        e.w.line(f"{out}.fill({b.code})" if b.scalar else f"{out}[...] = {b.code}")
        e.w.line(f"np.copyto({out}, {a.code}, where={test.code})")
        return result(e, out, dtype, axes, exact=exact)
    name = e.temp()
    e.w.line(f"{name} = select({test.code}, {a.code}, {b.code}, np.{numpy_type(dtype)})")
    return Val(name, dtype, axes, exact=exact, owned=True)


EXPRESSIONS: dict[type, Callable[[Emitter, Any], Val]] = {
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
    ir.Compare: _compare,
    ir.And: _connective,
    ir.Or: _connective,
    ir.Not: _not,
}
