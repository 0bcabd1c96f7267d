"""pytest-xdist's group scheduler, made to outlive the workers that cases end.

As it comes, it gives the whole unfinished group of a dead worker, the crashed test included, to
the next worker, which then dies as well; it fails when it hands out work while a second
replacement is still collecting, or to a worker that has ended a moment ago; and it gives a
replacement one group, where a worker runs its last test only when it has another or is told that
there is none: a group of one waits for ever.

It also sorts groups by their size. What failed before must fail first, so regressions go ahead.
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

__all__ = ["CaseScheduling"]


class CaseScheduling(LoadGroupScheduling):  # type: ignore[misc]
    """Groups stay on one worker; a crashed test is not run again.

    `groups` gives the group of each case by node id, once the workers have collected.
    """

    def __init__(
        self, config: pytest.Config, log: Producer, groups: Callable[[], Mapping[str, str]]
    ) -> None:
        super().__init__(config, log)
        self._read_groups = groups
        self._groups: Mapping[str, str] = {}
        self._ordered = False

    def schedule(self) -> None:
        """Hand out work; the first time, this is when groups are known."""
        if self.collection is None:
            self._groups = self._read_groups()
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Hand out the next group, regressions before all others."""
        if not self._ordered:
            self._ordered = True
            first = [scope for scope in self.workqueue if scope.endswith(REGRESSIONS)]
            for scope in reversed(first):
                self.workqueue.move_to_end(scope, last=False)
        scope = next(iter(self.workqueue))
        try:
            super()._assign_work_unit(node)
        except OSError:
            # It has ended, and its end is still to be reported; another worker gets the group.
            self.workqueue[scope] = self.assigned_work[node].pop(scope)
            self.workqueue.move_to_end(scope, last=False)

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid) or super()._split_scope(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Take a worker out; what it was running is returned, the rest of its work handed on."""
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
