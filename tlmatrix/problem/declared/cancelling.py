"""Calls of declared problems in which the parts of sums cancel.

A kernel that keeps parts of a sum in 16 bits is wrong in them: the parts are large and the sum is
small.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.declared.inputs import (
    SummedDim,
    bounds_of,
    generate_inputs,
    packing_of,
    summed_dims,
)
from tlmatrix.problem.distributions import draw, generator, seeded_random
from tlmatrix.problem.model import Relation, judged_alone

if TYPE_CHECKING:
    from tlmatrix.problem.declared.build import Declared
    from tlmatrix.spec.expr.expression import Expression

_TERMS = 32
"""The fewest terms of a sum of which parts kept in 16 bits are beyond its error bound."""
_CANDIDATES = 6
"""Dimensions tried."""
_SEVERAL = 4
"""Runs of several dimensions tried."""
_ELEMENTS = 2**16
"""Elements of inputs up to which a case gets more terms."""
_WHOLE = 0.75
"""The share of the cases in which nothing is masked."""
_SMALLER = 4
_SHARE = 1 / 8
"""A sum cancels if this share of its elements is so many times smaller."""


def with_cancelling_parts(case: Declared) -> Iterator[Relation]:
    """Calls in which an input, or a cotangent, has halves of opposite sign, so that sums cancel.

    A kernel that keeps parts of a sum in 16 bits is wrong in it: the parts are large and the sum is
    small. Each sum is tried once, in an order that the seed selects.
    """
    if case.reference is None or case.reference.exact_dtype != torch.float64:
        return
    inputs = {n: d for n, d in case.declaration.inputs.items() if d.derived is None}
    free = {n for n, d in inputs.items() if d.between is None and d.fill is None}
    free = {name for name in free if case.inputs[name].is_floating_point()}
    cotangents = case.cotangents if case.differentiable else {}
    sizes = {name: inputs[name].sizes for name in sorted(free)}
    sizes |= {f"d{n}": found for n in sorted(cotangents) if (found := case.sizes(n)) is not None}
    results = {name: case.possible_sizes(name) for name in case.infos}
    tensors = {**case.inputs, **{f"d{name}": each for name, each in cotangents.items()}}
    sums = [
        each
        for whole in summed_dims(sizes, results)
        for each in _by_sequences(case, whole, results)
        if _terms(case, each, tensors[each.input].shape) >= _TERMS
    ]
    if not sums:
        return
    pick, done = seeded_random(case.seed + 8), set[tuple[str, str]]()
    single = [each for each in sums if len(each.sizes) == 1]
    several = [each for each in sums if len(each.sizes) > 1]
    chosen = pick.sample(single, min(_CANDIDATES, len(single)))
    chosen += seeded_random(case.seed + 9).sample(several, min(_SEVERAL, len(several)))
    positive: dict[str, Declared] = {}
    for summed in chosen:
        size = summed.size
        names = [name for name in summed.results if (name, size) not in done]
        if not names:
            continue
        if size not in positive:
            larger, seed = _with_most_terms(case, summed), pick.randrange(2**32)
            positive[size] = _positive(larger, free, seed, whole=pick.random() < _WHOLE)
        whole = positive[size]
        for last_first in (False, True)[: len(summed.sizes)]:
            signed = _negated(whole, summed, last_first=last_first)
            smaller = frozenset(n for n in names if _cancels(signed.exact[n], whole.exact[n]))
            if not smaller:
                continue
            done |= {(name, size) for name in smaller}
            yield judged_alone(
                "cancelling_parts",
                replace(signed, given_parts=smaller).problem(),
                because=f"the halves of {summed.input} along {summed.size} have opposite signs, so "
                f"that sums over {summed.size} cancel: are parts of them kept in 16 bits?",
                control=whole.problem,
            )


def _terms(case: Declared, summed: SummedDim, shape: Sequence[int]) -> int:
    """The most terms of a sum over a dimension, of packed rows over those of a sequence."""
    lengths = _lengths_along(case, summed)
    if lengths is not None:
        return max(lengths, default=0)
    return prod(shape[summed.axis :][: len(summed.sizes)])


def _by_sequences(
    case: Declared, summed: SummedDim, results: Mapping[str, Sequence[Expression | int]]
) -> Iterator[SummedDim]:
    """The sums over a dimension; those of packed rows that results have for each sequence apart."""

    def packings(sizes: Sequence[Expression | int], kind: str) -> set[str]:
        found = (packing_of(size, case.setup.values) for size in sizes)
        return {each.axis for each in found if each is not None and each.kind == kind}

    packed = packings(summed.sizes, "sum") if len(summed.sizes) == 1 else set()
    of_each = tuple(name for name in summed.results if packed & packings(results[name], "len"))
    others = tuple(name for name in summed.results if name not in of_each)
    if others:
        yield replace(summed, results=others)
    if of_each:
        yield replace(summed, results=of_each, by_sequence=True)


def _lengths_along(case: Declared, summed: SummedDim) -> Sequence[int] | None:
    """The lengths of the sequences that are summed up each; None of another dimension."""
    packing = packing_of(summed.sizes[0], case.setup.values) if summed.by_sequence else None
    return None if packing is None else packing.lengths


def _with_most_terms(case: Declared, summed: SummedDim) -> Declared:
    """The case with the largest value of the axis that is the size of a dimension.

    Of those that the spec lists or has a range of; the case itself if it would be far larger.
    """
    setup = case.setup
    axis, fuzzed = summed.size, setup.spec.fuzz.axes if setup.spec.fuzz else {}
    own, within = setup.values.get(axis), fuzzed[axis].range if axis in fuzzed else None
    listed = [value for value in setup.spec.axes.get(axis, ()) if type(value) is int]
    if type(own) is not int or not listed:
        return case
    most = max([own, *listed, *([within.high] if within else [])])
    elements = sum(tensor.numel() for tensor in case.inputs.values())
    if most == own or elements * most > own * max(_ELEMENTS, 4 * elements):
        return case
    setup = replace(setup, values={**setup.values, axis: most})
    if not setup.satisfies_where(setup.values):
        return case
    try:
        inputs = generate_inputs(setup, case.declaration, "normal", case.seed)
        larger = replace(case, setup=setup, inputs=inputs, given_cotangents=None)
        _ = larger.exact
    except Exception:  # noqa: BLE001 - the reference cannot take this size
        return case
    return larger


def _positive(case: Declared, free: Collection[str], seed: int, *, whole: bool) -> Declared:
    """The case with values about 1/2 in these inputs and all cotangents.

    With `whole`, each index or length has its largest value, so that masks hide nothing.
    """
    source = generator(seed)

    def about_half(tensor: torch.Tensor) -> torch.Tensor:
        made = draw("cancelling", source, tensor.shape, tensor.dtype, cotangent=True)
        return made.to(tensor.device)

    inputs = {n: about_half(each) if n in free else each for n, each in case.inputs.items()}
    cotangents = {name: about_half(each) for name, each in case.cotangents.items()}
    for name, decl in case.declaration.inputs.items():
        if whole and decl.between is not None and not decl.distinct:
            _, most = bounds_of(case.setup, decl, ("problem", "inputs", name))
            inputs[name] = torch.full_like(inputs[name], most)
    return replace(case, inputs=inputs, given_cotangents=cotangents, distribution="normal")


def _negated(case: Declared, summed: SummedDim, *, last_first: bool) -> Declared:
    """The case with the second half of a tensor negated along a dimension; of each sequence.

    Along several dimensions the last, or the first of them runs fastest.
    """
    lengths = _lengths_along(case, summed)

    def negated(tensor: torch.Tensor) -> torch.Tensor:
        axis, axes = summed.axis % tensor.ndim, len(summed.sizes)
        spans = tensor.shape[axis : axis + axes]
        each = [prod(spans)] if lengths is None else lengths
        signs = [1 if at < (size + 1) // 2 else -1 for size in each for at in range(size)]
        by_index = torch.tensor(signs, device=tensor.device, dtype=torch.float64)
        if last_first:
            by_index = by_index.view(spans[::-1]).permute(*reversed(range(axes)))
        by_index = by_index.reshape(*spans, *[1] * (tensor.ndim - axis - axes))
        return (tensor.double() * by_index).to(tensor.dtype)  # PyTorch negates no float8

    if summed.input in case.inputs:
        changed = {**case.inputs, summed.input: negated(case.inputs[summed.input])}
        return replace(case, inputs=changed)
    of = summed.input.removeprefix("d")
    return replace(case, given_cotangents={**case.cotangents, of: negated(case.cotangents[of])})


def _cancels(signed: torch.Tensor, positive: torch.Tensor) -> bool:
    """Whether a part of the elements is far smaller than with terms of one sign."""
    smaller = (signed.abs() * _SMALLER < positive.abs()) & (positive.abs() < torch.inf)
    return signed.is_floating_point() and bool(smaller.double().mean() > _SHARE)
