"""What tasks of a Ray cluster wait for: nodes that do not exist, or processors that are in use.

Ray queues a task until a node has the processors and GPUs that it needs, and says nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.report.text import count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NOTE_AFTER = 10.0
"""Seconds without a task that runs, after which a note says what the tasks wait for."""
GIVE_UP_AFTER = 120.0
"""Seconds after which a task that no node could ever run is given up; a cluster may grow."""


@dataclass(frozen=True)
class Resources:
    """Processors and GPUs: those that a task needs on one node, or those of a node."""

    cpus: float = 1
    gpus: float = 0

    def fit(self, node: Resources) -> bool:
        """Whether a node has these resources, in use or not."""
        return self.cpus <= node.cpus and self.gpus <= node.gpus

    def __str__(self) -> str:
        parts = [f"{self.cpus:g} CPU{'s' * (self.cpus != 1)}"]
        if self.gpus:
            parts.append(f"{self.gpus:g} GPU{'s' * (self.gpus != 1)}")
        return " and ".join(parts)


@dataclass(frozen=True)
class ClusterState:
    """The resources of each node that is alive, and those of the cluster that are free."""

    nodes: Sequence[Resources]
    free: Resources

    @classmethod
    def now(cls) -> ClusterState:
        """The state of the connected cluster."""
        import ray

        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return cls([_of(each) for each in alive], _of(ray.available_resources()))


def _of(resources: Mapping[str, Any]) -> Resources:
    return Resources(resources.get("CPU", 0), resources.get("GPU", 0))


class Waiting:
    """Watches tasks that have not begun.

    Args:
        note: prints a note.
        state: the state of the cluster.
        clock: seconds.
    """

    def __init__(
        self,
        note: Callable[[str], None],
        *,
        state: Callable[[], ClusterState] = ClusterState.now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._note = note
        self._state = state
        self._clock = clock
        self._since = clock()
        self._noted = False
        self._impossible: dict[Resources, float] = {}
        self._looked = self._since

    def busy(self) -> None:
        """Call this when a task runs."""
        self._since = self._clock()
        self._noted = False

    def in_vain(self, needs: set[Resources]) -> dict[Resources, str]:
        """Those of the `needs` of waiting tasks that no node has had for a while, each with why.

        Prints a note if no task has run for a while. The cluster is asked at most once a second.
        """
        now = self._clock()
        if not needs or now - self._looked < 1:
            return {}
        self._looked = now
        state = self._state()
        lacking = {each for each in needs if not any(each.fit(node) for node in state.nodes)}
        self._impossible = {each: self._impossible.get(each, now) for each in lacking}
        if not self._noted and now - self._since >= NOTE_AFTER:
            self._noted = True
            self._note(self._words(needs, lacking, state))
        return {
            each: f"no node of the Ray cluster has {each}; {_nodes_words(state)}"
            for each, since in self._impossible.items()
            if now - since >= GIVE_UP_AFTER
        }

    def _words(self, needs: set[Resources], lacking: set[Resources], state: ClusterState) -> str:
        listed = ", ".join(sorted(map(str, lacking or needs)))
        if lacking:
            return (
                f"waiting for a node with {listed}; {_nodes_words(state)}. Without one the cases "
                f"fail {GIVE_UP_AFTER:g} s after the start; Ctrl-C stops"
            )
        total = Resources(
            sum(node.cpus for node in state.nodes), sum(node.gpus for node in state.nodes)
        )
        nodes = count(len(state.nodes), "node")
        return (
            f"no task has begun; each needs {listed} of a node, and {state.free} of {total} of "
            f"{nodes} are free. Workers start, or other work runs (`ray status` lists it); Ctrl-C "
            "stops"
        )


def _nodes_words(state: ClusterState) -> str:
    if not state.nodes:
        return "it has no node"
    return f"its nodes have {', '.join(sorted({str(node) for node in state.nodes}))}"
