"""Contexts of operators over several nodes: NVLink within a node, a network between nodes."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tlmatrix_kernels.distributed.context import Context, create_context

_GROUPS: WeakKeyDictionary[ProcessGroup, dict[int, tuple[ProcessGroup, ProcessGroup]]] = (
    WeakKeyDictionary()
)
"""By global group and number of nodes: this process's groups within its node and between nodes.

PyTorch never frees process groups and their communicators, so contexts share them.
"""


@dataclass(frozen=True)
class TwoLevelContext:
    """A context of the ranks of one node, and a group with one rank of every node.

    Created by every rank (`create_two_level_context`, or from existing groups).

    Attributes:
        node: the context of the ranks of this node.
        between: the ranks with this local rank in every node, in node order; None with one node.
    """

    node: Context
    between: ProcessGroup | None

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return 1 if self.between is None else dist.get_world_size(self.between)


def create_two_level_context(
    nodes: int, *, device: torch.device | str | None = None, require_nvlink: bool = True
) -> TwoLevelContext:
    """The context of this process, with all processes spread evenly over `nodes` nodes.

    Every process of `torch.distributed` must call it. With W ranks per node, rank r of node v is
    process v * W + r, as in torchrun.

    Args:
        nodes: the number of nodes.
        device: the device of buffers; by default the current GPU, or the CPU without a GPU.
        require_nvlink: see `create_context`; within each node.

    Raises:
        ValueError: nodes does not divide the number of processes.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1 or world % nodes:
        raise ValueError(f"nodes must be a number that divides the {world} ranks, got {nodes!r}")
    if nodes == 1:
        return TwoLevelContext(create_context(device=device, require_nvlink=require_nvlink), None)
    inside, between = _groups(nodes, world // nodes)
    return TwoLevelContext(
        create_context(inside, device=device, require_nvlink=require_nvlink), between
    )


def _groups(nodes: int, ranks: int) -> tuple[ProcessGroup, ProcessGroup]:
    """This process's groups within its node and between nodes."""
    whole = dist.group.WORLD
    known = _GROUPS.setdefault(whole, {})
    if nodes not in known:
        # `new_group` is a collective of all processes: each creates all groups, in the same order.
        inside = [dist.new_group(range(v * ranks, (v + 1) * ranks)) for v in range(nodes)]
        between = [dist.new_group(range(r, nodes * ranks, ranks)) for r in range(ranks)]
        node, local_rank = divmod(dist.get_rank(), ranks)
        known[nodes] = inside[node], between[local_rank]
    return known[nodes]
