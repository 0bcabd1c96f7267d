"""References of packed problems; some mix sequences."""

import itertools

import torch


def softmax(x, cu_seqlens):
    bounds = cu_seqlens.tolist()
    parts = [x[a:b].softmax(0) for a, b in itertools.pairwise(bounds)]
    return torch.cat([x[:0], *parts])


def sums(x, cu_seqlens):
    bounds = cu_seqlens.tolist()
    return torch.stack([x[a:b].sum(0) for a, b in itertools.pairwise(bounds)])


def gemm(x, w, ids):
    return torch.einsum("nk,nkm->nm", x, w[ids.long()])


def centred(x, cu_seqlens):
    return x - x.mean(0, keepdim=True)


def ranked(x, cu_seqlens):
    return softmax(x, cu_seqlens), x.argsort(0)


def scores(q, k, cu_q, cu_k):
    out = []
    pairs = zip(cu_q.tolist(), cu_q.tolist()[1:], cu_k.tolist(), cu_k.tolist()[1:], strict=False)
    for a, b, c, d in pairs:
        out.append((q[a:b] @ k[c:d].T).sum(1, keepdim=True) * q[a:b])
    return torch.cat(out)


def gathered(pool, table, cu_seqlens):
    size = pool.shape[1]
    rows = []
    lengths = cu_seqlens.diff().tolist()
    for pages, length in zip(table.long(), lengths, strict=True):
        place = torch.arange(length, device=pool.device)
        rows.append(pool[pages[place // size], place % size])
    return torch.cat(rows) * 2


def appended(pool, table, lens, x):
    """One more row at the end of each sequence; `lens` includes it."""
    made, size = pool.clone(), pool.shape[1]
    for number, length in enumerate(lens.tolist()):
        if length:
            made[table[number, (length - 1) // size].long(), (length - 1) % size] = x[number]
    return made


def of_x(x, other, cu_seqlens):
    return softmax(x, cu_seqlens)


def softmax_with_decay(x, cu_seqlens, decay):
    return softmax(x, cu_seqlens) * decay[:, None].to(x.dtype)


def weighted(x, w, cu_seqlens):
    return softmax(x, cu_seqlens) * w


def padded_sums(x, lens):
    place = torch.arange(x.shape[1], device=x.device)
    return torch.where((place < lens[:, None])[..., None], x, 0).sum(1)
