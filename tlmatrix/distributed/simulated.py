"""Simulates ranks in this process, under a seeded scheduler.

Every run is a new simulation with its own memory, streams and contexts. Its interleaving depends
on the case and on the number of the run.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from zlib import crc32

from tlmatrix.backend.backends import InterpreterBackend
from tlmatrix.backend.errors import EntryError
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.distributed.failure import Failure, raise_failures
from tlmatrix.distributed.gathering import CHECK
from tlmatrix.distributed.rank_runner import RankRunner
from tlmatrix.tracebacks import user_traceback
from tlmatrix.words import ranks_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tlmatrix.backend.binding import Binding
    from tlmatrix.check.sanitizers import SanitizerSession
    from tlmatrix.distributed.job import Answer, Job

_RANK = re.compile(r"simulated rank (\d+)")


@dataclass(frozen=True)
class _OnRank(InterpreterBackend):
    """The backend of calls on a simulated rank, while the simulation's own is active."""

    @contextmanager
    def active(self, run_index: int = 0) -> Iterator[object]:  # noqa: ARG002
        """Do nothing: the simulation's backend is active already."""
        yield self

    def synchronize(self) -> None:
        """Wait for the rank's streams."""
        import torch

        torch.cuda.synchronize()


class SimulatedExecutor:
    """Runs each job in a new simulation."""

    def run(
        self, binding: Binding, jobs: Sequence[Job], sanitizers: SanitizerSession | None = None
    ) -> list[Answer]:
        """See `RankExecutor.run`."""
        from tlmatrix.interpreter import simulate
        from tlmatrix.interpreter.errors import DeadlockError, SynchronizationError

        world, first = len(jobs), jobs[0]
        failures: dict[int, Failure] = {}
        bound = replace(binding, backend=_OnRank(target=binding.backend.target))  # type: ignore[attr-defined]

        def program(rank: int) -> Answer:
            import torch.distributed as dist

            try:
                return RankRunner(bound, rank, world, dist.group.WORLD).run(jobs[rank])
            except Exception as error:
                failures[rank] = Failure.of(error)
                raise

        watching = nullcontext() if sanitizers is None else sanitizers.enabled_on_ranks(world)
        try:
            with watching, binding.backend.active(first.turn):
                found = simulate(program, world, seed=_seed(first), stragglers=bool(first.straggle))
        except (DeadlockError, SynchronizationError) as error:
            raise _deadlock(error) from error
        except Exception as error:
            raise_failures(failures, world)
            raise _stream_error(error, world) from error
        return list(found.results)

    def end(self) -> None:
        """Do nothing: no state outlives a run."""

    def close(self) -> None:
        """Do nothing: no state outlives a run."""


def _seed(job: Job) -> int:
    """The scheduler's seed: different for each case and each run of it."""
    return crc32(repr(sorted(job.calls[0].values.items())).encode()) ^ (job.turn * 0x9E3779B1)


def _deadlock(error: Exception) -> FindingsError:
    """The error for ranks that deadlock."""
    title, _, detail = str(error).partition("\n")
    hint = "a signal that no rank sends, a flag not reset, or a collective that not all ranks call"
    finding = Finding(CHECK, title, pattern="deadlock", hint=hint, detail=detail or None)
    return FindingsError([finding])


def _stream_error(error: Exception, world: int) -> Exception:
    """The error of a kernel or a copy on a stream, with its rank."""
    notes = " ".join(getattr(error, "__notes__", ()))
    rank = _RANK.search(notes)
    if rank is None:
        return error
    where = ranks_words([int(rank[1])], world) if world > 1 else ""
    return EntryError(error, where=where, trace=user_traceback(error))
