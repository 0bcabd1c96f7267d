"""Casts and the intrinsics of the expression language."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tlmatrix.interpreter.runtime.mathematics import to_int, wrap

from .builtins import HALF_TOWARD_ZERO
from .expressions import op_name
from .memory import MemoryMixin
from .values import LOW_PRECISION, Val, is_float, is_int, literal, numpy_name, numpy_type

__all__ = ["CallMixin"]

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
_PROMOTED = frozenset({"int8", "uint8", "int16", "uint16"})
_BITWISE = {
    "tirx.bitwise_and": "&",
    "tirx.bitwise_or": "|",
    "tirx.bitwise_xor": "^",
}


class CallMixin(MemoryMixin):
    """Casts and calls."""

    def _expr_Cast(self, node: Any) -> Val:
        return self.cast(self.expr(node.value), str(node.dtype))

    def cast(self, value: Val, dtype: str) -> Val:
        """A value converted to another dtype."""
        source = value.dtype
        if source == dtype:
            return value
        value = self.settled(value)
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
        code = f"np.asarray({value.code}).astype(np.{numpy_type(dtype)})"
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
        return self.wrap(value, dtype)

    def _cast_literal(self, value: Val, dtype: str) -> Val:
        if dtype == "bool":
            return literal(bool(value.lit), dtype)
        if is_float(dtype):
            return literal(float(value.lit), dtype)
        if is_float(value.dtype):
            return literal(to_int(value.lit, dtype), dtype)
        bits = int(dtype.lstrip("uint"))
        return literal(wrap(int(value.lit), bits, not dtype.startswith("uint")), dtype)

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

    def _call_tirx_call_extern(self, node: Any, dtype: str) -> Val:
        """`T.print`; any other function is the user's own CUDA."""
        name = str(getattr(node.args[0], "value", node.args[0]))
        if name == HALF_TOWARD_ZERO:
            half = self.rounded(self.settled(self.expr(node.args[1])))
            code = f"half_toward_zero({half.code})"
            return self.named(code, dtype, (half,), exact=True) if half.axes else Val(code, dtype)
        if name not in ("debug_print_var", "debug_print_buffer_value"):
            raise self.refuse(f"the operation tirx.call_extern of {node.args[0]}")
        value = self.rounded(self.settled(self.expr(node.args[-1])))
        # A message, and for an element its buffer and index.
        text = " ".join(str(a.value) for a in node.args[1:3][: len(node.args) - 2])
        message = repr(text)
        if len(node.args) > 4:
            message = f"{text + '['!r} + str({self.expr(node.args[3]).code}) + ']'"
        mask = self.mask.code if self.mask is not None else "None"
        self.w.line(f"show({message}, {value.code}, {mask})")
        return literal(0, "int32") if dtype == "handle" else literal(0, dtype)

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
        if symbol == ">>":
            a = self.settled(a)
        if a.lit is not None and b.lit is not None:
            return literal(a.lit << b.lit if symbol == "<<" else a.lit >> b.lit, dtype)
        if symbol == "<<" and dtype in _PROMOTED:
            # C shifts an int: what leaves the narrow dtype is there until it is stored.
            a, dtype = self.cast(a, "int32"), "int32"
        value = self.pure(f"({a.code} {symbol} {b.code})", dtype, (a, b))
        if symbol == ">>":
            if a.lo is not None and a.lo >= 0:
                return replace(value, lo=0, hi=a.hi)
            return value
        return self.wrap(value, dtype) if value.scalar else value

    def _call_tirx_shift_left(self, node: Any, dtype: str) -> Val:
        return self._shift(node, dtype, "<<")

    def _call_tirx_shift_right(self, node: Any, dtype: str) -> Val:
        return self._shift(node, dtype, ">>")

    def _call_tirx_bitwise_not(self, node: Any, dtype: str) -> Val:
        value = self.expr(node.args[0])
        code = self.pure(f"(~{value.code})", dtype, (value,))
        if value.scalar and dtype.startswith("uint"):
            return self.wrap(code, dtype)
        return code

    def _call_tirx_popcount(self, node: Any, dtype: str) -> Val:
        return self._of_bits("popcount", node, dtype)

    def _call_tirx_clz(self, node: Any, dtype: str) -> Val:
        return self._of_bits("leading_zeros", node, dtype)

    def _call_tl___ffs(self, node: Any, dtype: str) -> Val:
        return self._of_bits("first_set", node, dtype)

    def _of_bits(self, function: str, node: Any, dtype: str) -> Val:
        """A count that a function of an integer and its number of bits makes."""
        value = self.settled(self.expr(node.args[0]))
        bits = int(value.dtype.lstrip("uint"))
        code = f"{function}({value.code}, {bits})"
        if value.scalar:
            return Val(code, dtype, lo=0, hi=bits)
        found = self.named(f"{code}.astype(np.{numpy_type(dtype)})", dtype, (value,))
        return replace(found, lo=0, hi=bits)

    def _call_tirx_reinterpret(self, node: Any, dtype: str) -> Val:
        value = self.rounded(self.settled(self.expr(node.args[0])))
        held = str(node.args[0].dtype)
        if value.dtype != held:
            value = self.settled(self.cast(value, held))  # narrow integers are computed as int32
        if dtype == "handle" or not (is_float(dtype) or is_int(dtype)):
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
