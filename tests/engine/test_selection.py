"""Shards: every case in one of them, groups together, equally long by recorded times."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlmatrix.engine.selection import Unit, assign, plan_name
from tlmatrix.engine.settings import Shard, ShardError

_UNITS = [Unit(f"s.yaml::{n}", "s.yaml", f"g{n % 17}") for n in range(100)]


@settings(deadline=None)
@given(
    st.integers(1, 20),
    st.dictionaries(st.sampled_from([unit.node for unit in _UNITS]), st.floats(0.001, 100)),
    st.randoms(),
)
def test_groups_stay_together_and_the_order_does_not_matter(count, seconds, random):
    shards = assign(_UNITS, seconds, count)
    assert shards.keys() == {unit.node for unit in _UNITS}
    assert set(shards.values()) <= set(range(1, count + 1))
    by_group = defaultdict(set)
    for unit in _UNITS:
        by_group[unit.group].add(shards[unit.node])
    assert all(len(found) == 1 for found in by_group.values())
    shuffled = list(_UNITS)
    random.shuffle(shuffled)
    assert assign(shuffled, seconds, count) == shards
    assert plan_name(assign(shuffled, seconds, count)) == plan_name(shards)


def test_the_longest_groups_come_first():
    units = [Unit(f"s.yaml::{n}", "s.yaml", f"g{n}") for n in range(9)]
    seconds = dict(zip([unit.node for unit in units], [8, 7, 6, 5, 4, 3, 2, 1, 0.5], strict=True))
    shards = assign(units, seconds, 3)
    loads = Counter()
    for node, shard in shards.items():
        loads[shard] += seconds[node]
    assert max(loads.values()) - min(loads.values()) <= 2
    assert [shards[unit.node] for unit in units[:3]] == [1, 2, 3]


def test_cases_without_a_time_take_the_mean_of_their_spec():
    slow = [Unit(f"a.yaml::{n}", "a.yaml", f"a{n}") for n in range(4)]
    fast = [Unit(f"b.yaml::{n}", "b.yaml", f"b{n}") for n in range(12)]
    shards = assign([*slow, *fast], {"a.yaml::0": 3.0, "b.yaml::0": 1.0}, 4)
    assert Counter(shards[unit.node] for unit in slow) == {1: 1, 2: 1, 3: 1, 4: 1}
    assert Counter(shards[unit.node] for unit in fast) == {1: 3, 2: 3, 3: 3, 4: 3}


def test_other_times_are_another_plan():
    one = plan_name(assign(_UNITS, {}, 4))
    assert one != plan_name(assign(_UNITS, {_UNITS[0].node: 1.0, _UNITS[1].node: 50.0}, 4))
    assert one != plan_name(assign(_UNITS, {}, 5))


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "1/0", "0/0", "a/b", "1/4/2", "-1/4"])
def test_a_text_that_is_no_shard(text):
    with pytest.raises(ShardError, match="write NUMBER/COUNT"):
        Shard.parse(text)
