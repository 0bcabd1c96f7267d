"""Shards of a run: each machine runs one, and `tlmatrix merge` puts their results together.

The groups of cases that share kernels are assigned one after another, the slowest first, to the
shard with the least work so far. Every machine computes the same assignment from the same specs,
options and recorded times.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_GUESS = 0.1
"""Estimated seconds of a case if no case has a recorded time."""


class ShardError(ValueError):
    """The text is not a shard."""


@dataclass(frozen=True)
class Shard:
    """Shard `number`, from 1, of `count`."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `3/16`.

        Raises:
            ShardError: the text is not a shard.
        """
        found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            most = int(found[2]) if found and int(found[2]) else 16
            raise ShardError(
                f"{text!r} is no shard; write NUMBER/COUNT, from 1/{most} to {most}/{most}"
            )
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True)
class Unit:
    """A case: its name in the run (`path::id`), its spec's path, and its group of kernels."""

    node: str
    path: str
    group: str


def assign(units: Sequence[Unit], seconds: Mapping[str, float], count: int) -> dict[str, int]:
    """The shard, from 1, of each case by its node.

    A case takes its recorded `seconds` (by node), else the mean of its spec, else that of all.
    """
    known: dict[str, list[float]] = defaultdict(list)
    for unit in units:
        if unit.node in seconds:
            known[unit.path].append(seconds[unit.node])
    means = {path: sum(times) / len(times) for path, times in known.items()}
    mean = sum(means.values()) / len(means) if means else _GUESS
    work: Counter[str] = Counter()
    for unit in units:
        # Whole microseconds: sums of floats depend on their order.
        own = seconds.get(unit.node, means.get(unit.path, mean))
        work[unit.group] += max(1, round(1e6 * own))
    loads = [0] * count
    shards: dict[str, int] = {}
    for group in sorted(work, key=lambda group: (-work[group], group)):
        lightest = min(range(count), key=loads.__getitem__)
        loads[lightest] += work[group]
        shards[group] = lightest + 1
    return {unit.node: shards[unit.group] for unit in units}


def plan_name(shards: Mapping[str, int]) -> str:
    """A short name of an assignment; equal for shards that together are one plan."""
    lines: Iterable[str] = (f"{node}\t{shard}\n" for node, shard in sorted(shards.items()))
    return sha256("".join(lines).encode()).hexdigest()[:16]
