"""In how many steps to attend: what overlapping hides, against what it costs.

The times here are rough on purpose: they only have to say which of a few schedules is the
shortest, for the same lengths the same on every rank (a rank computes from the others' plans where
their sums lie). The rates are those of H200s connected by NVLink; what each schedule takes there is
in docs/results.md.

What each costs besides attention itself:

=================  ================================================================================
1 step             all keys are fetched first
2, in one launch   the own keys are copied first; then blocks that need fetched keys before these
                   are there keep their multiprocessor waiting
2 or more, a       each launch but the last stores float32 sums, which the next reads; and it may
launch each        have to wait for its keys
=================  ================================================================================
"""

from dataclasses import dataclass
from functools import lru_cache

from tlmatrix_kernels.distributed.attention.plan import plan_for
from tlmatrix_kernels.distributed.attention.shards import Sharding

__all__ = ["Rates", "Schedule", "choose_schedule"]


@dataclass(frozen=True)
class Rates:
    """What a GPU does in a second, and what a step costs before it does anything."""

    flops: float = 600e12
    """Of attention in 16 bits."""
    pull: float = 300e9
    """Bytes from a peer by the copy engine."""
    memory: float = 3.5e12
    """Bytes to or from the GPU's own memory."""
    launch: float = 8e-6
    """Seconds until the blocks of a kernel work, and from the last of them to the next kernel."""
    barrier: float = 25e-6
    """Seconds from the copy of the own keys until pulls begin."""
    blocks: int = 132
    """That run at once."""
    rows: int = 192
    """Queries of a block."""


@dataclass(frozen=True)
class Schedule:
    """How to attend: in so many ``steps``, and where two can be one launch, whether they are."""

    steps: int
    one_launch: bool = True


@lru_cache(maxsize=256)
def choose_schedule(
    sharding: Sharding,
    lengths_q: tuple[int, ...],
    lengths_k: tuple[int, ...],
    causal: bool,
    heads: tuple[int, int],
    dims: tuple[int, int],
    rates: Rates | None = None,
) -> Schedule:
    """What takes the least time: 1 step, 2 in a launch or in two, or one for each rank.

    Args:
        sharding: of the sequences.
        lengths_q: of the whole queries.
        lengths_k: of the whole keys.
        causal: half the work.
        heads: of q, and of k and v.
        dims: head_dim and head_dim_v.
        rates: of the GPU.
    """
    world = sharding.world
    if world == 1:
        return Schedule(1)
    rates = rates or Rates()
    pairs = sum(q * k for q, k in zip(lengths_q, lengths_k, strict=True)) / (2 if causal else 1)
    compute = 2 * pairs * heads[0] * sum(dims) / rates.flops / world
    share = 2 * sum(lengths_k) / world * heads[1] * sum(dims)
    copied = 2 * share / rates.memory
    fetched = share / rates.pull
    met = copied + rates.barrier
    partial = 8 * sum(lengths_q) / world * heads[0] * dims[1] / rates.memory + rates.launch

    def a_launch_each(steps: int) -> float:
        finished, arrived = compute / world, met
        sizes = [(world - 1) * (n + 1) // (steps - 1) - (world - 1) * n // (steps - 1)
                 for n in range(steps - 1)]  # fmt: skip
        for size in sizes:
            arrived += size * fetched
            finished = max(finished, arrived) + size * compute / world + partial
        return finished

    every = met + (world - 1) * fetched
    seconds = {
        Schedule(1): every + compute + rates.launch,
        Schedule(2, one_launch=False): a_launch_each(2),
    }
    if world > 2:
        seconds[Schedule(world)] = a_launch_each(world)
    plans = (plan_for(sharding, rank, lengths_q, lengths_k, causal, 2) for rank in range(world))
    if all(plan.in_one_launch for plan in plans):
        blocks = sum(-(-length // (world * rates.rows)) for length in lengths_q) * heads[0]
        # Of causal ones the longest come first.
        first = min(compute, compute / max(1.0, blocks / rates.blocks) * (2 if causal else 1))
        begun = copied + rates.launch
        seconds[Schedule(2)] = begun + max(0.0, every - begun - first) + compute
    return min(seconds, key=seconds.__getitem__)
