"""Drafts that use our own problems, where what was observed is attention or a GEMM."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tlmatrix.commands.new import axes as axis_values
from tlmatrix.commands.new.drafts import Draft, Line
from tlmatrix.commands.new.recognized import recognize
from tlmatrix.commands.new.signatures import GEMM, attention_axes
from tlmatrix.commands.new.writing import constant, spec_name, summary_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.commands.new.observed import Observed, Tensor
    from tlmatrix.commands.new.recognized import Recognized
    from tlmatrix.commands.new.targets import Target

__all__ = ["family_draft"]

_FLAGS = ("transpose_a", "transpose_b", "accumulate")
"""Arguments that mean what the axes of the gemm problem mean."""
_HEADS = re.compile(r"head|^h[qk]?$|^n_?h", re.IGNORECASE)


def family_draft(target: Target, observed: Observed) -> Draft | None:
    """A draft of `problem: gemm` or `attention`; None where neither fits."""
    recognized = recognize(observed)
    if recognized.family == "gemm":
        return _gemm(target, observed)
    if recognized.family == "attention" and not observed.factory:
        return _attention(target, observed, recognized)
    return None


# GEMM ----------------------------------------------------------------------------------------


def _gemm(target: Target, observed: Observed) -> Draft | None:
    a, b = observed.inputs
    (c,) = observed.outputs
    sides = _sides(a, b)
    if sides is None:
        return None
    flags, symbols = sides
    axes: dict[str, tuple[str, ...]] = {"dtype": ("float16",)}
    for axis, symbol, tensor, dim in symbols:
        tile = observed.accesses.tile(tensor.name, dim)
        own = [
            each.value
            for each in observed.arguments
            if each.kind == "tile" and each.name.lower().endswith(axis)
        ]
        edge = next(iter(own), tile)
        recorded = dict(observed.sizes).get(str(symbol))
        found = axis_values.sizes(axis, tile=edge, recorded=recorded, free=True)
        axes[axis] = tuple(map(str, found[:4])) if edge or recorded else GEMM[axis]
    axes |= dict.fromkeys(flags, ("true",))
    if c.dtype != a.dtype and c.dtype_of is None:
        axes["out_dtype"] = (c.dtype,)
    names = {a.name: "a", b.name: "b", c.name: "c"}
    compiled = {str(symbol): axis for axis, symbol, _, _ in symbols}
    followed = {each.dtype_of for each in (a, b, c)}
    if a.dtype_of is None:
        axes["dtype"] = (a.dtype,)
    flagged = [each.name for each in observed.arguments if _is_flag(each.name, observed)]
    axes |= {name: ("false", "true") for name in flagged if name not in axes}
    lines = []
    for item in observed.arguments:
        if item.name in followed:
            value = "out_dtype" if item.name not in (a.dtype_of, b.dtype_of) else "dtype"
            if value == "out_dtype":
                axes["out_dtype"] = (str(item.value),)
        else:
            value = compiled.get(item.name, constant(item.value))
            value = item.name if item.name in flagged else value
        lines.append(Line(item.name, value))
    given = [names[each.name] for each in observed.tensors]
    parameters = [each.name for each in observed.tensors]
    same = given == parameters
    return Draft(
        spec_name(target.text),
        summary_of(target),
        target.text,
        factory=observed.factory,
        problem="gemm",
        factory_args=tuple(lines) if observed.factory else (),
        call=tuple(given)
        if observed.factory
        else None
        if same
        else (
            *(Line(old, names[old]) for old in parameters),
            *(Line(name, name) for name in flagged),
        ),
        returns=("c",) if observed.factory else (),
        axes=axes,
        notes=("a GEMM: inputs and the float64 reference are ours",),
    )


def _is_flag(name: str, observed: Observed) -> bool:
    """A kernel that accumulates reads what it writes, so that a call of it is another one."""
    return name in _FLAGS and not (observed.factory and name == "accumulate")


def _sides(
    a: Tensor, b: Tensor
) -> tuple[tuple[str, ...], tuple[tuple[str, object, Tensor, int], ...]] | None:
    """How the operands are stored, and which dimension of which is m, n and k."""
    for flags, k_of_a, k_of_b in (
        ((), 1, 0),
        (("transpose_b",), 1, 1),
        (("transpose_a",), 0, 0),
        (("transpose_a", "transpose_b"), 0, 1),
    ):
        m, n = a.shape[1 - k_of_a], b.shape[1 - k_of_b]
        if a.shape[k_of_a] == b.shape[k_of_b] and len({m, n, a.shape[k_of_a]}) == 3:
            return flags, (
                ("m", m, a, 1 - k_of_a),
                ("n", n, b, 1 - k_of_b),
                ("k", a.shape[k_of_a], a, k_of_a),
            )
    return None


# Attention -----------------------------------------------------------------------------------


def _attention(target: Target, observed: Observed, recognized: Recognized) -> Draft | None:
    by_name = {each.name.lower(): each for each in observed.tensors}
    q, k, v = (by_name[name] for name in "qkv")
    packed = bool(recognized.packings)
    names = {each.name for each in observed.arguments}
    axes = attention_axes(names, packed=packed)
    layout = None if packed else _layout(q, k)
    heads = 1 if packed or layout == "bhsd" else 2
    if len(q.sizes) != (3 if packed else 4) or q.sizes[heads] % max(k.sizes[heads], 1):
        return None
    groups = q.sizes[heads] // k.sizes[heads]
    axes["kv_heads"] = tuple(dict.fromkeys(("1", str(k.sizes[heads]))))
    axes["groups"] = tuple(dict.fromkeys(("1", str(groups))))
    axes["head_dim"] = (str(q.sizes[-1]),)
    if v.sizes[-1] != q.sizes[-1]:
        axes["head_dim_v"] = (str(v.sizes[-1]),)
    dtypes = observed.dtypes
    axes["dtype"] = dtypes or (q.dtype,)
    if layout is not None:
        axes["layout"] = (layout,)
    one_length = len({role.of for role in recognized.roles.values()}) == 1
    if packed and one_length:
        axes["seqlens"] = tuple(
            f"{{q: {value}, k: same}}" if value[0] == "[" else value
            for value in axis_values.lengths(recognized.packings)
        )
    if "causal" not in names:
        axes["causal"] = ("false",)
    call = tuple(_attention_call(observed, recognized, one_length=one_length, axes=axes))
    plain = all(line.key == line.value for line in call)
    return Draft(
        spec_name(target.text),
        summary_of(target),
        target.text,
        factory=False,
        problem="attention",
        call=None if plain else (tuple(line.value for line in call) if target.positional else call),
        returns=("out", "lse")[: len(observed.results)] if len(observed.results) > 1 else (),
        axes=axes,
        constraints=(("window is none or causal", "a window is causal by definition"),)
        if "window" in axes
        else (),
        notes=("attention: inputs, the float64 reference and its gradients are ours",),
    )


def _layout(q: Tensor, k: Tensor) -> str:
    """`bhsd` where the second dimension counts heads, by its name or its size."""
    named = _HEADS.search(str(q.shape[1])) is not None
    smaller = q.sizes[1] != k.sizes[1] and q.sizes[2] == k.sizes[2]
    return "bhsd" if named or (smaller and q.sizes[1] < q.sizes[2]) else "bshd"


def _attention_call(
    observed: Observed,
    recognized: Recognized,
    *,
    one_length: bool,
    axes: dict[str, tuple[str, ...]],
) -> Iterator[Line]:
    for tensor in observed.tensors:
        role = recognized.roles.get(tensor.name)
        if role is None:
            yield Line(tensor.name, tensor.name.lower())
            continue
        side = "" if one_length else f"_{str(role.of)[-1]}"
        yield Line(tensor.name, f"cu_seqlens{side}")
    for item in observed.arguments:
        number = recognized.numbers.get(item.name)
        if number is not None:
            side = "_k" if number.endswith(".k)") else "_q"
            yield Line(item.name, f"max_seqlen{side}")
        elif item.name in ("causal", "window"):
            yield Line(item.name, item.name)
        elif item.kind == "other" and "scale" in item.name:
            if not item.default:
                yield Line(item.name, "scale")
        elif not item.default:
            axes[item.name] = (str(item.value).lower(),)
            yield Line(item.name, item.name)
        else:
            continue
