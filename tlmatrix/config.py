"""Project configuration: `[tool.tlmatrix]` of the nearest `pyproject.toml`.

    [tool.tlmatrix]
    backend = "interpreter"
    tier = "quick"
    specs = ["specs"]
    results = ".tlmatrix"
    timeout = 300
    coverage = "summary"
    unsupported = "fail"

Command-line options override `TLMATRIX_BACKEND`, which overrides this table.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.option_values import SEED, TIMEOUT
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from pathlib import Path

BACKENDS = ("auto", "cuda", "interpreter", "processes", "compile")
"""Names of backends."""

COVERAGE = ("off", "summary", "table")
"""How much of the kernel coverage a run reports."""

UNSUPPORTED = ("skip", "fail")
"""Whether cases with kernels that the interpreter does not support are skipped or errors."""


class ConfigError(ValueError):
    """`[tool.tlmatrix]` has unknown keys or invalid values."""


@dataclass(frozen=True)
class Config:
    """The configuration of a project.

    `specs` and `results` are relative to `root`, the folder of the `pyproject.toml` (the working
    directory without one). `timeout` is in seconds per case; 0 means none.
    """

    root: Path
    backend: str = "auto"
    tier: str = "quick"
    seed: int = 0
    specs: tuple[str, ...] = ("specs",)
    results: str = ".tlmatrix"
    timeout: float = 300.0
    coverage: str = "off"
    unsupported: str = "skip"


_TYPES: dict[str, tuple[type, ...]] = {
    "backend": (str,),
    "tier": (str,),
    "seed": (int,),
    "specs": (list, str),
    "results": (str,),
    "timeout": (int, float),
    "coverage": (str,),
    "unsupported": (str,),
}
_EXPECTED = {
    "backend": "one of " + ", ".join(BACKENDS),
    "tier": "the name of a tier",
    "seed": str(SEED),
    "specs": "a list of paths",
    "results": "a folder",
    "timeout": str(TIMEOUT),
    "coverage": "one of " + ", ".join(COVERAGE),
    "unsupported": "one of " + ", ".join(UNSUPPORTED),
}


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
            config = _read(file, Config(parent))
            break
    backend = os.environ.get("TLMATRIX_BACKEND", config.backend)
    if backend not in BACKENDS:
        raise ConfigError(
            f"TLMATRIX_BACKEND={backend!r}: unknown{suggestion(backend, BACKENDS, 'There are')}"
        )
    return replace(config, backend=backend)


def _read(file: Path, defaults: Config) -> Config:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    place = f"{file}: [tool.tlmatrix]"
    table: Any = document.get("tool", {}).get("tlmatrix", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{place}: must be a table")
    known = [item.name for item in fields(Config) if item.name != "root"]
    wrong: list[str] = []
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            wrong.append(f"{place} {key}: no such key{suggestion(key, known, 'There are')}")
        elif (
            not isinstance(value, _TYPES[key])
            or isinstance(value, bool)
            or (key == "backend" and value not in BACKENDS)
            or (key == "coverage" and value not in COVERAGE)
            or (key == "unsupported" and value not in UNSUPPORTED)
            or (key == "seed" and value not in SEED)
            or (key == "timeout" and value not in TIMEOUT)
            or (key == "specs" and not all(_paths(value)))
        ):
            wrong.append(f"{place} {key} = {value!r}: must be {_EXPECTED[key]}")
        elif key == "specs":
            values[key] = _paths(value)
        else:
            values[key] = value
    if wrong:
        raise ConfigError("\n".join(wrong))
    return replace(defaults, **values)


def _paths(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - any TOML value
    """The paths of `specs`; "" in place of items that are not strings."""
    items = [value] if isinstance(value, str) else value
    return tuple(item if isinstance(item, str) else "" for item in items)
