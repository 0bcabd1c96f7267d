"""A mapping that computes values on first access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

Made = TypeVar("Made")


class LazyMapping(Mapping[str, Made]):
    """A mapping with the keys `names`; calls `make(name)` once, on first access."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Made]) -> None:
        self._names = dict.fromkeys(names)
        self._make = make
        self._made: dict[str, Made] = {}

    def __getitem__(self, name: str) -> Made:
        """The value, computed on first access; raises KeyError if the name is unknown."""
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = self._make(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        """Whether the name is a key; computes nothing."""
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """The names, in order."""
        return iter(self._names)

    def __len__(self) -> int:
        """The number of names."""
        return len(self._names)
