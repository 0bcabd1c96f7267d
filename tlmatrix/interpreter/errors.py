"""What the interpreter raises: refusals by name, and faults of the kernel it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

EMPTY_GRID = "grid dimension must be positive"
EMPTY_TENSOR = "a TMA descriptor of an empty tensor"
"""Why a launch is refused."""


class Unsupported(NotImplementedError):  # noqa: N818  # reads as what it says: Unsupported
    """The kernel uses an operation that the interpreter does not model; names it and its line."""


class InterpreterError(RuntimeError):
    """The kernel did something that has no defined result; names the access and its line.

    Attributes:
        reports: the same as reports of sanitizers; empty for what no sanitizer reports.
    """

    reports: Sequence[Any] = ()


class LaunchError(InterpreterError):
    """TileLang's host code would not launch the kernel on any GPU; names it and says why."""

    @classmethod
    def of(cls, kernel: str, why: str, what: str) -> Self:
        """Nothing to do: a launch of a kernel with something empty, `what`.

        `tlmatrix.backend.faults` reads the parts back, also where only the words are left.
        """
        remedy = "where an input is empty, return before the call"
        return cls(f"kernel {kernel} cannot be launched: {why}: {what}; {remedy}")


class SynchronizationError(InterpreterError):
    """The threads of a kernel use a barrier in a way that has no defined result."""


class DeadlockError(SynchronizationError):
    """No agent can ever go on; says which agents wait, for what, and why it cannot come."""


class RaceError(SynchronizationError):
    """Two accesses touch one element, one of them writes, and nothing orders them; names both."""


class ArgumentError(ValueError):
    """A kernel was called with an argument that its signature does not allow."""
