"""Project configuration: `[tool.tlmatrix]` of the nearest `pyproject.toml`.

    [tool.tlmatrix]
    backend = "interpreter"
    specs = ["specs"]
    timeout = 300

Its keys are the options that `tlmatrix.options.table` marks with `toml`. Options of the command
line override `TLMATRIX_BACKEND`, which overrides this table.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tlmatrix.options.table import DEFAULTS, RESULTS, SPECS, RunOptions, options_of_runs
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from tlmatrix.options.option import Option

T = TypeVar("T")


class ConfigError(ValueError):
    """`[tool.tlmatrix]` has unknown keys or invalid values."""


@dataclass(frozen=True)
class Config:
    """The configuration of a project.

    Attributes:
        root: the folder of the `pyproject.toml` (the working directory without one), to which the
            paths of the options are relative.
        options: the values of options that the project sets.
    """

    root: Path
    options: RunOptions = DEFAULTS

    def __getitem__(self, option: Option[T]) -> T:
        return self.options[option]

    @property
    def results(self) -> Path:
        """The folder of results files."""
        return self.root / self.options[RESULTS]

    def chosen(self, arguments: argparse.Namespace) -> RunOptions:
        """The options of the project, overridden by those of a command."""
        return self.options.updated(vars(arguments))


def load_config(folder: Path) -> Config:
    """The configuration for work in `folder`.

    Raises:
        ConfigError: unknown keys, invalid values, or invalid TOML; the message has one line for
            each.
    """
    config = Config(folder)
    for parent in (folder, *folder.parents):
        file = parent / "pyproject.toml"
        if file.is_file():
            config = Config(parent, RunOptions(_read(file)))
            break
    return Config(config.root, config.options.updated(_environment()))


def _environment() -> dict[str, str]:
    """The values of options that environment variables set."""
    found = {}
    for option in options_of_runs():
        value = os.environ.get(option.variable) if option.variable else None
        if value is not None and value not in option.kind:
            hint = suggestion(value, option.kind.names, "There are")
            raise ConfigError(f"{option.variable}={value!r}: unknown{hint}")
        if value is not None:
            found[option.name] = value
    return found


def _read(file: Path) -> dict[str, Any]:
    """The values of options in a `pyproject.toml`."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    place = f"{file}: [tool.tlmatrix]"
    table: Any = document.get("tool", {}).get("tlmatrix", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{place}: must be a table")
    known = {option.name: option.kind for option in options_of_runs() if option.toml}
    wrong: list[str] = []
    for key, value in table.items():
        if key not in known:
            wrong.append(f"{place} {key}: no such key{suggestion(key, known, 'There are')}")
        elif value not in known[key]:
            wrong.append(f"{place} {key} = {value!r}: must be {known[key]}")
        elif known[key] == SPECS.kind and isinstance(value, str):
            table[key] = [value]
    if wrong:
        raise ConfigError("\n".join(wrong))
    return table
