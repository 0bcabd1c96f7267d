"""The axes of a gemm case as plain numbers. Does not import torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import dtype_named, explain_dtype
from tlmatrix.problem.case_setup import listed_axis_values
from tlmatrix.problem.distributions import explain_distribution
from tlmatrix.problem.gemm.names import ROWS
from tlmatrix.problem.name_lint import lint_arguments, lint_results
from tlmatrix.problem.name_table import names_of
from tlmatrix.problem.storage import explain_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

DATA_AXES = frozenset({"m", "n", "k", "values", "storage"})
_SIZES = ("m", "n", "k")
_FLAGS = ("transpose_a", "transpose_b", "accumulate", "scaled")
_OPERANDS = ("a_dtype", "b_dtype")
_DTYPES = ("dtype", *_OPERANDS, "out_dtype")
OPTIONAL = frozenset({"values", "storage"})
AXES = names_of(ROWS, "axis")
"""The axes that the family reads; an entry may take others."""

_NO_DTYPE = "gemm needs the axis dtype, or both a_dtype and b_dtype"


@dataclass(frozen=True)
class GemmSetting:
    """c = op(a) @ op(b), or c += op(a) @ op(b): op(a) is [m, k], op(b) [k, n], c [m, n].

    With `scaled`, the columns of the product are multiplied by scale, [n] float32.
    """

    m: int
    n: int
    k: int
    a_dtype: str
    b_dtype: str
    out_dtype: str
    transpose_a: bool = False
    transpose_b: bool = False
    accumulate: bool = False
    scaled: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> GemmSetting:
        """The setting of a case; raises ValueError if axis values are invalid or missing."""
        for axis in _SIZES:
            if axis not in values:
                raise ValueError(f"gemm needs the axis {axis}")
        if "dtype" not in values and not values.keys() >= set(_OPERANDS):
            raise ValueError(_NO_DTYPE)
        for axis, value in values.items():
            if reason := _explain(axis, value):
                raise ValueError(f"{axis}: {reason}")
        m, n, k = (int(values[axis]) for axis in _SIZES)  # type: ignore[arg-type]
        a_dtype, b_dtype = (str(_given(values, axis, values.get("dtype"))) for axis in _OPERANDS)
        out_dtype = str(_given(values, "out_dtype", a_dtype))
        meant = [dtype_named(name) for name in (out_dtype, a_dtype, b_dtype)]
        if not meant[0].floating and (meant[0].bytes < 4 or any(of.floating for of in meant[1:])):
            raise ValueError(
                f"out_dtype: {out_dtype} cannot hold sums of {a_dtype} times {b_dtype}"
            )
        flags = (bool(values.get(flag, False)) for flag in _FLAGS)
        return cls(m, n, k, a_dtype, b_dtype, out_dtype, *flags)

    @property
    def shape_a(self) -> tuple[int, int]:
        """The shape of a, as stored."""
        return (self.k, self.m) if self.transpose_a else (self.m, self.k)

    @property
    def shape_b(self) -> tuple[int, int]:
        """The shape of b, as stored."""
        return (self.n, self.k) if self.transpose_b else (self.k, self.n)

    def names(self) -> dict[str, Any]:
        """The names for entries and expressions, without tensors."""
        return {**asdict(self), "dtype": self.a_dtype}


def _given(values: Mapping[str, Value], axis: str, default: Value) -> Value:
    """The value of a dtype axis, or `default` without one."""
    value = values.get(axis)
    return default if value in (None, "same") else value


def _explain(axis: str, value: Value) -> str | None:
    """Why `value` is invalid for `axis`; None if it is valid."""
    if axis in _SIZES:
        fine = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return None if fine else f"{value!r} is not an integer >= 0"
    if axis in _FLAGS:
        return None if isinstance(value, bool) else f"{value!r} is not true or false"
    if axis == "dtype" or (axis in _DTYPES and value not in (None, "same")):
        return explain_dtype(value)
    if axis == "storage":
        return explain_storage(value)
    return explain_distribution(value) if axis == "values" else None


def lint(spec: Spec) -> Iterator[Issue]:
    """Located issues of the spec. Axes that the family does not know belong to the entry."""
    for path, axis, value in listed_axis_values(spec):
        if reason := _explain(axis, value):
            yield spec.issue(path, f"{axis}: {reason}")
    for axis in _SIZES:
        if axis not in spec.axes:
            yield spec.issue(("axes",), f"gemm needs the axis {axis}; add {axis}: [64]")
    if "dtype" not in spec.axes and not spec.axes.keys() >= set(_OPERANDS):
        yield spec.issue(("axes",), f"{_NO_DTYPE}; add dtype: [float16]")
    tensors = names_of(ROWS, "input", "output")
    yield from lint_arguments(spec, names_of(ROWS, "name"), tensors)
    yield from lint_results(spec, names_of(ROWS, "output"))
