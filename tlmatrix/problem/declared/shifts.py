"""Whether a reference is a softmax of its first input, so that `shifted` values suit it.

A shift of all logits changes no softmax, and shifts a log of sums of exponentials by as much. A
reference of which this holds for all results, and that calls an exponential, may have its running
maximum begin at any number but -inf in a wrong kernel. Not if it divides by a norm: a variance of
shifted values is a difference of large numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.operator_mode import OperatorMode
from tlmatrix.unwinding import unwinds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.problem.declared.reference import ReferenceCall

_SHIFT = -16.0
_CLOSE = 1e-9
_EXPONENTIALS = ("softmax", "logsumexp", "exp")
_NORMS = ("norm", "var", "std", "sqrt", "rsqrt")


def suits_shift(
    reference: ReferenceCall, inputs: Mapping[str, torch.Tensor], axes: Mapping[str, Any]
) -> bool:
    """Whether a shift of the first input leaves all results as they are, or shifts them.

    Args:
        reference: what computes the results, in float64.
        inputs: by name; the first one is shifted.
        axes: the other arguments of the reference.
    """
    first = next(iter(inputs))
    if reference.exact_dtype != torch.float64 or not inputs[first].is_floating_point():
        return False
    exact = {
        name: each.double() if each.is_floating_point() else each for name, each in inputs.items()
    }
    with torch.no_grad(), _Names() as names:
        try:
            plain = reference({**exact}, axes)
            moved = reference({**exact, first: exact[first] + _SHIFT}, axes)
        except Exception as error:
            if unwinds(error):
                raise
            return False
    if not names.any_of(_EXPONENTIALS) or names.any_of(_NORMS):
        return False
    return all(
        _close(moved[name], plain[name]) or _close(moved[name], plain[name] + _SHIFT)
        for name in plain
    )


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one.double(), other.double(), rtol=_CLOSE, atol=_CLOSE, equal_nan=True)


class _Names(OperatorMode):  # type: ignore[no-untyped-call]
    """Collects the names of operators, without overloads."""

    def __init__(self) -> None:
        super().__init__()
        self._names: set[str] = set()

    def any_of(self, words: tuple[str, ...]) -> bool:
        """Whether an operator has one of the words in its name, between underscores."""
        return any(not set(words).isdisjoint(name.split("_")) for name in self._names)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Call the operator, and keep its name."""
        self._names.add(str(func.overloadpacket.__name__))
        return func(*args, **kwargs)
