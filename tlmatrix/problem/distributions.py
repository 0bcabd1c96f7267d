"""Input values that reveal what normal noise hides, seeded and the same on every device.

Noise from N(0, 1) alone passes kernels that permute rows, let a masked logit win, or sum in
the wrong precision. Each distribution here is drawn on the CPU in float32 and then cast, so
that a GPU and the interpreter judge the same bits. The names are known without torch.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tlmatrix.spec.dtypes import dtype_named
from tlmatrix.words import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tlmatrix.spec.values import Value

__all__ = [
    "DISTRIBUTIONS",
    "choose",
    "draw",
    "evenly",
    "explain_distribution",
    "generator",
    "others",
    "usual_distributions",
]

DISTRIBUTIONS = {
    "normal": "independent N(0, 1)",
    "one_hot": "one 1 a row at a random place, else 0: a permuted row or column shows exactly",
    "ramp": "rises with the row, tilted along it: a row taken from elsewhere has another size",
    "large": "N(0, 1) times 8 or 16: saturated softmax, logits far from any finite sentinel",
    "outlier_rows": "N(0, 1) with one row in sixteen 16 times larger: sums that round too early",
    "constant_rows": "every row one random constant: equal terms, sums that drift",
    "opposed": "|N(0, 1)|, inputs of alternate sign: every product of two neighbours is "
    "negative, so that a zero read out of bounds would win the softmax",
    "zero_rows": "N(0, 1) with the first of every four rows 0: a norm or a scale of nothing",
    "rising": "each row rises from -3 to 3, with a little noise: a running maximum changes in "
    "every tile",
}
"""Each name with what it reveals."""

_PERIOD = 2053
"""Of `others`: a prime, so that hardly two rows of a tensor begin at the same number."""

_OF_ROWS = ("zero_rows", "rising")
"""Those for kernels that work along rows: drawn where a spec names them, and by no seed alone."""
_OTHERS = tuple(name for name in DISTRIBUTIONS if name not in ("normal", *_OF_ROWS))


def explain_distribution(name: Value) -> str | None:
    """Why `name` is no distribution, or None where it is one."""
    if isinstance(name, str) and name in DISTRIBUTIONS:
        return None
    return f"unknown distribution {name!r}{nearest(name, DISTRIBUTIONS)}"


def choose(values: Value, seed: int) -> str:
    """The distribution a case names, else one its seed picks (normal half of the time)."""
    if values is not None:
        if reason := explain_distribution(values):
            raise ValueError(reason)
        return str(values)
    pick = random.Random(seed)  # noqa: S311 - test data, not secrets
    return "normal" if pick.random() < 0.5 else pick.choice(_OTHERS)


def usual_distributions() -> tuple[str, ...]:
    """What cases draw that name none, `normal` first."""
    return ("normal", *_OTHERS)


def generator(seed: int) -> torch.Generator:
    """A seeded CPU generator; CPU whatever the device, so that the bits do not depend on it."""
    import torch

    return torch.Generator(device="cpu").manual_seed(seed)


def draw(
    name: str,
    source: torch.Generator,
    shape: Sequence[int],
    dtype: torch.dtype,
    *,
    index: int = 0,
    cotangent: bool = False,
) -> torch.Tensor:
    """A CPU tensor of the distribution `name`; a row is a vector along the last dimension.

    Args:
        name: one of `DISTRIBUTIONS`.
        source: what is random comes from it.
        shape: of the result.
        dtype: of the result; values are made in float32 and cast. Integers are drawn from
            [-8, 8), or [0, 8) without a sign, whatever the distribution.
        index: number of the input in its problem; `opposed` alternates signs by it.
        cotangent: whether this is a cotangent. Those stay at the size of normal noise, for a
            gradient is a product of three inputs and must stay in the range of float16.

    Raises:
        ValueError: the name of no distribution.
    """
    import torch

    if reason := explain_distribution(name):
        raise ValueError(reason)
    if cotangent and name in ("large", "outlier_rows"):
        name = "normal"
    shape = tuple(shape)
    if not dtype.is_floating_point:
        return _integers(source, shape, dtype)
    size = shape[-1] if shape else 1
    rows = shape[:-1]
    if name in ("normal", "large", "outlier_rows", "opposed", "zero_rows"):
        result = torch.randn(shape, generator=source, dtype=torch.float32)
        if name == "large":
            # 8**2 * sqrt(head_dim) stays far from 65504; wider dtypes bear twice as much.
            result *= 8.0 if dtype_named(str(dtype)[6:]).largest < 1e6 else 16.0
        elif name == "outlier_rows":
            lots = torch.randint(0, 16, (*rows, 1), generator=source)
            result *= torch.where(lots == 0, 16.0, 1.0)
        elif name == "zero_rows" and rows:
            result.view(-1, size)[::4] = 0.0
        elif name == "opposed":
            result = result.abs_() if index % 2 == 0 else result.abs_().neg_()
    elif name == "one_hot":
        result = torch.zeros(shape, dtype=torch.float32)
        if result.numel():
            place = torch.randint(0, size, (*rows, 1), generator=source)
            result.scatter_(-1, place, 1.0)
    elif name == "rising":
        noise = torch.randn(shape, generator=source, dtype=torch.float32)
        result = torch.linspace(-3.0, 3.0, size, dtype=torch.float32) + noise / 16
    elif name == "constant_rows":
        row = torch.randn((*rows, 1), generator=source, dtype=torch.float32)
        result = row.expand(shape).contiguous()
    else:
        count = 1
        for length in rows:
            count *= length
        row = torch.linspace(-1.0, 1.0, count, dtype=torch.float32).reshape(*rows, 1)
        tilt = torch.linspace(-0.125, 0.125, size, dtype=torch.float32)
        result = row + tilt * (1 + index)
    return result.to(dtype)


def evenly(
    low: int, high: int, source: torch.Generator, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """A CPU tensor of values that are equally likely between two bounds, both included."""
    import torch

    if dtype.is_floating_point:
        return (torch.rand(tuple(shape), generator=source) * (high - low) + low).to(dtype)
    return torch.randint(low, high + 1, tuple(shape), generator=source).to(dtype)


def others(
    source: torch.Generator, shapes: Sequence[Sequence[int]], dtype: torch.dtype
) -> list[torch.Tensor]:
    """CPU tensors that take the place of inputs in a relation: `normal`, drawn more cheaply.

    What counts there is that values are others, not that all are independent: few numbers are
    drawn for each, and follow one another again and again along the tensor's memory.
    """
    import torch

    few = draw("normal", source, (len(shapes), _PERIOD), dtype)
    made = []
    for shape, numbers in zip(shapes, few.unbind(), strict=True):
        result = torch.empty(tuple(shape), dtype=dtype)
        flat = result.view(-1)
        whole = len(flat) // _PERIOD * _PERIOD
        if whole:
            flat[:whole].view(-1, _PERIOD).copy_(numbers)
        flat[whole:].copy_(numbers[: len(flat) - whole])
        made.append(result)
    return made


def _integers(source: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    import torch

    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=source).bool()
    return torch.randint(-8 if dtype.is_signed else 0, 8, shape, generator=source).to(dtype)
