"""A product with bugs that relations detect."""

import torch


def product(a, b, *, transpose_a=False, transpose_b=False, how="right"):
    c = (a.T if transpose_a else a) @ (b.T if transpose_b else b)
    if how == "late_rows":
        c = torch.cat([c[:-1], 1.5 * c[-1:]])
    if how == "offset":
        c = c + 1
    return c
