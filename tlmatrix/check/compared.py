"""The calls that a finding is about: their arguments in words, and the tensors it compared."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.finding import Element, Finding
from tlmatrix.check.memory import same_bits
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.problem.model import Pair, Problem, Relation, Tensors

_LISTED = 16
"""Most elements of a tensor of integers whose values are printed."""


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


def about(
    finding: Finding, calls: Sequence[Problem], element: Element | None, first: Problem
) -> Finding:
    """Add the calls that a finding is about, and the element of their results."""
    compared = finding.compared and replace(finding.compared, calls=tuple(calls), element=element)
    return replace(finding, call=describe_calls(calls, element, first), compared=compared)


def of_call(finding: Finding, calls: Sequence[Problem], number: int, first: Problem) -> Finding:
    """Add the call number `number`, whose whole result a finding is about."""
    if finding.compared is None:  # of another shape
        return replace(finding, call=describe_calls(calls[number : number + 1], None, first))
    element = Element(number, str(finding.tensor), finding.compared.index)
    return about(finding, calls, element, first)


def of_pair(
    finding: Finding,
    pair: Pair,
    calls: Sequence[Problem],
    results: Sequence[Tensors],
    first: Problem,
) -> Finding:
    """Add the call whose result is the second of a pair; other pairs are about the first call."""
    name = str(finding.tensor)
    for number, tensors in enumerate(results):
        if name in tensors and tensors[name] is pair.got[name]:
            return of_call(finding, calls, number, first)
    return about(finding, calls, None, first) if calls else finding
