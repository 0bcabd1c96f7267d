"""The gradient of a scale that all ranks have: each returns the sum over its rows."""

import torch


def gradient(x, dy):
    return torch.einsum("rc,rc->c", x, dy)


def right(x, dy):
    return (x.float() * dy.float()).sum(0).to(x.dtype)


def adds_in_bfloat16(x, dy):
    total = torch.zeros(x.shape[1], dtype=torch.bfloat16)
    for row in x.float() * dy.float():
        total += row.bfloat16()
    return total.to(x.dtype)
