"""Sums of the rows of sequences in pages, right or with a read that no result depends on."""

import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def page_sums_kernel(page_size, every_entry):
    pages, batch, most = T.dynamic("pages, batch, most")

    @T.prim_func
    def page_sums(
        Pool: T.Tensor((pages, page_size, 8), "float32"),
        Table: T.Tensor((batch, most), "int32"),
        Lengths: T.Tensor((batch,), "int32"),
        Y: T.Tensor((batch, 8), "float32"),
    ):
        with T.Kernel(batch, threads=32) as b:
            rows = T.alloc_shared([page_size, 8], "float32")
            total = T.alloc_fragment([8], "float32")
            T.clear(total)
            count = most if every_entry else T.ceildiv(Lengths[b], page_size)
            for p in T.serial(count):
                T.copy(Pool[Table[b, p], 0:page_size, 0:8], rows)
                for i in T.serial(page_size):
                    for j in T.Parallel(8):
                        if p * page_size + i < Lengths[b]:
                            total[j] += rows[i, j]
            for j in T.Parallel(8):
                Y[b, j] = total[j]

    return page_sums


def page_sums(pool, table, lengths, every_entry):
    y = pool.new_empty(len(lengths), 8)
    page_sums_kernel(pool.shape[1], every_entry)(pool, table, lengths, y)
    return y


def reference(pool, table, lengths):
    found = []
    for entries, length in zip(table.tolist(), lengths.tolist(), strict=True):
        count = -(-length // pool.shape[1])
        rows = pool[torch.tensor(entries[:count], dtype=torch.int64)].flatten(0, 1)[:length]
        found.append(rows.sum(0))
    return torch.stack(found)
