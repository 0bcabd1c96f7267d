"""The file in which workers give the controller the groups of cases, and the plan of a shard.

pytest-xdist would take groups from node ids, which users read; with recent versions of pytest it
does not take them at all.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class ShardPlan:
    """A plan that is sharded.

    Attributes:
        name: the name of the plan.
        cases: the cases of this shard: ids by path of the spec.
        total: the number of cases of all shards.
        groups: the number of groups of cases that share kernels.
    """

    name: str = ""
    cases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    total: int = 0
    groups: int = 0


class GroupsFile:
    """A file with the group of each case by node id, in which all workers agree.

    A controller that groups cases calls `create`, and passes `path` to its workers.
    """

    def __init__(self, path: str = "") -> None:
        self._path = Path(path) if path else None

    @property
    def path(self) -> str:
        """The path of the file; empty if groups are not needed."""
        return str(self._path or "")

    def beside(self, name: str) -> str:
        """The path of another file in the folder; empty without one."""
        return str(self._path.with_name(name)) if self._path is not None else ""

    def create(self) -> None:
        """Create the folder of the file, if it has none yet."""
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix="tlmatrix-")) / "groups.json"

    def write(self, groups: Mapping[str, str], plan: ShardPlan, worker: str) -> None:
        """Write the groups and the plan as `worker`, unless another worker did."""
        if self._path is not None and not self._path.exists():
            draft = self._path.with_suffix(f".{worker}")
            data = {"groups": dict(groups), "plan": asdict(plan)}
            draft.write_text(json.dumps(data), encoding="utf-8")
            draft.replace(self._path)

    def read(self) -> dict[str, str]:
        """The groups that a worker wrote; empty if none did."""
        groups: dict[str, str] = self._content().get("groups", {})
        return groups

    def plan(self) -> ShardPlan:
        """The plan that a worker wrote; empty if none did."""
        return ShardPlan(**self._content().get("plan", {}))

    def _content(self) -> dict[str, Any]:
        if self._path is None or not self._path.exists():
            return {}
        content: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        return content

    def remove(self) -> None:
        """Remove the file and its folder; the controller calls this at the end."""
        if self._path is not None:
            shutil.rmtree(self._path.parent, ignore_errors=True)
