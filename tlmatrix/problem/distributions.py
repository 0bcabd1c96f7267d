"""Distributions of input values, and choices that follow from a seed, identical on every device.

N(0, 1) alone hides kernels that permute rows, let a masked logit win, or sum in the wrong
precision. Values are generated on the CPU in float32 and then cast, so that all backends get the
same bits. Importing this module does not import torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tlmatrix.dtypes import dtype_named
from tlmatrix.words import nearest

if TYPE_CHECKING:
    import torch

    from tlmatrix.spec.values import Value

DISTRIBUTIONS = {
    "normal": "independent N(0, 1)",
    "one_hot": "one 1 in each row, else 0: reveals permuted rows and columns exactly",
    "ramp": "grows with the row, and slightly along it: reveals rows read from elsewhere",
    "large": "N(0, 1) times 8 or 16: saturates softmax, exceeds finite mask values",
    "outlier_rows": "N(0, 1), one row in 16 multiplied by 16: reveals sums that round too early",
    "constant_rows": "each row a random constant: equal terms, whose rounding errors add up",
    "opposed": "|N(0, 1)|, negated for every second input: all products of q and k are "
    "negative, so that a zero read out of bounds wins the softmax",
    "cancelling": "about 1/2, half of the inputs negated (every second head of a cotangent, the "
    "second half of each row of the first input): large parts of a sum that cancel each other",
    "halves": "about 1/2, negated in the second half of the rows of the first input, in attention "
    "in the values and cotangents of the second half of each sequence: sums over rows whose parts "
    "cancel",
    "shifted": "N(0, 1) / 4 minus 200, in attention a shift of q and k by which all scores are "
    "about -200: reveals a running maximum that begins at 0",
    "zero_rows": "N(0, 1), the first of every four rows 0, the second 1/4096 as large: reveals "
    "division by a norm of 0, and an eps that is added elsewhere",
    "rising": "each row rises from -3 to 3, with a little noise: the running maximum changes in "
    "every tile",
    "equal_rows": "N(0, 1), all rows of every second input equal (the keys of attention): equal "
    "scores, whose softmax weights are 1 / the number of keys",
    "subnormal": "each input, by chance, N(0, 1) or below the smallest normal number of the dtype: "
    "reveals flushed float16 (in large bfloat16 and float32 inputs only the first rows)",
    "extreme": "the first input (v of attention) near the largest number of the dtype, or of what "
    "its results and their squares in float32 allow; in half of the cases of attention in float16 "
    "the gradients: reveals sums in 16 bits that overflow",
}
"""Names with descriptions."""

_PERIOD = 2053
"""Period of `replacement_values`: a prime, so that few rows of a tensor start alike."""
_DISTINCT = 100_003
"""Most N(0, 1) numbers that are generated for a tensor, which repeats them: a prime far from powers
of two, by which sequences and heads lie apart. A core generates 300 a microsecond."""

_SLOW = 2**14
"""Most elements of an input that are subnormal in float32: a product with them takes a CPU a
hundred times as long as others, and a GPU may flush them."""

_OF_ROWS = ("zero_rows", "rising")
"""Distributions for kernels along rows: only used if a spec names them."""
OF_PARTS = {0: "halves", -1: "cancelling"}
"""For kernels that sum in parts, by the dimension of the first input that is summed: its halves
have opposite signs. Used if a family says so, or a spec names them."""
SPECIAL = ("equal_rows", "subnormal", "extreme")
"""Rare values. The seed picks one of those that a family allows in one of 16 cases."""
SAFE = SPECIAL[:1]
"""Those for which any formula stays in the range of float32."""
OF_ATTENTION = ("halves", "shifted")
"""For softmax and sums over rows. In attention the seed may pick one; other problems have them only
if their specs name them."""
SHIFT = 200.0
"""How far below 0 `shifted` values are: exp(-200) is 0 in float32."""
_SMALL = 2.0**-12
"""The size of small rows: their mean square is about 6e-8, below the usual eps, and most are normal
numbers in float16."""
_OTHERS = tuple(
    name
    for name in DISTRIBUTIONS
    if name not in ("normal", *_OF_ROWS, *OF_PARTS.values(), *OF_ATTENTION, *SPECIAL)
)


def explain_distribution(name: Value) -> str | None:
    """Why `name` is no distribution; None if it is one."""
    if isinstance(name, str) and name in DISTRIBUTIONS:
        return None
    return f"unknown distribution {name!r}{nearest(name, DISTRIBUTIONS)}"


def choose_distribution(
    values: Value,
    seed: int,
    special: Sequence[str] = (),
    own: Mapping[str, float] | None = None,
) -> str:
    """The distribution of the axis `values`; without it one by seed, `normal` half of the time.

    One of `special` takes the place of `normal` one time in eight. `own` are distributions of a
    family, each with the share of cases that have it in place of any other.

    Raises:
        ValueError: there is no distribution of that name.
    """
    if values is not None:
        if reason := explain_distribution(values):
            raise ValueError(reason)
        return str(values)
    if own:
        share = seeded_random(seed).random()
        for name, part in own.items():
            share -= part
            if share < 0:
                return name
    pick = random.Random(seed)  # noqa: S311 - test data, not secrets
    if pick.random() >= 0.5:
        return pick.choice(_OTHERS)
    return pick.choice(special) if special and pick.random() < 0.125 else "normal"


def usual_distributions(special: Sequence[str] = ()) -> tuple[str, ...]:
    """The distributions that `choose_distribution` picks by seed, `normal` first.

    `special` are those of a family beside the usual ones.
    """
    return ("normal", *_OTHERS, *special)


def generator(seed: int) -> torch.Generator:
    """A seeded CPU generator: the bits do not depend on the device."""
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
    """A CPU tensor from the distribution `name`; a row is a vector along the last dimension.

    Args:
        name: one of `DISTRIBUTIONS`.
        source: the random generator.
        shape: of the result.
        dtype: of the result; values are generated in float32 and cast. Integers are uniform in
            [-8, 8), unsigned ones in [0, 8), whatever the distribution.
        index: number of the input in its problem; `opposed` alternates signs by it, `equal_rows`
            has equal rows in odd ones, and of `extreme` and `shifted` only the first is not
            `normal`.
        cotangent: whether this is a cotangent. `large`, `outlier_rows`, `equal_rows`, `extreme` and
            `shifted` are `normal` then: a gradient is a product of three inputs, and must stay in
            the range of float16.

    Raises:
        ValueError: there is no distribution of that name.
    """
    import torch

    if reason := explain_distribution(name):
        raise ValueError(reason)
    if (cotangent and name in ("large", "outlier_rows", "equal_rows", "extreme", "shifted")) or (
        index and name in ("extreme", "shifted")
    ):
        name = "normal"
    shape = tuple(shape)
    if not dtype.is_floating_point:
        return _integers(source, shape, dtype)
    size = shape[-1] if shape else 1
    rows = shape[:-1]
    if name in ("normal", "large", "outlier_rows", "opposed", "zero_rows", "equal_rows"):
        distinct = min(math.prod(shape), _DISTINCT)
        result = _repeated(torch.randn(distinct, generator=source, dtype=torch.float32), shape)
        if name == "large":
            # 8**2 * sqrt(head_dim) is far below 65504; wider dtypes allow twice as much.
            result *= 8.0 if dtype_named(str(dtype)[6:]).largest < 1e6 else 16.0
        elif name == "outlier_rows":
            outlier = torch.randint(0, 16, (*rows, 1), generator=source)
            result *= torch.where(outlier == 0, 16.0, 1.0)
        elif name == "equal_rows" and index % 2 and result.numel():
            result = result.view(-1, size)[:1].repeat(result.numel() // size, 1).view(shape)
        elif name == "zero_rows" and rows and result.numel():
            lines = result.view(-1, size)
            lines[::4] = 0.0
            lines[1::4] *= _SMALL
        elif name == "opposed":
            result = result.abs_() if index % 2 == 0 else result.abs_().neg_()
    elif name == "one_hot":
        result = torch.zeros(shape, dtype=torch.float32)
        if result.numel():
            index_of_one = torch.randint(0, size, (*rows, 1), generator=source)
            result.scatter_(-1, index_of_one, 1.0)
    elif name == "subnormal":
        if bool(torch.randint(0, 2, (), generator=source)):
            result = torch.rand(shape, generator=source, dtype=torch.float32).double() * 2 - 1
            smallest = torch.finfo(dtype).smallest_normal
            slow = smallest == torch.finfo(torch.float32).smallest_normal
            result.view(-1)[: _SLOW if slow else None] *= smallest
        else:
            result = torch.randn(shape, generator=source, dtype=torch.float32)
    elif name == "extreme":
        result = torch.rand(shape, generator=source, dtype=torch.float32) / 4 + 0.25
        sign = torch.randint(0, 2, shape, generator=source) * 2 - 1
        result = (result * sign).mul_(extreme_size(dtype))
    elif name in ("cancelling", "halves"):
        # 1/2 with noise: the noise of a product averages out, the 1/2 does not.
        result = 0.5 + torch.randn(shape, generator=source, dtype=torch.float32) / 8
        if index == 0 and not cotangent and name == "cancelling":
            result[..., (size + 1) // 2 :] *= -1
        elif index == 0 and not cotangent and rows:
            result[(rows[0] + 1) // 2 :] *= -1
    elif name == "shifted":
        result = torch.randn(shape, generator=source, dtype=torch.float32) / 4 - SHIFT
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


def extreme_size(dtype: torch.dtype) -> float:
    """The size of `extreme` values: the power of two above the largest of the dtype, or 2**56.

    Float32 can sum the squares of values below 2**56. Values are between 1/4 and 1/2 of this size.
    """
    return 2.0 ** min(math.ceil(math.log2(dtype_named(str(dtype)[6:]).largest)), 56)


def uniform(
    low: float, high: float, source: torch.Generator, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """A CPU tensor of uniform values in [low, high], which are integers for an integer dtype."""
    import torch

    if dtype.is_floating_point:
        return (torch.rand(tuple(shape), generator=source) * (high - low) + low).to(dtype)
    return torch.randint(int(low), int(high) + 1, tuple(shape), generator=source).to(dtype)


def replacement_values(
    source: torch.Generator, shapes: Sequence[Sequence[int]], dtype: torch.dtype
) -> list[torch.Tensor]:
    """CPU tensors that replace inputs in relations: N(0, 1) with a short period.

    Relations need different values, not independent ones: each tensor repeats `_PERIOD` numbers
    along its memory, which is far cheaper to generate.
    """
    few = draw("normal", source, (len(shapes), _PERIOD), dtype)
    return [_repeated(numbers, shape) for shape, numbers in zip(shapes, few.unbind(), strict=True)]


def _repeated(numbers: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of a shape that repeats numbers along its memory."""
    import torch

    count, period = math.prod(shape), len(numbers)
    if count == period:
        return numbers.view(tuple(shape))
    result = torch.empty(tuple(shape), dtype=numbers.dtype)
    flat = result.view(-1)
    whole = count // period * period if period else 0
    if whole:
        flat[:whole].view(-1, period).copy_(numbers)
    flat[whole:].copy_(numbers[: count - whole])
    return result


def _integers(source: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    import torch

    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=source).bool()
    return torch.randint(-8 if dtype.is_signed else 0, 8, shape, generator=source).to(dtype)


def seeded_random(seed: int) -> random.Random:
    """A random number generator for choices (which sequence, row, order), not for tensors."""
    return random.Random(seed ^ 0x5EED)  # noqa: S311 - test data, not secrets


def permutation(pick: random.Random, count: int) -> list[int]:
    """A random permutation of range(count); never the identity if `count` is 2 or more."""
    order = list(range(count))
    pick.shuffle(order)
    return order if order != sorted(order) else order[1:] + order[:1]


def poison_scale(dtype: str) -> float:
    """A power of two to multiply N(0, 1) by: leaks become visible, and no product overflows.

    Infinity would turn a harmless `0 * x` into NaN. The largest product that a kernel stores in
    `dtype` is that of two poisoned tensors summed over a head (dS from do and v): about
    sqrt(256) * scale**2, and 4 times that must be finite. That gives 32 for float16. The scale is
    at most 2**40, so that float32 sums of three such factors are finite.
    """
    return 2.0 ** min(40, round(math.log2(math.sqrt(dtype_named(dtype).largest / 64))))
