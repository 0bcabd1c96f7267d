"""Overlapping is chosen where there is something to hide, and pulls are as few copies as can be."""

import pytest

from tlmatrix_kernels.distributed.attention.plan import copies, plan_for
from tlmatrix_kernels.distributed.attention.schedule import Rates, Schedule, choose_schedule
from tlmatrix_kernels.distributed.attention.shards import Sharding

ONE_LAUNCH, TWO_LAUNCHES = Schedule(2), Schedule(2, one_launch=False)


def schedule(tokens, world=4, kv_heads=8, causal=False, rates=None, keys=None):
    return choose_schedule(
        Sharding("zigzag", world), (tokens,), (keys or tokens,), causal, (32, kv_heads), (128, 128),
        rates or Rates(),
    )  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [256, 1024, 4096, 32768])
@pytest.mark.parametrize("world", [2, 4])
def test_blocks_wait_for_keys_that_arrive_in_time(world, tokens, causal):
    """As measured: docs/results has what each takes."""
    assert schedule(tokens, world, causal=causal) == ONE_LAUNCH


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [8192, 32768])
def test_blocks_do_not_wait_for_late_keys(tokens, causal):
    """A kv head for each head: four times the bytes, and the first blocks are done before."""
    assert schedule(tokens, world=2, kv_heads=32, causal=causal) == TWO_LAUNCHES


def test_one_rank_fetches_nothing():
    assert schedule(32768, world=1) == Schedule(1)


def test_slow_links_are_waited_for_rank_by_rank():
    assert schedule(32768, rates=Rates(pull=5e9)) == Schedule(4)


def test_one_launch_is_chosen_only_where_possible():
    assert schedule(4096, keys=8192, causal=True) != ONE_LAUNCH
    links_are_free = Rates(pull=1e18, barrier=0.0)
    assert schedule(4096, keys=8192, causal=True, rates=links_are_free) == Schedule(1)


def test_step_with_one_rank_is_one_copy():
    lengths = (64, 32, 16)
    for order in ("contiguous", "zigzag"):
        plan = plan_for(Sharding(order, 4), 1, lengths, lengths, False, 4)
        assert [len(copies(step)) for step in plan.steps[1:]] == [1, 1, 1]
        assert [copies(step)[0][0] for step in plan.steps[1:]] == [2, 3, 0]


def test_step_with_several_ranks_pulls_them_in_order():
    plan = plan_for(Sharding("zigzag", 4), 1, (64,), (64,), False, 2)
    found = copies(plan.steps[1])
    assert [owner for owner, *_ in found] == [2, 3, 0]
    assert sum(rows for *_, rows in found) == plan.fetched == 48
