"""Entries that several ranks call, in plain PyTorch: right ones, and each fault by itself."""

import os
import sys
import time

import torch
import torch.distributed as dist


def gathered(x):
    """The rows of all ranks."""
    sizes = [
        torch.zeros(1, dtype=torch.int64, device=x.device) for _ in range(dist.get_world_size())
    ]
    dist.all_gather(sizes, torch.tensor([x.shape[0]], device=x.device))
    rows = [int(size) for size in sizes]
    padded = x.new_zeros(max(rows), *x.shape[1:])
    padded[: x.shape[0]] = x
    parts = [torch.empty_like(padded) for _ in rows]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)])


def all_gather_gemm(a, b):
    return (gathered(a).float() @ b.float()).to(a.dtype)


def neighbours_shard(a, b, rank, world):
    """Rank 1 returns what its neighbour should."""
    c = all_gather_gemm(a, b)
    parts = [torch.empty_like(c) for _ in range(world)]
    dist.all_gather(parts, c)
    return parts[(rank + 1) % world] if rank == 1 else c


def raising(a, b, rank):
    if rank == 1:
        raise ValueError("no such shard")
    return all_gather_gemm(a, b)


def waiting_alone(a, b, rank):
    if rank == 1:
        dist.barrier()
    return all_gather_gemm(a, b)


def hanging(a, b, rank):
    if rank == 1:
        time.sleep(1000)
    return all_gather_gemm(a, b)


def leaving(a, b, rank):
    if rank == 1:
        sys.stdout.write("the last words of rank 1\n")
        sys.stdout.flush()
        os._exit(3)
    return all_gather_gemm(a, b)


def returning_all(a, b, world):
    c = all_gather_gemm(a, b)
    return torch.cat([c] * world, 1)


def one_row_short(a, b, rank):
    c = all_gather_gemm(a, b)
    return c[:-1] if rank else c


def refusing(a, b):
    if a.shape[1] % 8:
        raise ValueError(f"k must be a multiple of 8, not {a.shape[1]}")
    return all_gather_gemm(a, b)


class Context:
    """Counts its calls, and keeps the shard of the last one for a fault."""

    def __init__(self, rank, world, group):
        self.rank, self.world, self.group = rank, world, group
        self.calls = 0
        self.last = None


def create_context(rank, world, group):
    return Context(rank, world, group)


def all_gather(x, *, context):
    assert dist.get_rank(context.group) == context.rank
    context.calls += 1
    return gathered(x)


def stale_when_called_again(x, *, context):
    """From the third call on a context, rank 1's rows are those of the call before."""
    context.calls += 1
    mine = x
    if context.rank == 1 and context.calls > 2 and context.last.shape == x.shape:
        mine = context.last
    context.last = x.clone()
    return gathered(mine)


def too_small_for_more(x, *, context):
    """A buffer of the context that is made for the first call, and never grows."""
    y = gathered(x)
    if context.last is None:
        context.last = torch.empty_like(y)
    room = context.last
    count = min(len(room), len(y))
    room[:count] = y[:count]
    return torch.cat([room[:count], torch.zeros_like(y[count:])]).clone()


def differing(x, rank):
    y = gathered(x)
    if rank == 1 and y.numel():
        y[0, 0] += 1
    return y


def reduce_scatter(x, rank, world):
    """Every rank its rows of the sum, added up in float32."""
    total = x.float()
    dist.all_reduce(total)
    return total.tensor_split(world)[rank].to(x.dtype)


def reduce_scatter_in_low_precision(x, rank, world):
    parts = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(parts, x)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total.tensor_split(world)[rank].contiguous()


def writes_to_its_shard(x):
    y = gathered(x)
    x.zero_()
    return y


def _symmetric(x, context):
    """My buffer in symmetric memory, as large as x, and what reaches those of others."""
    import torch.distributed._symmetric_memory as symm_mem

    if context.last is None or context.last[0].shape != x.shape:
        buffer = symm_mem.empty(*x.shape, dtype=x.dtype, device=x.device)
        torch.cuda.synchronize()
        context.last = buffer, symm_mem.rendezvous(buffer, context.group)
    return context.last


def pulled_on_any_stream(x, *, context):
    """As `pulled`, for the stream that is current; the buffer serves one stream alone."""
    torch.cuda.current_stream()
    return pulled(x, context=context)


def pulled(x, *, context, barriers=2):
    """Rows of all ranks, each pulled from the buffer of its rank."""
    buffer, handle = _symmetric(x, context)
    buffer.copy_(x)
    if barriers:
        handle.barrier(0)
    y = x.new_empty(context.world * x.shape[0], x.shape[1])
    for rank, rows in enumerate(y.chunk(context.world)):
        rows.copy_(handle.get_buffer(rank, x.shape, x.dtype))
    if barriers > 1:
        handle.barrier(1)
    return y


def pulled_before_it_is_there(x, *, context):
    return pulled(x, context=context, barriers=0)


def overwritten_while_others_pull(x, *, context):
    return pulled(x, context=context, barriers=1)


def never_signalled(x, *, context):
    """Rank 1 puts no signal that rank 0 waits for."""
    _buffer, handle = _symmetric(x, context)
    if context.rank == 0:
        handle.wait_signal(1, 0)
    return pulled(x, context=context)


def kernel_waits_for_nobody(x, *, context):
    """Rank 1 launches a kernel that waits for a flag that nobody raises, and goes on."""
    from tlmatrix_kernels.distributed.pull import wait_by_kernel

    if context.rank == 1:
        wait_by_kernel(torch.zeros(1, dtype=torch.int32, device=x.device), 0, 1)
    return pulled(x, context=context)


def stream_waits_for_nobody(x, *, context):
    """The stream of rank 1 waits for a flag that nobody raises, while its host goes on."""
    from tlmatrix_kernels.distributed.pull import wait_by_stream

    if context.rank == 1:
        wait_by_stream(torch.zeros(1, dtype=torch.int32, device=x.device), 0, 1)
    return pulled(x, context=context)


def unordered_for_huge_values(x, *, context):
    """Leaves the barriers out where some rank has a huge value."""
    most = x.abs().amax().float()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return pulled(x, context=context, barriers=0 if most > 1000 else 2)


def refusing_rows(a, b, m, rank, world):
    share = m // world + (rank < m % world)
    if len(a) != share:
        raise ValueError(f"a must have {share} of {m} rows, got {len(a)}")
    return all_gather_gemm(a, b)


def refusing_rows_once(a, b, m, rank, world, context):
    """Checks the rows in the first call on a context alone."""
    context.calls += 1
    if context.calls == 1:
        return refusing_rows(a, b, m, rank, world)
    return all_gather_gemm(a, b)


def refusing_meta(a, b, context):
    context.calls += 1
    if a.device != b.device:
        raise ValueError(f"a must be on the device of b, got {a.device}")
    return all_gather_gemm(a, b)
