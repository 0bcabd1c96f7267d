"""In how many steps to attend: what overlapping hides, against what another step costs.

The times here are rough on purpose: they only have to say which of a few schedules is the
shortest, for the same lengths the same on every rank (a rank computes from the others' plans where
their sums lie). The rates are those of H200s connected by NVLink; see docs/results.md.
"""

from dataclasses import dataclass

from tlmatrix_kernels.distributed.attention.shards import Sharding

__all__ = ["Rates", "choose_steps"]


@dataclass(frozen=True)
class Rates:
    """What a GPU does in a second, and what a step costs before it does anything."""

    flops: float = 500e12
    """Of attention in 16 bits."""
    pull: float = 350e9
    """Bytes from a peer by the copy engine."""
    memory: float = 3.5e12
    """Bytes to or from the GPU's own memory."""
    launch: float = 8e-6
    """Seconds until the blocks of a kernel work, and from the last of them to the next kernel."""
    meeting: float = 15e-6
    """Seconds from a call's start until pulls begin: a copy, a barrier."""


def choose_steps(
    sharding: Sharding,
    lengths_q: tuple[int, ...],
    lengths_k: tuple[int, ...],
    causal: bool,
    heads: tuple[int, int],
    dims: tuple[int, int],
    rates: Rates | None = None,
) -> int:
    """How many steps take the least time: 1, 2 or one for each rank.

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
        return 1
    rates = rates or Rates()
    pairs = sum(q * k for q, k in zip(lengths_q, lengths_k, strict=True)) / (2 if causal else 1)
    compute = 2 * pairs * heads[0] * sum(dims) / rates.flops / world
    fetched = 2 * sum(lengths_k) / world * heads[1] * sum(dims) / rates.pull
    partial = 8 * sum(lengths_q) / world * heads[0] * dims[1] / rates.memory + rates.launch

    def seconds(steps: int) -> float:
        if steps == 1:  # every key is fetched, the own ones by a copy beside the others
            return rates.meeting + (world - 1) * fetched + compute + rates.launch
        finished, arrived = compute / world, rates.meeting
        sizes = [(world - 1) * (n + 1) // (steps - 1) - (world - 1) * n // (steps - 1)
                 for n in range(steps - 1)]  # fmt: skip
        for size in sizes:
            arrived += size * fetched
            finished = max(finished, arrived) + size * compute / world + partial
        return finished

    return min({1, 2, world}, key=lambda steps: (seconds(steps), steps))
