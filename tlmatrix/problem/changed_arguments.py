"""Replaces arguments of a problem: for invalid-argument tests, and for agreements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.dtypes import explain_dtype, torch_dtype
from tlmatrix.words import nearest

if TYPE_CHECKING:
    import torch

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.values import Value

_KEYS = ("dtype", "shape", "device")


def with_changed_arguments(problem: Problem, changes: Mapping[str, Value]) -> Problem:
    """The problem with some of its arguments replaced.

    A scalar or list replaces the argument; a list in place of a tensor becomes a tensor with its
    dtype and device. A mapping changes part of a tensor: `{dtype: float32}`, `{shape: [3, 4]}`
    (zeros of that shape), `{device: meta}`; the name `k.dtype` changes one part.

    Raises:
        ValueError: the problem has no argument of a name, or the change does not fit it.
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
    # An argument that is no longer a tensor has no gradient.
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
                raise ValueError(f"{name}.shape: {value!r} is not a list of sizes (0 or more)")
            return torch.zeros(list(sizes), dtype=tensor.dtype, device=tensor.device)  # type: ignore[arg-type]
        case "device":
            return tensor.to(str(value))
    raise ValueError(
        f"{name}: cannot change {key!r}{nearest(key, _KEYS)}; a tensor has dtype, shape and device"
    )


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
