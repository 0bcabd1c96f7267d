"""Conditions and choices: comparisons, masks, which conditions are uniform, lazy selection."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .arithmetic import ArithmeticMixin
from .expressions import contains
from .keptmasks import form_of_mask
from .values import Val, is_float, is_int, literal, numpy_name, numpy_type

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["LogicMixin"]

_COMPARE = {
    "EQ": ("==", "!="),
    "NE": ("!=", "=="),
    "LT": ("<", ">="),
    "LE": ("<=", ">"),
    "GT": (">", "<="),
    "GE": (">=", "<"),
}


_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class LogicMixin(ArithmeticMixin):
    """Comparisons, boolean operations, selection."""

    def _compare(self, node: Any) -> Val:
        symbol, inverse = _COMPARE[type(node).__name__]
        a, b = self.settled(self.expr(node.a)), self.settled(self.expr(node.b))
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
        known = self.decided(symbol, a, b)
        if known is not None:
            return literal(known, "bool")
        code = f"({a.code} {symbol} {b.code})"
        if is_float(a.dtype):
            if a.scalar and b.scalar:
                return Val(code, "bool")
            return self.named(code, "bool", (a, b))
        return self.pure(code, "bool", (a, b), inverse=f"({a.code} {inverse} {b.code})")

    _expr_EQ = _expr_NE = _expr_LT = _expr_LE = _expr_GT = _expr_GE = _compare

    def decided(self, symbol: str, a: Val, b: Val) -> bool | None:
        """What a comparison is for all integers that its sides can be; None where that differs."""
        if symbol not in _ORDER or a.lo is None or a.hi is None or b.lo is None or b.hi is None:
            return None
        corners = {_ORDER[symbol](x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)}
        return corners.pop() if len(corners) == 1 else None

    def _logic(self, node: Any, word: str, symbol: str) -> Val:
        a = self.expr(node.a)
        if a.lit is not None:
            # The second operand is not evaluated where the first decides.
            return a if a.lit == (word == "or") else self.expr(node.b)
        outer = self.mask
        if a.scalar:
            b = self._second(a, node.b, word)
        else:
            going_on = a if word == "and" else replace(self.invert(a), owned=False)
            self.mask = self.both(outer, going_on)
            b = self.expr(node.b)
            self.mask = outer
        if b.lit is not None:
            return b if b.lit == (word == "or") else a
        if a.scalar and b.scalar:
            return Val(f"({a.code} {word} {b.code})", "bool")
        return self.pure(f"({a.code} {symbol} {b.code})", "bool", (a, b))

    def _second(self, first: Val, node: Any, word: str) -> Val:
        """The second operand, evaluated only where the first, a scalar, does not decide."""
        start = len(self.w.lines)
        value = self.expr(node)
        written = list(zip(self.w.lines[start:], self.w.locations[start:], strict=True))
        if not written:
            return value
        del self.w.lines[start:], self.w.locations[start:]
        name = self.temp()
        going_on = first.code if word == "and" else f"not {first.code}"
        with self.w.block(f"if {going_on}"):
            for text, location in written:
                self.w.lines.append("    " + text)
                self.w.locations.append(location)
            self.w.line(f"{name} = {value.code}")
        decided = repr(word == "or")
        with self.w.block("else"):
            whole = f"np.full({self.shape_of(value.axes)}, {decided})"
            self.w.line(f"{name} = {decided if value.scalar else whole}")
        self.consume(value)
        return Val(name, "bool", value.axes)

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

    def _expr_Select(self, node: Any) -> Val:
        return self.choose(node.condition, node.true_value, node.false_value, str(node.dtype))

    def choose(self, condition: Any, if_true: Any, if_false: Any, dtype: str) -> Val:
        """`if_true` where the condition holds, else `if_false`; each evaluated under its mask."""
        test = self.on_guard("select", condition, self.expr(condition))
        if test.lit is not None:
            return self.expr(if_true if test.lit else if_false)
        outer = self.mask
        if test.scalar:
            return self._choose_scalar(test, if_true, if_false, dtype)
        if not test.code.isidentifier():
            kept = self.keep_mask(test)
            test = kept if kept.inverse is not None else replace(kept, inverse=test.inverse)
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
        form = self._form_of(test.code)
        if form is None:
            self.w.line(f"{name} = {test.code}")
            return Val(name, "bool", test.axes)
        inverse = self.temp("mask_not")
        place = ", ".join([repr(form[0]), *form[1]])
        self.w.line(
            f"{name}, {inverse} = KEPT.get(kept_at := ({place})) or kept(kept_at, {test.code})"
        )
        return Val(name, "bool", test.axes, inverse=inverse)

    def _form_of(self, code: str) -> tuple[str, list[str]] | None:
        """Form and integers of a mask that follows from some; see `keptmasks`."""
        values = (v for v in self.vars.values() if isinstance(v, Val) and v.scalar)
        remembered = set(self.remembered_names)
        integers = {v.code for v in values if is_int(v.dtype)} | remembered
        iotas = {name: iota for iota, name in self._iotas.items()}
        return form_of_mask(code, integers, remembered, iotas)

    @property
    def remembered_names(self) -> Collection[str]:
        """Names of integers that stay the same while a block runs."""
        return ()

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
                chosen = self.as_scalar(value)
                if value.axes != axes:
                    shape, kind = self.shape_of(axes), numpy_type(numpy_name(dtype))
                    chosen = f"np.full({shape}, {chosen}, np.{kind})"
                self.w.line(f"{name} = {chosen}")
        return Val(name, dtype, axes, exact=exact)

    def select(self, test: Val, a: Val, b: Val, dtype: str) -> Val:
        """`a` where the mask holds, else `b`, in a place that is free."""
        axes = test.axes | a.axes | b.axes
        exact = a.exact and b.exact
        np_dtype = numpy_name(dtype)
        for keep, other, where in ((a, b, self.invert(test)), (b, a, test)):
            same = keep.axes == axes and numpy_name(keep.dtype) == np_dtype
            only = self._only(keep)
            if same and (only or (keep.owned and keep.alias is None)):
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
        self.w.line(f"{name} = select({test.code}, {a.code}, {b.code}, np.{numpy_type(np_dtype)})")
        return Val(name, dtype, axes, exact=exact, owned=True)

    def _only(self, value: Val) -> bool:
        """Whether this value is the last user of the destination's memory."""
        dest = self.dest
        return (
            dest is not None and value.code == dest.view and dest.live == 1 and dest.reads_left == 0
        )
