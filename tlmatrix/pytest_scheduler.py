"""pytest-xdist's group scheduler, with one change: a case that ended its worker is done.

The scheduler for groups gives the whole unfinished group, the crashed test included, to the next
worker, which then crashes as well, and so on until no worker may be started any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadGroupScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

__all__ = ["CaseScheduling"]


class CaseScheduling(LoadGroupScheduling):
    """Groups stay on one worker; a crashed test is not run again."""

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
