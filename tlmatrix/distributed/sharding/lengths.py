"""Names of a rank's own lengths where sequences are split, such as `local_cu_seqlens_q`."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.distributed.sharding.splits import Split
    from tlmatrix.problem.model import Problem


def local_names(problem: Problem, splits: Mapping[str, Split], rank: int) -> dict[str, Any]:
    """Lengths of a rank's queries and keys, by name.

    `local_seqlens_q`, `local_total_q` and `local_max_seqlen_q`, with `local_cu_seqlens_q` where
    sequences are packed and `local_seqlen_q` where not; those of keys end with k.
    """
    found: dict[str, Any] = {}
    for tensor, side in (("q", "q"), ("k", "k")):
        split, lengths = splits.get(tensor), problem.names.get(f"seqlens_{side}")
        if split is None or lengths is None or tensor not in problem.dims:
            continue
        if problem.dims[tensor][split.axis].name != "position":
            continue
        rows = split.rows[rank]
        if problem.dims[tensor][split.axis].starts is None:
            found[f"local_seqlen_{side}"] = len(rows)
            found[f"local_max_seqlen_{side}"] = len(rows)
            found[f"local_seqlens_{side}"] = [len(rows)] * len(lengths)
            continue
        ends = torch.tensor(list(accumulate(lengths)), dtype=torch.int64)
        counts = torch.bincount(torch.searchsorted(ends, rows, right=True), minlength=len(lengths))
        mine = [int(count) for count in counts]
        found[f"local_seqlens_{side}"] = mine
        found[f"local_total_{side}"] = len(rows)
        found[f"local_max_seqlen_{side}"] = max(mine, default=0)
        device = problem.inputs[tensor].device if tensor in problem.inputs else None
        starts = list(accumulate(mine, initial=0))
        found[f"local_cu_seqlens_{side}"] = torch.tensor(starts, dtype=torch.int32, device=device)
    return found
