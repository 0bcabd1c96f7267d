"""Calls of declared problems whose first input is logits with masked, low or capped logits.

The reference is a softmax of its first input or the like, perhaps of logits that tanh caps. Masked
logits find a running maximum that begins at -inf: where a whole tile is masked, -inf is subtracted
from -inf. Logits far below 0 find one that begins at a finite number, and capped ones padding that
takes part in a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.declared.inputs import generate_inputs
from tlmatrix.problem.distributions import generator
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
_ROUNDED = 2.0**-21
"""The error of results with logits far below 0, relative to them: float32 rounds each logit."""


def with_other_logits(case: Declared) -> Iterator[Relation]:
    """Calls with other logits, judged by the reference: masked ones, low ones, or capped ones."""
    first, tensor = next(iter(case.inputs.items()))
    decl = case.declaration.inputs[first]
    given = decl.derived is not None or decl.fill is not None or decl.between is not None
    known = tensor.dtype in (*_LOW, torch.float32) and tensor.ndim and tensor.numel()
    if given or not known or (logits := case.logits) is None:
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


def _judged(name: str, near: Declared, far: Declared, because: str, error: float = 0.0) -> Relation:
    """The relation of the call `far`; with `error` results may differ by that part of them."""
    problem = far.problem()
    if error:

        def lowp() -> Tensors:
            moved = {n: far.exact[n] + error * (1 + far.exact[n].abs()) for n in far.infos}
            return {n: each.to(far.infos[n].dtype) for n, each in moved.items()}

        problem = replace(problem, lowp=lowp)
    return judged_alone(name, problem, because=because, control=near.problem)


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
