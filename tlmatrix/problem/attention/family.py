"""The family of `problem: attention`; torch is imported when a problem is built."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tlmatrix.problem.attention.axes import AxisError, Setting
from tlmatrix.problem.attention.axis_values import AXES, DATA_AXES
from tlmatrix.problem.attention.lint import TENSORS, lint
from tlmatrix.problem.attention.names import RELATIONS, ROWS
from tlmatrix.problem.attention.sinks import sink_kind
from tlmatrix.problem.case_setup import CaseSetup, compile_key
from tlmatrix.problem.distributions import OF_ATTENTION, SPECIAL
from tlmatrix.problem.name_table import names_of
from tlmatrix.spec.model.fields import OPTIONAL_AXES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

_HOST_ELEMENTS = 2**22
"""Elements of q, k, v and out up to which checks are faster on the CPU than on a GPU, where each
of their many small operations is a launch."""


class AttentionFamily:
    """Scaled dot product attention: dense, packed, padded or with a KV cache; with gradients."""

    axes = AXES
    names = names_of(ROWS, "name", "input", "output", "gradient")
    optional_axes = frozenset(OPTIONAL_AXES)
    special_values = (*SPECIAL, *OF_ATTENTION)
    relation_names = RELATIONS
    option_values: ClassVar[Mapping[str, tuple[Value, ...]]] = {
        "causal": (False, True),
        "alignment": ("bottom_right", "top_left"),
        "window": (None,),
        "scale": (None,),
        "sink": (None,),
    }
    tensors = TENSORS

    def lint(self, spec: Spec) -> Iterable[Issue]:
        """See `Family.lint`."""
        return list(lint(spec))

    def compile_key(self, spec: Spec, values: Mapping[str, Value]) -> str:
        """See `Family.compile_key`."""
        names: Mapping[str, Any] = {}
        if not spec.compile_axes:  # which are expressions of axis values alone
            with suppress(AxisError):
                names = Setting.of(values).names()
        # The kind of sink is data; whether there is one is not.
        if "sink" in values and not spec.compile_axes:
            values = {**values, "sink": sink_kind(values["sink"]) is not None}
        return compile_key(spec, values, names, data=DATA_AXES, kept=("dtype", "layout"))

    def host_problem(
        self, spec: Spec, values: Mapping[str, Value], *, seed: int, device: torch.device
    ) -> Problem | None:
        """See `Family`: with tensors on the CPU, unless they are large."""
        import torch

        from tlmatrix.problem.attention.build import elements

        setting = Setting.of(values)
        if elements(setting) > _HOST_ELEMENTS:
            return None
        return self._problem(CaseSetup(spec, values, seed, torch.device("cpu"), device), setting)

    def problem(
        self, spec: Spec, values: Mapping[str, Value], *, seed: int, device: torch.device
    ) -> Problem:
        """The problem of a case.

        Raises:
            AxisError: the axis values are invalid; its `axis` names the axis.
        """
        return self._problem(CaseSetup(spec, values, seed, device), Setting.of(values))

    def _problem(self, setup: CaseSetup, setting: Setting) -> Problem:
        from tlmatrix.problem.attention.build import attention_case
        from tlmatrix.problem.relations.attention import attention_relations

        case = attention_case(setup, setting)
        return replace(case.problem(), relations=partial(attention_relations, case))
