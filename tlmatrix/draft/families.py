"""Drafts with the built-in problems `attention` and `gemm`, which bring their reference."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tlmatrix.draft.interface import Number, Tensor
from tlmatrix.draft.roles import substitute
from tlmatrix.draft.text import Draft, Line, constant
from tlmatrix.draft.writer import NO_ROWS, fuzz_lines, heading, lengths, sizes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from tlmatrix.draft.interface import Interface
    from tlmatrix.draft.roles import Recognition
    from tlmatrix.draft.targets import Target

Axes = dict[str, tuple[str, ...]]

_FLAGS = ("transpose_a", "transpose_b", "accumulate")
"""Arguments with the meaning of axes of the gemm problem."""
_HEADS = re.compile(r"head|^h$|^hq|^hk|nq$|group", re.IGNORECASE)
_GEMM: Axes = {
    "m": ("1", "63", "64", "129"),
    "n": ("64", "96", "129"),
    "k": ("64", "72", "160"),
    "dtype": ("float16",),
}
_PACKED = (
    "{q: [17, 64, 1], k: same}",
    "{q: [128, 129, 127], k: [256, 1, 64]}",
    "{q: [0, 5], k: [7, 0]}",
)
_CAUSAL = ("window is none or causal", "a window is causal by definition")
_LAYOUTS = {"thd": (0, 1), "bshd": (1, 2), "bhsd": (2, 1)}
"""The dimensions of tokens and of heads."""


def family_draft(target: Target, interface: Interface, recognition: Recognition) -> Draft | None:
    """A draft of `problem: gemm` or `attention`; None if neither fits."""
    return _gemm(target, interface, recognition) or _attention(target, interface, recognition)


# GEMM ----------------------------------------------------------------------------------------


def _gemm(target: Target, interface: Interface, recognition: Recognition) -> Draft | None:
    inputs, outputs = interface.inputs, interface.outputs
    flat = len(inputs) == len(interface.tensors) - len(interface.pure_outputs) == 2
    if not flat or len(outputs) != 1 or recognition.packings:
        return None
    if any(len(each.shape) != 2 or each.integer for each in (*inputs, *outputs)):
        return None
    named = {"a", "b"} == {each.name.lower() for each in inputs}
    a, b = inputs
    if not named and interface.uses.products != {(a.name, b.name)}:
        return None
    (c,) = outputs
    sides = _sides(a, b)
    if sides is None or any(
        each.kind == "other" and not each.default for each in interface.arguments
    ):
        return None
    transposed, symbols = sides
    axes: Axes = {"dtype": interface.dtypes or (a.dtype,)}
    for axis, symbol, tensor, dim in symbols:
        tiles = [
            each.value
            for each in interface.arguments
            if each.kind == "tile" and each.name.lower().endswith(axis)
        ]
        tile = next(iter(tiles), interface.uses.tile(tensor.name, dim))
        recorded = interface.symbols.get(str(symbol), ())
        known = bool(tile or recorded)
        found = sizes(axis, tile=tile, recorded=recorded)
        axes[axis] = tuple(map(str, found)) if known else _GEMM[axis]
    axes |= dict.fromkeys(transposed, ("true",))
    if c.dtype != a.dtype and c.dtype_of is None:
        axes["out_dtype"] = (c.dtype,)
    if interface.factory and a.dtype_of is None:
        axes["dtype"] = (a.dtype,)
    flagged = [
        each.name
        for each in interface.arguments
        if each.name in _FLAGS and not (interface.factory and each.name == "accumulate")
    ]
    axes |= {name: ("false", "true") for name in flagged if name not in axes}
    compiled = {str(symbol): axis for axis, symbol, _, _ in symbols}
    lines = []
    followed = (a.dtype_of, b.dtype_of)
    for item in interface.arguments:
        value = compiled.get(item.name, constant(item.value))
        if item.name in flagged:
            value = item.name
        elif interface.tied_dtypes.get(item.name, item.name) in followed:
            value = "dtype"
        elif item.name == c.dtype_of:
            value = "out_dtype"
            axes["out_dtype"] = (str(item.value),)
        lines.append(Line(item.name, value))
    names = {a.name: "a", b.name: "b", c.name: "c"}
    added = {c.name: "{output: c, fill: zeros}"} if c.name in interface.uses.added else {}
    given = [(each.name, added.get(each.name, names[each.name])) for each in interface.tensors]
    plain = all(old == new for old, new in given) and not interface.factory
    passed = [Line(old, new) for old, new in given] + [Line(name, name) for name in flagged]
    return Draft(
        *heading(target),
        factory=interface.factory,
        problem="gemm",
        factory_args=tuple(lines) if interface.factory else (),
        call=None if plain else tuple(n for _, n in given) if interface.factory else tuple(passed),
        returns=("c",) if interface.factory else (),
        axes=axes,
        fuzz=tuple(fuzz_lines({axis: axes[axis] for axis in "mnk"})),
        notes=("uses the built-in problem gemm, with its inputs and float64 reference",),
    )


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
        m, n, k = a.shape[1 - k_of_a], b.shape[1 - k_of_b], a.shape[k_of_a]
        if k == b.shape[k_of_b] and len({m, n, k}) == 3:
            return flags, (("m", m, a, 1 - k_of_a), ("n", n, b, 1 - k_of_b), ("k", k, a, k_of_a))
    return None


# Attention -----------------------------------------------------------------------------------


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
        return axes | {"seqlens": _PACKED}
    return axes | {
        "batch": ("1", "2"),
        "seqlen_q": ("1", "63", "64", "65", "200"),
        "seqlen_k": ("1", "64", "127"),
        "layout": ("bshd",),
    }


def _attention(target: Target, interface: Interface, recognition: Recognition) -> Draft | None:
    tensors = _operands(interface, recognition)
    if tensors is None:
        return None
    q = tensors["q"]
    layout = "thd" if recognition.packings else _layout(q, tensors["k"])
    meaning = _meaning(tensors, recognition, layout)
    call = None if meaning is None else _call(interface, recognition, meaning)
    if meaning is None or call is None:
        return None
    packed = layout == "thd"
    names = {each.name for each in interface.arguments}
    axes = attention_axes(names, packed=packed)
    axes["dtype"] = interface.dtypes or (q.dtype,)
    if not packed:
        axes["layout"] = (layout,)
    else:
        axes["seqlens"] = tuple(
            value if value[0] == "{" else f"{{q: {value}, k: same}}"
            for value in lengths(recognition.packings)
        )
    if interface.factory and not interface.calls:
        axes["groups"] = ("1", "2") if "kv_heads * groups" in meaning.values() else ("1",)
        if not packed:
            alike = q.shape[_LAYOUTS[layout][0]] == tensors["k"].shape[_LAYOUTS[layout][0]]
            # Kernels often refuse more queries than keys.
            axes["seqlen_k"] = ("same",) if alike else ("same", "200", "257")
    else:
        axes |= _recorded_axes(tensors, layout)
    lines: list[Line] = []
    made: list[Line] = []
    for item in (*interface.arguments, *interface.construct):
        if item.name == "window":
            value = item.name
        elif "causal" in item.name:
            value = "causal"
        elif item.name in meaning or item.name in recognition.numbers:
            value = meaning.get(item.name) or recognition.numbers[item.name]
        elif item.kind == "dtype":
            value = "dtype"
        elif "scale" in item.name and item.kind == "other":
            value = "scale"
        else:
            value = constant(item.value)
        if not (item.default and value == constant(item.value)):
            given = made if item in interface.construct else lines
            given.append(Line(item.name, _problem_names(value)))
    if not any(line.value == "causal" for line in (*lines, *made)):
        axes["causal"] = ("false",)
    if "scale" in {line.value for line in lines} and interface.factory:
        return None  # a constant of the kernel, which the problem does not give
    rules = [(f"sum({each.expression}) > 0", NO_ROWS) for each in recognition.packings]
    rules = rules if interface.factory else [_CAUSAL] * ("window" in axes)
    passed: tuple[str, ...] | tuple[Line, ...] | None = tuple(value for _, value in call)
    if not interface.factory:
        every = [Line(name, value) for name, value in call] + lines
        plain = all(line.key == line.value for line in every)
        passed = tuple(line.value for line in every) if target.positional else tuple(every)
        passed = None if plain else passed
    outputs = ("out", "lse")[: len(interface.outputs)]
    forward = interface.calls and not any(tensors[name].grad for name in "qkv")
    return Draft(
        *heading(target),
        factory=interface.factory,
        problem="attention",
        factory_args=tuple(lines) if interface.factory else (),
        constructor_args=tuple(made),
        call=passed,
        returns=outputs if interface.factory or len(outputs) > 1 else (),
        axes=axes,
        constraints=tuple(dict.fromkeys(rules)),
        without=("gradients",) if forward else (),
        notes=("uses the built-in problem attention, with its inputs and float64 reference",),
    )


def _operands(interface: Interface, recognition: Recognition) -> dict[str, Tensor] | None:
    """q, k, v and out by these names; None if there are others beside offsets."""
    found: dict[str, Tensor] = {}
    for tensor in interface.inputs:
        letter = tensor.name.lower().partition("_")[0]
        letter = {"query": "q", "key": "k", "value": "v"}.get(letter, letter)
        if letter in ("q", "k", "v") and letter not in found:
            found[letter] = tensor
        elif tensor.name not in recognition.roles:
            return None
    outputs = interface.outputs
    if set(found) != {"q", "k", "v"} or not 1 <= len(outputs) <= (1 if interface.factory else 2):
        return None
    return found | {"out": outputs[0]}


def _layout(q: Tensor, k: Tensor) -> str:
    """`bhsd` if the name or size of the second dimension is that of heads, else `bshd`."""
    if len(q.shape) != 4 or len(k.shape) != 4:
        return "bshd"
    named = _HEADS.search(str(q.shape[1])) is not None
    if not named and q.seen:
        other = q.sizes(1) != k.sizes(1) and q.sizes(2) == k.sizes(2)
        named = other and q.sizes(1) < q.sizes(2)
    return "bhsd" if named else "bshd"


def _meaning(
    tensors: Mapping[str, Tensor], recognition: Recognition, layout: str
) -> dict[str, str] | None:
    """Expressions of the attention problem by the name of an argument or symbol."""
    q, k, v, out = (tensors[name].shape for name in ("q", "k", "v", "out"))
    if not len(q) == len(k) == len(v) == len(out) == len(layout):
        return None
    tokens, heads = _LAYOUTS[layout]
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
    fine &= bind(q[-1], "head_dim") and k[-1] == q[-1]
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
        fine &= bind(q[tokens], "seqlen_q")
        fine &= q[tokens] == k[tokens] or bind(k[tokens], "seqlen_k")
    return found if fine else None


def _recorded_axes(tensors: Mapping[str, Tensor], layout: str) -> Axes:
    """Axes with the sizes of recorded calls."""
    q, k, v = (tensors[name] for name in "qkv")
    tokens, heads = _LAYOUTS[layout]

    def values(found: tuple[int, ...], *more: int) -> tuple[str, ...]:
        return tuple(map(str, sorted({*more, *found})))

    pairs = zip(q.sizes(heads), k.sizes(heads), strict=True)
    found = {
        "kv_heads": values(k.sizes(heads), 1),
        "groups": values(tuple(a // max(b, 1) for a, b in pairs), 1),
        "head_dim": values(q.sizes(len(layout) - 1)),
    }
    if v.shape[-1] != q.shape[-1]:
        found["head_dim_v"] = values(v.sizes(len(layout) - 1))
    if layout != "thd" and q.shape[tokens] == k.shape[tokens]:
        found["seqlen_k"] = ("same",)
    return found


def _call(
    interface: Interface, recognition: Recognition, meaning: Mapping[str, str]
) -> list[tuple[str, str]] | None:
    """The tensors of the call in names of the problem; None if one has no meaning."""
    one_length = len({role.of for role in recognition.roles.values()}) == 1
    found = []
    for each in interface.parameters:
        if isinstance(each, Number):
            number = recognition.numbers.get(each.name) or meaning.get(each.name)
            number = "scale" if number is None and "scale" in each.name.lower() else number
            if number is None:
                return None
            found.append((each.name, number))
        elif each.name in interface.pure_outputs:
            found.append((each.name, "out"))
        elif (role := recognition.roles.get(each.name)) is not None:
            if role.key != "offsets_of":
                return None
            side = "" if one_length else f"_{str(role.of)[-1]}"
            found.append((each.name, f"cu_seqlens{side}"))
        else:
            found.append((each.name, each.name[0].lower()))
    return found


def _problem_names(text: str) -> str:
    """An expression with the names that the attention problem has for it."""
    return re.sub(r"^max\(seqlens(?:\.([qk]))?\)$", lambda m: f"max_seqlen_{m[1] or 'q'}", text)


# Signatures -----------------------------------------------------------------------------------


def signature_draft(target: Target) -> Draft | None:
    """A draft by the names of tensors in a signature; None if they are of neither problem."""
    parameters = target.parameters
    names = {parameter.name for parameter in parameters}
    rules: tuple[tuple[str, str], ...] = ()
    if {"q", "k", "v"} <= names:
        problem, own = "attention", {"q", "k", "v", "scale", "layout", "sink", "window", "dtype"}
        axes = attention_axes(names, packed="cu_seqlens_q" in names)
        rules = (_CAUSAL,) if "window" in axes else ()
    elif {"a", "b"} <= names:
        problem, own = "gemm", {"a", "b", "c", "out_dtype"}
        axes = _GEMM | {name: ("false", "true") for name in _FLAGS if name in names}
    else:
        return None
    more = dict(option_axes(target, {*axes, *own}))
    return Draft(
        *heading(target), factory=False, problem=problem, axes=axes | more, constraints=rules
    )


def option_axes(target: Target, known: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Axes for parameters with a default: both truth values, or the default to start from."""
    for parameter in target.parameters:
        default = parameter.default
        if parameter.name in known or default is parameter.empty:
            continue
        if isinstance(default, bool):
            yield parameter.name, ("false", "true")
        elif isinstance(default, int) or (
            isinstance(default, str) and re.fullmatch(r"\w+", default)
        ):
            yield parameter.name, (str(default),)
