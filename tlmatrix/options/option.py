"""Options, commands, and the kinds of values that options accept, also in TOML."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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


_TEXT = text()
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Option(Generic[T_co]):
    """An option or a positional argument of commands, with a value of the type `T_co`.

    A command whose option differs in a detail has a copy (`dataclasses.replace`).

    Attributes:
        usage: its flags and its value: `-n --workers N`, `--resume [FILE]` if the value is
            optional, `--lf` if it has none; of a positional argument its name and value, with the
            mark of a regular expression: `paths PATH*`. Empty if no command has the option.
        help: what it does, for `--help`.
        kind: the values that it accepts; by default any text, or none.
        default: its value if it is given nowhere.
        const: the value if it is given without one.
        repeatable: whether it may be given several times; its value is a list.
        required: whether a command needs it.
        group: the title of its group in `--help`; empty for the first.
        name: its name in argparse's namespace, in TOML, in `RunOptions`; by default its first long
            flag.
        of_run: whether it holds for a run: it is in `RunOptions`, which workers get. argparse has
            None for it if it is not given.
        toml: whether it holds for a run and is a key of `[tool.tlmatrix]`.
        variable: an environment variable with a text that overrides TOML.
        pytest: its help as `--tlmatrix-NAME` of pytest; empty if there is no such option.
    """

    usage: str
    help: str
    kind: Kind = _TEXT
    default: T_co = None  # type: ignore[assignment]  # of an option that may be None
    const: object = None
    repeatable: bool = False
    required: bool = False
    group: str = ""
    name: str = ""
    of_run: bool = False
    toml: bool = False
    variable: str = ""
    pytest: str = ""

    def __post_init__(self) -> None:
        words = self.usage.split()
        long = [word for word in words if word[0] != "-" or word[1] == "-"]
        derived: dict[str, Any] = {
            "name": self.name or long[0].lstrip("-").replace("-", "_"),
            "of_run": self.of_run or self.toml,
        }
        has_value = self.is_positional or words != self.flags or self.const is not None
        if self.kind is _TEXT and not has_value:
            derived |= {"kind": FLAG, "default": self.default or False}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def is_positional(self) -> bool:
        """Whether it is a positional argument."""
        return not self.usage.startswith("-")

    @property
    def flags(self) -> list[str]:
        """Its flags; the name of a positional argument."""
        words = self.usage.split()
        return words[:1] if self.is_positional else [word for word in words if word[0] == "-"]

    @property
    def value(self) -> str:
        """Its value in `--help`; empty for that of argparse."""
        return self.usage.removeprefix(" ".join(self.flags)).strip()

    def for_argparse(self) -> dict[str, Any]:
        """The arguments of `add_argument` after the flags."""
        words: dict[str, Any] = {"help": self.help}
        positional = self.is_positional
        if not positional:
            default = None if self.of_run else self.default
            words |= {"dest": self.name, "required": self.required, "default": default}
        if self.kind == FLAG:
            return words | {"action": "store_true"}
        if not self.value and self.const is not None:
            return words | {"action": "store_const", "const": self.const}
        words |= self._value_for_argparse() | {"const": self.const}
        if self.value == "...":
            words |= {"metavar": "...", "nargs": "..."}
        elif positional and self.value[-1:] in ("?", "*", "+"):
            words |= {"metavar": self.value[:-1], "nargs": self.value[-1]}
        elif self.value.startswith("["):
            words |= {"metavar": self.value[1:-1], "nargs": "?"}
        elif self.value:
            words["metavar"] = self.value
        return words

    def for_pytest(self) -> dict[str, Any]:
        """The arguments of `addoption` after `--tlmatrix-NAME`."""
        words: dict[str, Any] = {"help": self.pytest, "default": None}
        if self.kind == FLAG:
            return words | {"action": "store_true"}
        words |= self._value_for_argparse()
        return words if "choices" in words else words | {"metavar": self.value.strip("[]")}

    def _value_for_argparse(self) -> dict[str, Any]:
        if self.repeatable:
            return {"action": "append"}
        if self.kind.names:
            return {"choices": self.kind.names}
        return {} if self.kind.read is str else {"type": self.kind}

    @property
    def flag_of_pytest(self) -> str:
        """The option of pytest with the same meaning; empty if there is none."""
        return f"--tlmatrix-{self.name.replace('_', '-')}" if self.pytest else ""


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        target: its function, as `module:function` in `tlmatrix.commands`.
        help: its line in the list of commands.
        description: the beginning of its `--help`.
        options: its options, in the order of `--help`.
        caches: whether it uses the caches on disk.
        usage: its usage, if not that of argparse.
        words: whether what follows `--` is a command of its own, which it gets as `words`.
    """

    target: str
    help: str
    description: str
    options: tuple[Option[Any], ...]
    caches: bool = False
    usage: str | None = None
    words: bool = False
