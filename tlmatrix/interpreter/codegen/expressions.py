"""Expressions of the IR as source: inline for scalars, one numpy operation a line for arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .bounds import Access, BoundsMixin, add, constant_index, negate, scalar_affine, times
from .values import LOW_PRECISION, Affine, Val, is_float, is_int, literal, numpy_name

if TYPE_CHECKING:
    from .context import Buf

__all__ = ["ExpressionMixin", "contains", "op_name"]

_COMPARE = {
    "EQ": ("==", "!="),
    "NE": ("!=", "=="),
    "LT": ("<", ">="),
    "LE": ("<=", ">"),
    "GT": (">", "<="),
    "GE": (">=", "<"),
}

# Operations of one float argument: the function of the generated source.
_UNARY = {
    "tirx.exp": "np.exp",
    "tl.__exp": "np.exp",
    "tirx.exp2": "exp2",
    "tirx.exp10": "exp10",
    "tl.__exp10": "exp10",
    "tirx.log": "log",
    "tl.__log": "log",
    "tirx.log2": "log2",
    "tl.__log2": "log2",
    "tirx.log10": "np.log10",
    "tl.__log10": "np.log10",
    "tirx.log1p": "np.log1p",
    "tirx.sqrt": "np.sqrt",
    "tirx.rsqrt": "rsqrt",
    "tirx.tanh": "tanh",
    "tirx.sigmoid": "sigmoid",
    "tirx.erf": "erf",
    "tirx.sin": "np.sin",
    "tirx.cos": "np.cos",
    "tirx.tan": "np.tan",
    "tl.__sin": "np.sin",
    "tl.__cos": "np.cos",
    "tl.__tan": "np.tan",
    "tirx.sinh": "np.sinh",
    "tirx.cosh": "np.cosh",
    "tirx.asin": "np.arcsin",
    "tirx.acos": "np.arccos",
    "tirx.atan": "np.arctan",
    "tirx.asinh": "np.arcsinh",
    "tirx.acosh": "np.arccosh",
    "tirx.atanh": "np.arctanh",
    "tl.fast_rcp": "np.reciprocal",
}
# These keep a low-precision value representable.
_UNARY_EXACT = {
    "tirx.fabs": "np.abs",
    "tirx.floor": "np.floor",
    "tirx.ceil": "np.ceil",
    "tirx.trunc": "np.trunc",
    "tirx.nearbyint": "np.rint",
    "tirx.round": "round_away",
}
_BINARY = {
    "tirx.pow": "np.power",
    "tirx.fmod": "np.fmod",
    "tirx.atan2": "np.arctan2",
    "tirx.hypot": "np.hypot",
    "tirx.copysign": "np.copysign",
    "tirx.ldexp": "np.ldexp",
}
_IEEE = {
    "tl.ieee_add": "np.add",
    "tl.ieee_sub": "np.subtract",
    "tl.ieee_mul": "np.multiply",
    "tl.ieee_fdiv": "np.divide",
    "tl.fmul": "np.multiply",
    "tl.max_nan": "np.maximum",
    "tl.min_nan": "np.minimum",
}
_BITWISE = {
    "tirx.bitwise_and": "&",
    "tirx.bitwise_or": "|",
    "tirx.bitwise_xor": "^",
}


def op_name(call: Any) -> str:
    """The name of a call's operation."""
    return str(getattr(call.op, "name", call.op))


def contains(expr: Any, kinds: tuple[type, ...]) -> bool:
    """Whether an expression has a node of one of `kinds`."""
    from tilelang import tvm

    found = False

    def visit(node: Any) -> None:
        nonlocal found
        found = found or isinstance(node, kinds)

    tvm.tirx.stmt_functor.post_order_visit(expr, visit)
    return found


class ExpressionMixin(BoundsMixin):
    """Turns expressions into values."""

    def expr(self, node: Any) -> Val:
        """The value of an expression."""
        method = getattr(self, "_expr_" + type(node).__name__, None)
        if method is None:
            raise self.refuse(f"the expression {type(node).__name__}: {node}")
        value: Val = method(node)
        return value

    def scalar(self, node: Any, what: str) -> Val:
        """The value of an expression that must be the same in every lane."""
        value = self.expr(node)
        if not value.scalar:
            raise self.refuse(f"{what} that differs between lanes of a parallel loop")
        return value

    # -- leaves

    def _expr_IntImm(self, node: Any) -> Val:
        return literal(node.value, str(node.dtype))

    def _expr_FloatImm(self, node: Any) -> Val:
        return literal(node.value, str(node.dtype))

    def _expr_StringImm(self, node: Any) -> Val:
        return Val(repr(node.value), "handle", lit=node.value)

    def _expr_Var(self, node: Any) -> Val:
        found = self.vars.get(node)
        if found is not None:
            if isinstance(found, str):
                raise self.refuse(found)
            return found
        pending = self.deferred.get(node)
        if pending is not None:
            return self.expr(pending)
        raise self.refuse(f"the variable {node.name}, which nothing in the kernel defines")

    _expr_SizeVar = _expr_Var

    def _expr_Let(self, node: Any) -> Val:
        self.vars[node.var] = self.keep(self.expr(node.value), str(node.var.name))
        return self.expr(node.body)

    def keep(self, value: Val, name: str) -> Val:
        """A value that several expressions may use: held in a variable where that matters."""
        if value.lit is not None or (value.axes and not is_float(value.dtype) and not value.alias):
            return replace(value, owned=False)
        if value.scalar and value.affine is None and value.code.isidentifier():
            return value
        code = self.temp(name)
        self.consume(value)
        source = f"{value.code}.copy()" if value.alias is not None else value.code
        if is_float(value.dtype) and value.scalar:
            source = self.as_scalar(value)
        self.w.line(f"{code} = {source}")
        return replace(value, code=code, owned=False, alias=None)

    def as_scalar(self, value: Val) -> str:
        """Code of a scalar with its own precision (a literal alone would be a Python float)."""
        if value.lit is not None and is_float(value.dtype):
            return value.code if value.dtype == "float64" else f"F32({value.code})"
        return value.code

    # -- arithmetic

    def _arith(self, node: Any, symbol: str, function: str) -> Val:
        dtype = str(node.dtype)
        a, b = self.expr(node.a), self.expr(node.b)
        if is_float(dtype):
            return self.float_op(function, symbol, a, b, dtype)
        return self._int_arith(symbol, a, b, dtype)

    def float_op(self, function: str, symbol: str, a: Val, b: Val, dtype: str) -> Val:
        """A float operation of two arguments."""
        low = dtype in LOW_PRECISION
        if a.lit is not None and b.lit is not None:
            kind = np.dtype(numpy_name(dtype)).type
            with np.errstate(all="ignore"):
                return literal(float(getattr(np, function[3:])(kind(a.lit), kind(b.lit))), dtype)
        if a.scalar and b.scalar:
            value = Val(f"({a.code} {symbol} {b.code})", dtype, exact=not low)
        else:
            value = self.emit(function, (a, b), dtype, exact=not low)
        return self.rounded(value) if low else value

    def rounded(self, value: Val) -> Val:
        """A low-precision value rounded to its dtype."""
        codec = self.rounding_of(value.dtype)
        if codec is None or value.exact:
            return value
        if value.scalar:
            return replace(value, code=f"{codec}.round({value.code})", exact=True)
        if value.owned:
            self.w.line(f"{codec}.round_into({value.code}, {value.code})")
            return replace(value, exact=True)
        return self.named(f"{codec}.round({value.code})", value.dtype, (value,))

    def _int_arith(self, symbol: str, a: Val, b: Val, dtype: str) -> Val:
        if a.scalar and b.scalar:
            if symbol == "+":
                return replace(self._wrapped(add(a, b), dtype, a, b), dtype=dtype)
            if symbol == "-":
                return replace(self._wrapped(self._sub(a, b), dtype, a, b), dtype=dtype)
            return self._int_product(a, b, dtype)
        affine = self._affine(symbol, a, b)
        lo, hi = self._range(symbol, a, b)
        return self.pure(
            f"({a.code} {symbol} {b.code})", dtype, (a, b), affine=affine, lo=lo, hi=hi
        )

    @staticmethod
    def _sub(a: Val, b: Val) -> Val:
        if b.lit is not None:
            return add(a, literal(-b.lit, b.dtype))
        lo = a.lo - b.hi if a.lo is not None and b.hi is not None else None
        hi = a.hi - b.lo if a.hi is not None and b.lo is not None else None
        return Val(f"({a.code} - {b.code})", a.dtype, lo=lo, hi=hi)

    def _int_product(self, a: Val, b: Val, dtype: str) -> Val:
        if b.lit is not None:
            value = times(a, b.lit)
        elif a.lit is not None:
            value = times(b, a.lit)
        else:
            lo, hi = self._range("*", a, b)
            value = Val(f"({a.code} * {b.code})", dtype, lo=lo, hi=hi)
        if dtype == "int64" or value.lit is not None or self._fits(value, dtype):
            return self._wrapped(replace(value, dtype=dtype), dtype, a, b)
        # A product that may not fit: two's complement, as on the GPU.
        return self._wrap(value, dtype)

    @staticmethod
    def _fits(value: Val, dtype: str) -> bool:
        """Whether a value is known to lie in the range of an integer dtype."""
        bits = int(dtype.lstrip("uint"))
        signed = not dtype.startswith("uint")
        low = -(1 << (bits - 1)) if signed else 0
        high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
        return value.lo is not None and value.hi is not None and low <= value.lo <= value.hi <= high

    def _wrap(self, value: Val, dtype: str) -> Val:
        if self.wide:
            return replace(value, dtype=dtype)
        signed = not dtype.startswith("uint")
        bits = int(dtype.lstrip("uint"))
        return Val(f"wrap({value.code}, {bits}, {signed})", dtype)

    def _wrapped(self, value: Val, dtype: str, *operands: Val) -> Val:
        """Sums are left unwrapped, except unsigned ones and those of wrapped products."""
        hash_like = any(o.code.startswith("wrap(") for o in operands)
        if value.lit is None and (dtype.startswith("uint") or hash_like):
            return self._wrap(value, dtype)
        return replace(value, dtype=dtype)

    @staticmethod
    def _range(symbol: str, a: Val, b: Val) -> tuple[int | None, int | None]:
        known = a.lo is not None and a.hi is not None and b.lo is not None and b.hi is not None
        if symbol == "+":
            return (
                a.lo + b.lo if a.lo is not None and b.lo is not None else None,
                a.hi + b.hi if a.hi is not None and b.hi is not None else None,
            )
        if symbol == "-":
            return (
                a.lo - b.hi if a.lo is not None and b.hi is not None else None,
                a.hi - b.lo if a.hi is not None and b.lo is not None else None,
            )
        if known:
            assert a.lo is not None
            assert a.hi is not None
            assert b.lo is not None
            assert b.hi is not None
            corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
            return min(corners), max(corners)
        if a.lo is not None and b.lo is not None and a.lo >= 0 and b.lo >= 0:
            return a.lo * b.lo, None
        return None, None

    @staticmethod
    def _affine(symbol: str, a: Val, b: Val) -> Affine | None:
        left, right = a.affine or scalar_affine(a), b.affine or scalar_affine(b)
        if left is None or right is None:
            return None
        if symbol in "+-":
            sign = 1 if symbol == "+" else -1
            coefficients = dict(left.coefficients)
            for axis, c in right.coefficients:
                coefficients[axis] = coefficients.get(axis, 0) + sign * c
            base = add(left.base, right.base if sign > 0 else negate(right.base))
            if symbol == "-" and not right.base.lit == 0 and right.base.lit is None:
                base = ExpressionMixin._sub(left.base, right.base)
            return Affine(base, tuple((x, c) for x, c in coefficients.items() if c))
        factor = b.lit if b.lit is not None else a.lit
        if factor is None:
            return None
        form = left if b.lit is not None else right
        return Affine(
            times(form.base, factor), tuple((x, c * factor) for x, c in form.coefficients if factor)
        )

    def _expr_Add(self, node: Any) -> Val:
        return self._arith(node, "+", "np.add")

    def _expr_Sub(self, node: Any) -> Val:
        return self._arith(node, "-", "np.subtract")

    def _expr_Mul(self, node: Any) -> Val:
        return self._arith(node, "*", "np.multiply")

    def _expr_Div(self, node: Any) -> Val:
        if is_float(str(node.dtype)):
            return self._arith(node, "/", "np.divide")
        return self._divide(node, "trunc_div", "div")

    def _expr_Mod(self, node: Any) -> Val:
        return self._divide(node, "trunc_mod", "mod")

    def _expr_FloorDiv(self, node: Any) -> Val:
        return self._divide(node, "div", "div")

    def _expr_FloorMod(self, node: Any) -> Val:
        return self._divide(node, "mod", "mod")

    def _divide(self, node: Any, function: str, unsigned: str) -> Val:
        dtype = str(node.dtype)
        a, b = self.expr(node.a), self.expr(node.b)
        if is_float(dtype):
            raise self.refuse(f"{function} of floats")
        if a.lo is not None and a.lo >= 0 and b.lo is not None and b.lo >= 0:
            function = unsigned
        symbol = "//" if function == "div" else "%" if function == "mod" else ""
        if a.lit is not None and b.lit and symbol:
            return literal(a.lit // b.lit if symbol == "//" else a.lit % b.lit, dtype)
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
        return self.pure(code, dtype, (a, b), lo=lo, hi=hi)

    def _extreme(self, node: Any, function: str, python: str) -> Val:
        dtype = str(node.dtype)
        a, b = self.expr(node.a), self.expr(node.b)
        exact = a.exact and b.exact
        if is_float(dtype):
            if a.lit is not None and b.lit is not None:
                return literal((min if python == "min" else max)(a.lit, b.lit), dtype)
            if a.scalar and b.scalar:
                return Val(f"np.{function}({a.code}, {b.code})", dtype, exact=exact)
            return self.emit(f"np.{function}", (a, b), dtype, exact=exact)
        lows = [x for x in (a.lo, b.lo) if x is not None]
        highs = [x for x in (a.hi, b.hi) if x is not None]
        both_low, both_high = len(lows) == 2, len(highs) == 2
        if python == "min":
            lo, hi = (min(lows) if both_low else None), (min(highs) if highs else None)
        else:
            lo, hi = (max(lows) if lows else None), (max(highs) if both_high else None)
        known = a.lit is not None and b.lit is not None
        if known:
            return literal((min if python == "min" else max)(a.lit, b.lit), dtype)
        call = python if a.scalar and b.scalar else f"np.{python}imum"
        return self.pure(f"{call}({a.code}, {b.code})", dtype, (a, b), lo=lo, hi=hi)

    def _expr_Min(self, node: Any) -> Val:
        return self._extreme(node, "fmin", "min")

    def _expr_Max(self, node: Any) -> Val:
        return self._extreme(node, "fmax", "max")

    # -- comparisons and logic

    def _compare(self, node: Any) -> Val:
        symbol, inverse = _COMPARE[type(node).__name__]
        a, b = self.expr(node.a), self.expr(node.b)
        if a.lit is not None and b.lit is not None:
            table = {
                "==": a.lit == b.lit,
                "!=": a.lit != b.lit,
                "<": a.lit < b.lit,
                "<=": a.lit <= b.lit,
                ">": a.lit > b.lit,
                ">=": a.lit >= b.lit,
            }
            return literal(table[symbol], "bool")
        code = f"({a.code} {symbol} {b.code})"
        if is_float(a.dtype):
            if a.scalar and b.scalar:
                return Val(code, "bool")
            return self.named(code, "bool", (a, b))
        return self.pure(code, "bool", (a, b), inverse=f"({a.code} {inverse} {b.code})")

    _expr_EQ = _expr_NE = _expr_LT = _expr_LE = _expr_GT = _expr_GE = _compare

    def _logic(self, node: Any, word: str, symbol: str) -> Val:
        a = self.expr(node.a)
        if a.lit is not None:
            # The second operand is not evaluated where the first decides.
            return a if a.lit == (word == "or") else self.expr(node.b)
        outer = self.mask
        if not a.scalar and word == "and":
            self.mask = self.both(outer, a)
        b = self.expr(node.b)
        self.mask = outer
        if b.lit is not None:
            return b if b.lit == (word == "or") else a
        if a.scalar and b.scalar:
            return Val(f"({a.code} {word} {b.code})", "bool")
        return self.pure(f"({a.code} {symbol} {b.code})", "bool", (a, b))

    def _expr_And(self, node: Any) -> Val:
        return self._logic(node, "and", "&")

    def _expr_Or(self, node: Any) -> Val:
        return self._logic(node, "or", "|")

    def _expr_Not(self, node: Any) -> Val:
        return self.invert(self.expr(node.a))

    def invert(self, value: Val) -> Val:
        """The negation of a condition."""
        if value.lit is not None:
            return literal(not value.lit, "bool")
        if value.inverse is not None and value.alias is None:
            return replace(value, code=value.inverse, inverse=value.code, owned=False)
        if value.scalar:
            return Val(f"(not {value.code})", "bool")
        return self.pure(f"np.logical_not({value.code})", "bool", (value,))

    def both(self, a: Val | None, b: Val) -> Val:
        """Both of two conditions; None stands for true."""
        if a is None:
            return b
        symbol = "and" if a.scalar and b.scalar else "&"
        return self.pure(f"({a.code} {symbol} {b.code})", "bool", (a, b))

    def uniform(self, node: Any) -> tuple[str, str] | None:
        """Scalar tests that a condition holds in every lane, and in none, where cheap to say."""
        from tilelang import tvm

        kind = type(node).__name__
        if kind in ("And", "Or"):
            left, right = self.uniform(node.a), self.uniform(node.b)
            if left is None or right is None:
                return None
            word, dual = ("and", "or") if kind == "And" else ("or", "and")
            return f"({left[0]} {word} {right[0]})", f"({left[1]} {dual} {right[1]})"
        if kind == "Not":
            inner = self.uniform(node.a)
            return None if inner is None else (inner[1], inner[0])
        if kind not in ("LT", "LE", "GT", "GE") or not is_int(str(node.a.dtype)):
            if contains(node, (tvm.tirx.BufferLoad, tvm.tirx.Call)):
                return None
            value = self.expr(node)
            return (value.code, f"(not {value.code})") if value.scalar else None
        if contains(node, (tvm.tirx.Call,)):
            return None
        bounds = self.difference(self.expr(node.a), self.expr(node.b))
        if bounds is None:
            return None
        low, high = bounds
        tests = {
            "LT": (f"{high.code} < 0", f"{low.code} >= 0"),
            "LE": (f"{high.code} <= 0", f"{low.code} > 0"),
            "GT": (f"{low.code} > 0", f"{high.code} <= 0"),
            "GE": (f"{low.code} >= 0", f"{high.code} < 0"),
        }
        return tests[kind]

    # -- selection

    def _expr_Select(self, node: Any) -> Val:
        return self.choose(node.condition, node.true_value, node.false_value, str(node.dtype))

    def choose(self, condition: Any, if_true: Any, if_false: Any, dtype: str) -> Val:
        """`if_true` where the condition holds, else `if_false`; each evaluated under its mask."""
        test = self.expr(condition)
        if test.lit is not None:
            return self.expr(if_true if test.lit else if_false)
        outer = self.mask
        if test.scalar:
            return self._choose_scalar(test, if_true, if_false, dtype)
        if not test.code.isidentifier():
            test = replace(self.keep_mask(test), inverse=test.inverse)
        self.mask = self.both(outer, test)
        a = self.expr(if_true)
        self.mask = self.both(outer, replace(self.invert(test), owned=False))
        b = self.expr(if_false)
        self.mask = outer
        return self.select(test, a, b, dtype)

    def keep_mask(self, test: Val) -> Val:
        """A mask in a variable, for it is used several times."""
        name = self.temp("mask")
        self.consume(test)
        self.w.line(f"{name} = {test.code}")
        return Val(name, "bool", test.axes)

    def _choose_scalar(self, test: Val, if_true: Any, if_false: Any, dtype: str) -> Val:
        def branch(node: Any) -> tuple[Val, list[str]]:
            start = len(self.w.lines)
            value = self.expr(node)
            written = self.w.lines[start:]
            del self.w.lines[start:], self.w.locations[start:]
            return value, written

        dest, self.dest = self.dest, None
        a, a_lines = branch(if_true)
        b, b_lines = branch(if_false)
        self.dest = dest
        if dest is not None:
            dest.reads_left = 1 << 30  # views of it may be read in either branch: do not reuse it
        exact = a.exact and b.exact
        axes = a.axes | b.axes
        if not a_lines and not b_lines and not axes:
            code = f"({a.code} if {test.code} else {b.code})"
            if a.lit is not None and b.lit is not None and is_float(dtype) and dtype != "float64":
                code = f"F32{code}"
            lows = [a.lo, b.lo]
            highs = [a.hi, b.hi]
            return Val(
                code,
                dtype,
                exact=exact,
                lo=None if None in lows else min(x for x in lows if x is not None),
                hi=None if None in highs else max(x for x in highs if x is not None),
            )
        name = self.temp()
        for header, value, lines in (
            (f"if {test.code}", a, a_lines),
            ("else", b, b_lines),
        ):
            with self.w.block(header):
                for text in lines:
                    self.w.lines.append("    " + text)
                    self.w.locations.append(self.w.location)
                self.w.line(f"{name} = {self.as_scalar(value)}")
        return Val(name, dtype, axes, exact=exact)

    def select(self, test: Val, a: Val, b: Val, dtype: str) -> Val:
        """`a` where the mask holds, else `b`, in a place that is free."""
        axes = test.axes | a.axes | b.axes
        exact = a.exact and b.exact
        np_dtype = numpy_name(dtype)
        for keep, other, where in ((a, b, self.invert(test)), (b, a, test)):
            same = keep.axes == axes and numpy_name(keep.dtype) == np_dtype
            if keep.owned and same and (keep.alias is None or self._only(keep)):
                self.consume(keep, other)
                self.w.line(f"np.copyto({keep.code}, {other.code}, where={where.code})")
                return self.result(keep.code, dtype, axes, exact=exact)
        self.consume(a, b)
        out = self.free_dest(axes, np_dtype)
        if out is not None and a.alias is None and b.alias is None:
            self.w.line(f"np.copyto({out}, {b.code})")
            self.w.line(f"np.copyto({out}, {a.code}, where={test.code})")
            return self.result(out, dtype, axes, exact=exact)
        name = self.temp()
        self.w.line(f"{name} = select({test.code}, {a.code}, {b.code}, np.{_np(np_dtype)})")
        return Val(name, dtype, axes, exact=exact, owned=True)

    def _only(self, value: Val) -> bool:
        """Whether this value is the last user of the destination's memory."""
        dest = self.dest
        return (
            dest is not None and value.code == dest.view and dest.live == 1 and dest.reads_left == 0
        )

    # -- memory

    def buffer(self, node: Any) -> Buf:
        """The buffer record of an IR buffer."""
        found = self.buffers.get(node)
        if found is None:
            raise self.refuse(f"the buffer {node.name}, which is not allocated where it is used")
        return found

    def _expr_BufferLoad(self, node: Any) -> Val:
        buf = self.buffer(node.buffer)
        if node.predicate is not None:
            raise self.refuse(f"a predicated load of {buf.name}")
        return self.load(buf, list(node.indices))

    def load(self, buf: Buf, nodes: list[Any]) -> Val:
        """The value at indices of a buffer."""
        if buf.variable:
            return Val(buf.code, buf.dtype)
        indices = [self.expr(i) for i in nodes]
        access = self.access(buf, indices, constant=[constant_index(i) for i in nodes])
        if not access.axes:
            return self._load_scalar(access)
        if access.block:
            self.check_constants(access)
            return self._load_block(access)
        self.consume(*indices)
        self.check_constants(access)
        name = self.temp()
        mask = self.mask.code if self.mask is not None else "None"
        self.w.line(
            f"{name} = gather({buf.code}, {buf.codec}, {access.index_code}, {mask}, "
            f"{buf.safe}, {buf.name!r}, {self.guarded(buf)})"
        )
        return Val(name, buf.dtype, access.axes, owned=True)

    def guarded(self, buf: Buf) -> bool:
        """Whether TileLang guards this buffer's accesses."""
        return buf.is_global and self.guard

    def check_constants(self, access: Access) -> None:
        """Check constant indices into global memory, which are not guarded."""
        buf = access.buf
        if not self.guarded(buf):
            return
        for k, (dim, n) in enumerate(zip(access.dims, buf.shape, strict=False)):
            if dim.constant and dim.extent is None and self.conditions(dim, n, buf):
                self.w.line(f"require({buf.name!r}, {k}, {dim.base.code}, {buf.code}.shape)")

    def _load_scalar(self, access: Access) -> Val:
        buf = access.buf
        lo = hi = None
        if buf.dtype == "bool":
            lo, hi = 0, 1
        index = ", ".join(d.base.code for d in access.dims)
        constants = any(d.constant for d in access.dims)
        if self.guarded(buf) and constants and access.conditions:
            self.check_constants(access)
        if not access.conditions and buf.codec is None:
            code = f"{buf.code}[{index}]"
            if not is_float(buf.dtype):
                code = f"{buf.code}.item({index})"
            return Val(code, buf.dtype, lo=lo, hi=hi)
        code = (
            f"at({buf.code}, {buf.codec}, ({index},), {buf.safe}, "
            f"{buf.name!r}, {self.guarded(buf)})"
        )
        if is_float(buf.dtype) and buf.codec is None and self.guarded(buf):
            code = f"np.{_np(buf.dtype)}({code})"
        return Val(code, buf.dtype, lo=lo, hi=hi)

    def view(self, access: Access) -> str:
        """Code of the numpy view of a block that is inside, aligned to the axes in force."""
        buf = access.buf
        shape = list(buf.shape) + [self.axis_at(p).extent for p in buf.lane_axes]
        parts: list[str] = []
        whole = True
        for dim, n in zip(access.dims, shape, strict=True):
            if dim.extent is None:
                parts.append(dim.base.code)
                whole = False
            elif dim.base.lit == 0 and dim.step == 1 and dim.extent.code == n.code:
                parts.append(":")
            else:
                whole = False
                stop = add(dim.last, literal(1, "int32"))
                step = f":{dim.step}" if dim.step != 1 else ""
                parts.append(f"{dim.base.code}:{stop.code}{step}")
        axes = [d.axis for d in access.dims if d.axis is not None]
        in_order = axes == sorted(axes)
        if in_order:
            if whole and axes == list(range(self.rank)):
                return buf.code
            parts = self._with_missing_axes(parts, access)
            code = f"{buf.code}[{', '.join(parts)}]"
        else:
            order = sorted(axes)
            permutation = ", ".join(str(axes.index(a)) for a in order)
            tail = ", ".join(":" if p in axes else "None" for p in range(self.rank))
            code = f"{buf.code}[{', '.join(parts)}].transpose({permutation})[{tail}]"
        if all(d.base.lit is not None for d in access.dims) and buf.static_shape is not None:
            return self._hoisted(buf, code)
        return code

    def _with_missing_axes(self, parts: list[str], access: Access) -> list[str]:
        out: list[str] = []
        position = 0
        for text, dim in zip(parts, access.dims, strict=True):
            if dim.axis is not None:
                out += ["None"] * (dim.axis - position)
                position = dim.axis + 1
            out.append(text)
        return out + ["None"] * (self.rank - position)

    def _hoisted(self, buf: Buf, code: str) -> str:
        """A view that never changes, made once."""
        if buf.is_global or buf.lane_axes or code == buf.code:
            return code
        name = buf.views.get(code)
        if name is None:
            name = self.prologue.fresh(f"{buf.code}_v")
            self.prologue.line(f"{name} = {code}")
            buf.views[code] = name
        return name

    def _load_block(self, access: Access) -> Val:
        buf = access.buf
        axes = access.axes
        if not access.conditions:
            return self._inside_block(access)
        if self.mask is not None and not self.guarded(buf):
            # Only active lanes must be inside: element by element.
            name = self.temp()
            self.w.line(
                f"{name} = gather({buf.code}, {buf.codec}, {access.index_code}, "
                f"{self.mask.code}, {buf.safe}, {buf.name!r}, False)"
            )
            return Val(name, buf.dtype, axes, owned=True)
        name = self.temp()
        with self.w.block(f"if {access.inside}"):
            view = self.view(access)
            source = f"{buf.codec}.widen({view})" if buf.codec else view
            self.w.line(f"{name} = {source}")
        with self.w.block("else"):
            self.w.line(
                f"{name} = load_block({buf.code}, {buf.codec}, {access.dims_code}, "
                f"{buf.safe}, {buf.name!r}, {self.guarded(buf)}){self.align(access)}"
            )
        if buf.codec:
            return Val(name, buf.dtype, axes, owned=True)
        return self._alias(buf, name, access)

    def _inside_block(self, access: Access) -> Val:
        buf = access.buf
        view = self.view(access)
        if buf.codec:
            name = self.temp()
            self.w.line(f"{name} = {buf.codec}.widen({view})")
            return Val(name, buf.dtype, access.axes, owned=True)
        return self._alias(buf, view, access)

    def _alias(self, buf: Buf, code: str, access: Access) -> Val:
        dest = self.dest
        if dest is not None and dest.name == buf.code:
            dest.reads_left -= 1
            dest.live += 1
        return Val(code, buf.dtype, access.axes, alias=buf.code)

    def align(self, access: Access) -> str:
        """Code that aligns an array of a block's own dims to the axes in force."""
        axes = [d.axis for d in access.dims if d.axis is not None]
        order = sorted(axes)
        code = ""
        if axes != order:
            code += ".transpose(" + ", ".join(str(axes.index(a)) for a in order) + ")"
        if order != list(range(self.rank)):
            code += "[" + ", ".join(":" if p in order else "None" for p in range(self.rank)) + "]"
        return code

    # -- casts and calls

    def _expr_Cast(self, node: Any) -> Val:
        return self.cast(self.expr(node.value), str(node.dtype))

    def cast(self, value: Val, dtype: str) -> Val:
        """A value converted to another dtype."""
        source = value.dtype
        if source == dtype:
            return value
        if value.lit is not None:
            return self._cast_literal(value, dtype)
        if is_float(dtype):
            return self._cast_to_float(value, dtype)
        if is_float(source):
            if dtype == "bool":
                return self.named(f"({value.code} != 0)", "bool", (value,))
            value = self.rounded(value)
            code = f"to_int({value.code}, {dtype!r})"
            if value.scalar:
                return Val(code, dtype)
            return self.named(code, dtype, (value,))
        if value.scalar:
            return self._cast_int_scalar(value, dtype)
        if dtype == "bool":
            return self.pure(f"({value.code} != 0)", "bool", (value,))
        code = f"np.asarray({value.code}).astype(np.{_np(dtype)})"
        wider = source in ("bool", "int8", "uint8", "int16", "uint16", "int32") and dtype in (
            "int32",
            "int64",
        )
        affine = value.affine if wider else None
        lo, hi = (value.lo, value.hi) if wider else (None, None)
        return self.pure(code, dtype, (value,), affine=affine, lo=lo, hi=hi)

    def _cast_int_scalar(self, value: Val, dtype: str) -> Val:
        if dtype == "bool":
            return Val(f"({value.code} != 0)", "bool")
        if value.dtype == "bool":
            return Val(f"int({value.code})", dtype, lo=0, hi=1)
        if self._fits(value, dtype) or (dtype == "int64" and value.dtype == "int32"):
            return replace(value, dtype=dtype)
        return self._wrap(value, dtype)

    def _cast_literal(self, value: Val, dtype: str) -> Val:
        if dtype == "bool":
            return literal(bool(value.lit), dtype)
        if is_float(dtype):
            return literal(float(value.lit), dtype)
        return literal(int(value.lit), dtype)

    def _cast_to_float(self, value: Val, dtype: str) -> Val:
        source = value.dtype
        low = dtype in LOW_PRECISION
        if is_float(source):
            value = self.rounded(value)
            widened = dtype == "float64" or source == "float64"
            if not widened:
                exact = not low
                return self.rounded(replace(value, dtype=dtype, exact=exact))
        target = numpy_name(dtype)
        if value.scalar:
            converted = Val(f"np.{target}({value.code})", dtype, exact=not low)
        else:
            converted = self.named(
                f"np.asarray({value.code}).astype(np.{target})", dtype, (value,), exact=not low
            )
        return self.rounded(converted)

    def _expr_Call(self, node: Any) -> Val:
        name = op_name(node)
        dtype = str(node.dtype)
        if name in _UNARY or name in _UNARY_EXACT:
            return self._unary(name, node, dtype)
        if name in _BINARY:
            a, b = self.expr(node.args[0]), self.expr(node.args[1])
            return self._call_float(_BINARY[name], (a, b), dtype)
        if name in _IEEE:
            a, b = self.expr(node.args[0]), self.expr(node.args[1])
            return self._call_float(_IEEE[name], (a, b), dtype)
        if name in _BITWISE:
            a, b = self.expr(node.args[0]), self.expr(node.args[1])
            both = a.lo is not None and a.lo >= 0 and b.lo is not None and b.lo >= 0
            hi = b.hi if name == "tirx.bitwise_and" and both else None
            return self.pure(
                f"({a.code} {_BITWISE[name]} {b.code})",
                dtype,
                (a, b),
                lo=0 if both else None,
                hi=hi,
            )
        method = getattr(self, "_call_" + name.replace(".", "_"), None)
        if method is None:
            raise self.refuse(f"the operation {name}")
        value: Val = method(node, dtype)
        return value

    def _unary(self, name: str, node: Any, dtype: str) -> Val:
        value = self.expr(node.args[0])
        if name in _UNARY_EXACT:
            if not is_float(dtype):
                return self.pure(f"abs({value.code})", dtype, (value,))
            exact = value.exact and name == "tirx.fabs"
            return self._call_float(_UNARY_EXACT[name], (value,), dtype, exact=exact)
        return self._call_float(_UNARY[name], (value,), dtype)

    def _call_float(
        self, function: str, args: tuple[Val, ...], dtype: str, *, exact: bool = False
    ) -> Val:
        exact = exact or dtype not in LOW_PRECISION
        if all(a.scalar for a in args):
            codes = ", ".join(self.as_scalar(a) for a in args)
            if dtype != "float64" and any(a.lit is None for a in args):
                codes = ", ".join(a.code for a in args)
                codes = f"F32({codes})" if len(args) == 1 else codes
            value = Val(f"{function}({codes})", dtype, exact=exact)
        else:
            value = self.emit(function, args, dtype, exact=exact)
        return self.rounded(value)

    def _call_tirx_if_then_else(self, node: Any, dtype: str) -> Val:
        return self.choose(node.args[0], node.args[1], node.args[2], dtype)

    def _call_tl_infinity(self, node: Any, dtype: str) -> Val:
        del node
        return literal(float("inf"), dtype)

    def _call_tirx_likely(self, node: Any, dtype: str) -> Val:
        del dtype
        return self.expr(node.args[0])

    def _call_tl_clamp(self, node: Any, dtype: str) -> Val:
        value, low, high = (self.expr(a) for a in node.args)
        if is_float(dtype):
            bounded = self._call_float("np.fmax", (value, low), dtype, exact=True)
            return self._call_float("np.fmin", (bounded, high), dtype, exact=True)
        return self.pure(
            f"np.clip({value.code}, {low.code}, {high.code})"
            if not (value.scalar and low.scalar and high.scalar)
            else f"min(max({value.code}, {low.code}), {high.code})",
            dtype,
            (value, low, high),
        )

    def _call_tirx_isnan(self, node: Any, dtype: str) -> Val:
        return self._test("np.isnan", node, dtype)

    def _call_tirx_isinf(self, node: Any, dtype: str) -> Val:
        return self._test("np.isinf", node, dtype)

    def _call_tirx_isfinite(self, node: Any, dtype: str) -> Val:
        return self._test("np.isfinite", node, dtype)

    def _test(self, function: str, node: Any, dtype: str) -> Val:
        value = self.expr(node.args[0])
        if value.scalar:
            return Val(f"{function}({self.as_scalar(value)})", dtype)
        return self.named(f"{function}({value.code})", dtype, (value,))

    def _shift(self, node: Any, dtype: str, symbol: str) -> Val:
        a, b = self.expr(node.args[0]), self.expr(node.args[1])
        if a.lit is not None and b.lit is not None:
            return literal(a.lit << b.lit if symbol == "<<" else a.lit >> b.lit, dtype)
        value = self.pure(f"({a.code} {symbol} {b.code})", dtype, (a, b))
        if symbol == ">>":
            if a.lo is not None and a.lo >= 0:
                return replace(value, lo=0, hi=a.hi)
            return value
        return self._wrap(value, dtype) if value.scalar else value

    def _call_tirx_shift_left(self, node: Any, dtype: str) -> Val:
        return self._shift(node, dtype, "<<")

    def _call_tirx_shift_right(self, node: Any, dtype: str) -> Val:
        return self._shift(node, dtype, ">>")

    def _call_tirx_bitwise_not(self, node: Any, dtype: str) -> Val:
        value = self.expr(node.args[0])
        code = self.pure(f"(~{value.code})", dtype, (value,))
        if value.scalar and dtype.startswith("uint"):
            return self._wrap(code, dtype)
        return code

    def _call_tirx_popcount(self, node: Any, dtype: str) -> Val:
        value = self.expr(node.args[0])
        return self.pure(f"popcount({value.code})", dtype, (value,), lo=0, hi=64)

    def _call_tirx_reinterpret(self, node: Any, dtype: str) -> Val:
        value = self.expr(node.args[0])
        if value.dtype in LOW_PRECISION or dtype in LOW_PRECISION or dtype == "handle":
            raise self.refuse(f"reinterpret of {value.dtype} as {dtype}")
        code = f"bits({value.code}, {value.dtype!r}, {dtype!r})"
        return self.named(code, dtype, (value,)) if value.axes else Val(code, dtype)

    def _call_tl_pow_of_int(self, node: Any, dtype: str) -> Val:
        value, power = self.expr(node.args[0]), self.expr(node.args[1])
        return self._call_float("np.power", (value, power), dtype)

    def _call_tl_ieee_frcp(self, node: Any, dtype: str) -> Val:
        return self._call_float("np.reciprocal", (self.expr(node.args[0]),), dtype)

    def _call_tl_ieee_fsqrt(self, node: Any, dtype: str) -> Val:
        return self._call_float("np.sqrt", (self.expr(node.args[0]),), dtype)

    def _call_tl_ieee_frsqrt(self, node: Any, dtype: str) -> Val:
        return self._call_float("rsqrt", (self.expr(node.args[0]),), dtype)

    def _fused(self, node: Any, dtype: str) -> Val:
        a, b, c = (self.expr(x) for x in node.args[:3])
        product = self.float_op("np.multiply", "*", a, b, dtype)
        return self.float_op("np.add", "+", product, c, dtype)

    _call_tl_ieee_fmaf = _call_tl_fma = _call_tirx_fma = _fused

    def _call_tl___ldg(self, node: Any, dtype: str) -> Val:
        del dtype
        return self.expr(node.args[0])


def _np(dtype: str) -> str:
    """The name of a numpy scalar type (numpy has no `np.bool` before 2)."""
    return "bool_" if dtype == "bool" else dtype
