"""Which cases share compiled kernels: workers tell the controller, in a file of its own.

(pytest-xdist would carry groups in node ids, where users would have to read them, and with recent
versions of pytest does not.)
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Sharing"]


class Sharing:
    """The file, and what is in it: the group of each case by node id; all workers say the same.

    A controller makes one without a path, and asks if it groups cases; a worker has that of its
    controller.
    """

    def __init__(self, file: str = "") -> None:
        self._path = Path(file) if file else None

    @property
    def file(self) -> str:
        """Where workers are to answer; empty where nobody asks."""
        return str(self._path or "")

    def ask(self) -> None:
        """Make a place for the answer, if there is none yet."""
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix="tlmatrix-")) / "groups.json"

    def write(self, groups: Mapping[str, str], worker: str) -> None:
        """Answer as `worker`, unless another one did."""
        if self._path is not None and not self._path.exists():
            draft = self._path.with_suffix(f".{worker}")
            draft.write_text(json.dumps(groups), encoding="utf-8")
            draft.replace(self._path)

    def read(self) -> dict[str, str]:
        """What the workers told."""
        if self._path is None or not self._path.exists():
            return {}
        groups: dict[str, str] = json.loads(self._path.read_text(encoding="utf-8"))
        return groups

    def remove(self) -> None:
        """Let go of the file; for the controller, at the end."""
        if self._path is not None:
            shutil.rmtree(self._path.parent, ignore_errors=True)
