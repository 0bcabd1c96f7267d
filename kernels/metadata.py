"""Checks of arguments that are made once for calls with equal metadata.

The checks of a call take longer than its kernel where that is short: a decode step, or a window.
"""

import functools

import torch

from tlmatrix_kernels.alignment import ALIGNMENT

MOST = 1024
"""Results that are kept for each check, the latest ones."""
_ABSENT = object()


def once_per_metadata(check):
    """Decorator of a check that reads no values of tensors: keeps what it returns.

    The key has the shape, strides, dtype, device and alignment of each tensor, and the type and
    value of each other argument; an error is raised again by each call.
    """
    kept = {}

    @functools.wraps(check)
    def checked(*arguments):
        key = tuple(map(_metadata, arguments))
        try:
            result = kept.get(key, _ABSENT)
        except TypeError:  # an argument that cannot be a key, which the check may refuse
            key, result = None, _ABSENT
        if result is _ABSENT:  # not where an error is handled: those of the check stand alone
            result = check(*arguments)
            if key is not None:
                if len(kept) >= MOST:
                    del kept[next(iter(kept))]
                kept[key] = result
        return result

    return checked


def _metadata(argument):
    if isinstance(argument, torch.Tensor):
        aligned = argument.data_ptr() % ALIGNMENT == 0
        return argument.shape, argument.stride(), argument.dtype, argument.device, aligned
    return type(argument), argument
