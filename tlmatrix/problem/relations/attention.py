"""Metamorphic relations of attention: isolation, poison, repeated calls, and identities.

The seed of a case selects the sequence, head or permutation of a relation: a case costs few runs,
and a matrix tries many. Problems are built lazily, as relations are iterated over.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.attention.inputs import generate_replacements
from tlmatrix.problem.attention.padded import packed
from tlmatrix.problem.attention.reference import Operands
from tlmatrix.problem.poison import poison_scale
from tlmatrix.problem.relations.attention_identities import identities
from tlmatrix.problem.relations.attention_sequences import (
    head_dim,
    other_operands,
    replace_sequences,
    select_results,
    selected_setting,
    some_sequence,
    split_sequences,
)
from tlmatrix.problem.relations.forms import balanced_lengths, repeated, untouched
from tlmatrix.problem.seeded import seeded_random

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.attention.build import Attention
    from tlmatrix.problem.model import Relation, RelationKind, Tensors


def attention_relations(case: Attention, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind for an attention case, in the shapes of its layout."""
    for relation in _packed_relations(case, kind):
        padded = case.setting.padded
        yield _between_padded(relation, case.structure.padding.masks) if padded else relation


def _packed_relations(case: Attention, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind, between packed results."""
    match kind:
        case "isolation":
            yield from _isolation(case)
        case "poison":
            yield from _poison(case)
        case "repeat":
            yield _repeat(case)
        case "relations":
            yield from identities(case)


def _between_padded(relation: Relation, masks: Mapping[str, torch.Tensor]) -> Relation:
    """A relation between padded results; `masks` are those of the original problem."""

    def results_packed(results: Sequence[Tensors]) -> list[Tensors]:
        problems = zip(results, relation.problems, strict=True)
        return [packed(each, problem.names) for each, problem in problems]

    rounded = relation.rounded
    return replace(
        relation,
        left=lambda mine: relation.left(packed(mine, masks)),
        right=lambda results: relation.right(results_packed(results)),
        rounded=rounded and (lambda results: rounded(results_packed(results))),
    )


# Isolation and poison ---------------------------------------------------------------------------


def _isolation(case: Attention) -> Iterator[Relation]:
    pick = seeded_random(case.setup.seed)
    setting, operands = case.setting, case.operands
    if setting.batch > 1:
        victim = some_sequence(case, pick.random())
        changed = replace_sequences(case, {victim: other_operands(case, [victim])})
        yield untouched(
            "isolation_sequence",
            "isolation",
            changed.problem(),
            partial(
                select_results, case.setting, keep=[n for n in range(setting.batch) if n != victim]
            ),
            f"other values in sequence {victim} must change no bit of another sequence",
        )
    if setting.kv_heads > 1:
        group = pick.randrange(setting.kv_heads)
        alone = replace(setting, kv_heads=1)
        other = generate_replacements(alone, case.setup.seed + 2, case.setup.device)
        assert operands.do is not None
        assert other.do is not None
        tensors = {}
        for name, mine, its in (
            ("q", operands.q, other.q), ("k", operands.k, other.k),
            ("v", operands.v, other.v), ("do", operands.do, other.do),
        ):  # fmt: skip
            dim = head_dim(setting, name)
            heads = alone.kv_heads if name in ("k", "v") else alone.heads
            tensors[name] = mine.clone()
            tensors[name].narrow(dim, group * heads, heads).copy_(its)
        yield untouched(
            "isolation_head",
            "isolation",
            case.with_tensors(**tensors).problem(),
            partial(_heads, case, group=group),
            f"other values in kv head {group} and its query heads must change no bit of another",
        )


def _poison(case: Attention) -> Iterator[Relation]:
    """All sequences but one get huge v and do, and new q and k of normal size.

    Huge q and k would give probabilities of 0 or 1, which often hide a leak.
    """
    setting = case.setting
    if setting.batch < 2:
        return
    kept = some_sequence(case, seeded_random(case.setup.seed).random())
    factor = poison_scale(setting.dtype)
    changes = {}
    neighbours = [number for number in range(setting.batch) if number != kept]
    other = other_operands(case, neighbours)
    shape = selected_setting(setting, neighbours)
    assert other.do is not None
    pieces = [
        split_sequences(shape, name, tensor)
        for name, tensor in (
            ("q", other.q), ("k", other.k), ("v", other.v * factor), ("do", other.do * factor),
        )
    ]  # fmt: skip
    for index, number in enumerate(neighbours):
        changes[number] = Operands(*(piece[index] for piece in pieces))
    yield untouched(
        "poison_neighbours",
        "poison",
        replace_sequences(case, changes).problem(),
        partial(select_results, case.setting, keep=[kept]),
        f"values of size {factor:g} in every other sequence must change no bit of sequence {kept}",
    )


def _heads(case: Attention, tensors: Tensors, *, group: int) -> Tensors:
    """The results of all heads outside the group of a kv head."""
    setting, device = case.setting, case.setup.device
    keys = [head for head in range(setting.kv_heads) if head != group]
    queries = [head for head in range(setting.heads) if head // setting.groups != group]
    kept_keys, kept = (torch.tensor(heads, device=device) for heads in (keys, queries))
    return {
        name: tensor.index_select(
            head_dim(setting, name), kept_keys if name in ("dk", "dv") else kept
        )
        for name, tensor in tensors.items()
    }


# Repeat -----------------------------------------------------------------------------------------


def _repeat(case: Attention) -> Relation:
    operands = generate_replacements(case.setting, case.setup.seed + 3, case.setup.device)
    other = replace(case, operands=operands, distribution="normal")
    if case.setting.has_cache:  # other pages, too
        other = replace(other, placement=case.placement + 2)
    because = "a second call with other data must not remember the first, nor the third the second"
    setting, values = case.setting, dict(case.setup.values)
    scale = _other_scale(case)
    if scale is not None:
        setting, values["scale"] = replace(setting, scale=scale), scale
        because = because.replace("other data", "other data and another scale")
    lengths = _other_lengths(setting)
    seqlens = {"seqlens": {side: list(each) for side, each in lengths.items()}}
    if lengths and case.setup.satisfies_where(values | seqlens):
        setting = replace(setting, lengths_q=lengths["q"], lengths_k=lengths["k"])
        values |= seqlens
    if setting != case.setting:
        other = other.with_setting(setting, values, operands)
    return repeated(other.problem(), case.problem(), because)


def _other_lengths(setting: Setting) -> dict[str, tuple[int, ...]]:
    """Lengths of another batch whose tensors have the same sizes, by side; empty if there is none.

    Those of packed sequences have another longest sequence.
    """
    if setting.layout == "thd":
        return {
            "q": balanced_lengths(setting.lengths_q),
            "k": balanced_lengths(setting.lengths_k),
        }
    if setting.has_cache or setting.padded:
        return {"q": tuple(setting.lengths_q[::-1]), "k": tuple(setting.lengths_k[::-1])}
    return {}


def _other_scale(case: Attention) -> float | None:
    """Another value of the axis `scale`; None if the spec allows no other."""
    mine = case.setup.values.get("scale")
    for value in case.setup.spec.axes.get("scale", ()):
        if isinstance(value, int | float) and value != mine and case.setup.covers({"scale": value}):
            return float(value)
    if mine is not None and case.setup.covers({"scale": None}):
        return float(case.setting.head_dim**-0.5)
    return None
