"""Ranks simulated in this process, under a seeded scheduler.

Every run is a simulation of its own: memory, streams and contexts are new, and its interleaving is
that of the case and the number of the run.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from zlib import crc32

from tlmatrix.backend.backends import InterpreterBackend
from tlmatrix.backend.errors import EntryError
from tlmatrix.backend.ranks.failure import Failure, raise_failures
from tlmatrix.backend.ranks.member import Member
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.check.gathering import CHECK
from tlmatrix.tracebacks import user_traceback
from tlmatrix.words import ranks_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tlmatrix.backend.binding import Binding
    from tlmatrix.backend.ranks.job import Answer, Job
    from tlmatrix.check.sanitizers import Watch

__all__ = ["SimulatedPlace"]

_RANK = re.compile(r"simulated rank (\d+)")


@dataclass(frozen=True)
class _OnRank(InterpreterBackend):
    """The backend as calls on a simulated rank see it, inside of the one that all are in."""

    @contextmanager
    def active(self, turn: int = 0) -> Iterator[object]:  # noqa: ARG002
        """All ranks are in the backend already."""
        yield self

    def synchronize(self) -> None:
        """Wait for the rank's streams."""
        import torch

        torch.cuda.synchronize()


class SimulatedPlace:
    """Every run is a simulation of its own."""

    def run(
        self, binding: Binding, jobs: Sequence[Job], watch: Watch | None = None
    ) -> list[Answer]:
        """See `Place.run`."""
        from tlmatrix.interpreter import simulate
        from tlmatrix.interpreter.errors import DeadlockError, SynchronizationError

        world, first = len(jobs), jobs[0]
        failures: dict[int, Failure] = {}
        bound = replace(binding, backend=_OnRank(target=binding.backend.target))  # type: ignore[attr-defined]

        def program(rank: int) -> Answer:
            import torch.distributed as dist

            try:
                return Member(bound, rank, world, dist.group.WORLD).run(jobs[rank])
            except Exception as error:
                failures[rank] = Failure.of(error)
                raise

        watching = nullcontext() if watch is None else watch.watching_ranks(world)
        try:
            with watching, binding.backend.active(first.turn):
                found = simulate(program, world, seed=_seed(first), stragglers=bool(first.straggle))
        except (DeadlockError, SynchronizationError) as error:
            raise _stuck(error) from error
        except Exception as error:
            raise_failures(failures, world)
            raise _of_stream(error, world) from error
        return list(found.results)

    def end(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""


def _seed(job: Job) -> int:
    """Of an interleaving: another for every case, and for every run of it."""
    return crc32(repr(sorted(job.calls[0].values.items())).encode()) ^ (job.turn * 0x9E3779B1)


def _stuck(error: Exception) -> FindingsError:
    """The error of ranks that wait for each other for ever."""
    title, _, detail = str(error).partition("\n")
    hint = "a signal that nobody sends, a flag not reset, or a collective that not all ranks call"
    finding = Finding(CHECK, title, pattern="deadlock", hint=hint, detail=detail or None)
    return FindingsError([finding])


def _of_stream(error: Exception, world: int) -> Exception:
    """What a kernel or a copy on some stream raised, with the rank that it is of."""
    notes = " ".join(getattr(error, "__notes__", ()))
    rank = _RANK.search(notes)
    if rank is None:
        return error
    where = ranks_words([int(rank[1])], world) if world > 1 else ""
    return EntryError(error, where=where, trace=user_traceback(error))
