"""What went wrong on one rank, as it crosses processes."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, replace

from tlmatrix.backend.errors import EntryError
from tlmatrix.check.finding import FindingsError
from tlmatrix.spec.issues import SpecError
from tlmatrix.tracebacks import user_traceback
from tlmatrix.words import ranks_words

__all__ = ["Failure", "raise_failures"]


@dataclass(frozen=True)
class Failure:
    """An exception of a rank: itself, and what it looked like there.

    `entry` says that the code under test raised it; `when` is the clock of the machine.
    """

    error: BaseException
    kind: str
    message: str
    trace: str
    entry: bool
    when: float

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception is, now."""
        raised = error.error if isinstance(error, EntryError) else error
        return cls(
            raised,
            type(raised).__name__,
            str(raised),
            user_traceback(raised),
            isinstance(error, EntryError),
            time.monotonic(),
        )

    def travelling(self) -> Failure:
        """The same with an exception that arrives as it left, when it is pickled.

        One that cannot be pickled, or that becomes another by it (its class makes the message of
        what it is given, say), is replaced by a `RuntimeError` that tells its type and message.
        """
        try:
            there = pickle.loads(pickle.dumps(self.error))  # noqa: S301 - what we just wrote
            same = type(there) is type(self.error) and str(there) == self.message
        except Exception:  # noqa: BLE001 - anything may be in an exception
            same = False
        return self if same else replace(self, error=RuntimeError(f"{self.kind}: {self.message}"))

    @property
    def alike(self) -> tuple[str, str]:
        """What the same failure of another rank has in common with it."""
        return (self.kind, self.message)


def raise_failures(failures: dict[int, Failure], world: int, idle: str = "") -> None:
    """Raise what ranks failed of, as one error; nothing where none did.

    The first to fail counts, and who failed alike: others may have failed of its absence. `idle`
    says what became of ranks that did not fail.

    Raises:
        EntryError: the code under test raised; `where` names the ranks.
        SpecError: the spec does not fit what it names.
    """
    if not failures:
        return
    for failure in failures.values():
        if isinstance(failure.error, SpecError | FindingsError):
            raise failure.error
    first = min(failures.values(), key=lambda failure: failure.when)
    ranks = [rank for rank, failure in failures.items() if failure.alike == first.alike]
    if not first.entry:
        raise first.error
    notes = [
        f"rank {rank} then raised {failure.kind}: {failure.message.splitlines()[0]}"
        if failure.message
        else f"rank {rank} then raised {failure.kind}"
        for rank, failure in sorted(failures.items())
        if rank not in ranks
    ]
    notes += [idle] if idle and len(failures) < world else []
    where = ranks_words(ranks, world) if world > 1 else ""
    if len(ranks) == world:
        where = ""  # as it would be on one
    raise EntryError(first.error, where=where, trace=first.trace, notes=notes)
