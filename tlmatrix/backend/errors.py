"""What can go wrong between a spec and the code it names, told apart by who has to act."""

from __future__ import annotations

from tlmatrix.spec.issues import SpecError

__all__ = ["ArchitectureError", "BackendUnavailableError", "BindingError", "EntryError"]


class ArchitectureError(RuntimeError):
    """The kernels of a spec are written for other architectures than the backend's."""


class BackendUnavailableError(RuntimeError):
    """The backend asked for cannot run on this machine."""


class BindingError(SpecError):
    """A spec names code that is not there, or that does not fit; located in the spec's file."""


class EntryError(RuntimeError):
    """The code under test raised; `error` is what it raised, `__cause__` as well."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(f"{type(error).__name__}: {error}")
