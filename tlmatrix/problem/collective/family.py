"""The family of `problem: collective`; torch is imported when a problem is built."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tlmatrix.problem.case_setup import CaseSetup, compile_key
from tlmatrix.problem.collective.axes import AXES, DATA_AXES, OPTIONAL, CollectiveSetting, lint
from tlmatrix.problem.collective.names import RELATIONS, ROWS
from tlmatrix.problem.distributions import SPECIAL
from tlmatrix.problem.name_table import names_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


class CollectiveFamily:
    """All-gather, all-reduce and reduce-scatter of rows."""

    axes = AXES
    names = names_of(ROWS, "name", "input", "output", "gradient")
    optional_axes = OPTIONAL
    special_values = SPECIAL
    cotangents = False
    relation_names = RELATIONS
    tensors: tuple[str, ...] = tuple(sorted(names_of(ROWS, "input", "output")))

    def lint(self, spec: Spec) -> Iterable[Issue]:
        """See `Family.lint`."""
        return list(lint(spec))

    def compile_key(self, spec: Spec, values: Mapping[str, Value]) -> str:
        """See `Family.compile_key`."""
        try:
            names = CollectiveSetting.of(values).names()
        except ValueError:
            names = {}
        return compile_key(spec, values, names, data=DATA_AXES, kept=("dtype",))

    def problem(
        self, spec: Spec, values: Mapping[str, Value], *, seed: int, device: torch.device
    ) -> Problem:
        """The problem of a case; raises ValueError if axis values are invalid."""
        from tlmatrix.problem.collective.build import collective_case
        from tlmatrix.problem.relations.collective import collective_relations

        case = collective_case(CaseSetup(spec, values, seed, device), CollectiveSetting.of(values))
        return replace(case.problem(), relations=partial(collective_relations, case))
