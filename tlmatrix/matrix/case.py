"""A case: one value for every axis of a spec, with a readable id."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from tlmatrix.spec.values import Value, canonical, label

if TYPE_CHECKING:
    from collections.abc import Mapping

Origin = Literal["tier", "extra", "regression", "invalid", "fuzz"]


def seed_from(text: str) -> int:
    """A 63-bit seed that depends on the text alone and is the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, eq=False)
class Case:
    """One point of a spec's matrix.

    Two cases are equal if their specs and values are; the order of axes does not matter.

    Attributes:
        spec: the name of the spec.
        values: the value of each axis.
        origin: how the case came about.
        run_seed: the seed of the run that found a regression, if its data are needed; 0: the
            case's own seed.
    """

    spec: str
    values: Mapping[str, Value]
    origin: Origin = "tier"
    run_seed: int = 0

    def __post_init__(self) -> None:
        ordered = {name: self.values[name] for name in sorted(self.values)}
        object.__setattr__(self, "values", MappingProxyType(ordered))

    def __reduce__(self) -> tuple[type[Case], tuple[object, ...]]:
        """Cases are sent to other processes, which views of dictionaries cannot be."""
        return type(self), (self.spec, dict(self.values), self.origin, self.run_seed)

    @cached_property
    def id(self) -> str:
        """`axis=value` joined by `-`, axes in alphabetical order."""
        return "-".join(f"{name}={label(value)}" for name, value in self.values.items())

    @cached_property
    def key(self) -> str:
        """An exact identity: two values may share a label in `id`."""
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
