"""Drafts from a signature alone, without a trace or an example call."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

from tlmatrix.commands.new.drafting import constant, heading
from tlmatrix.commands.new.drafts import Draft, Line
from tlmatrix.commands.new.factories import guesses
from tlmatrix.exit_codes import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tlmatrix.commands.new.targets import Target

Axes = dict[str, tuple[str, ...]]

PACKED = (
    "{q: [17, 64, 1], k: same}",
    "{q: [128, 129, 127], k: [256, 1, 64]}",
    "{q: [0, 5], k: [7, 0]}",
)
GEMM: Axes = {
    "m": ("1", "63", "64", "129"),
    "n": ("64", "96"),
    "k": ("64", "72"),
    "dtype": ("float16",),
}
_SHOW_A_CALL = "give an example call (--call or --script) to have this filled in"
_CAUSAL = ("window is none or causal", "a window is causal by definition")


def signature_draft(target: Target) -> Draft:
    """A draft for an operator; attention and GEMM are recognized by the names of tensors.

    Raises:
        UsageError: the operator has no parameter without a default.
    """
    parameters = target.parameters
    names = {parameter.name for parameter in parameters}
    if {"q", "k", "v"} <= names:
        axes = attention_axes(names, packed="cu_seqlens_q" in names)
        known = {*axes, "q", "k", "v", "scale", "layout", "sink", "window", "dtype"}
        return Draft(
            *heading(target),
            factory=False, problem="attention",
            axes=axes | dict(_own_axes(parameters, known)),
            constraints=(_CAUSAL,) if "window" in axes else (),
        )  # fmt: skip
    if {"a", "b"} <= names:
        flags = ("transpose_a", "transpose_b", "accumulate")
        axes = GEMM | {name: ("false", "true") for name in flags if name in names}
        return Draft(
            *heading(target),
            factory=False, problem="gemm",
            axes=axes | dict(_own_axes(parameters, {*axes, "a", "b", "c", "out_dtype"})),
        )  # fmt: skip
    return _declared(target, parameters)


def attention_axes(names: Collection[str], *, packed: bool) -> Axes:
    """Axes of the attention problem."""
    axes: Axes = {
        "dtype": ("float16", "bfloat16"),
        "kv_heads": ("1", "2"),
        "groups": ("1", "4"),
        "head_dim": ("64", "128"),
        "causal": ("false", "true"),
    }
    if "window" in names:
        axes["window"] = ("none", "1", "64")
    if packed:
        axes["seqlens"] = PACKED
        return axes
    return axes | {
        "batch": ("1", "2"),
        "seqlen_q": ("1", "63", "64", "65", "200"),
        "seqlen_k": ("1", "64", "127"),
        "layout": ("bshd",),
    }


def _declared(target: Target, parameters: Sequence[inspect.Parameter]) -> Draft:
    tensors = [item.name for item in parameters if item.default is inspect.Parameter.empty]
    if not tensors:
        raise UsageError(
            f"{target.text!r} has no parameter without a default, so its inputs are unknown; "
            "give an example call (--call or --script)"
        )
    shapes = "which shapes, and which need gradients (grad: true)?"
    axes: Axes = {
        "dtype": ("float16", "float32"),
        "rows": ("1", "63", "64", "65"),
        "cols": ("64", "128"),
    }
    return Draft(
        *heading(target),
        factory=False,
        inputs=tuple(
            Line(name, "{shape: [rows, cols], dtype: $dtype}", "" if position else shapes)
            for position, name in enumerate(tensors)
        ),
        outputs=(Line("out", ""),),
        stub=("The same in plain PyTorch; called in float64.",),
        axes=axes | dict(_own_axes(parameters, {*axes})),
        notes=(_SHOW_A_CALL,),
    )


def _own_axes(
    parameters: Sequence[inspect.Parameter], known: Collection[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Axes for parameters with a default: both truth values, or the default to start from."""
    for parameter in parameters:
        default = parameter.default
        if parameter.name in known or default is inspect.Parameter.empty:
            continue
        if isinstance(default, bool):
            yield parameter.name, ("false", "true")
        elif isinstance(default, int) or (
            isinstance(default, str) and re.fullmatch(r"\w+", default)
        ):
            yield parameter.name, (str(default),)


def untraced_draft(target: Target, error: Exception) -> Draft:
    """A draft for a factory that cannot be traced with guessed arguments."""
    first = (str(error).strip().splitlines() or [""])[0]
    why = f"{type(error).__name__}: {first}"[:160]
    arguments = guesses(target.parameters)
    axes = {"dtype": "dtype", "size": "rows"}
    compiled = tuple(
        Line(item.name, constant(item.value))
        if item.default or item.kind not in axes
        else Line(item.name, axes[item.kind])
        for item in arguments
    )
    return Draft(
        *heading(target),
        factory=True,
        inputs=(Line("x", "{shape: [rows, cols], dtype: $dtype}"),),
        outputs=(Line("out", ""),),
        stub=(
            "Tracing it with guessed arguments failed, so these tensors are guesses:",
            why,
            "The same in plain PyTorch; called in float64.",
        ),
        factory_args=compiled,
        call=("x",),
        returns=("out",),
        axes={"dtype": ("float16",), "rows": ("64", "65"), "cols": ("64",)},
        notes=(f"tracing it with guessed arguments failed ({why}); {_SHOW_A_CALL}",),
    )
