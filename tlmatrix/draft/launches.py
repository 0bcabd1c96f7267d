"""Launches of kernels that a recorder sees, and which of an operator's tensors they get."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.draft.interface import argument_kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tlmatrix.draft.uses import Names


@dataclass(frozen=True, eq=False)
class Launch:
    """A launch of a kernel.

    Attributes:
        given: the arguments by parameter, in order.
        made: the tensors that it returned, by parameter.
        factory: the arguments of the factory that made it.
    """

    prim_func: Any
    given: Mapping[str, Any]
    made: Mapping[str, torch.Tensor]
    factory: Mapping[str, Any]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by parameter."""
        every = {**self.given, **self.made}
        return {name: each for name, each in every.items() if isinstance(each, torch.Tensor)}

    def places(self, tensors: Mapping[str, torch.Tensor]) -> Names:
        """The tensor of each parameter that is one or a view of all of it, with its dimensions."""
        found = {}
        for parameter, value in self.tensors.items():
            for name in sorted(tensors, key=lambda name: name != parameter):
                tensor = tensors[name]
                same = value.data_ptr() == tensor.data_ptr() and value.dtype == tensor.dtype
                if value is tensor or (same and value.numel() == tensor.numel() > 0):
                    found[parameter] = (name, _matched_dims(value, tensor))
                    break
        return found

    def dimension_names(self, mapped: Names) -> dict[str, str]:
        """Names of dimensions: arguments of the factory with their value, and symbolic dims.

        Two equal dimensions of a tensor have different arguments, if there are two of that value;
        if there is one, the last of them has it.
        """
        sizes: dict[str, list[str]] = {}
        for name, value in self.factory.items():
            sized = type(value) is int and argument_kind(name, value, None) == "size"
            if sized and value > 1:
                sizes.setdefault(str(value), []).append(name)
        found = {}
        for buffer in self.prim_func.buffer_map.values():
            name, dims = mapped.get(str(buffer.name), ("", {}))
            shape = [str(size) for size in buffer.shape]
            for dim, text in enumerate(shape):
                equal = sizes.get(text, [text])
                more = [text] * (shape.count(text) - len(equal))
                own = (more + equal)[shape[:dim].count(text)]
                named = re.fullmatch(r"[A-Za-z_]\w*( \+ \d+)?", own)
                if dim in dims and named is not None:
                    # A plain string, as TVM's are not.
                    found[f"{name}.{dims[dim]}"] = named.group()
        return found


def launch_of(
    kernel: Any,  # noqa: ANN401 - of TileLang or the interpreter
    args: Sequence[Any],
    results: Any,  # noqa: ANN401 - a tensor or several
    factory: Mapping[str, Any],
) -> Launch:
    """The launch that a call of a kernel was."""
    func = kernel.prim_func
    buffers = func.buffer_map
    names = [str(buffers[p].name if p in buffers else p.name) for p in func.params]
    out = [k % len(names) for k in kernel.out_idx or ()]
    given = (name for k, name in enumerate(names) if k not in out)
    made = results if isinstance(results, tuple | list) else [results]
    returned = zip((names[k] for k in out), made, strict=False)
    return Launch(func, dict(zip(given, args, strict=False)), dict(returned), factory)


def _matched_dims(one: torch.Tensor, other: torch.Tensor) -> dict[int, int]:
    """The dimensions of a tensor that are dimensions of another view of its memory."""
    if one.shape == other.shape:
        return {dim: dim for dim in range(one.dim())}
    steps = {(n, step): dim for dim, (n, step) in enumerate(_steps(other))}
    return {
        dim: steps[n, step]
        for dim, (n, step) in enumerate(_steps(one))
        if n > 1 and (n, step) in steps
    }


def _steps(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """The size and the stride of each dimension."""
    return zip(tensor.shape, tensor.stride(), strict=True)
