"""Matrix products, optionally transposed, accumulating or scaled.

The family; torch is imported when a problem is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tlmatrix.problem.distributions import SPECIAL
from tlmatrix.problem.family import BuiltInFamily
from tlmatrix.problem.gemm.axes import NAMES, NO_DTYPE, OPERANDS, SIZES, GemmSetting

if TYPE_CHECKING:
    from tlmatrix.problem.family import CaseSetup
    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


class GemmFamily(BuiltInFamily[GemmSetting]):
    """Matrix products, optionally transposed, accumulating or scaled."""

    table = NAMES
    required = dict.fromkeys(SIZES, "[64]")
    data_axes = frozenset({*SIZES, "values", "storage"})
    special_values = (*SPECIAL, "cancelling")
    kept = ("dtype", "a_dtype", "b_dtype", "out_dtype")

    def lint_axes(self, spec: Spec) -> Iterator[Issue]:
        """An issue if there is no dtype."""
        if "dtype" not in spec.axes and not spec.axes.keys() >= set(OPERANDS):
            yield spec.issue(("axes",), f"{NO_DTYPE}; add dtype: [float16]")

    def setting(self, values: Mapping[str, Value]) -> GemmSetting:
        """See `BuiltInFamily`."""
        return GemmSetting.of(values)

    def build(self, setup: CaseSetup, setting: GemmSetting) -> Problem:
        """See `BuiltInFamily`."""
        from tlmatrix.problem.gemm.build import gemm_case, gemm_relations

        case = gemm_case(setup, setting)
        return replace(case.problem(), relations=partial(gemm_relations, case))
