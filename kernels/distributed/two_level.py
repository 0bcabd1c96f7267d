"""What operators over several nodes keep: NVLink inside of each, a network between them."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tlmatrix_kernels.distributed.context import Context, create_context

__all__ = ["TwoLevelContext", "create_two_level_context"]

_GROUPS: WeakKeyDictionary[ProcessGroup, dict[int, tuple[ProcessGroup, ProcessGroup]]] = (
    WeakKeyDictionary()
)
"""Of all processes and a number of nodes: a process's groups inside its node, and between nodes.

PyTorch keeps groups for good, each with its communicators; so contexts share them.
"""


@dataclass(frozen=True)
class TwoLevelContext:
    """A context of the ranks of one node, and a group of one rank of every node.

    Made once by every rank (`create_two_level_context`, or from groups that are there already).

    Attributes:
        node: of the ranks of this node.
        between: the ranks that stand where this one does in every node, in the order of nodes; None
            with one node.
    """

    node: Context
    between: ProcessGroup | None

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return 1 if self.between is None else dist.get_world_size(self.between)


def create_two_level_context(
    nodes: int, *, device: torch.device | str | None = None
) -> TwoLevelContext:
    """The context of this process, where all processes are spread evenly over `nodes` nodes.

    Every process of `torch.distributed` calls it. Of W ranks on each node, rank r of node v is
    process v * W + r, as torchrun numbers them.

    Args:
        nodes: how many there are.
        device: where buffers lie; by default the current GPU, or the CPU where there is none.

    Raises:
        ValueError: nodes that the processes do not divide into.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1 or world % nodes:
        raise ValueError(f"nodes must be a number that divides the {world} ranks, got {nodes!r}")
    if nodes == 1:
        return TwoLevelContext(create_context(device=device), None)
    inside, between = _groups(nodes, world // nodes)
    return TwoLevelContext(create_context(inside, device=device), between)


def _groups(nodes: int, ranks: int) -> tuple[ProcessGroup, ProcessGroup]:
    """This process's group inside its node, and that between nodes."""
    whole = dist.group.WORLD
    known = _GROUPS.setdefault(whole, {})
    if nodes not in known:
        # Every process makes the groups of all, in one order, or some wait for others for ever.
        inside = [dist.new_group(range(v * ranks, (v + 1) * ranks)) for v in range(nodes)]
        between = [dist.new_group(range(r, nodes * ranks, ranks)) for r in range(ranks)]
        node, place = divmod(dist.get_rank(), ranks)
        known[nodes] = inside[node], between[place]
    return known[nodes]
