"""Overlapping is chosen where there is something to hide, and pulls are as few copies as can be."""

import pytest

from tlmatrix_kernels.distributed.attention.plan import copies, plan_for
from tlmatrix_kernels.distributed.attention.schedule import Rates, choose_steps
from tlmatrix_kernels.distributed.attention.shards import Sharding


def steps(tokens, world=4, kv_heads=8, causal=False, rates=None):
    sharding, lengths = Sharding("zigzag", world), (tokens,)
    return choose_steps(
        sharding, lengths, lengths, causal, (32, kv_heads), (128, 128), rates or Rates()
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_long_sequences_hide_the_fetching_behind_own_keys(world, causal):
    assert steps(32768, world, causal=causal) == 2


@pytest.mark.parametrize("world", [2, 4, 8])
def test_short_sequences_are_attended_to_at_once(world):
    assert steps(256, world) == 1


def test_there_is_nothing_to_fetch_alone():
    assert steps(32768, world=1) == 1


def test_slow_links_are_waited_for_rank_by_rank():
    assert steps(32768, rates=Rates(pull=5e9)) == 4


def test_free_links_need_no_overlap():
    assert steps(32768, rates=Rates(pull=1e18, meeting=0.0)) == 1


def test_a_rank_attended_to_alone_is_one_copy():
    lengths = (64, 32, 16)
    for order in ("contiguous", "zigzag"):
        plan = plan_for(Sharding(order, 4), 1, lengths, lengths, False, 4)
        assert [len(copies(step)) for step in plan.steps[1:]] == [1, 1, 1]
        assert [copies(step)[0][0] for step in plan.steps[1:]] == [2, 3, 0]


def test_ranks_attended_to_together_are_pulled_from_in_turn():
    plan = plan_for(Sharding("zigzag", 4), 1, (64,), (64,), False, 2)
    found = copies(plan.steps[1])
    assert [owner for owner, *_ in found] == [2, 3, 0]
    assert sum(rows for *_, rows in found) == plan.fetched == 48
