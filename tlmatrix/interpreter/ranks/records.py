"""What PyTorch knows of process groups, for each rank's thread.

`torch.distributed` keeps it in one object of the process; while ranks are simulated every rank's
thread has its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from tlmatrix.interpreter.sync import context

from .groups import BACKEND, SimulatedGroup

if TYPE_CHECKING:
    from tlmatrix.interpreter.sync.world import Rank

_NAMES = (
    *("default_pg", "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "group_count"),
    *(
        "tags_to_pg",
        "pg_to_tag",
        "pg_coalesce_state",
        "comms",
        "pg_config_info",
        "pg_default_device",
    ),
)


def _blank() -> dict[str, Any]:
    return {
        "default_pg": None,
        "group_count": 0,
        "comms": [],
        **{
            name: {}
            for name in _NAMES
            if name not in ("default_pg", "group_count", "comms", "pg_config_info")
        },
    }


class ThreadsWorld:
    """What PyTorch knows of groups: of a rank's thread its own, of any other the process's."""

    def __init__(self, original: Any) -> None:
        object.__setattr__(self, "_original", original)

    def __getattr__(self, name: str) -> Any:
        rank = context.rank()
        if rank is None or name not in _NAMES:
            return getattr(object.__getattribute__(self, "_original"), name)
        if name == "pg_config_info":
            return []
        return rank.state.setdefault("groups", _blank())[name]

    def __setattr__(self, name: str, value: Any) -> None:
        rank = context.rank()
        if rank is None or name not in _NAMES:
            setattr(object.__getattribute__(self, "_original"), name, value)
        else:
            rank.state.setdefault("groups", _blank())[name] = value


def _create(store: Any, rank: int, size: int, timeout: Any) -> SimulatedGroup:
    del store, timeout
    return SimulatedGroup(rank, size)


def join_world(rank: Rank, store: Any) -> None:
    """Make the default group in a rank's thread."""
    if BACKEND.upper() not in dist.Backend._plugins:  # noqa: SLF001  # what is registered
        dist.Backend.register_backend(BACKEND, _create, devices=["cpu", "cuda"])
    dist.init_process_group(
        BACKEND,
        store=store,
        rank=rank.number,
        world_size=rank.world.size,
        timeout=timedelta(days=1),
    )


def leave_world() -> None:
    """Forget the groups of a rank's thread."""
    if dist.is_initialized():
        dist.destroy_process_group()
