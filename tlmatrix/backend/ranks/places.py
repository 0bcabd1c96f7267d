"""Where several ranks run: simulated in this process, or a process each.

A place keeps what the cases of a process share, the crews most of all; `Ranks` runs the entry of
one case there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tlmatrix.backend.backends import CudaBackend, ProcessesBackend
from tlmatrix.backend.errors import DevicesError
from tlmatrix.backend.gpus import all_visible_gpus
from tlmatrix.backend.ranks.crew import Crew
from tlmatrix.backend.ranks.job import moved
from tlmatrix.backend.ranks.lock import machine_slot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tlmatrix.backend.backends import Backend
    from tlmatrix.backend.binding import Binding
    from tlmatrix.backend.ranks.job import Answer, Job
    from tlmatrix.check.sanitizers import Watch

__all__ = ["CrewPlace", "Place", "place_for"]


_COMPILING = 2
"""How many times as long the first run of a case may take on GPUs: kernels are compiled in it."""
_MOST_CREWS = 2
"""Worlds that have processes at a time: starting some costs seconds."""
_AT_A_TIME = 8
"""Cases of several GPUs that workers have under way at a time: most of it, they compile.

More would wait for one another: GPUs turn from process to process every few milliseconds, and a
rank that waits for a peer needs the turns of both."""


class Place(Protocol):
    """Where the ranks of cases run."""

    def run(
        self, binding: Binding, jobs: Sequence[Job], watch: Watch | None = None
    ) -> list[Answer]:
        """What each rank answers to its job; `watch` hears of what sanitizers find.

        Raises:
            EntryError: the code under test raised.
            DevicesError: there are fewer GPUs than ranks.
            FindingsError: ranks hang, or were lost.
        """

    def end(self) -> None:
        """The case ended: what it kept for its calls goes."""

    def close(self) -> None:
        """No case comes any more."""


@dataclass
class CrewPlace:
    """A process a rank, for each world that is asked for."""

    kind: str
    roots: tuple[Path, ...]
    seconds: float
    _crews: dict[int, Crew] = field(default_factory=dict)
    _began: tuple[Binding, Crew] | None = None
    _lock: AbstractContextManager[None] | None = None

    def run(
        self,
        binding: Binding,
        jobs: Sequence[Job],
        watch: Watch | None = None,  # noqa: ARG002 - nothing watches compiled kernels
    ) -> list[Answer]:
        """See `Place.run`."""
        world, seconds = len(jobs), self.seconds
        crew = self._crew(world)
        if self._began is None or self._began[0] is not binding or self._began[1] is not crew:
            self.end()
            self._enter()
            crew.begin(binding.spec, self.roots)
            self._began = (binding, crew)
            if self.kind == "cuda":
                seconds *= _COMPILING
        # Tensors of our GPU would come out of the wire on the same GPU in every process.
        host = torch.device("cpu")
        try:
            return crew.run([moved(job, host) for job in jobs], seconds)
        finally:
            if not crew.running:
                self._began = None

    def work(self, function: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What a function gives on each rank, see `Crew.work`; `arguments` are by rank.

        Raises:
            DevicesError: there are fewer GPUs than ranks.
        """
        crew = self._crew(len(arguments))
        self.end()
        self._enter()
        return crew.work(function, arguments, self.seconds)

    def _crew(self, world: int) -> Crew:
        if world not in self._crews:
            gpus: tuple[str, ...] = ()
            if self.kind == "cuda":
                gpus = all_visible_gpus()
                if world > len(gpus):
                    there = f"there {'is' if len(gpus) == 1 else 'are'} {len(gpus)}"
                    raise DevicesError(
                        f"it asks for {world} GPUs, and {there}; `--backend interpreter` runs it "
                        "on simulated ranks"
                    )
            if len(self._crews) == _MOST_CREWS:
                # Processes hold memory, of the GPU as well.
                self._crews.pop(next(iter(self._crews))).close()
            self._crews[world] = Crew(world, self.kind, gpus[:world])
        crew = self._crews[world] = self._crews.pop(world)  # The last used comes last.
        return crew

    def _enter(self) -> None:
        """Have a place on the GPUs, which crews of other processes share."""
        if self.kind == "cuda" and self._lock is None:
            self._lock = machine_slot("gpus", _AT_A_TIME)
            self._lock.__enter__()

    def end(self) -> None:
        """See `Place.end`."""
        if self._began is not None:
            self._began[1].end()
            self._began = None
        if self._lock is not None:
            self._lock.__exit__(None, None, None)
            self._lock = None

    def close(self) -> None:
        """See `Place.close`."""
        self.end()
        for crew in self._crews.values():
            crew.close()
        self._crews = {}


def place_for(backend: Backend, roots: tuple[Path, ...], seconds: float) -> Place:
    """Where the ranks of a backend's cases run; `seconds` are what a job may take there."""
    if isinstance(backend, CudaBackend):
        return CrewPlace("cuda", roots, seconds)
    if isinstance(backend, ProcessesBackend):
        return CrewPlace("gloo", roots, seconds)
    from tlmatrix.backend.ranks.simulated import SimulatedPlace

    return SimulatedPlace()
