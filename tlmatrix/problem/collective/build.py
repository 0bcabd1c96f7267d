"""The problem of a collective: tensors, references, error bounds and relations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.dtypes import dtype_named, torch_dtype
from tlmatrix.problem.distributions import (
    SPECIAL,
    choose_distribution,
    draw,
    generator,
    permutation,
    poison_scale,
    seeded_random,
)
from tlmatrix.problem.family import tile_sizes
from tlmatrix.problem.model import Cost, Dim, Problem, Relation, TensorInfo
from tlmatrix.problem.relations import repeated, untouched
from tlmatrix.problem.relations.batch import inverse, select, singles, without
from tlmatrix.problem.storage import with_storage

if TYPE_CHECKING:
    from tlmatrix.problem.collective.axes import CollectiveSetting
    from tlmatrix.problem.family import CaseSetup
    from tlmatrix.problem.model import RelationKind, Tensors


@dataclass(frozen=True)
class Collective:
    """A case with its tensor: x is [rows, cols], or [world, rows, cols] with a term per rank."""

    setup: CaseSetup
    setting: CollectiveSetting
    x: torch.Tensor
    distribution: str

    def problem(self) -> Problem:
        """The problem, without relations; references are computed on first use."""
        setup, setting = self.setup, self.setting
        inputs = with_storage(setup.values.get("storage"), {"x": self.x})
        names = {**setup.values, **setting.names(), "device": setup.device, **inputs}
        names |= {"values": self.distribution, "dtype": setup.dtype(setting.dtype)}
        tiles = tile_sizes(setup.spec, names)
        row = Dim("row", setting.rows, tile=tiles.get("row"))
        col = Dim("col", setting.cols, tile=tiles.get("col"))
        ranks = Dim("rank", setting.world)
        dtype = dtype_named(setting.dtype)
        info = TensorInfo(
            "y",
            (row, col),
            torch_dtype(setting.dtype),
            # A gather does not round; a float32 sum rounds once, as `lowp` does. Only the order of
            # the sum may differ.
            0.0,
            magnitude=lambda: self._sum(self.x.double().abs()),
            spread=lambda: torch.zeros_like(self._exact),
            exponent=lambda: self._exact.new_zeros(()),
            arithmetic=None if setting.adds else 0.0,
        )
        moved = self.x.numel() * dtype.bytes
        return Problem(
            values=setup.values,
            names=names,
            inputs=inputs,
            outputs={"y": info},
            returns=("y",),
            distribution=self.distribution,
            dims={"x": (ranks, row, col) if setting.adds else (row, col)},
            reference=lambda: {"y": self._exact},
            lowp=lambda: {"y": self._low},
            cost=lambda: Cost(self.x.numel() if setting.adds else 0, moved),
            with_inputs=lambda changed: replace(self, x=changed.get("x", self.x)).problem(),
            shards=setting.shards(),
        )

    def _sum(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0) if self.setting.adds else x

    @cached_property
    def _exact(self) -> torch.Tensor:
        return self._sum(self.x.double())

    @cached_property
    def _low(self) -> torch.Tensor:
        """The sum in float32, rounded once."""
        wide = torch.promote_types(self.x.dtype, torch.float32)
        return self._sum(self.x.to(wide)).to(torch_dtype(self.setting.dtype))


def collective_case(setup: CaseSetup, setting: CollectiveSetting) -> Collective:
    """The case with a tensor generated from its seed."""
    distribution = choose_distribution(setup.values.get("values"), setup.seed, SPECIAL)
    return generate_collective(setup, setting, distribution, setup.seed)


def generate_collective(
    setup: CaseSetup, setting: CollectiveSetting, distribution: str, seed: int
) -> Collective:
    """The case with a tensor generated from a distribution and a seed."""
    shape: tuple[int, ...] = (setting.rows, setting.cols)
    if setting.adds:
        shape = (setting.world, *shape)
    x = draw(distribution, generator(seed), shape, torch_dtype(setting.dtype), index=0)
    if distribution == "extreme" and setting.adds:
        x /= 2.0 ** math.ceil(math.log2(setting.world))  # so that their sum is finite
    return Collective(setup, setting, x.to(setup.device), distribution)


# Relations ----------------------------------------------------------------------------------------


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

    def other_rows(results: Tensors) -> Tensors:
        return {"y": without(results["y"], 0, index)}

    because = f"{what} row {index} of x must change no other row of y"
    yield untouched(f"{kind}_row", kind, replace(case, x=changed).problem(), other_rows, because)


def _identities(case: Collective) -> Iterator[Relation]:
    setting, pick = case.setting, seeded_random(case.setup.seed)
    if setting.rows > 1:
        order = permutation(pick, setting.rows)
        moved = select(case.x, singles(case.x, case.x.ndim - 2), order)
        yield Relation(
            "rows_permuted",
            "relations",
            (replace(case, x=moved).problem(),),
            right=lambda results: {
                "y": select(results[0]["y"], singles(results[0]["y"], 0), inverse(order))
            },
            because="permuting the rows of x permutes the rows of y",
        )
    if setting.adds and setting.world > 1:
        moved = select(case.x, singles(case.x, 0), permutation(pick, setting.world))
        yield Relation(
            "ranks_permuted",
            "relations",
            (replace(case, x=moved).problem(),),
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
