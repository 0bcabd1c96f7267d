"""Which simulated rank this thread is, and which world it belongs to."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .world import Rank, World

__all__ = ["enter", "rank", "world"]


class _Local(threading.local):
    rank: Rank | None = None
    world: World | None = None


_local = _Local()


def rank() -> Rank | None:
    """The rank whose host this thread is; None outside a simulation."""
    return _local.rank


def world() -> World | None:
    """The world that this thread runs tasks of; None outside a simulation."""
    return _local.world


def enter(world: World | None, rank: Rank | None) -> tuple[World | None, Rank | None]:
    """Make this thread the host of a rank; gives what it was before."""
    before = _local.world, _local.rank
    _local.world, _local.rank = world, rank
    return before
