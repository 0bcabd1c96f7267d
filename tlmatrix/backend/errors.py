"""What can go wrong between a spec and the code it names, told apart by who has to act."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.spec.issues import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ArchitectureError",
    "BackendUnavailableError",
    "BindingError",
    "DevicesError",
    "EntryError",
]


class ArchitectureError(RuntimeError):
    """The kernels of a spec are written for other architectures than the backend's."""


class BackendUnavailableError(RuntimeError):
    """The backend asked for cannot run on this machine."""


class DevicesError(RuntimeError):
    """A case asks for more GPUs than there are."""


class BindingError(SpecError):
    """A spec names code that is not there, or that does not fit; located in the spec's file."""


class EntryError(RuntimeError):
    """The code under test raised; `error` is what it raised, `__cause__` as well.

    Where it ran on several ranks, `where` names those that raised (`rank 1 of 4`), `trace` is the
    traceback that it had there, and `notes` say what became of the others.
    """

    def __init__(
        self, error: BaseException, *, where: str = "", trace: str = "", notes: Sequence[str] = ()
    ) -> None:
        self.error = error
        self.where = where
        self.trace = trace
        self.notes = tuple(notes)
        prefix = f"{where}: " if where else ""
        super().__init__(f"{prefix}{type(error).__name__}: {error}")
