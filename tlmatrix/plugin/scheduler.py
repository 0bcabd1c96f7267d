"""pytest-xdist's group scheduler, extended for cases that end their worker.

The original has these faults if a worker ends:

- It gives the unfinished group with the crashed test to the next worker, which then ends as well.
- It fails if it assigns work while a second replacement collects, or to a worker that just ended.
- It gives a replacement one group. A worker runs its last test only when it gets another one or
  the shutdown signal, so a group of one test waits forever.

It also sorts groups by size; here regressions come first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadGroupScheduling

from tlmatrix.run.plan import REGRESSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController


class CaseScheduling(LoadGroupScheduling):  # type: ignore[misc]
    """Keeps a group on one worker, and does not run a crashed test again.

    `groups` returns the group of each case by node id, after the workers have collected.
    """

    def __init__(
        self, config: pytest.Config, log: Producer, groups: Callable[[], Mapping[str, str]]
    ) -> None:
        super().__init__(config, log)
        self._read_groups = groups
        self._groups: Mapping[str, str] = {}
        self._ordered = False

    def schedule(self) -> None:
        """Assign work; the first call reads the groups."""
        if self.collection is None:
            self._groups = self._read_groups()
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Assign the next group, regressions before all others."""
        if not self._ordered:
            self._ordered = True
            first = [scope for scope in self.workqueue if scope.endswith(REGRESSIONS)]
            for scope in reversed(first):
                self.workqueue.move_to_end(scope, last=False)
        scope = next(iter(self.workqueue))
        try:
            super()._assign_work_unit(node)
        except OSError:
            # The worker has ended, which is not reported yet; another worker gets the group.
            self.workqueue[scope] = self.assigned_work[node].pop(scope)
            self.workqueue.move_to_end(scope, last=False)

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid) or super()._split_scope(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a worker, reassign its work, and return the test that it was running."""
        work = self.assigned_work[node]
        crashed = None
        for unit in work.values():
            for nodeid, done in unit.items():
                if not done and crashed is None:
                    crashed = nodeid
                    unit[nodeid] = True
        for scope in [scope for scope, unit in work.items() if all(unit.values())]:
            del work[scope]
        super().remove_node(node)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return
        super()._reschedule(node)
        if not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
