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
