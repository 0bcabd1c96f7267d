"""Exceptions of ranks, in a form that crosses processes, and their report as one error."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, replace

from tlmatrix.backend.errors import EntryError
from tlmatrix.check.finding import FindingsError
from tlmatrix.spec.issues import SpecError
from tlmatrix.tracebacks import user_traceback
from tlmatrix.words import ranks_words


@dataclass(frozen=True)
class Failure:
    """An exception of a rank, with its type, message and traceback there as text.

    `entry` is whether the code under test raised it; `when` is a time of the machine's monotonic
    clock.
    """

    error: BaseException
    kind: str
    message: str
    trace: str
    entry: bool
    when: float

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception that was just caught."""
        raised = error.error if isinstance(error, EntryError) else error
        return cls(
            raised,
            type(raised).__name__,
            str(raised),
            user_traceback(raised),
            isinstance(error, EntryError),
            time.monotonic(),
        )

    def picklable(self) -> Failure:
        """Return this failure with an exception that pickling preserves.

        An exception that cannot be pickled, or that changes by it (such as a class that computes
        its message from its arguments), is replaced by a `RuntimeError` with its type and message.
        """
        try:
            copy = pickle.loads(pickle.dumps(self.error))  # noqa: S301 - what we just wrote
            same = type(copy) is type(self.error) and str(copy) == self.message
        except Exception:  # noqa: BLE001 - anything may be in an exception
            same = False
        return self if same else replace(self, error=RuntimeError(f"{self.kind}: {self.message}"))

    @property
    def signature(self) -> tuple[str, str]:
        """Equal for the same failure on several ranks."""
        return (self.kind, self.message)


def raise_failures(failures: dict[int, Failure], world: int, others: str = "") -> None:
    """Raise the failures of ranks as one error; return if there are none.

    The error is that of the first rank to fail and of ranks with the same failure; later ones may
    be consequences. `others` describes the ranks that did not fail.

    Raises:
        EntryError: the code under test raised; `where` names the ranks.
        SpecError: the spec does not match the code that it names.
    """
    if not failures:
        return
    for failure in failures.values():
        if isinstance(failure.error, SpecError | FindingsError):
            raise failure.error
    first = min(failures.values(), key=lambda failure: failure.when)
    ranks = [rank for rank, failure in failures.items() if failure.signature == first.signature]
    if not first.entry:
        raise first.error
    notes = [
        f"rank {rank} then raised {failure.kind}: {failure.message.splitlines()[0]}"
        if failure.message
        else f"rank {rank} then raised {failure.kind}"
        for rank, failure in sorted(failures.items())
        if rank not in ranks
    ]
    notes += [others] if others and len(failures) < world else []
    where = ranks_words(ranks, world) if world > 1 else ""
    if len(ranks) == world:
        where = ""
    raise EntryError(first.error, where=where, trace=first.trace, notes=notes)
