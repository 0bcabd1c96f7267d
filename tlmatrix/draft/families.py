"""Recognizes the built-in problems `attention` and `gemm`, which bring their reference."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tlmatrix.draft.axes import AxesOfDraft, fuzz_ranges, lengths, number_of
from tlmatrix.draft.interface import Number, Tensor
from tlmatrix.draft.roles import substitute
from tlmatrix.draft.writer import NO_ROWS, BuiltIn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.draft.axes import Values
    from tlmatrix.draft.interface import Argument, Interface
    from tlmatrix.draft.roles import Recognition

Axes = dict[str, "Values"]

_FLAGS = ("transpose_a", "transpose_b", "accumulate")
"""Arguments with the meaning of axes of the gemm problem."""
_HEADS = re.compile(r"head|^h$|^hq|^hk|nq$|group", re.IGNORECASE)
_GEMM: Axes = {"m": (1, 63, 64, 129), "n": (64, 96, 129), "k": (64, 72, 160)}
_CAUSAL = ("window is none or causal", "a window is causal by definition")
_LAYOUTS = {"thd": (0, 1), "bshd": (1, 2), "bhsd": (2, 1)}
"""The dimensions of tokens and of heads."""


def built_in(interface: Interface, recognition: Recognition) -> BuiltIn | None:
    """The built-in problem of an interface; None if it is of none."""
    return _gemm(interface, recognition) or _attention(interface, recognition)


def _option(interface: Interface, item: Argument) -> Axes:
    """An axis for an option that callers of an operator pass."""
    plain = isinstance(item.value, bool | int | str) and item.kind != "dtype"
    if interface.factory or item.default or not plain:
        return {}
    return {item.name: tuple(dict.fromkeys(item.values)) or (item.value,)}


# GEMM ----------------------------------------------------------------------------------------


def _gemm(interface: Interface, recognition: Recognition) -> BuiltIn | None:
    inputs, outputs = interface.inputs, interface.outputs
    flat = len(inputs) == len(interface.tensors) - len(interface.pure_outputs) == 2
    if not flat or len(outputs) != 1 or recognition.packings:
        return None
    if any(len(each.shape) != 2 or each.integer for each in (*inputs, *outputs)):
        return None
    a, b = inputs
    (c,) = outputs
    named = {"a", "b"} == {each.name.lower() for each in inputs}
    if not named and interface.uses.products != {(a.name, b.name)}:
        return None
    sides = _sides(a, b)
    every = interface.arguments
    if sides is None or any(each.kind == "other" and not each.default for each in every):
        return None
    transposed, symbols = sides
    chosen = AxesOfDraft(interface, recognition, inputs, {}, ())
    axes: Axes = {"dtype": interface.dtypes or (a.dtype,)}
    axes |= {axis: chosen.axes.get(symbol, _GEMM[axis]) for symbol, axis in symbols.items()}
    axes |= dict.fromkeys(transposed, (True,))
    names: dict[str, Any] = {a.name: "a", b.name: "b"}
    names |= symbols
    followed = (a.dtype_of, b.dtype_of)
    for item in every:
        if item.name in _FLAGS and not (interface.factory and item.name == "accumulate"):
            axes.setdefault(item.name, (False, True))
        elif interface.tied_dtypes.get(item.name, item.name) in followed:
            names[item.name] = "dtype"
        elif item.name == c.dtype_of:
            names[item.name] = "out_dtype"
            axes["out_dtype"] = (item.value,)
        elif item.name not in names:
            axes |= _option(interface, item)
    scalars = (each for each in interface.parameters if isinstance(each, Number))
    axes |= {each.name: (number_of(each),) for each in scalars if each.name not in names}
    if c.dtype != a.dtype and c.dtype_of is None:
        axes["out_dtype"] = (c.dtype,)
    columns = {axis: interface.symbols.get(symbol, ()) for symbol, axis in symbols.items()}
    parts = {
        "problem": "gemm",
        "axes": axes,
        "fuzz": fuzz_ranges({axis: axes[axis] for axis in "mnk"}, {}),
        "recorded": {axis: column[0] for axis, column in columns.items() if column},
        "multiples": {symbols[n]: step for n, step in chosen.multiples.items() if n in symbols},
    }
    return BuiltIn(names, {c.name: "c"}, parts)


def _sides(a: Tensor, b: Tensor) -> tuple[list[str], dict[str, str]] | None:
    """The transposed operands, and which of m, n and k each symbol is."""
    for of_a, of_b in ((1, 0), (1, 1), (0, 0), (0, 1)):
        m, n, k = (str(e) for e in (a.shape[1 - of_a], b.shape[1 - of_b], a.shape[of_a]))
        if k == str(b.shape[of_b]) and len({m, n, k}) == 3:
            flags = [*["transpose_a"] * (of_a == 0), *["transpose_b"] * (of_b == 1)]
            return flags, {m: "m", n: "n", k: "k"}
    return None


# Attention -----------------------------------------------------------------------------------


def _attention(interface: Interface, recognition: Recognition) -> BuiltIn | None:
    tensors = _operands(interface, recognition)
    if tensors is None:
        return None
    layout = "thd" if recognition.packings else _layout(tensors["q"])
    meaning = _meaning(tensors, recognition, layout)
    passed = None if meaning is None else _passed(interface, recognition, meaning)
    if meaning is None or passed is None:
        return None
    names: dict[str, Any] = {}
    axes = _attention_axes(interface, recognition, tensors, meaning, layout)
    for item in (*interface.arguments, *interface.construct):
        if item.name == "window":
            axes["window"] = ("none", 1, 64)
        elif "causal" in item.name:
            names[item.name] = "causal"
        elif item.name in meaning or item.name in recognition.numbers:
            text = meaning.get(item.name) or recognition.numbers[item.name]
            names[item.name] = _problem_names(text)
        elif item.kind == "dtype":
            names[item.name] = "dtype"
        elif "scale" in item.name and item.kind == "other":
            names[item.name] = "scale"
            if interface.factory:
                return None  # a constant of the kernel, which the problem does not give
        else:
            axes |= _option(interface, item)
    if "causal" not in names.values():
        axes["causal"] = (False,)
    rules = [(f"sum({each.expression}) > 0", NO_ROWS) for each in recognition.packings]
    rules = rules if interface.factory else [_CAUSAL] * ("window" in axes)
    forward = interface.calls and not any(tensors[name].grad for name in "qkv")
    outputs = zip([each.name for each in interface.outputs], ("out", "lse"), strict=False)
    without = ("gradients",) if forward else ()
    constraints = tuple(dict.fromkeys(rules))
    parts = {"problem": "attention", "axes": axes, "constraints": constraints, "without": without}
    return BuiltIn(names | passed, dict(outputs), parts)


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


def _layout(q: Tensor) -> str:
    """`bhsd` if the name of the second dimension is that of heads, else `bshd`."""
    named = len(q.shape) == 4 and _HEADS.search(str(q.shape[1]))
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


def _attention_axes(
    interface: Interface,
    recognition: Recognition,
    tensors: Mapping[str, Tensor],
    meaning: Mapping[str, str],
    layout: str,
) -> Axes:
    """The axes, with the sizes of recorded calls."""
    q, k, v = (tensors[name] for name in "qkv")
    tokens, heads = _LAYOUTS[layout]
    axes: Axes = {
        "dtype": interface.dtypes or (q.dtype,),
        "kv_heads": (1, 2),
        "groups": (1, 4),
        "head_dim": (64, 128),
        "causal": (False, True),
    }
    alike = q.shape[tokens] == k.shape[tokens]
    if layout == "thd":
        found = lengths(recognition.packings)
        own = [each if isinstance(each, dict) else {"q": each, "k": "same"} for each in found]
        axes["seqlens"] = tuple(own)
    else:
        axes |= {"batch": (1, 2), "seqlen_q": (1, 63, 64, 65, 200)}
        axes |= {"seqlen_k": ("same",) if alike else (1, 64, 127), "layout": (layout,)}
    if not interface.calls:
        if interface.factory:
            axes["groups"] = (1, 2) if "kv_heads * groups" in meaning.values() else (1,)
            if layout != "thd" and not alike:  # kernels often refuse more queries than keys
                axes["seqlen_k"] = ("same", 200, 257)
        return axes
    pairs = zip(q.sizes(heads), k.sizes(heads), strict=True)
    axes["kv_heads"] = tuple(sorted({1, *k.sizes(heads)}))
    axes["groups"] = tuple(sorted({1, *(a // max(b, 1) for a, b in pairs)}))
    axes["head_dim"] = tuple(sorted({*q.sizes(-1)}))
    if v.shape[-1] != q.shape[-1]:
        axes["head_dim_v"] = tuple(sorted({*v.sizes(-1)}))
    return axes


def _passed(
    interface: Interface, recognition: Recognition, meaning: Mapping[str, str]
) -> dict[str, str] | None:
    """The inputs and scalars in names of the problem; None if one has no meaning."""
    one_length = len({role.of for role in recognition.roles.values()}) == 1
    found = {}
    for each in interface.parameters:
        if isinstance(each, Number):
            number = recognition.numbers.get(each.name) or meaning.get(each.name)
            number = "scale" if number is None and "scale" in each.name.lower() else number
            if number is None:
                return None
            found[each.name] = number
        elif (role := recognition.roles.get(each.name)) is not None:
            if role.key != "offsets_of":
                return None
            side = "" if one_length else f"_{str(role.of)[-1]}"
            found[each.name] = f"cu_seqlens{side}"
        elif each.name not in interface.pure_outputs:
            found[each.name] = each.name[0].lower()
    return found


def _problem_names(text: str) -> str:
    """An expression with the names that the attention problem has for it."""
    return re.sub(r"^max\(seqlens(?:\.([qk]))?\)$", lambda m: f"max_seqlen_{m[1] or 'q'}", text)
