"""PyTorch's matrix products as baselines for problems of the family gemm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from tlmatrix.bench.candidates import NotApplicableError, Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.problem import Problem

_Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def product_run(name: str, problem: Problem) -> Run:
    """Return PyTorch's product (`torch`), or the same through torch.compile.

    Raises:
        NotApplicableError: PyTorch does not support the case.
    """
    if name not in ("torch", "reference_compiled"):
        raise NotApplicableError("implements attention only")
    names, out = problem.names, problem.outputs["c"].dtype
    transpose_a, transpose_b = bool(names.get("transpose_a")), bool(names.get("transpose_b"))
    product = _product(problem, out, row_major_a=not transpose_a, column_major_b=transpose_b)

    def call(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        a, b = inputs["a"], inputs["b"]
        made = product(a.T if transpose_a else a, b.T if transpose_b else b)
        if "scale" in inputs:
            made = made * inputs["scale"]
        if "c" in inputs:
            made = made + inputs["c"]
        return made.to(out)

    return Run.of(call if name == "torch" else torch.compile(call, dynamic=False), ("c",))


def _product(
    problem: Problem, out: torch.dtype, *, row_major_a: bool, column_major_b: bool
) -> _Product:
    """The function that multiplies op(a) and op(b) of the problem's dtypes."""
    a, b = problem.inputs["a"].dtype, problem.inputs["b"].dtype
    if _is_float8(a) and _is_float8(b):
        if not (row_major_a and column_major_b):
            raise NotApplicableError(
                "torch._scaled_mm needs a row-major and columns of b contiguous"
            )
        one = torch.ones((), device=problem.inputs["a"].device)
        return lambda x, y: torch._scaled_mm(x, y, one, one, out_dtype=out)  # noqa: SLF001 - PyTorch's only one
    if a == b == torch.int8:
        return torch._int_mm  # noqa: SLF001 - as above
    if a != b:
        # A layer with quantised weights converts them first if it has no mixed kernel.
        wide = a if a.is_floating_point and a.itemsize >= b.itemsize else b
        return lambda x, y: x.to(wide) @ y.to(wide)
    if out.itemsize > a.itemsize:
        return lambda x, y: torch.mm(x, y, out_dtype=out)
    return torch.matmul


def _is_float8(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1
