"""Agreement of ranks on the sizes of a call: a collective at first use, which refuses differences.

A rank cannot see the shapes of its peers. Without agreement, ranks of 64 and 62 rows would each
compute offsets for a world of its own, and read rows that nothing has written.
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

MAX_RANKS_NAMED = 4


def check_equal(
    operator: str,
    sizes: Mapping[str, object],
    groups: Sequence[ProcessGroup],
    device: torch.device,
    hint: str = "",
) -> None:
    """Raises ValueError, on every rank, unless all ranks call with equal `sizes`.

    Args:
        operator: its name, for the message.
        sizes: by name, what must be equal on all ranks; compared by `repr`.
        groups: one group, or several that connect all ranks: within nodes, then between them.
        device: of the tensors that are exchanged.
        hint: what to do about a difference, added to the message.

    Raises:
        ValueError: the message names each size that differs, and its values by rank.
    """
    named = {name: repr(value) for name, value in sizes.items()}
    text = repr((operator, sorted(named.items())))
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
    digests = torch.tensor([digest], dtype=torch.int64, device=device)
    for group in groups:
        parts = [torch.empty_like(digests) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, digests, group=group)
        digests = torch.cat(parts)
    if len(set(digests.tolist())) == 1:
        return
    calls = [{"operator": operator} | named]
    for group in groups:
        gathered: list[list[dict[str, str]]] = [[]] * dist.get_world_size(group)
        dist.all_gather_object(gathered, calls, group=group)
        calls = [call for part in gathered for call in part]
    raise ValueError(_difference(operator, calls) + (f": {hint}" if hint else ""))


def _difference(operator: str, calls: list[dict[str, str]]) -> str:
    """The sizes that differ between `calls`, one per rank."""
    names = dict.fromkeys(name for call in calls for name in call)
    if len({call["operator"] for call in calls}) > 1:
        names = {"operator": None}
    parts = []
    for name in names:
        ranks = sorted(range(len(calls)), key=lambda rank, name=name: calls[rank].get(name, ""))
        values = groupby(ranks, key=lambda rank, name=name: calls[rank].get(name, "missing"))
        found = sorted((next(iter(which)), value) for value, which in values)
        if len(found) > 1:
            shown = [f"{value} on rank {rank}" for rank, value in found[:MAX_RANKS_NAMED]]
            parts.append(f"{name} {', '.join(shown)}")
    return f"{operator} must be called alike on all ranks, got {'; '.join(parts)}"
