"""The family of `problem: gemm`; torch is imported when a problem is built."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tlmatrix.problem.case_setup import CaseSetup, compile_key
from tlmatrix.problem.distributions import SPECIAL
from tlmatrix.problem.gemm.axes import AXES, DATA_AXES, OPTIONAL, GemmSetting, lint
from tlmatrix.problem.gemm.names import RELATIONS, ROWS
from tlmatrix.problem.name_table import names_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


class GemmFamily:
    """Matrix products."""

    axes = AXES
    names = names_of(ROWS, "name", "input", "output", "gradient")
    optional_axes = OPTIONAL
    special_values = SPECIAL
    cotangents = False
    tensors = tuple(sorted(names_of(ROWS, "input", "output")))
    relation_names = RELATIONS

    def lint(self, spec: Spec) -> Iterable[Issue]:
        """See `Family.lint`."""
        return list(lint(spec))

    def compile_key(self, spec: Spec, values: Mapping[str, Value]) -> str:
        """See `Family.compile_key`."""
        try:
            names = GemmSetting.of(values).names()
        except ValueError:
            names = {}
        return compile_key(
            spec, values, names, data=DATA_AXES, kept=("dtype", "a_dtype", "b_dtype", "out_dtype")
        )

    def problem(
        self, spec: Spec, values: Mapping[str, Value], *, seed: int, device: torch.device
    ) -> Problem:
        """The problem of a case; raises ValueError if axis values are invalid."""
        from tlmatrix.problem.gemm.build import gemm_case
        from tlmatrix.problem.relations.gemm import gemm_relations

        case = gemm_case(CaseSetup(spec, values, seed, device), GemmSetting.of(values))
        return replace(case.problem(), relations=partial(gemm_relations, case))
