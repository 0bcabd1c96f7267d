"""`tlmatrix copy-spec`, and `--builtin` of `run`: specs of this project's own kernels."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.exit_codes import ExitCode, UsageError, writing
from tlmatrix.results_file import shown_path

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from tlmatrix.config import Config


def builtin_paths(names: Iterable[str]) -> list[str]:
    """The paths of built-in specs.

    Raises:
        UsageError: there is no spec of a name.
    """
    from tlmatrix.spec.builtin import builtin_path

    try:
        return [shown_path(builtin_path(name)) for name in names]
    except LookupError as error:
        raise UsageError(f"--builtin: {error.args[0]}; `tlmatrix copy-spec` lists them") from error


def copy_spec(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Copy built-in specs to files of the project; without names, list them.

    Raises:
        UsageError: there is no such spec, or a file exists.
    """
    from tlmatrix.spec.builtin import builtin_path, builtin_specs
    from tlmatrix.spec.loader import load_spec

    if not arguments.names:
        known = builtin_specs()
        width = max(map(len, known), default=0)
        for name, path in known.items():
            print(f"{name:<{width}}  {load_spec(path).summary}".rstrip())
        return ExitCode.OK
    try:
        sources = [builtin_path(name) for name in arguments.names]
    except LookupError as error:
        raise UsageError(f"copy-spec: {error.args[0]}") from error
    target = Path(arguments.output)
    one_file = target.suffix in (".yaml", ".yml")
    if one_file and len(sources) > 1:
        raise UsageError(f"-o {target}: is one file; give a folder for {len(sources)} specs")
    for source in sources:
        path = target if one_file else target / source.name
        if path.exists():
            raise UsageError(f"copy-spec: {path} exists; give another -o, or remove it")
        with writing("-o", path):
            path.write_text(_portable(source.read_text(encoding="utf-8")), encoding="utf-8")
        command = f"tlmatrix run {shlex.quote(shown_path(path))}"
        print(f"{shown_path(path)}: run it with `{command}`")
    return ExitCode.OK


def _portable(text: str) -> str:
    """A spec without a path of the schema, which holds in a checkout of tlmatrix alone."""
    from tlmatrix.spec.schema import EDITOR_COMMENT, MODELINE

    first, _, rest = text.partition("\n")
    return EDITOR_COMMENT + rest if first.startswith(MODELINE) else text
