"""The error of float32 sums in tensor cores, which truncate instead of rounding to nearest.

A tensor core adds a block of products to its accumulator by aligning all of them to the largest
and cutting off lower bits (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor
cores", PeerJ Computer Science 2021: 8 products and one more bit than float32 on Ampere). If the
sum grows towards one sign, each term loses about half of the last kept bit of the accumulator, all
of them in one direction: the error grows with the number of terms. Importing this module does not
import torch.
"""

from __future__ import annotations

_PER_TERM = 0.375 * 2.0**-24
"""Of the result's size, for each term: what the model of `tests/problem/test_tensor_cores.py` loses
at most with the blocks of Ampere; about half of it with those of Hopper."""
SYSTEMATIC = 1 / 0.6
"""The spread of errors of one direction, in multiples of the largest: the bound of a root mean
square has 0.6 times the spread."""


def truncation(terms: int) -> float:
    """The largest error of a sum of `terms` products, in multiples of its size."""
    return terms * _PER_TERM
