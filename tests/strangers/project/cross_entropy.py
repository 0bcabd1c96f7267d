"""Cross entropy over a large vocabulary, without the probabilities ever in memory."""

from typing import Literal, NamedTuple

import tilelang
import tilelang.language as T
import torch
from torch.autograd.function import once_differentiable


@tilelang.jit
def ce_forward(dtype, block_v=128, threads=128):
    rows, vocab = T.dynamic("rows, vocab")

    @T.prim_func
    def cross_entropy_fwd(
        Logits: T.Tensor((rows, vocab), dtype),
        Target: T.Tensor((rows,), "int64"),
        ignore_index: T.int64,
        Loss: T.Tensor((rows,), "float32"),
        Lse: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(rows, threads=threads) as row:
            x = T.alloc_fragment([1, block_v], "float32")
            m = T.alloc_fragment([1], "float32")
            m_before = T.alloc_fragment([1], "float32")
            total = T.alloc_fragment([1], "float32")
            T.fill(m, -1e30)
            T.clear(total)
            for tile in T.serial(T.ceildiv(vocab, block_v)):
                for i, j in T.Parallel(1, block_v):
                    col = tile * block_v + j
                    x[i, j] = T.if_then_else(
                        col < vocab, T.cast(Logits[row, col], "float32"), -T.infinity("float32")
                    )
                T.copy(m, m_before)
                T.reduce_max(x, m, dim=1, clear=False)
                for i in T.Parallel(1):
                    total[i] *= T.exp(m_before[i] - m[i])
                for i, j in T.Parallel(1, block_v):
                    x[i, j] = T.exp(x[i, j] - m[i])
                T.reduce_sum(x, total, dim=1, clear=False)
            for i in T.Parallel(1):
                Lse[row] = m[i] + T.log(total[i])
                if Target[row] != ignore_index:
                    Loss[row] = m[i] + T.log(total[i]) - Logits[row, Target[row]]
                else:
                    Loss[row] = 0

    return cross_entropy_fwd


@tilelang.jit
def ce_backward(dtype, block_v=128, threads=128):
    rows, vocab = T.dynamic("rows, vocab")

    @T.prim_func
    def cross_entropy_bwd(
        Logits: T.Tensor((rows, vocab), dtype),
        Target: T.Tensor((rows,), "int64"),
        ignore_index: T.int64,
        Lse: T.Tensor((rows,), "float32"),
        Scale: T.Tensor((rows,), "float32"),
        DLogits: T.Tensor((rows, vocab), dtype),
    ):
        with T.Kernel(T.ceildiv(vocab, block_v), rows, threads=threads) as (bv, row):
            for j in T.Parallel(block_v):
                col = bv * block_v + j
                if col < vocab:
                    if Target[row] != ignore_index:
                        p = T.exp(Logits[row, col] - Lse[row])
                        hit = T.if_then_else(col == Target[row], 1.0, 0.0)
                        DLogits[row, col] = (p - hit) * Scale[row]
                    else:
                        DLogits[row, col] = 0

    return cross_entropy_bwd


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, ignore_index, reduction):
        rows = logits.shape[0]
        loss, lse = torch.zeros(2, rows, device=logits.device).unbind(0)
        if rows:
            kernel = ce_forward(str(logits.dtype).split(".")[-1])
            kernel(logits, target, ignore_index, loss, lse)
        count = (target != ignore_index).sum().clamp(min=1)
        ctx.save_for_backward(logits, target, lse, count)
        ctx.ignore_index, ctx.reduction = ignore_index, reduction
        ctx.mark_non_differentiable(lse)
        if reduction != "none":
            loss = loss.sum() / count if reduction == "mean" else loss.sum()
        return loss, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss, _):
        logits, target, lse, count = ctx.saved_tensors
        dlogits = torch.empty_like(logits)
        if len(logits):
            scale = dloss / count if ctx.reduction == "mean" else dloss
            scale = scale.expand(len(logits)).contiguous()
            kernel = ce_backward(str(logits.dtype).split(".")[-1])
            kernel(logits, target, ctx.ignore_index, lse, scale, dlogits)
        return dlogits, None, None, None


class CrossEntropyOutput(NamedTuple):
    loss: torch.Tensor
    lse: torch.Tensor


def cross_entropy(
    logits, target, ignore_index=-100, reduction: Literal["mean", "sum", "none"] = "mean"
):
    """Mean over the targets that are not ignored (0 if all are), and each row's log-sum-exp."""
    return CrossEntropyOutput(*_CrossEntropy.apply(logits, target, ignore_index, reduction))


def reference(logits, target, ignore_index, reduction):
    kept = target != ignore_index
    lse = logits.logsumexp(-1)
    logp = logits - lse.unsqueeze(1)
    picked = logp.gather(1, target.clamp(min=0).unsqueeze(1)).squeeze(1)
    loss = -(picked * kept)
    if reduction != "none":
        loss = loss.sum() / (kept.sum().clamp(min=1) if reduction == "mean" else 1)
    return loss, lse.detach()
