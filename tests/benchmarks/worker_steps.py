"""Steps that test_distributed_workers.py has processes on the CPU run."""

import time

import torch.distributed as dist


def add_ranks(context, start):
    import torch

    total = torch.tensor(start + context.rank)
    dist.all_reduce(total)
    return int(total)


def fail_on_one(context):
    if context.rank == 1:
        raise ValueError("rank one does not like it")


def hang_on_one(context):
    if context.rank == 1:
        time.sleep(600)
