"""What the interpreter raises: refusals by name, and faults of the kernel it runs."""

from __future__ import annotations

__all__ = ["ArgumentError", "InterpreterError", "Unsupported"]


class Unsupported(NotImplementedError):  # noqa: N818  # reads as what it says: Unsupported
    """The kernel uses an operation that the interpreter does not model; names it and its line."""


class InterpreterError(RuntimeError):
    """The kernel did something that has no defined result; names the access and its line."""


class ArgumentError(ValueError):
    """A kernel was called with an argument that its signature does not allow."""
