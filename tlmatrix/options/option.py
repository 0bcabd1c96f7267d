"""An option, and a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tlmatrix.options.values import FLAG, Kind, text

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
    """

    target: str
    help: str
    description: str
    options: tuple[Option[Any], ...]
    caches: bool = False
    usage: str | None = None
