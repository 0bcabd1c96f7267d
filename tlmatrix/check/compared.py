"""The calls that a finding is about: their arguments in words, and the tensors it compared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.bits import same_bits
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.problem.model import Problem, Relation, Tensors

_LISTED = 16
"""Most elements of a tensor of integers whose values are printed."""


@dataclass(frozen=True)
class Element:
    """An element of the results of one of several calls: `call` is the number of the call."""

    call: int
    name: str
    index: tuple[int, ...]


@dataclass(frozen=True)
class Compared:
    """The two tensors that a finding compared, and where the worst element came from.

    Attributes:
        expected: what the tensor should hold.
        got: the tensor, of the same shape.
        index: the worst element of both.
        calls: the problems of the calls after the first one, in order; empty if the finding is
            about the first call.
        element: the same element in the results of one of `calls`; None if it is one of the first
            call, or was computed from the results of several.
    """

    expected: torch.Tensor
    got: torch.Tensor
    index: tuple[int, ...]
    calls: tuple[Problem, ...] = ()
    element: Element | None = None


def describe_call(call: Problem, first: Problem) -> str:
    """How the arguments of a call differ from those of the first call of the case.

    `groups [96, 96] instead of [64, 128]; other values in x`.
    """
    parts = [
        f"{name} {_text(value)} instead of {_text(first.values.get(name))}"
        for name, value in call.values.items()
        if canonical(value) != canonical(first.values.get(name))
    ]
    values = bool(parts)
    distribution = call.names.get("values")
    if isinstance(distribution, str) and distribution != first.names.get("values"):
        parts.append(f"inputs {distribution} instead of {first.names.get('values')}")
    others = []
    for name, tensor in {**call.inputs, **call.cotangents}.items():
        old = first.inputs.get(name, first.cotangents.get(name))
        if values and not tensor.is_floating_point():
            continue  # lengths and offsets follow from the values
        if old is None or old.shape != tensor.shape:
            parts.append(f"{name} of shape {list(tensor.shape)}")
        elif same_bits(old, tensor):
            continue
        elif not tensor.is_floating_point() and tensor.numel() <= _LISTED:
            parts.append(f"{name} {tensor.tolist()} instead of {old.tolist()}")
        else:
            others.append(name)
    if others:
        parts.append(f"other values in {', '.join(others)}")
    if call.autograd is not None:
        parts.append(str(call.autograd))
    if call.given_output is not None:
        parts.append(f"a tensor for {call.given_output}")
    if call.side_stream:
        parts.append("on another CUDA stream")
    if call.two_streams:
        parts.append("two calls on two streams")
    if call.renewed:
        parts.append("new tensors at the addresses of earlier ones")
    return "; ".join(parts) or "the same arguments"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace('"', "")


def describe_calls(calls: Sequence[Problem], element: Element | None, first: Problem) -> str | None:
    """The arguments of the call that computed `element`; of all calls if that is None."""
    if element is not None:
        return describe_call(calls[element.call], first)
    words = list(dict.fromkeys(describe_call(call, first) for call in calls))
    return " / ".join(words) or None


def element_of(
    relation: Relation, results: Sequence[Tensors], name: str, place: int
) -> Element | None:
    """The element of `results` that element number `place` of the relation's right side is.

    None if the right side computes it instead of selecting it.
    """
    numbered, starts, count = [], [], 0
    for call, tensors in enumerate(results):
        numbers = {}
        for each, tensor in tensors.items():
            along = torch.arange(count, count + tensor.numel(), dtype=torch.float64)
            numbers[each] = along.view(tensor.shape).to(tensor.device)
            starts.append((count, call, each))
            count += tensor.numel()
        numbered.append(numbers)
    # Applied to the numbers of the elements, `right` returns which ones it selects.
    number = float(relation.right(numbered)[name].flatten()[place])
    if not (number.is_integer() and 0 <= number < count):
        return None
    start, call, each = max(entry for entry in starts if entry[0] <= number)
    source, at = results[call][each], int(number) - start
    value = relation.right(results)[name].flatten()[place]
    if at >= source.numel() or not same_bits(source.flatten()[at], value):
        return None
    index = torch.unravel_index(torch.tensor(at), source.shape)
    return Element(call, each, tuple(int(i) for i in index))
