"""Arithmetic: float operations in the precision of their dtype, integers in their width."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .bounds import add, scalar_affine, subtract, times
from .expressions import ExpressionBase
from .values import LOW_PRECISION, Affine, Val, is_float, literal, numpy_name

__all__ = ["ArithmeticMixin"]

_TORCH_ROUNDS = {"f16": "float16", "bf16": "bfloat16"}
"""Codecs that round as torch's conversion does, which does not saturate."""


class ArithmeticMixin(ExpressionBase):
    """Sums, products, quotients, extremes."""

    def _arith(self, node: Any, symbol: str, function: str) -> Val:
        dtype = str(node.dtype)
        if dtype == "bool":
            return self._of_conditions(node, symbol)
        a, b = self.expr(node.a), self.expr(node.b)
        if is_float(dtype):
            return self.float_op(function, symbol, a, b, dtype)
        return self._int_arith(symbol, a, b, dtype)

    def _of_conditions(self, node: Any, symbol: str) -> Val:
        """A product of conditions holds where both hold, a sum where one does."""
        from tilelang import tvm

        if symbol not in "*+":
            raise self.refuse("a difference of conditions")
        return self.expr((tvm.tirx.And if symbol == "*" else tvm.tirx.Or)(node.a, node.b))

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
            self.round_into(codec, value.code, value.code)
            return replace(value, exact=True)
        return self.named(f"{codec}.round({value.code})", value.dtype, (value,))

    def round_into(self, codec: str, target: str, source: str) -> None:
        """Write the rounding of a float32 array into another (or itself)."""
        if target in self.fixed and source in self.fixed and codec in _TORCH_ROUNDS:
            low = f"{self.tensor(source)}.to(torch.{_TORCH_ROUNDS[codec]})"
            self.w.line(f"{self.tensor(target)}.copy_({low})")
        else:
            self.w.line(f"{codec}.round_into({target}, {source})")

    def _int_arith(self, symbol: str, a: Val, b: Val, dtype: str) -> Val:
        if a.scalar and b.scalar:
            if symbol == "+":
                return replace(self._wrapped(add(a, b), dtype, a, b), dtype=dtype)
            if symbol == "-":
                return replace(self._wrapped(subtract(a, b), dtype, a, b), dtype=dtype)
            return self._int_product(a, b, dtype)
        a, b = self.settled(a), self.settled(b)
        affine = self._affine(symbol, a, b)
        lo, hi = self._range(symbol, a, b)
        return self.pure(
            f"({a.code} {symbol} {b.code})", dtype, (a, b), affine=affine, lo=lo, hi=hi
        )

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
        return self.wrap(value, dtype)

    @staticmethod
    def _fits(value: Val, dtype: str) -> bool:
        """Whether a value is known to lie in the range of an integer dtype."""
        bits = int(dtype.lstrip("uint"))
        signed = not dtype.startswith("uint")
        low = -(1 << (bits - 1)) if signed else 0
        high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
        return value.lo is not None and value.hi is not None and low <= value.lo <= value.hi <= high

    def is_wrapped(self, value: Val) -> bool:
        """Whether a value is one in two's complement."""
        return value.code.startswith("wrap(")

    def wrap(self, value: Val, dtype: str) -> Val:
        """An integer in two's complement of its dtype."""
        if self.wide:
            return replace(value, dtype=dtype)
        signed = not dtype.startswith("uint")
        bits = int(dtype.lstrip("uint"))
        return Val(f"wrap({value.code}, {bits}, {signed})", dtype)

    def _wrapped(self, value: Val, dtype: str, *operands: Val) -> Val:
        """Sums wrap where it shows: unsigned ones and those of wrapped products at once.

        Others stay as they are until they are `settled`, so that an index past 2^31 is outside
        rather than negative. Sums of sizes and loop variables (known not to be negative) are
        taken to fit.
        """
        hash_like = any(self.is_wrapped(o) for o in operands)
        if value.lit is None and (dtype.startswith("uint") or hash_like):
            return self.wrap(value, dtype)
        unknown = any(o.loose or (o.lo is None and o.lit is None) for o in operands)
        loose = unknown and dtype != "int64" and not self._fits(value, dtype)
        return replace(value, dtype=dtype, loose=loose)

    def settled(self, value: Val) -> Val:
        """A value within its dtype, for an operation that would see the difference."""
        return self.wrap(value, value.dtype) if value.loose else value

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
            base = add(left.base, right.base) if sign > 0 else subtract(left.base, right.base)
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
        a, b = self.settled(self.expr(node.a)), self.settled(self.expr(node.b))
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
        a, b = self.settled(self.expr(node.a)), self.settled(self.expr(node.b))
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
