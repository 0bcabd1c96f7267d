"""Numbers of options and of the configuration, with their limits."""

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


SEED = Whole()
"""`--seed`."""
TIMEOUT = Number("a number of seconds", 0, 10_000_000, note="; 0: no limit")
"""`--timeout`."""


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
