"""Every query meets each key that it sees exactly once, and nothing unseen is fetched."""

import itertools

import pytest
import torch

from tlmatrix_kernels.distributed.attention.plan import plan_for, rank_groups
from tlmatrix_kernels.distributed.attention.shards import ORDERS, Sharding

WORLDS = [1, 2, 3, 4, 8]
LENGTHS = [
    ((16,), (16,)),
    ((48, 96), (48, 96)),
    ((5, 0, 33, 1), (5, 0, 33, 1)),
    ((7, 40), (29, 13)),
    ((0, 9), (12, 0)),
]


def visible(length_q, length_k, causal):
    place = torch.arange(length_q)[:, None] + length_k - length_q
    key = torch.arange(length_k)[None, :]
    return key <= place if causal else torch.ones(length_q, length_k, dtype=torch.bool)


def met(plan, lengths_q, lengths_k):
    """How often a query of the rank, by its global place, meets a key by its global place."""
    counts = torch.zeros(sum(lengths_q), sum(lengths_k), dtype=torch.int64)
    queries = plan.sharding.positions(lengths_q, plan.rank)
    before = [0, *itertools.accumulate(lengths_k)]
    for step in plan.steps:
        places = torch.full((step.rows,), -1)
        for segment in step.segments:
            begin = before[segment.sequence] + segment.position
            end = begin + segment.length
            places[segment.row : segment.row + segment.length] = torch.arange(begin, end)
        assert (places >= 0).all()
        for launch in step.launches:
            assert len({each.run for each in launch.ranges}) == len(launch.ranges)
            for each in launch.ranges:
                row, length = plan.runs[each.run]
                assert each.row >= 0
                assert each.row + each.length <= step.rows
                for i in range(length):
                    seen = min(i + each.offset + 1, each.length)
                    keys = places[each.row : each.row + max(seen, 0)]
                    counts[queries[row + i], keys] += 1
    return counts


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("world", WORLDS)
def test_each_visible_pair_is_scheduled_once(world, order, causal):
    for (lengths_q, lengths_k), steps in itertools.product(LENGTHS, {1, 2, 3, world}):
        want = torch.block_diag(
            *(visible(q, k, causal).double() for q, k in zip(lengths_q, lengths_k, strict=True))
        )
        plans = [
            plan_for(Sharding(order, world), rank, lengths_q, lengths_k, causal, steps)
            for rank in range(world)
        ]
        got = sum(met(plan, lengths_q, lengths_k) for plan in plans)
        assert torch.equal(got.double(), want)
        for plan in plans:
            assert [row for row, _ in plan.runs] == [
                0,
                *itertools.accumulate(length for _, length in plan.runs[:-1]),
            ]
            assert sum(length for _, length in plan.runs) == plan.rows_q


def test_zigzag_gives_a_rank_a_chunk_of_either_end():
    assert [Sharding("zigzag", 4).owned(rank) for rank in range(4)] == [
        (0, 7), (1, 6), (2, 5), (3, 4),
    ]  # fmt: skip
    assert [Sharding("zigzag", 4).owner(chunk) for chunk in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert Sharding("zigzag", 2).positions((8, 4), 0).tolist() == [0, 1, 6, 7, 8, 11]


def test_first_fetches_use_different_ranks():
    """What both runs of a zigzag shard see comes first, from the rank before on backwards."""
    plans = [plan_for(Sharding("zigzag", 4), r, (64,), (64,), True, 2) for r in range(4)]
    order = [[(p.owner, p.chunk) for p in plan.steps[1].segments] for plan in plans]
    assert order == [
        [(3, 3), (3, 4), (2, 2), (2, 5), (1, 1), (1, 6)],
        [(0, 0), (3, 3), (3, 4), (2, 2), (2, 5)],
        [(1, 1), (0, 0), (3, 3), (3, 4)],
        [(2, 2), (1, 1), (0, 0)],
    ]
    full = [plan_for(Sharding("zigzag", 4), r, (64,), (64,), False, 2) for r in range(4)]
    assert [plan.steps[1].segments[0].owner for plan in full] == [3, 0, 1, 2]


def test_causal_ranks_fetch_only_visible_keys():
    contiguous = [plan_for(Sharding("contiguous", 4), r, (64,), (64,), True, 2) for r in range(4)]
    assert [plan.fetched for plan in contiguous] == [0, 16, 32, 48]
    zigzag = [plan_for(Sharding("zigzag", 4), r, (64,), (64,), True, 2) for r in range(4)]
    assert [plan.fetched for plan in zigzag] == [48, 40, 32, 24]


def test_zigzag_shares_causal_work_evenly():
    for plan in (plan_for(Sharding("zigzag", 4), r, (64,), (64,), True, 2) for r in range(4)):
        assert met(plan, (64,), (64,)).sum() == 65 * 64 // 2 // 4


def test_ranks_begin_with_different_owners():
    assert rank_groups(1, 4, 1) == ((1, 2, 3, 0),)
    assert rank_groups(1, 4, 2) == ((1,), (2, 3, 0))
    assert rank_groups(1, 4, 3) == ((1,), (2,), (3, 0))
    assert rank_groups(3, 4, 9) == ((3,), (0,), (1,), (2,))
    assert rank_groups(0, 1, 2) == ((0,),)


@pytest.mark.parametrize("order", ORDERS)
def test_equal_lengths_take_one_launch_for_any_fetch_order(order):
    for lengths, causal in itertools.product([(64, 32), (5, 0, 33, 1)], [True, False]):
        for rank in range(4):
            plan = plan_for(Sharding(order, 4), rank, lengths, lengths, causal, 2)
            assert plan.in_one_launch


def test_one_launch_needs_two_steps_and_no_mask():
    def plan(lengths_q, lengths_k, causal, steps):
        return plan_for(Sharding("contiguous", 3), 0, lengths_q, lengths_k, causal, steps)

    assert plan((33,), (20,), False, 2).in_one_launch
    assert not plan((33,), (33,), True, 3).in_one_launch
    assert not plan((33,), (33,), True, 1).in_one_launch
    assert not plan((9,), (90,), True, 2).in_one_launch, "the last keys that come are cut"
