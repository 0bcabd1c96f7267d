"""Problems with arguments replaced, for the `invalid_inputs` of a spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.spec.dtypes import explain_dtype, torch_dtype
from tlmatrix.words import nearest

if TYPE_CHECKING:
    import torch

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.values import Value

__all__ = ["override"]

_KEYS = ("dtype", "shape", "device")


def override(problem: Problem, changes: Mapping[str, Value]) -> Problem:
    """The problem with some of its arguments replaced.

    A scalar or list takes the place of the argument; where that was a tensor, a list becomes a
    tensor of its dtype and device. For a tensor a mapping changes part of it: `{dtype: float32}`,
    `{shape: [3, 4]}` (zeros of that shape), `{device: meta}`; the name `k.dtype` is a change of
    one part.

    Raises:
        ValueError: a name the problem does not have, or a change that makes no sense for it.
    """
    names, inputs = dict(problem.names), dict(problem.inputs)
    for written, change in changes.items():
        name, dot, part = written.partition(".")
        if name not in names:
            raise ValueError(f"the problem has no argument {name!r}{nearest(name, names)}")
        value = _changed(name, names[name], {part: change} if dot else change)
        names[name] = value
        if name in inputs:
            if _is_tensor(value):
                inputs[name] = value
            else:
                del inputs[name]
    # What is no tensor any more has no gradient.
    wanted = {gradient: name for gradient, name in problem.gradient_of.items() if name in inputs}
    return replace(problem, names=names, inputs=inputs, gradient_of=wanted)


def _changed(name: str, original: Any, change: Value) -> Any:  # noqa: ANN401 - any argument
    if not _is_tensor(original):
        return change
    if isinstance(change, Mapping):
        for key, value in change.items():
            original = _part_changed(name, original, key, value)
        return original
    if isinstance(change, Sequence) and not isinstance(change, str):
        import torch

        return torch.tensor(change, dtype=original.dtype, device=original.device)
    return change


def _part_changed(name: str, tensor: torch.Tensor, key: str, value: Value) -> torch.Tensor:
    import torch

    match key:
        case "dtype":
            if reason := explain_dtype(value):
                raise ValueError(f"{name}.dtype: {reason}")
            return tensor.to(torch_dtype(value))
        case "shape":
            sizes = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            if not all(isinstance(size, int) and size >= 0 for size in sizes):
                raise ValueError(f"{name}.shape: {value!r} is not a list of sizes")
            return torch.zeros(list(sizes), dtype=tensor.dtype, device=tensor.device)  # type: ignore[arg-type]
        case "device":
            return tensor.to(str(value))
    raise ValueError(
        f"{name}: cannot change {key!r}{nearest(key, _KEYS)}; of a tensor change "
        "dtype, shape or device"
    )


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
