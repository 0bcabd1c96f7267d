"""Builds the problem of a collective: tensors, references and error bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from tlmatrix.dtypes import dtype_named, torch_dtype
from tlmatrix.problem.case_setup import tile_sizes
from tlmatrix.problem.distributions import SPECIAL, choose_distribution, draw, generator
from tlmatrix.problem.model import Cost, Dim, Problem, TensorInfo
from tlmatrix.problem.storage import with_storage

if TYPE_CHECKING:
    from tlmatrix.problem.case_setup import CaseSetup
    from tlmatrix.problem.collective.axes import CollectiveSetting


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
