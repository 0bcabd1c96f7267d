"""Compiles the kernels of a run before cases need them.

A `Scheduler` compiles kernels side by side, each in a child process: first those that a case waits
for, then the longest. A child is a fork, so the traced kernel needs no serialization, and a
compiler that crashes ends its child alone.

`Tickets` are files by which processes that run cases wait for these kernels. `planned/KEY` exists
from when a kernel is found until it has been compiled, or could not be. `wanted/KEY` exists if a
case waits for it. The compiling process holds a lock on `alive`.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable


FOLDER = "TLMATRIX_COMPILING_AHEAD"
"""Environment variable: the folder of the tickets, if kernels are compiled ahead."""
_POLL = 0.05


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
            time.sleep(_POLL)
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


_PAUSE = 0.02
_NICE = 5
"""Lower priority of children: processes that judge cases go first."""


@dataclass(frozen=True)
class Waiting:
    """A kernel to compile: its key, the expected seconds, and the function that compiles it."""

    key: str
    seconds: float
    compile: Callable[[], object]


@dataclass
class Scheduler:
    """Runs at most `slots` compilations at a time; `step` never waits for one."""

    slots: int
    tickets: Tickets
    compiled: list[str] = field(default_factory=list)
    """Keys in the order in which they ended."""
    failed: list[str] = field(default_factory=list)
    _waiting: dict[str, Waiting] = field(default_factory=dict)
    _running: dict[int, Waiting] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)

    def add(self, kernel: Waiting) -> bool:
        """Add a kernel; False if it was added before."""
        if kernel.key in self._known:
            return False
        self._known.add(kernel.key)
        self._waiting[kernel.key] = kernel
        self.tickets.plan(kernel.key)
        return True

    def step(self) -> None:
        """Note the children that ended, and start others in their place."""
        for process in list(self._running):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                key = self._running.pop(process).key
                (self.failed if status else self.compiled).append(key)
                self.tickets.end(key)
        if not self._waiting or len(self._running) >= self.slots:
            return
        wanted = self.tickets.wanted()
        order = sorted(
            self._waiting.values(), key=lambda each: (each.key not in wanted, -each.seconds)
        )
        for kernel in order[: self.slots - len(self._running)]:
            del self._waiting[kernel.key]
            self._running[_start(kernel)] = kernel

    def finish(self) -> None:
        """Wait until every kernel has been compiled."""
        while self._waiting or self._running:
            self.step()
            time.sleep(_PAUSE)


def _start(kernel: Waiting) -> int:
    """Fork a child that compiles a kernel; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.nice(_NICE)
        kernel.compile()
        status = 0
    except BaseException:  # noqa: BLE001 - the case that needs the kernel reports it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
