"""Contexts over several nodes: which rank is in which group, and which makes it."""

import pytest
import torch.distributed as dist

from tlmatrix import simulate
from tlmatrix_kernels.distributed import create_two_level_context


def members(context):
    groups = (context.node.group, context.between)
    return [None if group is None else dist.get_process_group_ranks(group) for group in groups]


def test_without_torch_distributed_there_is_one_node_of_one_rank():
    context = create_two_level_context(1, device="cpu")
    assert (context.nodes, context.node.rank, context.node.world) == (1, 0, 1)
    assert members(context) == [None, None]


@pytest.mark.parametrize("nodes", [0, -1, 2, True, 1.0, None])
def test_nodes_must_divide_the_ranks(nodes):
    with pytest.raises(ValueError, match="nodes must be a number that divides the 1 ranks, got"):
        create_two_level_context(nodes, device="cpu")


def test_node_groups_and_rail_groups():
    found = simulate(lambda _: members(create_two_level_context(3)), world=6)
    assert found.results == [
        [[r - r % 2, r - r % 2 + 1], [r % 2, r % 2 + 2, r % 2 + 4]] for r in range(6)
    ]
    found = simulate(lambda _: members(create_two_level_context(1)), world=3)
    assert found.results == [[[0, 1, 2], None]] * 3
    found = simulate(lambda _: members(create_two_level_context(3)), world=3)
    assert found.results == [[[rank], [0, 1, 2]] for rank in range(3)]


def test_contexts_of_as_many_nodes_share_their_groups():
    def program(_):
        first, second, other = (create_two_level_context(nodes) for nodes in (2, 2, 4))
        return first.between is second.between, first.between is other.between

    assert simulate(program, world=4).results == [(True, False)] * 4
