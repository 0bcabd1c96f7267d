"""A mapping whose values are made when they are asked for: most relations ask for few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

__all__ = ["Deferred"]

Made = TypeVar("Made")


class Deferred(Mapping[str, Made]):
    """Has the keys `names`; `make(name)` gives a value, once."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Made]) -> None:
        self._names = dict.fromkeys(names)
        self._make = make
        self._made: dict[str, Made] = {}

    def __getitem__(self, name: str) -> Made:
        """The value, made now if it is the first time; KeyError for another name."""
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = self._make(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        """Whether it is one of the names; nothing is made."""
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """The names, in order."""
        return iter(self._names)

    def __len__(self) -> int:
        """How many names there are."""
        return len(self._names)
