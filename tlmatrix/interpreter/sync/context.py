"""The simulation, and the rank of it, that the current thread runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .world import Rank, World


class _Local(threading.local):
    rank: Rank | None = None
    world: World | None = None


_local = _Local()


def rank() -> Rank | None:
    """The rank whose host this thread is; None outside a simulation."""
    return _local.rank


def world() -> World | None:
    """The world whose tasks this thread runs; None outside a simulation."""
    return _local.world


def world_of_host() -> World | None:
    """The world of the rank whose host this thread is; None outside a simulation."""
    return _local.rank.world if _local.rank is not None else None


def current_rank() -> Rank:
    """The rank whose host this thread is.

    Raises:
        RuntimeError: outside a simulation.
    """
    if _local.rank is None:
        raise RuntimeError(
            "streams, graphs and symmetric memory are simulated only inside of tlmatrix.simulate()"
        )
    return _local.rank


def enter(world: World | None, rank: Rank | None) -> tuple[World | None, Rank | None]:
    """Make this thread the host of a rank; returns the world and rank it had before."""
    before = _local.world, _local.rank
    _local.world, _local.rank = world, rank
    return before
