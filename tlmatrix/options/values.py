"""Kinds of values of options: each reads text of the command line, and checks values of TOML.

`str` of a kind says what it accepts, for error messages.
"""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass

MAX_WORKERS = 1024
"""The most worker processes of a run."""
_MAX_WHOLE = 2**63 - 1


@dataclass(frozen=True)
class Whole:
    """A whole number between two limits; reads text, as a `type` of argparse."""

    least: int = 0
    most: int = _MAX_WHOLE

    def __str__(self) -> str:
        if self.most == _MAX_WHOLE:
            return f"a whole number, {self.least} or more"
        return f"a whole number from {self.least} to {self.most:,}"

    def __contains__(self, value: object) -> bool:
        return type(value) is int and self.least <= value <= self.most

    def __call__(self, text: str) -> int:
        """The number.

        Raises:
            argparse.ArgumentTypeError: the text is not such a number.
        """
        # Not all of `int`: 1_000, and digits of other scripts.
        value = int(text) if re.fullmatch("[0-9]{1,19}", text) else -1
        if value not in self:
            raise argparse.ArgumentTypeError(f"{text!r} is not {self}")
        return value


@dataclass(frozen=True)
class Number:
    """A number between two limits, such as seconds; reads text, as a `type` of argparse.

    Attributes:
        words: what it is, for messages: `a number of seconds`.
        least: the least number, included unless `above`.
        most: the largest number.
        note: the end of the message.
    """

    words: str
    least: float
    most: float
    above: bool = False
    note: str = ""

    def __str__(self) -> str:
        low = f"above {self.least:g} and up to" if self.above else f"from {self.least:g} to"
        return f"{self.words} {low} {self.most:,.12g}{self.note}"

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
            return False
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def __call__(self, text: str) -> float:
        """The number.

        Raises:
            argparse.ArgumentTypeError: the text is not such a number.
        """
        try:
            value = math.nan if "_" in text else float(text)
        except ValueError:
            value = math.nan
        if value not in self:
            raise argparse.ArgumentTypeError(f"{text!r} is not {self}")
        return value


@dataclass(frozen=True)
class WorkerProcesses:
    """A number of worker processes as text, or `auto`."""

    least: int = 0

    def __call__(self, text: str) -> str:
        """The number of processes, or `auto`.

        Raises:
            argparse.ArgumentTypeError: the text is neither.
        """
        if text == "auto":
            return text
        allowed = Whole(self.least, MAX_WORKERS)
        try:
            return str(allowed(text))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{error}, or auto") from None

    def __str__(self) -> str:
        return f"{Whole(self.least, MAX_WORKERS)}, or auto"

    def __contains__(self, value: object) -> bool:
        return value == "auto" or value in Whole(self.least, MAX_WORKERS)


@dataclass(frozen=True)
class OneOf:
    """One of some names; argparse gets them as `choices`."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return "one of " + ", ".join(self.names)

    def __contains__(self, value: object) -> bool:
        return value in self.names


@dataclass(frozen=True)
class Text:
    """Any text; `words` say what it means: `the name of a tier`."""

    words: str = "text"

    def __str__(self) -> str:
        return self.words

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str)


@dataclass(frozen=True)
class Paths:
    """A list of paths, or one path, none of them empty."""

    def __str__(self) -> str:
        return "a list of paths"

    def __contains__(self, value: object) -> bool:
        paths = value if isinstance(value, list) else [value]
        return all(isinstance(path, str) and path for path in paths)


@dataclass(frozen=True)
class Flag:
    """Given or not."""

    def __str__(self) -> str:
        return "true or false"

    def __contains__(self, value: object) -> bool:
        return isinstance(value, bool)


Kind = Whole | Number | WorkerProcesses | OneOf | Text | Paths | Flag
