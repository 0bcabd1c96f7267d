"""Calls of declared problems with masked, low or capped logits.

The reference is a softmax of its first input, or of a product of two, or the like, perhaps of
logits that tanh caps. Masked logits find a running maximum that begins at -inf: where a whole tile
is masked, -inf is subtracted from -inf. Logits far below 0 find one that begins at a finite number,
and capped ones padding that takes part in a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.declared.inputs import generate_inputs
from tlmatrix.problem.distributions import SHIFT, generator, seeded_random
from tlmatrix.problem.model import ReferenceFailedError, Relation, judged_alone

if TYPE_CHECKING:
    from tlmatrix.problem.declared.build import Declared
    from tlmatrix.problem.model import Tensors

_LOW = {torch.float16: (-57344.0, 32.0), torch.bfloat16: (-131072.0, 1024.0)}
"""Logits below the finite numbers that stand for -inf in kernels, and a step between them."""
_KINDS = 4
"""Kinds of rows: without a mask, with one logit, with the last ones, with the first ones."""
_CAPPED = -100.0
"""Logits that are nearly equal once they are capped by 20 to 100."""
_WITHOUT = "Of an input without such numbers `fill: normal` says so"
_LOW_PRODUCTS = 0.5
"""The share of the cases that are called with low products, too."""
_FACTORS = 4
"""Inputs that are tried as a factor of logits."""
_ROUNDED_SUM = 2.0**-18
"""The error of results with logits that are sums far below 0, relative to them."""
_ROUNDED = 2.0**-21
"""The error of results with logits far below 0, relative to them: float32 rounds each logit."""


def with_other_logits(case: Declared) -> Iterator[Relation]:
    """Calls with other logits, judged by the reference: masked ones, low ones, or capped ones."""
    first, tensor = next(iter(case.inputs.items()))
    decl = case.declaration.inputs[first]
    known = tensor.dtype in (*_LOW, torch.float32) and tensor.ndim and tensor.numel()
    if not decl.is_free or not known or (logits := case.logits) is None:
        return
    made = generate_inputs(case.setup, case.declaration, "normal", case.seed + 17)
    near = replace(case, inputs=made, distribution="normal")

    def of(values: torch.Tensor) -> Declared:
        return replace(near, inputs={**made, first: values.to(tensor)})

    if logits == "capped":
        far = of(made[first].float() / 4 + _CAPPED)
        if far.is_finite:
            because = f"{first} is about {_CAPPED:.0f}, where its cap makes all of it nearly equal"
            yield _judged("capped_logits", near, far, f"{because}: does padding count in a sum?")
        return
    if any(not info.dtype.is_floating_point for info in case.infos.values()):
        return  # of equal logits a kernel may select any
    hidden = _mask(tensor, case.seed)
    far = of(made[first].masked_fill(hidden.to(tensor.device), -torch.inf))
    if _is_number(far):
        because = f"rows of {first} are -inf but for some elements, as masks make them"
        hint = "is -inf subtracted from -inf where a whole tile is masked?"
        yield _judged("masked_logits", near, far, f"{because}: {hint} {_WITHOUT}")
    by, step = _LOW.get(tensor.dtype, (_LOW[torch.bfloat16][0], 1.0))
    small = torch.randint(0, 5, tensor.shape, generator=generator(case.seed + 18)) * step
    far = of(small + by)
    if far.is_finite:
        because = f"{first} is about {by:.0f} in all elements, which changes no result, or moves it"
        hint = "is there a finite number below which a kernel takes logits for masked ones?"
        words = f"{because}: {hint} {_WITHOUT}"
        yield _judged("low_logits", near, far, words, error=-by * _ROUNDED)


def with_low_products(case: Declared) -> Iterator[Relation]:
    """A call whose logits, products of two inputs, are about -200 where the reference allows it."""
    free = [
        name
        for name, decl in case.declaration.inputs.items()
        if decl.is_free
        if case.inputs[name].dtype in (*_LOW, torch.float32) and case.inputs[name].numel()
    ]
    integers = any(not info.dtype.is_floating_point for info in case.infos.values())
    if len(free) < 2 or integers or seeded_random(case.seed + 19).random() >= _LOW_PRODUCTS:
        return
    made = generate_inputs(case.setup, case.declaration, "normal", case.seed + 20)
    near = replace(case, inputs=made, distribution="normal")
    found = near.shift_of_products(free[:_FACTORS])
    if found is None:
        return
    name, by = found
    positive = {each: made[each].abs() for each in free[:_FACTORS]}
    shifted = (made[name].float() / 4 + by).to(made[name])
    far = replace(near, inputs={**made, **positive, name: shifted})
    if far.is_finite:
        because = f"{name} is about {by:.3g} and its other factor positive, so that logits are"
        hint = "about -200: does a maximum begin at a finite number?"
        words = f"{because} {hint} {_WITHOUT}"
        error = SHIFT * _ROUNDED_SUM
        yield _judged("low_products", near, far, words, error=error, rounded=True)


def _judged(
    name: str,
    near: Declared,
    far: Declared,
    because: str,
    error: float = 0.0,
    *,
    rounded: bool = False,
) -> Relation:
    """The relation of the call `far`; with `error` results may differ by that part of them.

    If `rounded`, by what they are rounded beside it.
    """
    problem = far.problem()
    if error:

        def lowp() -> Tensors:
            start = far.low if rounded else far.exact
            moved = {n: _moved(far.exact[n], start[n].double(), error) for n in far.infos}
            return {n: each.to(far.infos[n].dtype) for n, each in moved.items()}

        problem = replace(problem, lowp=lowp)
    return judged_alone(name, problem, because=because, control=near.problem)


def _moved(exact: torch.Tensor, low: torch.Tensor, error: float) -> torch.Tensor:
    """The results in low precision, farther from the exact ones by `error`."""
    return low + torch.where(low < exact, -error, error) * (1 + exact.abs())


def _mask(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """The elements of a tensor that a mask hides: none of a row, all but one, or a part."""
    source, (*rows, size) = generator(seed + 16), tensor.shape
    kind = torch.randint(0, _KINDS, (*rows, 1), generator=source)
    kept = torch.randint(0, size, (*rows, 1), generator=source)
    column = torch.arange(size)
    parts = ((kind == 1) & (column != kept)) | ((kind == 2) & (column < kept))
    return parts | ((kind == 3) & (column > kept))


def _is_number(case: Declared) -> bool:
    """Whether the reference takes the inputs and gives no NaN."""
    try:
        results = [*case.exact.values(), *case.low.values()]
    except ReferenceFailedError:
        return False
    return not any(bool(each.isnan().any()) for each in results)
