"""Warp roles: blocks whose threads do different things, run as coroutines under a schedule.

`generate` writes a generator function for each role of a block, `scheduler` runs them with the
block's barriers and asynchronous work, `clocks` finds accesses that nothing orders, and `ranks`
runs the programs of several simulated ranks in turns.
"""

from __future__ import annotations

from .ranks import run_ranks
from .settings import SCHEDULES, scheduled

__all__ = ["SCHEDULES", "run_ranks", "scheduled"]
