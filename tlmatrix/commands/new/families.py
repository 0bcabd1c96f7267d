"""Drafts with the built-in problems `attention` and `gemm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.commands.new import axes as axis_values
from tlmatrix.commands.new.attention_kernels import HEADS, kernel_draft
from tlmatrix.commands.new.drafting import constant, heading
from tlmatrix.commands.new.drafts import Draft, Line
from tlmatrix.commands.new.recognition import recognize
from tlmatrix.commands.new.signatures import GEMM, attention_axes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.commands.new.interface import Interface, Tensor
    from tlmatrix.commands.new.recognition import Recognition
    from tlmatrix.commands.new.targets import Target

_FLAGS = ("transpose_a", "transpose_b", "accumulate")
"""Arguments with the meaning of axes of the gemm problem."""


def family_draft(target: Target, interface: Interface) -> Draft | None:
    """A draft of `problem: gemm` or `attention`; None if neither fits."""
    recognition = recognize(interface)
    if recognition.family == "gemm":
        return _gemm(target, interface)
    if interface.factory:
        return kernel_draft(target, interface, recognition)
    if recognition.family == "attention":
        return _attention(target, interface, recognition)
    return None


# GEMM ----------------------------------------------------------------------------------------


def _gemm(target: Target, interface: Interface) -> Draft | None:
    a, b = interface.inputs
    (c,) = interface.outputs
    sides = _sides(a, b)
    if sides is None:
        return None
    flags, symbols = sides
    axes: dict[str, tuple[str, ...]] = {"dtype": ("float16",)}
    for axis, symbol, tensor, dim in symbols:
        tile = interface.accesses.tile(tensor.name, dim)
        own = [
            each.value
            for each in interface.arguments
            if each.kind == "tile" and each.name.lower().endswith(axis)
        ]
        edge = next(iter(own), tile)
        recorded = dict(interface.sizes).get(str(symbol))
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
    flagged = [each.name for each in interface.arguments if _is_flag(each.name, interface)]
    axes |= {name: ("false", "true") for name in flagged if name not in axes}
    lines = []
    for item in interface.arguments:
        if item.name in followed:
            value = "out_dtype" if item.name not in (a.dtype_of, b.dtype_of) else "dtype"
            if value == "out_dtype":
                axes["out_dtype"] = (str(item.value),)
        else:
            value = compiled.get(item.name, constant(item.value))
            value = item.name if item.name in flagged else value
        lines.append(Line(item.name, value))
    given = [names[each.name] for each in interface.tensors]
    parameters = [each.name for each in interface.tensors]
    same = given == parameters
    return Draft(
        *heading(target),
        factory=interface.factory,
        problem="gemm",
        factory_args=tuple(lines) if interface.factory else (),
        call=tuple(given)
        if interface.factory
        else None
        if same
        else (
            *(Line(old, names[old]) for old in parameters),
            *(Line(name, name) for name in flagged),
        ),
        returns=("c",) if interface.factory else (),
        axes=axes,
        notes=("uses the built-in problem gemm, with its inputs and float64 reference",),
    )


def _is_flag(name: str, interface: Interface) -> bool:
    """Whether an argument is a flag; `accumulate` of a factory changes the call, so it is not."""
    return name in _FLAGS and not (interface.factory and name == "accumulate")


def _sides(
    a: Tensor, b: Tensor
) -> tuple[tuple[str, ...], tuple[tuple[str, object, Tensor, int], ...]] | None:
    """The transposed operands, and the tensor and dimension of each of m, n and k."""
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


def _attention(target: Target, interface: Interface, recognition: Recognition) -> Draft | None:
    by_name = {each.name.lower(): each for each in interface.tensors}
    q, k, v = (by_name[name] for name in "qkv")
    packed = bool(recognition.packings)
    names = {each.name for each in interface.arguments}
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
    dtypes = interface.dtypes
    axes["dtype"] = dtypes or (q.dtype,)
    if layout is not None:
        axes["layout"] = (layout,)
    one_length = len({role.of for role in recognition.roles.values()}) == 1
    if packed and one_length:
        axes["seqlens"] = tuple(
            f"{{q: {value}, k: same}}" if value[0] == "[" else value
            for value in axis_values.lengths(recognition.packings)
        )
    if "causal" not in names:
        axes["causal"] = ("false",)
    call = tuple(_attention_call(interface, recognition, one_length=one_length, axes=axes))
    plain = all(line.key == line.value for line in call)
    return Draft(
        *heading(target),
        factory=False,
        problem="attention",
        call=None if plain else (tuple(line.value for line in call) if target.positional else call),
        returns=("out", "lse")[: len(interface.results)] if len(interface.results) > 1 else (),
        axes=axes,
        constraints=(("window is none or causal", "a window is causal by definition"),)
        if "window" in axes
        else (),
        notes=(
            "uses the built-in problem attention, with its inputs, float64 reference and gradients",
        ),
    )


def _layout(q: Tensor, k: Tensor) -> str:
    """`bhsd` if the name or size of the second dimension is that of heads, else `bshd`."""
    named = HEADS.search(str(q.shape[1])) is not None
    smaller = q.sizes[1] != k.sizes[1] and q.sizes[2] == k.sizes[2]
    return "bhsd" if named or (smaller and q.sizes[1] < q.sizes[2]) else "bshd"


def _attention_call(
    interface: Interface,
    recognition: Recognition,
    *,
    one_length: bool,
    axes: dict[str, tuple[str, ...]],
) -> Iterator[Line]:
    for tensor in interface.tensors:
        role = recognition.roles.get(tensor.name)
        if role is None:
            yield Line(tensor.name, tensor.name.lower())
            continue
        side = "" if one_length else f"_{str(role.of)[-1]}"
        yield Line(tensor.name, f"cu_seqlens{side}")
    for item in interface.arguments:
        number = recognition.numbers.get(item.name)
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
