"""Entries that refuse invalid inputs: always, in their first call alone, or for some gradients."""

import torch

_CHECKED = set()


def _checked(scale, key):
    if key not in _CHECKED:
        if type(scale) is not int:
            raise TypeError(f"scale must be an int, got {scale!r}")
        _CHECKED.add(key)


def checked_once_per_value(x, scale=1):
    """Equal values share a check: True is 1."""
    _checked(scale, (x.shape, scale))
    return x * scale


def checked_once_per_shape(x, scale=1):
    _checked(scale, x.shape)
    return x * scale


def checked_once_per_type(x, scale=1):
    _checked(scale, (x.shape, type(scale), scale))
    return x * scale


def scaled(x, scale=1):
    return x * scale


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return a + b

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


def refusing_any_gradient(a, b):
    _refuse_wide(a, wanted=a.requires_grad or b.requires_grad)
    return _Sum.apply(a, b)


def refusing_the_first_gradient(a, b):
    _refuse_wide(a, wanted=a.requires_grad)
    return _Sum.apply(a, b)


def refusing_all_gradients_together(a, b):
    _refuse_wide(a, wanted=a.requires_grad and b.requires_grad)
    return _Sum.apply(a, b)


def refusing_the_gradient_of_b(a, b):
    """The gradient of `a` is supported, and the message says so."""
    _refuse_wide(a, wanted=b.requires_grad, of=" of b")
    return _Sum.apply(a, b)


def refusing_wide_inputs(a, b):
    _refuse_wide(a, wanted=True)
    return _Sum.apply(a, b)


def _refuse_wide(a, *, wanted, of=""):
    if wanted and a.shape[1] > 8:
        raise ValueError(f"cols must be at most 8 for gradients{of}, got {a.shape[1]}")


def added(a, b):
    return a + b
