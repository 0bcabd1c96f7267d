"""Entries with and without bugs, and relations that correct ones satisfy."""

import torch


def normalise(x, w, *, how="right"):
    """Rows of `x` over their root mean square, times `w`; [rows, cols] and [cols]."""
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).sqrt()
    if how == "tail":  # the last row of an odd number has the scale of the one before
        scale = torch.cat([scale[:-1], scale[-2:-1]]) if len(x) % 2 and len(x) > 1 else scale
    if how == "absolute":
        scale = scale + 0.5
    y = wide / scale * w.float()
    if how == "neighbour":
        y = y + 0.01 * wide.mean()
    if how == "nan":
        y = torch.where(x == x.max(), torch.nan, y)
    if how == "gradient":
        return _Wrong.apply(x, w)
    return y.to(x.dtype)


class _Wrong(torch.autograd.Function):
    """A correct forward; the gradient of x ignores that the scale depends on x."""

    @staticmethod
    def forward(context, x, w):
        scale = x.float().square().mean(-1, keepdim=True).sqrt()
        context.save_for_backward(x, w, scale)
        return (x.float() / scale * w.float()).to(x.dtype)

    @staticmethod
    def backward(context, dy):
        x, w, scale = context.saved_tensors
        dw = (dy.float() * x.float() / scale).sum(0)
        # All rows get the gradient of the first: a missing block index.
        return (dy[:1].float() * w.float() / scale).to(x.dtype), dw.to(w.dtype)


def clip(x, *, how="right"):
    """Between -1 and 1."""
    y = x.clamp(-1, 1)
    return torch.where(y == 1, 0.5, y) if how == "drops" else y


def gram(x):
    return x @ x.T


def signs_cancel(inputs, outputs):
    """Negating both inputs does not change the result."""
    return {"x": -inputs["x"], "w": -inputs["w"]}, {"y": outputs["y"]}


def unit_rows(inputs, outputs, eps=0.0):
    """Rows of y / w have a mean square of 1; needs no other call."""
    square = (outputs["y"].float() / inputs["w"].float()).square().mean(-1, keepdim=True)
    return {}, {"y": (outputs["y"].float() / square.sqrt() + eps).to(outputs["y"].dtype)}


def forgetful(inputs, outputs):
    """Returns one mapping instead of two."""
    return {"x": inputs["x"]}


def misnamed(inputs, outputs):
    """Changes an unknown input."""
    return {"z": inputs["x"]}, {"y": outputs["y"]}


def broken(inputs, outputs):
    """Raises KeyError."""
    return {"x": inputs["nothing"]}, outputs
