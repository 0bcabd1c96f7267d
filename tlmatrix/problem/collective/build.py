"""Collectives with their references, bounds and relations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.distributions import choose, draw, generator
from tlmatrix.problem.frame import tile_edges
from tlmatrix.problem.model import Cost, Dim, Problem, Relation, TensorInfo
from tlmatrix.problem.poison import huge
from tlmatrix.problem.relate import chooser, permutation, repeated, untouched
from tlmatrix.problem.storage import laid_out
from tlmatrix.spec.dtypes import dtype_named, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.collective.axes import CollectiveSetting
    from tlmatrix.problem.frame import Frame
    from tlmatrix.problem.model import RelationKind, Tensors

__all__ = ["Collective", "collective_case"]


@dataclass(frozen=True)
class Collective:
    """A case with its tensor: x is [rows, cols], or of every rank, [world, rows, cols]."""

    frame: Frame
    setting: CollectiveSetting
    x: torch.Tensor
    distribution: str

    def problem(self) -> Problem:
        """The problem; references are computed when they are first asked for."""
        frame, setting = self.frame, self.setting
        inputs = laid_out(frame.values.get("storage"), {"x": self.x})
        names = {**frame.values, **setting.names(), "device": frame.device, **inputs}
        names |= {"values": self.distribution, "dtype": frame.dtype(setting.dtype)}
        tiles = tile_edges(frame.spec, names)
        row = Dim("row", setting.rows, tile=tiles.get("row"))
        col = Dim("col", setting.cols, tile=tiles.get("col"))
        ranks = Dim("rank", setting.world)
        dtype = dtype_named(setting.dtype)
        info = TensorInfo(
            "y",
            (row, col),
            torch_dtype(setting.dtype),
            # A gather rounds nothing, and a sum in float32 only once, as `lowp` does: beyond the
            # order of the sum there is nothing for a floor to allow.
            0.0,
            magnitude=lambda: self._sum(self.x.double().abs()),
            spread=lambda: torch.zeros_like(self._exact),
            exponent=lambda: self._exact.new_zeros(()),
            arithmetic=None if setting.adds else 0.0,
        )
        moved = self.x.numel() * dtype.bytes
        return Problem(
            values=frame.values,
            names=names,
            inputs=inputs,
            outputs={"y": info},
            returns=("y",),
            dims={"x": (ranks, row, col) if setting.adds else (row, col)},
            reference=lambda: {"y": self._exact},
            lowp=lambda: {"y": self._low},
            relations=self._relations,
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
        """Sums in float32, rounded once."""
        wide = torch.promote_types(self.x.dtype, torch.float32)
        return self._sum(self.x.to(wide)).to(torch_dtype(self.setting.dtype))

    def _relations(self, kind: RelationKind) -> Iterator[Relation]:
        match kind:
            case "isolation":
                yield from self._disturbed(kind, 1.0, "other values in")
            case "poison":
                yield from self._disturbed(kind, huge(self.setting.dtype), "huge values in")
            case "property":
                yield from self._properties()
            case "repeat":
                other = _drawn(self.frame, self.setting, "normal", self.frame.seed + 1)
                yield repeated(
                    other.problem(), self.problem(), "a second call must not remember the first"
                )

    def _disturbed(self, kind: RelationKind, size: float, what: str) -> Iterator[Relation]:
        """One row, of every rank, made anew: the other rows of y must stay."""
        setting = self.setting
        if setting.rows < 2:
            return
        place = chooser(self.frame.seed).randrange(setting.rows)
        changed = self.x.clone()
        line = changed[..., place, :]
        noise = torch.randn(line.shape, generator=generator(self.frame.seed + 1))
        line.copy_(noise * size)
        kept = torch.tensor([row for row in range(setting.rows) if row != place])

        def others(tensors: Tensors) -> Tensors:
            return {"y": tensors["y"].index_select(0, kept.to(tensors["y"].device))}

        because = f"{what} row {place} of x must change no other row of y"
        yield untouched(f"{kind}_row", kind, replace(self, x=changed).problem(), others, because)

    def _properties(self) -> Iterator[Relation]:
        setting, pick = self.setting, chooser(self.frame.seed)
        if setting.rows > 1:
            order = torch.tensor(permutation(pick, setting.rows), device=self.frame.device)
            inverse = order.argsort()
            moved = self.x.index_select(self.x.ndim - 2, order)
            yield Relation(
                "rows_permuted",
                "property",
                (replace(self, x=moved).problem(),),
                right=lambda results: {"y": results[0]["y"][inverse]},
                because="rows in another order come out in that order",
            )
        if setting.adds and setting.world > 1:
            order = torch.tensor(permutation(pick, setting.world), device=self.frame.device)
            yield Relation(
                "ranks_permuted",
                "property",
                (replace(self, x=self.x.index_select(0, order)).problem(),),
                because="the sum is the same whichever rank has which term",
            )
        if float(self.x.double().abs().max() if self.x.numel() else 0) < huge(setting.dtype):
            yield Relation(
                "doubled",
                "property",
                (replace(self, x=self.x + self.x).problem(),),
                right=lambda results: {"y": results[0]["y"] / 2},
                because="twice every term gives twice the result",
            )


def collective_case(frame: Frame, setting: CollectiveSetting) -> Collective:
    """The case with a tensor drawn from its seed."""
    return _drawn(frame, setting, choose(frame.values.get("values"), frame.seed), frame.seed)


def _drawn(frame: Frame, setting: CollectiveSetting, distribution: str, seed: int) -> Collective:
    shape: tuple[int, ...] = (setting.rows, setting.cols)
    if setting.adds:
        shape = (setting.world, *shape)
    x = draw(distribution, generator(seed), shape, torch_dtype(setting.dtype), index=0)
    return Collective(frame, setting, x.to(frame.device), distribution)
