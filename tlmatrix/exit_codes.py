"""Exit codes of the command line, and the error for wrong arguments."""

from __future__ import annotations

from enum import IntEnum


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
    ExitCode.FINDINGS: "a case failed, crashed or timed out (bench: entry wrong or slower)",
    ExitCode.USAGE: "wrong arguments, or an error in a spec or in the configuration",
    ExitCode.INTERNAL: "internal error of tlmatrix",
    ExitCode.INTERRUPTED: "Ctrl-C; results so far are on disk, `run --resume FILE` continues",
}


class UsageError(ValueError):
    """The arguments of a command are invalid."""
