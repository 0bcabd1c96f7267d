"""Compiles the kernels of a run before cases need them.

`scheduler` starts a child process for each kernel, `tickets` are the files by which processes that
run cases wait for a kernel and say that they do, `compilers` compile one kernel.
"""

from __future__ import annotations

from tlmatrix.backend.ahead.scheduler import Scheduler, Waiting
from tlmatrix.backend.ahead.tickets import FOLDER, Tickets

__all__ = ["FOLDER", "Scheduler", "Tickets", "Waiting"]
