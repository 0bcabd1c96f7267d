"""Errors that values rounded inside a kernel carry into its results, of a reference in PyTorch.

Some values of a right kernel may be rounded although the arithmetic around them is float32:

- operands of matrix products, which tensor cores take in 16 bits (`operands` of a reference);
- sums of products in tensor cores, which truncate (`tlmatrix.problem.tensors`);
- outputs from which a flash backward takes delta = sum(out * dout), the sum that each row of dS
  subtracts. Autograd sums the same delta as sum(P * dP), from values that are not rounded.

Rounding a factor of each term changes a sum of terms t by at most u * sum |t|, and by independent
roundings hardly by more than 4 u * sqrt(sum t**2); roundings that all terms share change it by
u * |sum t|. Such errors, of random sign, are injected into the reference; how far the results
move is what they carry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from tlmatrix.problem.declared.operators import Call, OperatorMode
from tlmatrix.problem.tensors import SYSTEMATIC, float8_truncation, truncation

if TYPE_CHECKING:
    Tensors = Mapping[str, torch.Tensor]

_OPERANDS: dict[str, tuple[int, ...]] = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "mv": (0, 1),
    "dot": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "addbmm": (1, 2),
    "addmv": (1, 2),
    "convolution": (0, 1),
    "convolution_backward": (0, 1, 2),
}
"""Operators that sum products, with the positions of the factors; `matmul`, `einsum` and
`linear` become these."""

_MAXIMA = frozenset({torch.amax, torch.Tensor.amax, torch.max, torch.Tensor.max})

_SIGMAS = 4.0
"""Times u and the root of a sum of squares: 7 standard deviations of independent roundings."""

Size = Literal["bound", "spread"]
"""The largest error, or its scale: without the factor of 4."""


@dataclass(frozen=True)
class Carried:
    """Errors in absolute units: the largest of each element, and their scale, by name."""

    bound: Tensors
    spread: Tensors

    def plus(self, other: Carried) -> Carried:
        """The sums of both; a tensor may have errors in one of them only."""

        def added(one: Tensors, more: Tensors) -> Tensors:
            return {**one, **{n: each + one.get(n, 0.0) for n, each in more.items()}}

        return Carried(added(self.bound, other.bound), added(self.spread, other.spread))


@contextmanager
def as_products() -> Iterator[None]:
    """Context manager: `scaled_dot_product_attention` runs as products and a softmax."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


class DetachedMaximum(TorchFunctionMode):
    """Detaches maxima over rows, which a softmax subtracts: its result does not depend on them.

    Errors that an autograd graph injects below would cancel on the way through the maximum.
    """

    used = False

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call the function, for a maximum on a detached tensor."""
        kwargs = kwargs or {}
        if func in _MAXIMA and args and not any(map(torch.is_tensor, args[1:])):
            args, self.used = (args[0].detach(), *args[1:]), True
        return func(*args, **kwargs)


class _Mode(OperatorMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that sees products by their operands."""

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator as the mode does."""
        places = _OPERANDS.get(call.name)
        if places is not None and call.args[places[0]].is_floating_point():
            return self.product(call, places)
        return self.other(call)

    def product(self, call: Call, places: tuple[int, ...]) -> Any:  # noqa: ANN401, ARG002
        """Call an operator of `_OPERANDS`, whose factors are the arguments at `places`."""
        return call.result()

    def other(self, call: Call) -> Any:  # noqa: ANN401
        """Call any other operator."""
        return call.result()


class RoundedOperands(_Mode):  # type: ignore[no-untyped-call]
    """Rounds the operands of products to `dtype`, as a kernel does that feeds tensor cores."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def product(self, call: Call, places: tuple[int, ...]) -> Any:  # noqa: ANN401
        """Call the operator with rounded factors."""
        given = list(call.args)
        for place in places:
            given[place] = _rounded(given[place], self._dtype)
        return call.func(*given, **call.kwargs)


class ComputedOperands(_Mode):  # type: ignore[no-untyped-call]
    """Notes whether a product has an operand that `dtype` does not hold, which kernels round.

    Attributes:
        found: whether one has.
    """

    found = False

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def product(self, call: Call, places: tuple[int, ...]) -> Any:  # noqa: ANN401
        """Call the operator."""
        self.found = self.found or not _are_exact(call, places, self._dtype)
        return call.result()


class _Signs:
    """Random signs, the same for each seed."""

    def __init__(self, seed: int) -> None:
        self._source = torch.Generator().manual_seed(seed)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        drawn = torch.randint(0, 2, tensor.shape, generator=self._source)
        return drawn.to(tensor.device, tensor.dtype).mul_(2).sub_(1)


class _ProductErrors(_Mode):  # type: ignore[no-untyped-call]
    """Injects into each product the errors of tensor cores, times `boost`.

    They round operands that `dtype` does not hold, if it is given, and truncate float32 sums, those
    of `float8` products to fewer bits.
    """

    def __init__(
        self, dtype: torch.dtype | None, boost: float, size: Size, seed: int, *, float8: bool
    ) -> None:
        super().__init__()
        self._dtype, self._boost, self._size, self._float8 = dtype, boost, size, float8
        self._signs = _Signs(seed)

    def product(self, call: Call, places: tuple[int, ...]) -> Any:  # noqa: ANN401
        """Call the operator and add the error."""
        result = call.result()
        of_bound = SYSTEMATIC if self._size == "spread" else 1.0
        lost = truncation(_terms(call)) * of_bound
        u = 0.0
        if self._dtype is not None and not _are_exact(call, places, self._dtype):
            u = torch.finfo(self._dtype).eps / 2
        magnitudes = _listed(_of_terms(call, places, 1)) if self._float8 or u else []
        roots = _listed(_of_terms(call, places, 2)) if u else []
        moved = _listed(result)
        for number, each in enumerate(moved):
            if each is None:  # a gradient that is not needed
                continue
            size = each.abs() * lost
            if self._float8:
                size += magnitudes[number] * float8_truncation(_terms(call)) * of_bound
            if u:
                size += _size(self._size, each, magnitudes[number], roots[number]) * u
            moved[number] = each + self._signs.like(each) * size * self._boost
        return moved[0] if isinstance(result, torch.Tensor) else type(result)(moved)


class _ProductTerms(_Mode):  # type: ignore[no-untyped-call]
    """Records the sums of a backward pass that depend on a product, in order.

    With a `power`, a product gives (sum |t|**power)**(1 / power) of its terms t instead, so that a
    sum shows how large the terms are that products cancelled. Sums over a product itself, as of the
    heads of a group, are no delta and are not recorded.
    """

    def __init__(self, power: int | None) -> None:
        super().__init__()
        self._power = power
        # Keeps the tensors alive, whose memory identifies them.
        self._products: dict[int, torch.Tensor] = {}
        self._dependent: dict[int, torch.Tensor] = {}
        self.sums: list[torch.Tensor] = []

    def product(self, call: Call, places: tuple[int, ...]) -> Any:  # noqa: ANN401
        """Call the operator, on the sizes of its factors."""
        result = call.result() if self._power is None else _of_terms(call, places, self._power)
        for each in _tensors(result):
            self._products[_memory(each)] = self._dependent[_memory(each)] = each
        return result

    def other(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator; record the sum that it makes."""
        result = call.result()
        if self._sums(call, result):
            self.sums.append(_row_sum(call, result).abs())
        return result

    def _sums(self, call: Call, result: Any) -> bool:  # noqa: ANN401
        """Whether the operator is such a sum; notes whether its result depends on a product."""
        if not any(_memory(each) in self._dependent for each in _tensors(call.args)):
            return False
        for each in _tensors(result):
            self._dependent[_memory(each)] = each
        if call.name == "sum":
            return _memory(call.args[0]) not in self._products
        return call.name == "_softmax_backward_data"


class _DeltaErrors(_ProductTerms):  # type: ignore[no-untyped-call]
    """Injects into the recorded sums of a backward pass the error of terms that were rounded."""

    def __init__(self, sizes: Sequence[torch.Tensor], unit: float, seed: int) -> None:
        super().__init__(None)
        self._sizes, self._unit = iter(sizes), unit
        self._signs = _Signs(seed)

    def other(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator and add the error."""
        result = call.result()
        if not self._sums(call, result):
            return result
        size = next(self._sizes)
        error = self._signs.like(size) * size * self._unit
        if call.name == "sum":
            return result + error.to(result.dtype)
        return result - call.args[1] * error  # each of the row subtracts the sum


def product_errors(
    evaluate: Callable[[], Tensors],
    exact: Tensors,
    dtype: torch.dtype | None,
    unit: float,
    seed: int,
    *,
    float8: bool,
) -> Carried:
    """Errors of products in tensor cores.

    Args:
        evaluate: computes the results.
        exact: its results.
        dtype: what computed operands are rounded to; None if a kernel does not round them.
        unit: the size of an injected error, small enough for a first-order estimate.
        seed: the same seed gives the same errors.
        float8: whether the products may be of float8.
    """
    # Without rounded operands, sums of some hundred terms lose about 2**-16.
    boost = unit / (2.0**-16 if dtype is None else torch.finfo(dtype).eps / 2)

    def moved(size: Size) -> Tensors:
        with as_products(), _ProductErrors(dtype, boost, size, seed, float8=float8):
            return evaluate()

    return _carried(moved, exact, 1 / boost)


def delta_errors(
    backward: Callable[[], Tensors], roundoff: float, unit: float, seed: int
) -> Carried:
    """Errors of sums over the rows of a softmax that a backward takes from rounded outputs.

    Args:
        backward: computes the gradients, of a graph made under `as_products` and
            `DetachedMaximum`.
        roundoff: the unit roundoff of the outputs.
        unit: as in `operand_errors`.
        seed: as in `operand_errors`.
    """
    recorded, results = [], []
    for power in (None, 1, 2):
        with _ProductTerms(power) as mode:
            results.append(backward())
        recorded.append(mode.sums)
    if not recorded[0]:
        return Carried({}, {})

    def moved(size: Size) -> Tensors:
        sizes = [_size(size, *norms) for norms in zip(*recorded, strict=True)]
        with _DeltaErrors(sizes, unit, seed):
            return backward()

    return _carried(moved, results[0], roundoff / unit)


def _carried(moved: Callable[[Size], Tensors], exact: Tensors, scale: float) -> Carried:
    found: dict[Size, Tensors] = {}
    sizes: tuple[Size, ...] = ("bound", "spread")
    for size in sizes:
        results = moved(size)
        found[size] = {
            name: _of_row(_finite(results[name].double() - tensor.double()).abs_() * scale)
            for name, tensor in exact.items()
        }
    return Carried(found["bound"], found["spread"])


def _of_row(moved: torch.Tensor) -> torch.Tensor:
    """At least the root mean square of the row: signs may cancel in one element by chance."""
    if not moved.numel():
        return moved
    squares = moved.square()
    mean = squares.mean(-1, keepdim=True) if moved.ndim > 1 else squares.mean()
    return torch.maximum(moved, mean.sqrt())


def _size(size: Size, value: torch.Tensor, total: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    """The size of an error of a sum, in roundoffs, from the sum and its terms' two norms."""
    spread = torch.hypot(value, root)
    return spread if size == "spread" else torch.minimum(total, spread * _SIGMAS)


def _row_sum(call: Call, result: torch.Tensor) -> torch.Tensor:
    """The sum that an operator makes: its result, or the delta of a softmax, [..., 1]."""
    if call.name == "sum":
        return result
    grad, output, dim = call.args[:3]
    delta: torch.Tensor = (grad * output).sum(dim, keepdim=True)
    return delta


def _of_terms(call: Call, places: tuple[int, ...], power: int) -> Any:  # noqa: ANN401
    """(sum |t|**power)**(1 / power) over the terms t of a product, in the form of its result."""
    given = list(call.args)
    for place, each in enumerate(call.args):
        if place in places:
            given[place] = each.abs() if power == 1 else each.square()
        elif isinstance(each, torch.Tensor):
            given[place] = torch.zeros_like(each)
    changed = dict(call.kwargs)
    if "alpha" in changed:
        changed["alpha"] = abs(changed["alpha"]) ** power
    result = call.func(*given, **changed)

    def root(value: torch.Tensor | None) -> torch.Tensor | None:
        return value if value is None or power == 1 else value.sqrt()

    return root(result) if isinstance(result, torch.Tensor) else type(result)(map(root, result))


def _listed(result: Any) -> list[Any]:  # noqa: ANN401
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _terms(call: Call) -> int:
    """How many products an operator of `_OPERANDS` sums; 0 for `convolution_backward`."""
    name, args = call.name, call.args
    if name == "convolution_backward":
        return 0
    factor: torch.Tensor = args[_OPERANDS[name][1 if name == "convolution" else 0]]
    if name == "convolution":
        return factor[0].numel() if len(factor) else 0
    return factor.shape[-1] * (len(factor) if name == "addbmm" else 1)


def _tensors(values: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401
    """The tensors among the arguments or the results of an operator."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for each in values:
            yield from _tensors(each)


def _memory(tensor: torch.Tensor) -> int:
    """What identifies the memory of a tensor and its views."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - not in the public API


def _are_exact(call: Call, places: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether `dtype` holds the factors of a product."""
    factors = [call.args[place] for place in places]
    return all(torch.equal(each, _rounded(each, dtype)) for each in factors)


def _rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype).to(tensor.dtype)


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
