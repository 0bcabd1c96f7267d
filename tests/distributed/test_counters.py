"""Epochs and flags that are advanced as by very many calls."""

import numpy as np
import pytest
import torch

from tlmatrix.distributed.counters import OBSERVED, Counters, NotLinearError


class Context:
    """Counts calls, sets a flag to the count, and adds to another."""

    def __init__(self):
        self.epochs = {"op": 0}
        self.counts = [0]
        self.flags = torch.zeros(4, dtype=torch.int32)
        self.data = torch.arange(4, dtype=torch.int32)
        self.other = 7

    def call(self):
        self.epochs["op"] += 1
        self.counts[0] += 5
        self.flags[self.epochs["op"] % 2] = self.epochs["op"]
        self.flags[2] += 5


def observed(context, far):
    counters = Counters(far, {0: context})
    for _ in range(OBSERVED):
        context.call()
        counters.read()
    return counters


def test_counters_reach_the_end_of_32_bits_together():
    context = Context()
    observed(context, far=True).advance()
    last = int(context.flags[2])
    assert 2**31 - 10 <= last < 2**31
    assert context.counts[0] == last == 5 * context.epochs["op"]
    assert context.other == 7
    assert context.data.tolist() == [0, 1, 2, 3]
    for _ in range(2):
        context.call()
    assert int(np.int64(context.flags[2])) < 0


def test_a_few_calls_are_skipped_alike():
    context = Context()
    observed(context, far=False).advance()
    assert context.epochs["op"] == OBSERVED + 16
    assert int(context.flags.max()) == 5 * context.epochs["op"]


def test_counters_that_do_not_grow_by_a_constant_are_left_alone():
    context = Context()
    counters = Counters(True, {0: context})
    for number in range(OBSERVED):
        context.call()
        context.epochs["op"] += number
        counters.read()
    before = context.flags.clone()
    with pytest.raises(NotLinearError):
        counters.advance()
    assert torch.equal(context.flags, before)
