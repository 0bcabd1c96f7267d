"""Compiles kernels side by side, each in a child process.

First those that a case waits for, then the longest. A child is a fork, so the traced kernel needs
no serialization, and a compiler that crashes ends its child alone.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tlmatrix.backend.ahead.tickets import Tickets

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
        while self._running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            ended = self._running.pop(process, None)
            if ended is not None:
                (self.failed if status else self.compiled).append(ended.key)
                self.tickets.end(ended.key)
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
