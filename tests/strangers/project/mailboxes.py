"""An all-gather that pushes: each rank writes its rows into mailboxes of all, and raises a flag.

Rows are taken node by node: one block for a tile of the rows of all ranks of a node.
"""

import tilelang
import tilelang.language as T
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from tlmatrix_kernels.distributed import signals
from tlmatrix_kernels.distributed.pull import write_flag

MOST = 1 << 14
"""Elements of a mailbox."""


@tilelang.jit
def take_kernel(dtype, block_rows=4, block_cols=32, threads=64):
    size, world, rows, cols = T.dynamic("size, world, rows, cols")

    @T.prim_func
    def take(
        box: T.Tensor((size,), dtype),
        flags: T.Tensor((world,), "int32"),
        epoch: T.int32,
        nodes: T.int32,
        y: T.Tensor((rows, cols), dtype),
    ):
        """Each block takes rows of one node, as soon as those of its ranks have come."""
        ranks = world // nodes
        share = T.ceildiv(rows, world) * ranks
        with T.Kernel(T.ceildiv(share, block_rows), nodes, threads=threads) as (bx, node):
            T.import_source(signals.source(threads))
            for rank in T.serial(ranks):
                signals.wait(flags, node * ranks + rank, epoch)
            for tile in T.serial(T.ceildiv(cols, block_cols)):
                for i, j in T.Parallel(block_rows, block_cols):
                    row = bx * block_rows + i
                    column = tile * block_cols + j
                    if row < share and node * share + row < rows and column < cols:
                        y[node * share + row, column] = box[(node * share + row) * cols + column]

    return take


class Mailboxes:
    """Two mailboxes a rank, in turn: a peer may still read from the last one."""

    def __init__(self, group=None, nodes=1):
        self.group = group or dist.group.WORLD
        self.nodes = nodes
        self.rank, self.world = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.epoch = 0
        self.flags = symm_mem.empty(self.world, dtype=torch.int32)
        self.boxes = [symm_mem.empty(MOST, dtype=torch.float32) for _ in range(2)]
        torch.cuda.synchronize()
        self.of_flags = symm_mem.rendezvous(self.flags, self.group)
        self.of_boxes = [symm_mem.rendezvous(box, self.group) for box in self.boxes]
        self.flags.zero_()
        self.of_flags.barrier()

    def next_epoch(self):
        self.epoch = (self.epoch + 1 + 2**31) % 2**32 - 2**31
        return self.epoch


def all_gather(x, rows, context):
    """The rows of all ranks; each but the last ones has ceil(rows / world)."""
    cols = x.shape[1]
    y = x.new_empty(rows, cols)
    if y.numel() == 0:
        return y
    epoch = context.next_epoch()
    handle = context.of_boxes[epoch % 2]
    begin = min(rows, -(-rows // context.world) * context.rank) * cols
    for step in range(context.world):
        peer = (context.rank + step) % context.world
        if x.numel():
            box = handle.get_buffer(peer, (MOST,), x.dtype)
            box[begin : begin + x.numel()].copy_(x.reshape(-1))
        flags = context.of_flags.get_buffer(peer, (context.world,), torch.int32)
        write_flag(flags, context.rank, epoch)
    box = handle.get_buffer(context.rank, (MOST,), x.dtype)
    take_kernel(str(x.dtype).split(".")[-1])(box, context.flags, epoch, context.nodes, y)
    return y
