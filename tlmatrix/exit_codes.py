"""Exit codes of the command line, and errors of arguments and of outputs."""

from __future__ import annotations

from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class ExitCode(IntEnum):
    """The exit codes of every command."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    INTERNAL = 3
    INTERRUPTED = 130

    @classmethod
    def table(cls) -> str:
        """The codes as `--help` shows them."""
        return "\n".join(f"  {code.value:>3}  {_WORDS[code]}" for code in cls)


_WORDS = {
    ExitCode.OK: "every case that ran passed, or failed as expected",
    ExitCode.FINDINGS: "a case failed, or has no result (bench: entry wrong or slower)",
    ExitCode.USAGE: "wrong arguments, or an error in a file, a spec or the configuration",
    ExitCode.INTERNAL: "internal error of tlmatrix, or an output cannot be written",
    ExitCode.INTERRUPTED: "Ctrl-C; results so far are on disk, `run --resume FILE` continues",
}


class UsageError(ValueError):
    """The arguments of a command are invalid."""


class OutputError(Exception):
    """An output of a command, which did its work, cannot be written."""


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Create the folder of the output file of an option; errors until the end are of that file.

    Raises:
        OutputError: the folder cannot be created or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{option} {path}: cannot be written: {reason}") from error
