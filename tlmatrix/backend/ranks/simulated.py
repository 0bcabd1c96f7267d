"""Ranks simulated in this process, under a seeded scheduler."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.ranks.failure import Failure, raise_failures
from tlmatrix.backend.ranks.member import Member
from tlmatrix.interpreter import Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.backend.binding import Binding
    from tlmatrix.backend.ranks.job import Answer, Job
    from tlmatrix.check.sanitizers import Watch

__all__ = ["SimulatedPlace"]


class SimulatedPlace:
    """Every run is a simulation of its own, with new contexts."""

    def run(
        self, binding: Binding, jobs: Sequence[Job], watch: Watch | None = None
    ) -> list[Answer]:
        """See `Place.run`."""
        simulate: Any = getattr(import_module("tlmatrix.interpreter"), "simulate", None)
        if simulate is None:
            raise Unsupported("the interpreter does not simulate several ranks")
        world, first = len(jobs), jobs[0]
        failures: dict[int, Failure] = {}

        def program(rank: int) -> Answer:
            import torch.distributed as dist

            try:
                return Member(binding, rank, world, dist.group.WORLD).run(jobs[rank])
            except Exception as error:
                failures[rank] = Failure.of(error)
                raise

        try:
            simulation = simulate(
                program, world=world, seed=first.turn, stragglers=bool(first.straggle)
            )
        except Exception:
            raise_failures(failures, world)
            raise
        del watch
        return list(simulation.results)

    def end(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""
