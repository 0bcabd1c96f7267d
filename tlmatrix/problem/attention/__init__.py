"""Attention: dense, packed, padded or with a KV cache; grouped heads, masks and sinks.

The family; torch is imported when a problem is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tlmatrix.problem.attention.axes import CACHE_LAYOUTS, NAMES, Setting, sink_kind
from tlmatrix.problem.distributions import OF_ATTENTION, SPECIAL
from tlmatrix.problem.family import BuiltInFamily, CaseSetup
from tlmatrix.processes import shared_context
from tlmatrix.spec.model.fields import OPTIONAL_AXES

if TYPE_CHECKING:
    import torch

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value

_HOST_ELEMENTS, _HOST_ELEMENTS_SHARED = 2**22, 2**16
"""Elements of q, k, v and out up to which checks are faster on the CPU than on a GPU, where each
of their many small operations is a launch: where contexts take turns, and with a shared one."""


class AttentionFamily(BuiltInFamily[Setting]):
    """Scaled dot product attention: dense, packed, padded or with a KV cache; with gradients."""

    table = NAMES
    required: ClassVar = {"dtype": "[float16]", "head_dim": "[64]"}
    data_axes = frozenset(
        {
            "batch", "seqlen_q", "seqlen_k", "seqlens", "scale", "max_seqlen_q", "max_seqlen_k",
            "values", "padding", "storage", "shared_mask", "freed_pages",
        }
    )  # fmt: skip
    kept = ("dtype", "layout")
    optional_axes = frozenset(OPTIONAL_AXES)
    special_values = (*SPECIAL, *OF_ATTENTION)
    cotangents = True
    option_values: ClassVar[Mapping[str, tuple[Value, ...]]] = {
        "causal": (False, True),
        "alignment": ("bottom_right", "top_left"),
        "window": (None,),
        "scale": (None,),
        "sink": (None,),
    }

    @property
    def tensors(self) -> tuple[str, ...]:
        """See `BuiltInFamily`; lengths of keys are a list in most layouts."""
        return tuple(name for name in super().tensors if name != "seqlens_k")

    def setting(self, values: Mapping[str, Value]) -> Setting:
        """See `BuiltInFamily`; raises AxisError, whose `axis` names the axis."""
        return Setting.of(values)

    def compile_key(self, spec: Spec, values: Mapping[str, Value]) -> str:
        """See `Family.compile_key`."""
        # The kind of sink is data; whether there is one is not.
        if "sink" in values and not spec.compile_axes:
            values = {**values, "sink": sink_kind(values["sink"]) is not None}
        return super().compile_key(spec, values)

    def host_problem(
        self, spec: Spec, values: Mapping[str, Value], *, seed: int, device: torch.device
    ) -> Problem | None:
        """See `Family`: with tensors on the CPU, unless they are large."""
        import torch

        from tlmatrix.problem.attention.build import elements

        setting = Setting.of(values)
        most = _HOST_ELEMENTS_SHARED if shared_context() else _HOST_ELEMENTS
        if elements(setting) > most:
            return None
        return self.build(CaseSetup(spec, values, seed, torch.device("cpu"), device), setting)

    def build(self, setup: CaseSetup, setting: Setting) -> Problem:
        """See `BuiltInFamily`."""
        from tlmatrix.problem.attention.build import attention_case
        from tlmatrix.problem.attention.relations import attention_relations

        case = attention_case(setup, setting)
        return replace(case.problem(), relations=partial(attention_relations, case))

    def lint_axes(self, spec: Spec) -> Iterator[Issue]:
        """Issues of heads, lengths, layouts and windows."""
        axes = spec.axes
        if "heads" not in axes and "kv_heads" not in axes:
            yield spec.issue(
                ("axes",),
                "attention needs the axis heads, or kv_heads (with groups); add kv_heads: [1]",
            )
        if {"heads", "kv_heads", "groups"} <= set(axes):
            yield spec.issue(
                ("axes", "heads"),
                "two of heads, kv_heads and groups determine the third; remove one axis",
            )
        yield from _lint_lengths(spec)
        windows = [value for value in axes.get("window", ()) if value is not None]
        stored = set(CACHE_LAYOUTS) >= set(axes.get("layout", ("bshd",)))
        if windows and not stored and True not in axes.get("causal", ()):
            yield spec.issue(
                ("axes", "window"),
                f"window {windows[0]} needs causal: true, which no case has; add causal: [true]",
            )


def _lint_lengths(spec: Spec) -> Iterator[Issue]:
    axes, layouts = spec.axes, list(map(str, spec.axes.get("layout", ())))

    def lacking(layout: str, axis: str, example: str) -> Issue:
        return spec.issue(
            ("axes", "layout", layouts.index(layout)),
            f"layout {layout} needs the axis {axis}; add {axis}: {example}",
        )

    if "paged" in layouts and "page_size" not in axes:
        yield lacking("paged", "page_size", "[16]")
    if "seqlens" not in axes:
        stored = [layout for layout in layouts if layout in CACHE_LAYOUTS]
        if "padded" in layouts:
            yield lacking("padded", "seqlens", "[{q: [17, 64], k: same}]")
        elif stored:
            yield lacking(stored[0], "seqlens", "[{q: 1, k: [17, 64, 0]}]")
        elif "seqlen_q" not in axes:
            yield spec.issue(
                ("axes",),
                "attention needs the axis seqlens (packed) or seqlen_q (dense); add "
                "seqlens: [{q: [17, 64], k: same}] or seqlen_q: [64]",
            )
        return
    for axis in ("seqlen_q", "seqlen_k", "batch"):
        if axis in axes:
            yield spec.issue(
                ("axes", axis), f"the axes {axis} and seqlens are both given; remove one of them"
            )
    for number, layout in enumerate(layouts):
        if layout in ("bshd", "bhsd"):
            yield spec.issue(
                ("axes", "layout", number),
                f"layout {layout} is dense, and seqlens makes packed sequences (layout thd); for "
                f"{layout} replace the axis seqlens by seqlen_q and batch",
            )
