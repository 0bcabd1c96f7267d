"""Ranks as CPU processes that talk through gloo."""

import datetime as dt
import multiprocessing
import traceback

import torch
import torch.distributed as dist

SECONDS = 120


def _rank(program, rank, world, store, results):
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world,
            timeout=dt.timedelta(seconds=SECONDS),
        )  # fmt: skip
        found = program()
        # As numpy arrays: a tensor would be shared memory, which goes with this process.
        results.put((rank, [t.detach().numpy() for t in found], None))
        dist.barrier()
        dist.destroy_process_group()
    except Exception:  # noqa: BLE001 - raised in the process that waits
        results.put((rank, None, traceback.format_exc()))


def run_on_gloo(world, program, folder):
    """`program()` in `world` processes of one group: the tensors that each returns."""
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    processes = [
        spawn.Process(target=_rank, args=(program, rank, world, folder / "store", results))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    try:
        found = [None] * world
        for _ in range(world):
            rank, tensors, error = results.get(timeout=SECONDS)
            assert error is None, error
            found[rank] = [torch.from_numpy(t) for t in tensors]
        for process in processes:
            process.join(timeout=SECONDS)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    return found
