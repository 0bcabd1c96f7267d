"""Exit codes of the command line, and the error for wrong arguments."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode", "UsageError"]


class ExitCode(IntEnum):
    """The exit codes of every command."""

    OK = 0
    """Every case that ran passed or failed as expected."""
    FINDINGS = 1
    """A case failed, crashed or timed out; with `bench`, an entry is wrong or slower."""
    USAGE = 2
    """Nothing ran: wrong arguments, or an error in a spec or in the configuration."""
    INTERNAL = 3
    """An internal error of tlmatrix or pytest; the output shows where."""
    INTERRUPTED = 130
    """Ctrl-C; the results so far are on disk."""

    @classmethod
    def table(cls) -> str:
        """The codes as `--help` shows them."""
        words = {
            cls.OK: "every case that ran passed, or failed as expected",
            cls.FINDINGS: "a case failed, crashed or timed out (bench: entry wrong or slower)",
            cls.USAGE: "wrong arguments, or an error in a spec or in the configuration",
            cls.INTERNAL: "internal error of tlmatrix",
            cls.INTERRUPTED: "Ctrl-C; results so far are on disk, `run --resume FILE` continues",
        }
        return "\n".join(f"  {code.value:>3}  {text}" for code, text in words.items())


class UsageError(ValueError):
    """The arguments of a command are invalid."""
