"""What `tlmatrix` tells the shell."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode", "UsageError"]


class ExitCode(IntEnum):
    """The exit codes of every command."""

    OK = 0
    """Every case that ran is as it should be."""
    FINDINGS = 1
    """A case failed, crashed or ran out of time; of `bench`, an entry is wrong or slower."""
    USAGE = 2
    """Nothing was judged: wrong arguments, or an error in a spec or in the configuration."""
    INTERNAL = 3
    """tlmatrix or pytest itself broke; the output says where."""
    INTERRUPTED = 130
    """Ctrl-C; the results so far are on disk."""

    @classmethod
    def table(cls) -> str:
        """The codes as `--help` shows them."""
        words = {
            cls.OK: "everything that ran is as it should be",
            cls.FINDINGS: "a case failed, crashed or ran out of time (bench: wrong, or slower)",
            cls.USAGE: "wrong arguments, or an error in a spec or in the configuration",
            cls.INTERNAL: "tlmatrix itself broke",
            cls.INTERRUPTED: "Ctrl-C; results so far are on disk, `run --resume FILE` goes on",
        }
        return "\n".join(f"  {code.value:>3}  {text}" for code, text in words.items())


class UsageError(ValueError):
    """The arguments of a command make no sense."""
