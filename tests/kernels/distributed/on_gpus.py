"""What a process of a rank runs in test_on_gpus.py: each function proves one thing on real GPUs."""

import os
import queue
import socket
import traceback
from datetime import timedelta

import tilelang
import tilelang.language as T
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from jit_kernel import jit_kernel
from tlmatrix.backend.kernel_cache import share_kernels
from tlmatrix_kernels.distributed import all_gather, create_context, signals
from tlmatrix_kernels.distributed.barriers import all_ranks_barrier, barrier
from tlmatrix_kernels.distributed.pull import pull, pull_order, to_int32, wait_by_kernel, write_flag

LIMIT = 420
"""Seconds until a rank that has not answered is ended; nearly all of it may be compiling."""


def run_on_ranks(job, world):
    """`job(context)` on every rank, a process and a GPU each; what went wrong, by rank."""
    spawn = mp.get_context("spawn")
    results = spawn.Queue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        spawn.Process(target=_rank, args=(job, rank, world, port, results)) for rank in range(world)
    ]
    for process in ranks:
        process.start()
    answers = {}
    try:
        while len(answers) < world:
            rank, answer = results.get(timeout=LIMIT)
            answers[rank] = answer
    except queue.Empty:
        for rank in range(world):
            answers.setdefault(rank, f"gave no answer in {LIMIT} s: it hangs")
    for process in ranks:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
    return {rank: answer for rank, answer in answers.items() if answer != "ok"}


def _rank(job, rank, world, port, results):
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        NCCL_NVLS_ENABLE="0",
        TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
    )
    try:
        share_kernels()
        torch.cuda.set_device(rank)
        device = torch.device("cuda", rank)
        dist.init_process_group(
            "nccl", rank=rank, world_size=world, device_id=device, timeout=timedelta(seconds=120)
        )
        job(create_context())
        torch.cuda.synchronize()
        results.put((rank, "ok"))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  (whatever it is, the test wants to see it)
        results.put((rank, traceback.format_exc()))


def gathers_back_to_back(context):
    """Calls of changing shapes and data without a synchronisation between them."""
    source = torch.Generator(device="cuda").manual_seed(5)
    calls = []
    for call in range(200):
        rows, columns = (1, 63, 1024, 7)[call % 4], (8, 4097)[call % 2]
        whole = torch.randn(
            context.world, rows, columns, generator=source, device="cuda", dtype=torch.bfloat16
        )
        if call % 5 == context.rank:
            torch.cuda._sleep(2_000_000)
        out = all_gather(whole[context.rank], context=context)
        calls.append((out == whole.flatten(0, 1)).all())
    assert torch.stack(calls).all(), [i for i, right in enumerate(calls) if not right]


def signals_through_new_memory(context):
    """No signal is lost where a rank has work to do before its new memory is zero."""
    for call in range(10):
        if call % context.world == context.rank:
            torch.cuda._sleep(100_000_000)  # some 50 ms
        flags = context.flags(f"test/new/{call}", 16)
        barrier(flags)
        torch.cuda.synchronize()


# Y = X, each part of X copied when its flag says that it is there.
@jit_kernel(X="dtype[world, columns]", Y="dtype[world, columns]", ready="i32[world]", epoch="i32")
def copy_on_arrival(X, Y, ready, epoch, dtype="float16"):
    world, columns = X.shape
    with T.Kernel(T.ceildiv(columns, 1024), world, threads=128) as (block, part):
        T.annotate_restrict_buffers(X)
        T.import_source(signals.source(128))
        signals.wait(ready, part, epoch)
        for i in T.Parallel(1024):
            if block * 1024 + i < columns:
                Y[part, block * 1024 + i] = X[part, block * 1024 + i]


def blocks_wait_for_pulls(context):
    """More blocks than fit wait for flags that the stream of the pulls writes."""
    columns, world, rank = 1 << 20, context.world, context.rank
    ready = context.flags("test/ready", world).local([world], torch.int32)
    source = torch.Generator(device="cuda").manual_seed(6)
    right = []
    for epoch in range(1, 21):
        whole = torch.randn(world, columns, generator=source, device="cuda").half()
        buffer = context.buffer(f"test/{epoch % 2}", 2 * columns)
        buffer.local([columns], torch.float16).copy_(whole[rank])
        gathered, out = torch.empty_like(whole), torch.empty_like(whole)
        gathered[rank].copy_(whole[rank])
        barrier(buffer)
        write_flag(ready, rank, epoch)
        side = context.side_stream()
        copy_on_arrival()(gathered, out, ready, epoch)
        with torch.cuda.stream(side):
            pull(
                pull_order(rank, world),
                lambda peer, of=buffer: of.on(peer, [columns], torch.float16),
                lambda peer, to=gathered: to[peer],
                lambda peer, now=epoch: write_flag(ready, peer, now),
            )
        torch.cuda.current_stream().wait_stream(side)
        right.append((out == whole).all())
    assert torch.stack(right).all(), right


@tilelang.jit
def send(dtype="float32"):
    """Every block writes a slice of a peer's buffer, then adds one to a flag of the peer."""
    size = T.dynamic("size")

    @T.prim_func
    def send_slices(
        target: T.Tensor([size], dtype),
        flags: T.Tensor([16], "int32"),
        index: T.int32,
        value: T.float32,
    ):
        with T.Kernel(T.ceildiv(size, 256), threads=128) as block:
            T.import_source(signals.source(128))
            for i in T.Parallel(256):
                if block * 256 + i < size:
                    target[block * 256 + i] = value
            signals.add(flags, index, 1)

    return send_slices


def blocks_signal_peers(context):
    """Data written by a kernel into the next rank is there when the flag has counted its blocks."""
    size, world, rank = 256 * 999 + 5, context.world, context.rank
    after, before = (rank + 1) % world, (rank - 1) % world
    flags = context.flags("test/count", 16)
    right = []
    for call in range(1, 101):
        buffer = context.buffer(f"test/send/{call % 2}", 4 * size)
        if call % 3 == rank:
            torch.cuda._sleep(1_000_000)
        send()(
            buffer.on(after, [size], torch.float32),
            flags.on(after, [16], torch.int32),
            rank,
            float(call * 10 + rank),
        )
        wait_by_kernel(flags.local([16], torch.int32), before, 1000 * call)
        right.append((buffer.local([size], torch.float32) == call * 10 + before).all())
        barrier(buffer)
    assert torch.stack(right).all(), right


# Every block of every rank meets, `rounds` times; each counts what it saw too early.
@jit_kernel(
    counter="i32[16]",
    seen="i32[16]",
    early="i32[16]",
    before="i32",
    blocks_of_all="i32",
    rounds="i32",
)
def meet_twice(counter, seen, early, before, blocks_of_all, rounds):
    with T.Kernel(16, threads=64) as block:
        T.import_source(signals.source(64))
        for turn in T.serial(rounds):
            signals.add(seen, 1, 1)
            all_ranks_barrier(counter, 0, before + (turn + 1) * blocks_of_all)
            if signals.load(seen, 1) - before < (turn + 1) * blocks_of_all:
                early[block] += 1


def all_blocks_of_all_ranks_meet(context):
    """No block passes before every block of every rank has come."""
    flags = context.flags("test/meet", 16)
    counter = flags.on(0, [16], torch.int32)
    early = torch.zeros(16, dtype=torch.int32, device="cuda")
    blocks, rounds = 16 * context.world, 50
    for call in range(5):
        before = to_int32(call * blocks * rounds)
        meet_twice()(counter, counter, early, before, blocks, rounds)
    assert (early == 0).all(), early
