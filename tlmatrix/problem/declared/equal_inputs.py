"""A call of a declared problem in which numbers that are compared with each other are equal.

Random numbers of two inputs are never equal, so that `x < high` in place of `x <= high`, as of the
last edge of a histogram, or of a threshold, changes no result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.problem.declared.operators import Call, OperatorMode
from tlmatrix.problem.distributions import generator
from tlmatrix.problem.model import ReferenceFailedError, Relation, judged_alone

if TYPE_CHECKING:
    from tlmatrix.problem.declared.build import Declared

_EQUAL = 0.25
"""The share of an input's elements that are numbers of others."""
_SEARCHED = 1 << 16
"""The most elements of an operand that are looked up in the inputs."""
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "bucketize", "searchsorted")


def with_equal_inputs(case: Declared) -> Iterator[Relation]:
    """A call in which a part of an input are numbers of inputs that the reference compares with it.

    Only where it compares the numbers themselves: those that are equal are so in a kernel, too. In
    half of the cases, as the seed selects.
    """
    if case.reference is None or case.seed // 23 % 2:
        return
    for name, others in _compared(case).items():
        tensor = case.inputs[name]
        if not case.declaration.inputs[name].is_free:
            continue
        source = generator(case.seed + 21)
        numbers = torch.cat([case.inputs[each].cpu().double().flatten() for each in others])
        picked = numbers[torch.randint(0, len(numbers), tensor.shape, generator=source)]
        kept = torch.rand(tensor.shape, generator=source) >= _EQUAL
        changed = torch.where(kept.to(tensor.device), tensor, picked.to(tensor))
        words = " and ".join(others)
        call = replace(case, inputs={**case.inputs, name: changed}).problem()
        # Of two equal numbers either may get the gradient.
        results = {of: call.outputs[of] for of in case.declaration.output_names}
        yield judged_alone(
            "equal_inputs",
            replace(call, outputs=results),
            because=f"a part of {name} are numbers of {words}, which the reference compares with "
            "it: does a comparison that includes an end leave it out, or the other way?",
            control=case.problem,
        )
        return


def _compared(case: Declared) -> dict[str, list[str]]:
    """The inputs that the reference compares with each input, by name."""
    assert case.reference is not None
    exact = case.reference.exact_dtype
    inputs = {
        name: each.to(exact) if exact is not None and each.is_floating_point() else each.clone()
        for name, each in case.inputs.items()
    }
    floats = {n: each for n, each in inputs.items() if each.is_floating_point() and each.numel()}
    if len(floats) < 2:
        return {}
    try:
        with torch.no_grad(), _Compared(floats) as mode:
            case.reference(inputs, case.reference_axes)
    except ReferenceFailedError:
        return {}
    found: dict[str, list[str]] = mode.found
    return found


class _Compared(OperatorMode):  # type: ignore[no-untyped-call]
    """Notes which inputs have the numbers of both operands of comparisons."""

    def __init__(self, inputs: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._inputs = {name: each.detach().double().flatten() for name, each in inputs.items()}
        self.found: dict[str, list[str]] = {}

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator; of a comparison of two tensors note whose numbers they are."""
        if call.name in _COMPARISONS and len(call.args) > 1:
            one, other = (self._of(each) for each in call.args[:2])
            if one and other and one != other:
                for name, with_ in ((one, other), (other, one)):
                    known = self.found.setdefault(name, [])
                    if with_ not in known:
                        known.append(with_)
        return call.result()

    def _of(self, operand: Any) -> str | None:  # noqa: ANN401
        """The input that has all numbers of an operand."""
        if (
            not isinstance(operand, torch.Tensor)
            or not operand.is_floating_point()
            or not 0 < operand.numel() <= _SEARCHED
        ):
            return None
        numbers = operand.double().flatten()
        for name, values in self._inputs.items():
            if bool(torch.isin(numbers, values).all()):
                return name
        return None
