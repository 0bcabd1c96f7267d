"""The file in which workers tell the controller which cases share compiled kernels.

pytest-xdist would take groups from node ids, which users read; with recent versions of pytest it
does not take them at all.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GroupsFile"]


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

    def create(self) -> None:
        """Create the folder of the file, if it has none yet."""
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix="tlmatrix-")) / "groups.json"

    def write(self, groups: Mapping[str, str], worker: str) -> None:
        """Write the groups as `worker`, unless another worker did."""
        if self._path is not None and not self._path.exists():
            draft = self._path.with_suffix(f".{worker}")
            draft.write_text(json.dumps(groups), encoding="utf-8")
            draft.replace(self._path)

    def read(self) -> dict[str, str]:
        """The groups that a worker wrote; empty if none did."""
        if self._path is None or not self._path.exists():
            return {}
        groups: dict[str, str] = json.loads(self._path.read_text(encoding="utf-8"))
        return groups

    def remove(self) -> None:
        """Remove the file and its folder; the controller calls this at the end."""
        if self._path is not None:
            shutil.rmtree(self._path.parent, ignore_errors=True)
