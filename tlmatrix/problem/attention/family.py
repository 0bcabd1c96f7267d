"""The attention family, as specs name it; torch is imported when a problem is made."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tlmatrix.problem.attention.axes import AxisError, Setting
from tlmatrix.problem.attention.lint import TENSORS, lint
from tlmatrix.problem.attention.names import RELATIONS
from tlmatrix.problem.attention.sinks import sink_named
from tlmatrix.problem.attention.values import AXES, DATA_AXES
from tlmatrix.problem.frame import Frame, compile_key
from tlmatrix.spec.model.fields import OPTIONAL_AXES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

__all__ = ["AttentionFamily"]


class AttentionFamily:
    """Attention, dense or packed, forward and backward."""

    axes = AXES
    optional = frozenset(OPTIONAL_AXES)
    relation_names = RELATIONS
    tensors = TENSORS

    def lint(self, spec: Spec) -> Iterable[Issue]:
        """See `Family.lint`."""
        return list(lint(spec))

    def compile_key(self, spec: Spec, values: Mapping[str, Value]) -> str:
        """See `Family.compile_key`."""
        try:
            names = Setting.of(values).names()
        except AxisError:
            names = {}
        if "sink" in values:  # which sinks is data; whether there are any is not
            values = {**values, "sink": sink_named(values["sink"]) is not None}
        return compile_key(spec, values, names, data=DATA_AXES, kept=("dtype", "layout"))

    def problem(
        self, spec: Spec, values: Mapping[str, Value], *, seed: int, device: torch.device
    ) -> Problem:
        """The problem of a case.

        Raises:
            AxisError: (a ValueError) the values make no attention problem; `axis` names which.
        """
        from tlmatrix.problem.attention.build import attention_case
        from tlmatrix.problem.relations.attention import attention_relations

        case = attention_case(Frame(spec, values, seed, device), Setting.of(values))
        return replace(case.problem(), relations=partial(attention_relations, case))
