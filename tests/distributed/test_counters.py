"""Epochs and flags that are advanced as by very many calls."""

import numpy as np
import pytest
import torch

from tlmatrix.distributed.counters import EDGE_CALLS, OBSERVED, Counters, NotLinearError
from tlmatrix.interpreter.sync.flags import Flag, Write


def int32(value):
    return (value + 2**31) % 2**32 - 2**31


class Context:
    """Counts calls, sets a flag to the count, and adds to another; keeps one count in 32 bits."""

    def __init__(self):
        self.epochs = {"op": 0}
        self.counts = [0]
        self.wrapped = 0
        self.flags = torch.zeros(4, dtype=torch.int32)
        self.data = torch.arange(4, dtype=torch.int32)
        self.other = 7

    def call(self):
        self.epochs["op"] += 1
        self.counts[0] += 5
        self.wrapped = int32(self.wrapped + 5)
        self.flags[self.epochs["op"] % 2] = int32(self.epochs["op"])
        self.flags[2] += 5


def observed(context, far):
    counters = Counters(far, {0: context})
    for _ in range(OBSERVED):
        context.call()
        counters.read()
    return counters


def advanced(context, far):
    """Advance a context as often as there are edges; yields after each time, before the calls."""
    counters = observed(context, far)
    counters.advance({})
    while not counters.ended:
        yield
        for _ in range(EDGE_CALLS):
            context.call()
        counters.advance({})


def test_counters_reach_the_end_of_32_bits_together():
    context = Context()
    observed(context, far=True).advance({})
    last = int(context.flags[2])
    assert 2**31 - 10 <= last < 2**31
    assert context.counts[0] == last == 5 * context.epochs["op"]
    assert context.other == 7
    assert context.data.tolist() == [0, 1, 2, 3]
    for _ in range(2):
        context.call()
    assert int(np.int64(context.flags[2])) < 0


def test_flags_of_each_speed_pass_both_ends():
    """The fast flag 2^31, then 2^32, and the slow ones after it."""
    context = Context()
    found = []
    for _ in advanced(context, far=True):
        epoch = context.epochs["op"]
        assert context.counts[0] == 5 * epoch
        assert (context.wrapped - 5 * epoch) % 2**32 == 0
        assert -(2**31) <= context.wrapped < 2**31 + 10, "an int32, after it wrapped once"
        expected = (epoch - epoch % 2, epoch - 1 + epoch % 2, 5 * epoch)
        assert context.flags.tolist()[:3] == [int32(each) for each in expected]
        found.append(epoch)
    edges = [2**31 / 5, 2**32 / 5, 2**31, 2**32]
    assert len(found) == len(edges)
    assert all(0 < edge - epoch <= 3 for edge, epoch in zip(edges, found, strict=True))


def test_values_that_waits_compare_are_advanced_with_the_flag():
    context = Context()
    counters = observed(context, far=True)
    values = [int(context.flags[2]) - 5, int(context.flags[2])]
    writes = [Write(value, "rank 0", 0, ("a.py", 1), "sys", 0) for value in values]
    flag = Flag(writes=writes, before=0)
    counters.advance({context.flags.data_ptr() + 8: flag})
    last = int(context.flags[2])
    assert [write.value for write in flag.writes] == [last - 5, last]
    assert flag.before == last - values[-1]


def test_edges_end_where_a_flag_does_not_wrap_around():
    context = Context()
    rounds = advanced(context, far=True)
    next(rounds)
    context.flags[2] = 7
    assert list(rounds) == []


def test_a_few_calls_are_skipped_alike():
    context = Context()
    observed(context, far=False).advance({})
    assert context.epochs["op"] == OBSERVED + 16
    assert int(context.flags.max()) == 5 * context.epochs["op"]
    context = Context()
    assert [context.epochs["op"] for _ in advanced(context, far=False)] == [
        OBSERVED + 16 * number + EDGE_CALLS * (number - 1) for number in range(1, 5)
    ]


def test_counters_that_do_not_grow_by_a_constant_are_left_alone():
    context = Context()
    counters = Counters(True, {0: context})
    for number in range(OBSERVED):
        context.call()
        context.epochs["op"] += number
        counters.read()
    before = context.flags.clone()
    with pytest.raises(NotLinearError):
        counters.advance({})
    assert torch.equal(context.flags, before)
