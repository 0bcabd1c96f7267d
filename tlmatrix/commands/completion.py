"""`tlmatrix completion`: prints a script with which a shell completes commands and options."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tlmatrix.commands.arguments import command_line
from tlmatrix.exit_codes import ExitCode

if TYPE_CHECKING:
    from tlmatrix.config import Config

_FILES = ("PATH", "FILE", "RESULTS", "SPEC", "PROGRAM", "BEFORE", "AFTER", "SCRIPT")
"""The first words of metavars that stand for files."""


def completion(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Print the script."""
    import shtab

    parser = command_line()
    _complete_files(parser)
    print(shtab.complete(parser, shell=arguments.shell))
    return ExitCode.OK


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Let arguments whose metavar names a file complete to files."""
    import shtab

    for action in parser._actions:  # noqa: SLF001 - argparse has no public list
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - likewise
            for command in action.choices.values():
                _complete_files(command)
        elif str(action.metavar or "").startswith(_FILES):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
