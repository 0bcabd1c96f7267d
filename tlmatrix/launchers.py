"""Support for launchers such as torchrun, which start the same command on every rank.

tlmatrix starts the processes of ranks itself, because every case has its own number of ranks. So
rank 0 of a launcher runs all cases, and its other ranks do nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_TORCHRUN_PREFIX = "TORCHELASTIC_"
_RANK_VARIABLES = frozenset(
    {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
    }
)  # fmt: skip


def idle_rank(environment: Mapping[str, str] | None = None) -> str:
    """The reason why this process has nothing to do: it is not rank 0 of a launcher; "" otherwise.

    Args:
        environment: environment variables; by default those of this process.
    """
    given = os.environ if environment is None else environment
    rank = given.get("RANK", "0")
    if f"{_TORCHRUN_PREFIX}RUN_ID" not in given or rank == "0":
        return ""
    return (
        f"this process is rank {rank} of {given.get('WORLD_SIZE', '?')} of torchrun: rank 0 runs "
        "all cases, and starts the processes of their ranks itself"
    )


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without a launcher's variables, which do not apply to our own ranks."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _RANK_VARIABLES and not name.startswith(_TORCHRUN_PREFIX)
    }
