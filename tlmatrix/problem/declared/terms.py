"""Estimates the sizes of the terms that a reference sums, by Monte Carlo arithmetic.

A result may be tiny because large terms cancel (`w * dy - x_hat * mean(w * dy * x_hat)` in a row
of one column). Its rounding error is proportional to the size of the terms, which the result does
not show. Monte Carlo arithmetic (Parker, "Monte Carlo Arithmetic", UCLA CSD-970002, 1997) estimates
it: if every operation has a random relative error of at most `unit`, the result changes by about
`unit` times the size of its terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.operator_mode import OperatorMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Tensors = dict[str, torch.Tensor]


UNITS = {torch.float64: 2.0**-24, torch.float32: 2.0**-12}
"""Injected errors by dtype: far above its rounding, and small enough for a first-order estimate."""
# One run may perturb the terms of an element alike by chance; hardly four runs.
_RUNS = 4


class PerturbedArithmetic(OperatorMode):  # type: ignore[no-untyped-call]
    """Adds a random relative error of up to `unit` to every floating-point operation."""

    def __init__(self, unit: float, seed: int) -> None:
        super().__init__()
        self._unit = unit
        self._seed = seed
        self._sources: dict[torch.device, torch.Generator] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Call the operator and perturb its result, unless it is a view or a copy."""
        result = func(*args, **kwargs)
        if any(each.alias_info is not None for each in func._schema.returns):  # noqa: SLF001 - not in the public API
            return result
        if func.overloadpacket.__name__ in {"clone", "_to_copy", "detach", "empty", "zeros"}:
            return result
        if isinstance(result, tuple | list):
            return type(result)(self._perturbed(each) for each in result)
        return self._perturbed(result)

    def _perturbed(self, result: Any) -> Any:  # noqa: ANN401
        if not (isinstance(result, torch.Tensor) and result.is_floating_point()):
            return result
        source = self._sources.get(result.device)
        if source is None:
            source = torch.Generator(result.device).manual_seed(self._seed)
            self._sources[result.device] = source
        error = torch.empty_like(result).uniform_(-self._unit, self._unit, generator=source)
        # An infinity, as of a mask, stays: an error of the other sign would make it NaN.
        return result.add_(error.mul_(result).masked_fill_(~result.isfinite(), 0.0))


@dataclass(frozen=True)
class TermSizes:
    """The sizes of the terms of each element, by tensor; at least the element's own.

    `largest` is that of several runs. `spread` is their mean: errors of random sign were injected,
    which add up as roundings do, and the largest of several overstates them.
    """

    largest: Tensors
    spread: Tensors

    def joined(self, other: TermSizes) -> TermSizes:
        """The larger of both, for each element."""

        def larger(one: Tensors, more: Tensors) -> Tensors:
            return {name: torch.maximum(size, more[name]) for name, size in one.items()}

        return TermSizes(larger(self.largest, other.largest), larger(self.spread, other.spread))


def term_sizes(
    evaluate: Callable[[], Tensors],
    exact: Tensors,
    seed: int,
    *,
    dtype: torch.dtype = torch.float64,
) -> TermSizes:
    """The sizes of the terms of each element of the tensors that `evaluate` computes in `dtype`.

    Elements that are not finite have size 0, and so has the change of an element that is not finite
    when perturbed.

    Args:
        evaluate: computes the tensors.
        exact: its results without perturbation.
        seed: the same seed gives the same sizes.
        dtype: the dtype of the computation.
    """
    unit = UNITS[dtype]
    largest = {name: _finite(tensor).abs() for name, tensor in exact.items()}
    total = {name: torch.zeros_like(size) for name, size in largest.items()}
    spread = {name: size.clone() for name, size in largest.items()}
    for run in range(_RUNS):
        with PerturbedArithmetic(unit, seed + run):
            found = evaluate()
        for name, size in largest.items():
            moved = _finite(found[name].double() - exact[name].double()).abs_() / unit
            torch.maximum(size, moved, out=size)
            total[name] += moved
    for name, size in spread.items():
        torch.maximum(size, total[name] / _RUNS, out=size)
    return TermSizes(largest, spread)


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(values.double(), nan=0.0, posinf=0.0, neginf=0.0)
