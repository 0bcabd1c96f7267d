"""Random choices that follow from a seed, apart from the noise of the inputs."""

from __future__ import annotations

import random


def seeded_random(seed: int) -> random.Random:
    """A random number generator for choices (which sequence, row, order), not for tensors."""
    return random.Random(seed ^ 0x5EED)  # noqa: S311 - test data, not secrets


def permutation(pick: random.Random, count: int) -> list[int]:
    """A random permutation of range(count); never the identity if `count` is 2 or more."""
    order = list(range(count))
    pick.shuffle(order)
    return order if order != sorted(order) else order[1:] + order[:1]
