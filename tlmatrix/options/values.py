"""The kinds of values that options accept, on the command line and in TOML."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_WORKERS = 1024
_MAX_WHOLE = 2**63 - 1


@dataclass(frozen=True)
class Kind:
    """The values that an option accepts; `value in kind` tells whether it accepts one.

    Attributes:
        words: what they are, for messages: `a number of seconds from 0 to 10`.
        holds: whether it accepts a value.
        read: the value of a text of the command line; raises ValueError for one without.
        names: the values, if there are few.
    """

    words: str
    holds: Callable[[object], bool]
    read: Callable[[str], object] = str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.words

    def __contains__(self, value: object) -> bool:
        return self.holds(value)

    def __call__(self, text: str) -> object:
        """The value of a text, as a `type` of argparse.

        Raises:
            argparse.ArgumentTypeError: the kind does not accept it.
        """
        try:
            value = self.read(text)
        except ValueError:
            value = None
        if value not in self:
            raise argparse.ArgumentTypeError(f"{text!r} is not {self}")
        return value


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
"""An option without a value."""


def text(words: str = "text") -> Kind:
    """Any text; `words` say what it means: `the name of a tier`."""
    return Kind(words, lambda value: isinstance(value, str))


def one_of(*names: str) -> Kind:
    """One of some names."""
    return Kind(f"one of {', '.join(names)}", lambda value: value in names, names=names)


def paths() -> Kind:
    """A list of paths, or one path, none of them empty."""

    def holds(value: object) -> bool:
        given = value if isinstance(value, list) else [value]
        return all(isinstance(path, str) and path for path in given)

    return Kind("a list of paths", holds)


def whole(least: int = 0, most: int = _MAX_WHOLE) -> Kind:
    """A whole number between two limits."""
    words = f", {least} or more" if most == _MAX_WHOLE else f" from {least} to {most:,}"

    def read(text: str) -> int:
        # Not all of `int`: 1_000, and digits of other scripts.
        return int(text) if re.fullmatch("[0-9]{1,19}", text) else -1

    return Kind(
        f"a whole number{words}", lambda value: type(value) is int and least <= value <= most, read
    )


def number(words: str, least: float, most: float, *, above: bool = False, note: str = "") -> Kind:
    """A number between two limits, the least one included unless `above`.

    `words` say what it is, as `a number of seconds`; `note` ends messages.
    """
    low = f"above {least:g} and up to" if above else f"from {least:g} to"

    def holds(value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
            return False
        return least <= value <= most and not (above and value == least)

    def read(text: str) -> float:
        return math.nan if "_" in text else float(text)

    return Kind(f"{words} {low} {most:,.12g}{note}", holds, read)


def worker_processes(least: int = 0) -> Kind:
    """A number of worker processes as text, or `auto`."""
    count = whole(least, _MAX_WORKERS)

    def holds(value: object) -> bool:
        return value == "auto" or (isinstance(value, str) and count.read(value) in count)

    def read(text: str) -> str:
        return text if text == "auto" else str(count.read(text))

    return Kind(f"{count}, or auto", holds, read)
