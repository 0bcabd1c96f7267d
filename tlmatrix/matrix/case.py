"""A case: one value for every axis of a spec, with an id a person can read and select by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from tlmatrix.spec.values import Value, canonical, label

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Case", "Origin", "seed_from"]

Origin = Literal["tier", "extra", "regression", "invalid", "fuzz"]


def seed_from(text: str) -> int:
    """A 63-bit seed that depends on the text alone, the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, eq=False)
class Case:
    """One point of a spec's matrix.

    `values` maps each axis to its value. Two cases are equal when spec and values are; the
    order of the axes does not matter, neither here nor in the id. `run_seed` is the seed of the
    run that a regression was found in, where its data are needed; 0 is the case's own.
    """

    spec: str
    values: Mapping[str, Value]
    origin: Origin = "tier"
    run_seed: int = 0

    def __post_init__(self) -> None:
        ordered = {name: self.values[name] for name in sorted(self.values)}
        object.__setattr__(self, "values", MappingProxyType(ordered))

    @cached_property
    def id(self) -> str:
        """`k=v` joined by `-`, axes in alphabetical order, so that reordering a spec keeps it."""
        return "-".join(f"{name}={label(value)}" for name, value in self.values.items())

    @cached_property
    def key(self) -> str:
        """What identifies the case exactly, where two values could share a label."""
        return f"{self.spec}:{canonical(dict(self.values))}"

    @cached_property
    def seed(self) -> int:
        """A 63-bit seed that depends on the case alone."""
        return seed_from(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Case) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __getitem__(self, axis: str) -> Value:
        return self.values[axis]
