"""Launchers that start one command many times, as torchrun does: its first process works.

tlmatrix starts the processes of ranks itself, case by case, for each case has a world of its own.
So of those that a launcher started the first runs everything, and the others have nothing to do.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["idle_rank", "without_launcher"]

_OF_TORCHRUN = "TORCHELASTIC_"
_OF_A_RANK = frozenset(
    {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
    }
)  # fmt: skip


def idle_rank(environment: Mapping[str, str] | None = None) -> str:
    """Why this process has nothing to do: a launcher's `rank 1 of 2` that is not the first; or "".

    Args:
        environment: that of the process; by default this one's.
    """
    given = os.environ if environment is None else environment
    rank = given.get("RANK", "0")
    if f"{_OF_TORCHRUN}RUN_ID" not in given or rank == "0":
        return ""
    return (
        f"rank {rank} of {given.get('WORLD_SIZE', '?')} that torchrun started: rank 0 runs all "
        "cases, and starts the processes of their ranks itself"
    )


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what a launcher says of its ranks: ours have another world."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _OF_A_RANK and not name.startswith(_OF_TORCHRUN)
    }
