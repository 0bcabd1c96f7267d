"""Files by which processes that run cases wait for the kernels that are compiled ahead.

`planned/KEY` exists from when a kernel is found until it has been compiled, or could not be.
`wanted/KEY` exists if a case waits for it. The compiling process holds a lock on `alive`.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

FOLDER = "TLMATRIX_COMPILING_AHEAD"
"""Environment variable: the folder of the tickets, if kernels are compiled ahead."""
_PAUSE = 0.05


@dataclass(frozen=True)
class Tickets:
    """The tickets in a folder; None if no kernels are compiled ahead."""

    folder: Path | None

    @classmethod
    def of_run(cls) -> Self:
        """The tickets of the run that this process belongs to."""
        folder = os.environ.get(FOLDER)
        return cls(Path(folder) if folder else None)

    def create(self) -> IO[str]:
        """Create the folder; the compiling process keeps the returned file open."""
        assert self.folder is not None
        for name in ("planned", "wanted"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        file = (self.folder / "alive").open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def plan(self, key: str) -> None:
        """Announce that a kernel will be compiled."""
        assert self.folder is not None
        (self.folder / "planned" / key).touch()

    def end(self, key: str) -> None:
        """Announce that a kernel was compiled, or could not be."""
        assert self.folder is not None
        (self.folder / "planned" / key).unlink(missing_ok=True)

    def wanted(self) -> frozenset[str]:
        """The kernels that cases wait for."""
        assert self.folder is not None
        return frozenset(each.name for each in (self.folder / "wanted").iterdir())

    def wait_for(self, key: str) -> bool:
        """Wait for a kernel while the compiling process lives; False if it is not planned."""
        if self.folder is None or not self._is_planned(key):
            return False
        (self.folder / "wanted" / key).touch()
        while self._is_planned(key) and self._alive():
            time.sleep(_PAUSE)
        return True

    def _is_planned(self, key: str) -> bool:
        assert self.folder is not None
        return (self.folder / "planned" / key).exists()

    def _alive(self) -> bool:
        """Whether the compiling process holds its lock."""
        assert self.folder is not None
        try:
            with (self.folder / "alive").open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False
