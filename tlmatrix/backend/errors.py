"""Errors of binding a spec to code and of running that code on a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.spec.issues import SpecError
from tlmatrix.tracebacks import unwinds

if TYPE_CHECKING:
    from collections.abc import Sequence


class ArchitectureError(RuntimeError):
    """The kernels of a spec do not support the architecture of the backend."""


class BackendUnavailableError(RuntimeError):
    """This machine cannot run the requested backend."""


class DevicesError(RuntimeError):
    """A case needs more GPUs than this machine has."""


class BindingError(SpecError):
    """A spec names code that does not exist or does not match it; located in the spec's file."""


class EntryError(RuntimeError):
    """The code under test raised.

    Attributes:
        error: the exception that it raised, also in `__cause__`.
        where: on several ranks, those that raised (`rank 1 of 4`); otherwise "".
        trace: on several ranks, the traceback in the process of the first of them.
        notes: what the other ranks did.
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


class wrapping_entry_errors:  # noqa: N801 - a context manager; contextlib's changes StopIteration
    """Raises each exception of the code under test inside as an `EntryError`."""

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Wrap the exception, unless it ends the case or the run."""
        if error is not None and not unwinds(error):
            raise EntryError(error) from error
