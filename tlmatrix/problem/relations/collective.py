"""Metamorphic relations of collectives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.collective.build import Collective, generate_collective
from tlmatrix.problem.distributions import generator
from tlmatrix.problem.model import Relation
from tlmatrix.problem.poison import poison_scale
from tlmatrix.problem.relations.forms import repeated, untouched
from tlmatrix.problem.seeded import permutation, seeded_random

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.model import RelationKind, Tensors


def collective_relations(case: Collective, kind: RelationKind) -> Iterator[Relation]:
    """The relations of one kind for a case of a collective."""
    match kind:
        case "isolation":
            yield from _disturbed(case, kind, 1.0, "other values in")
        case "poison":
            yield from _disturbed(case, kind, poison_scale(case.setting.dtype), "huge values in")
        case "relations":
            yield from _identities(case)
        case "repeat":
            other = generate_collective(case.setup, case.setting, "normal", case.setup.seed + 1)
            yield repeated(
                other.problem(), case.problem(), "a second call must not remember the first"
            )


def _disturbed(case: Collective, kind: RelationKind, size: float, what: str) -> Iterator[Relation]:
    """New values, N(0, 1) times `size`, in one row on every rank; the other rows of y must stay."""
    setting = case.setting
    if setting.rows < 2:
        return
    index = seeded_random(case.setup.seed).randrange(setting.rows)
    changed = case.x.clone()
    line = changed[..., index, :]
    noise = torch.randn(line.shape, generator=generator(case.setup.seed + 1))
    line.copy_(noise * size)
    kept = torch.tensor([row for row in range(setting.rows) if row != index])

    def other_rows(tensors: Tensors) -> Tensors:
        return {"y": tensors["y"].index_select(0, kept.to(tensors["y"].device))}

    because = f"{what} row {index} of x must change no other row of y"
    yield untouched(f"{kind}_row", kind, replace(case, x=changed).problem(), other_rows, because)


def _identities(case: Collective) -> Iterator[Relation]:
    setting, pick = case.setting, seeded_random(case.setup.seed)
    if setting.rows > 1:
        order = torch.tensor(permutation(pick, setting.rows), device=case.setup.device)
        inverse = order.argsort()
        moved = case.x.index_select(case.x.ndim - 2, order)
        yield Relation(
            "rows_permuted",
            "relations",
            (replace(case, x=moved).problem(),),
            right=lambda results: {"y": results[0]["y"][inverse]},
            because="permuting the rows of x permutes the rows of y",
        )
    if setting.adds and setting.world > 1:
        order = torch.tensor(permutation(pick, setting.world), device=case.setup.device)
        yield Relation(
            "ranks_permuted",
            "relations",
            (replace(case, x=case.x.index_select(0, order)).problem(),),
            because="the sum does not depend on which rank has which term",
        )
    if float(case.x.double().abs().max() if case.x.numel() else 0) < poison_scale(setting.dtype):
        yield Relation(
            "doubled",
            "relations",
            (replace(case, x=case.x + case.x).problem(),),
            right=lambda results: {"y": results[0]["y"] / 2},
            because="doubling every term doubles the result",
        )
