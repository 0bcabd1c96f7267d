"""References for specs in tests."""

import torch


def rms_norm(x, w, eps=1e-6):
    wide = x if x.dtype == torch.float64 else x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * w.to(wide.dtype)).to(x.dtype)


def best(x):
    values, places = x.max(-1)
    return values, places


def wants_more(x, gain):
    return x * gain


def picks(x, index):
    return x[index.abs().long() % x.shape[0]]


def half_only_in_wide(x):
    if x.dtype == torch.float16:
        raise RuntimeError("not implemented for 'Half'")
    return x * 3


number = 3


def weighted_product(x, b, w):
    return (x * w[:, None]).T.to(w.dtype) @ b.to(w.dtype)


def plain_product(x, b, w):
    return x.T.to(w.dtype) @ b.to(w.dtype)


def _scores(q, k):
    return q @ k.mT * q.shape[-1] ** -0.5


def softmax_attention(q, k, v):
    return _scores(q, k).softmax(-1) @ v


def attention_by_hand(q, k, v):
    scores = _scores(q, k)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ v


def fused_attention(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)
