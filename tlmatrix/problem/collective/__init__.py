"""Collectives: all-gather, all-reduce and reduce-scatter.

The family; torch is imported when a problem is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tlmatrix.problem.collective.axes import NAMES, SIZES, CollectiveSetting
from tlmatrix.problem.family import BuiltInFamily
from tlmatrix.spec.model.spec import WORLD

if TYPE_CHECKING:
    from tlmatrix.problem.family import CaseSetup
    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.values import Value


class CollectiveFamily(BuiltInFamily[CollectiveSetting]):
    """All-gather, all-reduce and reduce-scatter of rows."""

    table = NAMES
    required: ClassVar = {
        "operation": "[reduce_scatter]",
        WORLD: "[1, 2, 4]",
        "rows": "[64]",
        "cols": "[64]",
        "dtype": "[float16]",
    }
    data_axes = frozenset({*SIZES, "values", "storage", "uneven"})
    kept = ("dtype",)
    sharded = ("rows",)

    def setting(self, values: Mapping[str, Value]) -> CollectiveSetting:
        """See `BuiltInFamily`."""
        return CollectiveSetting.of(values)

    def build(self, setup: CaseSetup, setting: CollectiveSetting) -> Problem:
        """See `BuiltInFamily`."""
        from tlmatrix.problem.collective.build import collective_case, collective_relations

        case = collective_case(setup, setting)
        return replace(case.problem(), relations=partial(collective_relations, case))
