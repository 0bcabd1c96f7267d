"""Top-k routing of a mixture of experts, with the number of tokens each sequence sends to each.

The weights are the softmax over the chosen experts; of equal logits the first expert wins. The
counts by sequence are for a balance loss.
"""

import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def topk_kernel(experts, top_k, dtype, block_m=32, threads=128):
    tokens, sequences = T.dynamic("tokens, sequences")

    @T.prim_func
    def topk_routing(
        Logits: T.Tensor((tokens, experts), dtype),
        SeqIds: T.Tensor((tokens,), "int32"),
        Weights: T.Tensor((tokens, top_k), "float32"),
        Ids: T.Tensor((tokens, top_k), "int32"),
        Counts: T.Tensor((sequences, experts), "int32"),
    ):
        with T.Kernel(T.ceildiv(tokens, block_m), threads=threads) as bx:
            logits = T.alloc_fragment([block_m, experts], "float32")
            where = T.alloc_fragment([block_m, experts], "int32")
            best = T.alloc_fragment([block_m], "float32")
            first = T.alloc_fragment([block_m], "float32")
            norm = T.alloc_fragment([block_m], "float32")
            best_id = T.alloc_fragment([block_m], "int32")
            weights = T.alloc_shared([block_m, top_k], "float32")

            T.copy(Logits[bx * block_m, 0], logits)
            T.clear(norm)
            for k in T.serial(top_k):
                T.reduce_max(logits, best, dim=1)
                for i, j in T.Parallel(block_m, experts):
                    where[i, j] = T.if_then_else(logits[i, j] == best[i], j, experts)
                T.reduce_min(where, best_id, dim=1)
                for i, j in T.Parallel(block_m, experts):
                    if j == best_id[i]:
                        logits[i, j] = -T.infinity("float32")
                if k == 0:
                    T.copy(best, first)
                for i in T.Parallel(block_m):
                    weights[i, k] = T.exp(best[i] - first[i])
                    norm[i] += T.exp(best[i] - first[i])
                for i in T.Parallel(block_m):
                    row = bx * block_m + i
                    if row < tokens:
                        Ids[row, k] = best_id[i]
                        T.atomic_add(Counts[SeqIds[row], best_id[i]], 1)
            for i, k in T.Parallel(block_m, top_k):
                row = bx * block_m + i
                if row < tokens:
                    Weights[row, k] = weights[i, k] / norm[i]

    return topk_routing


def route(logits, seq_ids, num_seqs, top_k=2):
    tokens, experts = logits.shape
    weights = torch.empty(tokens, top_k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(tokens, top_k, dtype=torch.int32, device=logits.device)
    counts = torch.zeros(num_seqs, experts, dtype=torch.int32, device=logits.device)
    if tokens:
        kernel = topk_kernel(experts, top_k, str(logits.dtype).split(".")[-1])
        kernel(logits, seq_ids, weights, ids, counts)
    return {"weights": weights, "experts": ids, "aux": {"counts": counts}}


def route_torch(logits, seq_ids, num_seqs, top_k=2):
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    ids = ids[:, :top_k]
    counts = torch.zeros(num_seqs, logits.shape[1], dtype=torch.int32, device=logits.device)
    rows = seq_ids.long().repeat_interleave(top_k)
    counts.index_put_((rows, ids.flatten()), torch.ones_like(rows).int(), accumulate=True)
    return values[:, :top_k].softmax(-1), ids.int(), counts
