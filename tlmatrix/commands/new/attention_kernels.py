"""Drafts with the built-in problem `attention` for factories of forward kernels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tlmatrix.commands.new import axes as axis_values
from tlmatrix.commands.new.drafting import NO_ROWS, constant, heading
from tlmatrix.commands.new.drafts import Draft, Line
from tlmatrix.commands.new.interface import Number, Tensor
from tlmatrix.commands.new.recognition import substitute
from tlmatrix.commands.new.signatures import attention_axes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.commands.new.interface import Interface
    from tlmatrix.commands.new.recognition import Recognition
    from tlmatrix.commands.new.targets import Target

HEADS = re.compile(r"head|^h[qk]?$|^n_?h", re.IGNORECASE)
"""Names of a number of heads."""
_CAUSAL = re.compile(r"^(is_)?causal$")


def kernel_draft(target: Target, interface: Interface, recognition: Recognition) -> Draft | None:
    """A draft for a factory of a kernel from q, k and v to one output.

    None if the kernel takes other tensors, returns more, or has dimensions of another meaning.
    """
    tensors = _operands(interface, recognition)
    if tensors is None:
        return None
    packed = bool(recognition.packings)
    layout = "thd" if packed else _layout(tensors["q"])
    meaning = _meaning(tensors, recognition, layout)
    if meaning is None:
        return None
    causal = [each.name for each in interface.arguments if _CAUSAL.search(each.name)]
    meaning |= dict.fromkeys(causal, "causal")
    dtype = tensors["q"].dtype_of
    meaning |= {dtype: "dtype"} if dtype is not None else {}
    lines = []
    for each in interface.arguments:
        if each.name in meaning or each.name in recognition.numbers:
            value = meaning.get(each.name) or recognition.numbers[each.name]
            lines.append(Line(each.name, value))
        elif each.kind not in ("tile", "setting") and not each.default:
            return None
        elif not each.default:
            lines.append(Line(each.name, constant(each.value)))
    call = _call(interface, recognition)
    if call is None:
        return None
    used = set(meaning.values())
    axes = attention_axes((), packed=packed)
    axes["dtype"] = interface.dtypes or (tensors["q"].dtype,)
    axes["groups"] = ("1", "2") if "kv_heads * groups" in used else ("1",)
    if not packed:
        axes["layout"] = (layout,)
        alike = tensors["q"].shape[_tokens(layout)] == tensors["k"].shape[_tokens(layout)]
        # Kernels often refuse more queries than keys.
        axes["seqlen_k"] = ("same",) if alike else ("same", "200", "257")
    else:
        axes["seqlens"] = tuple(
            value if value[0] == "{" else f"{{q: {value}, k: same}}"
            for value in axis_values.lengths(recognition.packings)
        )
    if not causal:
        axes["causal"] = ("false",)
    return Draft(
        *heading(target),
        factory=True,
        problem="attention",
        factory_args=tuple(lines),
        call=call,
        returns=("out",),
        axes=axes,
        constraints=tuple(
            (f"sum({each.expression}) > 0", NO_ROWS) for each in recognition.packings
        ),
        notes=("uses the built-in problem attention, with its inputs and float64 reference",),
    )


def _operands(interface: Interface, recognition: Recognition) -> dict[str, Tensor] | None:
    """q, k, v and out by these names; None if there are others beside offsets."""
    found: dict[str, Tensor] = {}
    for tensor in interface.inputs:
        letter = tensor.name.lower().partition("_")[0]
        if letter in ("q", "k", "v") and letter not in found:
            found[letter] = tensor
        elif tensor.name not in recognition.roles:
            return None
    if set(found) != {"q", "k", "v"} or len(interface.outputs) != 1:
        return None
    return found | {"out": interface.outputs[0]}


def _layout(q: Tensor) -> str:
    return "bhsd" if HEADS.search(str(q.shape[1])) else "bshd"


def _tokens(layout: str) -> int:
    return {"thd": 0, "bshd": 1, "bhsd": 2}[layout]


def _meaning(
    tensors: Mapping[str, Tensor], recognition: Recognition, layout: str
) -> dict[str, str] | None:
    """Expressions of the attention problem by the name of an argument."""
    q, k, v, out = (tensors[name].shape for name in ("q", "k", "v", "out"))
    heads = {"thd": 1, "bshd": 2, "bhsd": 1}[layout]
    if not len(q) == len(k) == len(v) == len(out) == len(layout):
        return None
    tokens = _tokens(layout)
    found: dict[str, str] = {}

    def bind(size: object, meaning: str) -> bool:
        return found.setdefault(str(size), meaning) == meaning

    grouped = q[heads] != k[heads]
    quotient = re.fullmatch(r"(\w+) // (\w+)", str(k[heads]))
    if quotient is not None and quotient[1] == str(q[heads]):
        bind(quotient[2], "groups")
    elif grouped:
        bind(k[heads], "kv_heads")
    fine = bind(q[heads], "kv_heads * groups" if grouped else "kv_heads")
    fine &= bind(q[-1], "head_dim") and bind(k[-1], "head_dim")
    fine &= bind(v[-1], "head_dim" if v[-1] == q[-1] else "head_dim_v")
    fine &= out[-1] == v[-1] and k[heads] == v[heads] and out[:-1] == q[:-1]
    if layout == "thd":
        for size, side in ((q[0], "q"), (k[0], "k")):
            expression = str(substitute(size, recognition.dims))
            fine &= expression in (f"sum(seqlens.{side})", "sum(seqlens)")
            fine &= bind(size, expression)
        found |= recognition.dims
    else:
        fine &= bind(q[0], "batch") and k[0] == v[0] == q[0]
        same = q[tokens] == k[tokens]
        fine &= bind(q[tokens], "seqlen_q") and (same or bind(k[tokens], "seqlen_k"))
    return found if fine else None


def _call(interface: Interface, recognition: Recognition) -> tuple[str, ...] | None:
    """The arguments of the kernel in names of the problem; None if one has no meaning."""
    one_length = len({role.of for role in recognition.roles.values()}) == 1
    call = []
    for each in interface.parameters:
        if isinstance(each, Number):
            number = recognition.numbers.get(each.name)
            number = "scale" if number is None and "scale" in each.name.lower() else number
            if number is None:
                return None
            call.append(number)
        elif each.name in interface.mutated:
            call.append("out")
        elif (role := recognition.roles.get(each.name)) is not None:
            call.append("cu_seqlens_q" if one_length else f"cu_seqlens_{str(role.of)[-1]}")
        else:
            call.append(each.name[0].lower())
    return tuple(call)
