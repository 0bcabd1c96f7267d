"""Collectives with their references, bounds and relations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.distributions import choose, draw, generator
from tlmatrix.problem.frame import tile_edges
from tlmatrix.problem.model import Cost, Dim, Problem, TensorInfo
from tlmatrix.problem.storage import laid_out
from tlmatrix.spec.dtypes import dtype_named, torch_dtype

if TYPE_CHECKING:
    from tlmatrix.problem.collective.axes import CollectiveSetting
    from tlmatrix.problem.frame import Frame

__all__ = ["Collective", "collective_case", "drawn_collective"]


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


def collective_case(frame: Frame, setting: CollectiveSetting) -> Collective:
    """The case with a tensor drawn from its seed."""
    return drawn_collective(
        frame, setting, choose(frame.values.get("values"), frame.seed), frame.seed
    )


def drawn_collective(
    frame: Frame, setting: CollectiveSetting, distribution: str, seed: int
) -> Collective:
    """The case with a tensor drawn from a distribution and a seed."""
    shape: tuple[int, ...] = (setting.rows, setting.cols)
    if setting.adds:
        shape = (setting.world, *shape)
    x = draw(distribution, generator(seed), shape, torch_dtype(setting.dtype), index=0)
    return Collective(frame, setting, x.to(frame.device), distribution)
