"""The number of steps: a model of the time that overlap hides and costs.

The model is rough: it only has to rank a few schedules, with the same result on every rank (a rank
derives the location of the others' sums from their plans). The rates are those of H200s with
NVLink; docs/results has measurements.

Costs besides attention itself:

=================  ================================================================================
1 step             all keys are fetched first
2, in one launch   the local keys are copied first; blocks that need remote keys before they have
                   arrived occupy a multiprocessor while they wait
2 or more,         each launch but the last stores float32 sums, which the next one reads, and a
a launch each      launch may have to wait for its keys
=================  ================================================================================
"""

from dataclasses import dataclass
from functools import lru_cache

from tlmatrix_kernels.distributed.attention.plan import plan_for
from tlmatrix_kernels.distributed.attention.shards import Sharding


@dataclass(frozen=True)
class Rates:
    """Throughput of a GPU, and fixed costs of a step."""

    flops: float = 600e12
    """FLOP/s of attention in 16 bits."""
    pull: float = 300e9
    """Bytes/s from a peer by the copy engine."""
    memory: float = 3.5e12
    """Bytes/s to or from the GPU's own memory."""
    launch: float = 8e-6
    """Seconds of overhead per kernel launch."""
    barrier: float = 25e-6
    """Seconds from the copy of the local keys until pulls start."""
    blocks: int = 132
    """Blocks that run at once."""
    rows: int = 192
    """Queries of a block."""


@dataclass(frozen=True)
class Schedule:
    """The number of steps, and whether two steps run as one launch if the plan allows it."""

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
    """The fastest of: 1 step, 2 steps in one or two launches, one step per rank.

    Args:
        sharding: of the sequences.
        lengths_q: of the whole query sequences.
        lengths_k: of the whole key sequences.
        causal: halves the work.
        heads: (heads, kv_heads).
        dims: (head_dim, head_dim_v).
        rates: of the GPU; H200 by default.
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
    barrier_done = copied + rates.barrier
    partial = 8 * sum(lengths_q) / world * heads[0] * dims[1] / rates.memory + rates.launch

    def one_launch_per_step(steps: int) -> float:
        finished, arrived = compute / world, barrier_done
        sizes = [(world - 1) * (n + 1) // (steps - 1) - (world - 1) * n // (steps - 1)
                 for n in range(steps - 1)]  # fmt: skip
        for size in sizes:
            arrived += size * fetched
            finished = max(finished, arrived) + size * compute / world + partial
        return finished

    every = barrier_done + (world - 1) * fetched
    seconds = {
        Schedule(1): every + compute + rates.launch,
        Schedule(2, one_launch=False): one_launch_per_step(2),
    }
    if world > 2:
        seconds[Schedule(world)] = one_launch_per_step(world)
    plans = (plan_for(sharding, rank, lengths_q, lengths_k, causal, 2) for rank in range(world))
    if all(plan.in_one_launch for plan in plans):
        blocks = sum(-(-length // (world * rates.rows)) for length in lengths_q) * heads[0]
        # Causal blocks run longest first.
        first = min(compute, compute / max(1.0, blocks / rates.blocks) * (2 if causal else 1))
        begun = copied + rates.launch
        seconds[Schedule(2)] = begun + max(0.0, every - begun - first) + compute
    return min(seconds, key=seconds.__getitem__)
