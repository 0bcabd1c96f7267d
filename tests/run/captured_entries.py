"""Gathers of several ranks that may be captured to a CUDA graph, and some that only seem so."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem


class Context:
    """A symmetric buffer of two halves, and a count of calls."""

    def __init__(self, group, rank, world):
        self.group, self.rank, self.world = group, rank, world
        self.calls = 0
        self.kept = None
        self.own = symm_mem.empty(2 * 4096, dtype=torch.bfloat16)
        torch.cuda.synchronize()
        self.handle = symm_mem.rendezvous(self.own, group)

    def half(self, peer, like, half):
        return self.handle.get_buffer(peer, like.shape, like.dtype, half * 4096)


def create_context(rank, world, group):
    return Context(group, rank, world)


def _gathered(x, context, half, rows):
    """The rows of all, as each has them; uneven shares have one row more at the first ranks."""
    context.half(context.rank, x, half).copy_(x)
    context.handle.barrier()
    counts = [len(part) for part in torch.empty(rows, 0).tensor_split(context.world)]
    parts = [x.new_empty(count, x.shape[1]) for count in counts]
    for peer, part in enumerate(parts):
        part.copy_(context.half(peer, part, half))
    return torch.cat(parts)


def barriers_on_both_sides(x, rows, context):
    """One half will do: nobody writes it before all have read it."""
    context.handle.barrier(channel=1)
    out = _gathered(x, context, 0, rows)
    context.handle.barrier(channel=1)
    return out


def halves_that_take_turns(x, rows, context):
    """Right call after call, but every replay has the half that the host chose at the capture."""
    context.calls += 1
    return _gathered(x, context, context.calls % 2, rows)


def barrier_before_a_graph_only(x, rows, context):
    """Right replay after replay, but the next call writes the half that peers still read."""
    if torch.cuda.is_current_stream_capturing():
        context.handle.barrier(channel=1)
    return halves_that_take_turns(x, rows, context)


def what_the_first_call_found(x, rows, context):
    """Keeps the first result where a graph is captured: a replay gives old data."""
    out = barriers_on_both_sides(x, rows, context)
    if torch.cuda.is_current_stream_capturing():
        return context.kept.clone()
    context.kept = out
    return out


def rounded_where_captured(x, rows, context):
    """As right in a graph as outside of it, but not in every bit."""
    out = barriers_on_both_sides(x, rows, context)
    return out * (1 + 2**-8) if torch.cuda.is_current_stream_capturing() else out


def reading_on_the_host(x, rows, context):
    """Looks at values, which a capture cannot."""
    assert not bool(x.isnan().any())
    return barriers_on_both_sides(x, rows, context)


def refusing(x, rows, context):
    """Says itself that it cannot be captured."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("this gather cannot be captured: its halves take turns")
    return halves_that_take_turns(x, rows, context)


def collective(x, rows, group, world):
    """NCCL's own gather may be captured."""
    counts = [len(part) for part in torch.empty(rows, 0).tensor_split(world)]
    parts = [x.new_empty(max(counts), x.shape[1]) for _ in counts]
    padded = x.new_zeros(max(counts), x.shape[1])
    padded[: len(x)] = x
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
