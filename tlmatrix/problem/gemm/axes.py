"""The names of gemm problems, and the axes of a case as plain numbers. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import dtype_named
from tlmatrix.problem.names import STORAGE, VALUES, Names, dtypes, flag, whole

if TYPE_CHECKING:
    from tlmatrix.spec.values import Value

SIZES = ("m", "n", "k")
_FLAGS = ("transpose_a", "transpose_b", "accumulate", "scaled")
OPERANDS = ("a_dtype", "b_dtype")
NO_DTYPE = "gemm needs the axis dtype, or both a_dtype and b_dtype"

NAMES = Names(
    "gemm",
    axes={
        **dict.fromkeys(SIZES, whole(0)),
        "dtype": dtypes(),
        **dict.fromkeys((*OPERANDS, "out_dtype"), dtypes(same=True, optional=True)),
        **dict.fromkeys(_FLAGS, flag),
        **VALUES,
    },
    settings=STORAGE,
    others=frozenset({"device"}),
    inputs=frozenset({"a", "b", "c", "scale"}),
    results=frozenset({"c"}),
    relations=("rows_permuted", "addend_opposed", "transposed", "scale_doubled"),
)


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
        for size in SIZES:
            if size not in values:
                raise ValueError(f"gemm needs the axis {size}")
        if "dtype" not in values and not values.keys() >= set(OPERANDS):
            raise ValueError(NO_DTYPE)
        NAMES.refuse_invalid(values)
        m, n, k = (int(values[axis]) for axis in SIZES)  # type: ignore[arg-type]
        a_dtype, b_dtype = (str(_given(values, axis, values.get("dtype"))) for axis in OPERANDS)
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
