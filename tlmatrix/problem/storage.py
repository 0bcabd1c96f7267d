"""Memory layouts of inputs: reveal kernels that assume strides or alignment.

By default every input is contiguous and aligned. The axis `storage`, which any case may have, gives
all inputs another memory layout with the same values. Importing this module does not import torch.

============  ==================================================================================
`offset`      contiguous, with a storage offset of one element: not aligned to 16 bytes
`sliced`      a slice of a larger tensor, in rows and in the last dimension, with that offset
`transposed`  dimensions in reverse order in memory: a matrix is column-major
`ones`        dimensions of size 1 have unusual strides, as after `x[:, None]` of a slice;
              PyTorch calls such a tensor contiguous
`expanded`    cotangents only: all strides are 0, as after `out.sum().backward()`
============  ==================================================================================

The memory around an `offset` or `sliced` tensor holds huge values.

`laid_out` gives single tensors of a problem a layout, of these or of `aligned` (a slice whose rows
begin at multiples of 16 bytes) and `strided` (every second element of the last dimension).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from tlmatrix.problem.distributions import poison_scale
from tlmatrix.spec.model.fields import STORAGES
from tlmatrix.words import nearest

if TYPE_CHECKING:
    import torch

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.values import Value

_GAP = 3
"""Elements between the rows of a slice: odd, so that rows are not aligned."""


_ALIGNED = 16
"""Bytes: the alignment that TMA and the widest access of a thread need."""


def explain_storage(value: Value) -> str | None:
    """Why `value` is invalid for the axis `storage`; None if it is valid."""
    if value is None or (isinstance(value, str) and value in STORAGES):
        return None
    return f"unknown storage {value!r}{nearest(value, STORAGES)}"


def with_storage(
    storage: Value, tensors: Mapping[str, torch.Tensor], cotangents: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """The tensors with the same values in another memory layout.

    Args:
        storage: a value of the axis; None returns the tensors as they are.
        tensors: by name.
        cotangents: names of the cotangents, the only tensors that `expanded` applies to.
    """
    if storage is None:
        return dict(tensors)
    return {
        name: tensor
        if storage == "expanded" and name not in cotangents
        else _with_storage(str(storage), tensor)
        for name, tensor in tensors.items()
    }


def laid_out(problem: Problem, layouts: Mapping[str, str]) -> Problem:
    """The problem with the same values, and another memory layout of the tensors in `layouts`."""
    made = {
        id(tensor): _with_storage(layouts[name], tensor)
        for name, tensor in tensors_of(problem).items()
        if name in layouts
    }
    return problem.map_tensors(lambda tensor: made.get(id(tensor), tensor))


def tensors_of(problem: Problem) -> dict[str, torch.Tensor]:
    """Every tensor that an entry gets, by one of its names: inputs, others, output gradients."""
    import torch

    found = {
        name: value for name, value in problem.names.items() if isinstance(value, torch.Tensor)
    }
    found |= problem.inputs
    found |= {f"d{output}": tensor for output, tensor in problem.cotangents.items()}
    once = {id(tensor): name for name, tensor in reversed(found.items())}
    return {name: tensor for name, tensor in found.items() if once[id(tensor)] == name}


def changeable_inputs(problem: Problem, *, integers: bool = False) -> list[str]:
    """Inputs that can be changed in place without a change of another.

    Integers are among them only with `integers`: many entries keep lengths and indices without
    `save_for_backward`. Output gradients never are: a backward pass takes their new values.
    """
    tensors = [*problem.inputs.values(), *problem.cotangents.values()]
    storages = Counter(each.untyped_storage().data_ptr() for each in tensors)
    return sorted(
        name
        for name, each in problem.inputs.items()
        if each.numel()
        and (each.is_floating_point() or (integers and not each.is_complex()))
        and storages[each.untyped_storage().data_ptr()] == 1
        and all(stride or size < 2 for size, stride in zip(each.shape, each.stride(), strict=True))
    )


def layouts_of(tensor: torch.Tensor) -> tuple[str, ...]:
    """The layouts other than `offset` that differ from that of a contiguous tensor."""
    if not tensor.numel() or not tensor.is_contiguous():
        return ()
    found = ["ones"] if 1 in tensor.shape else []
    if tensor.numel() > 1:
        found += ["strided"] if tensor.shape[-1] > 1 else []
        if sum(size > 1 for size in tensor.shape) > 1:
            found += ["transposed", "aligned"]
        if bool((tensor == tensor.flatten()[:1]).all()):
            found.append("expanded")
    return tuple(found)


def expandable(storage: Value, cotangent: torch.Tensor, number: float = 1.0) -> torch.Tensor:
    """A cotangent that `with_storage` can lay out: `number` alone if `storage` is `expanded`."""
    return cotangent.new_full(cotangent.shape, number) if storage == "expanded" else cotangent


def _with_storage(storage: str, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():
        return tensor
    match storage:
        case "offset":
            return _inside(tensor, list(tensor.shape))
        case "sliced":
            sizes = list(tensor.shape)
            sizes[0] += 1
            sizes[-1] += _GAP
            return _inside(tensor, sizes)
        case "transposed":
            order = tuple(reversed(range(tensor.ndim)))
            return tensor.permute(order).contiguous().permute(order)
        case "aligned":
            sizes = list(tensor.shape)
            sizes[-1] += -sizes[-1] % _ALIGNED + _ALIGNED
            return _inside(tensor, sizes, first=0)
        case "strided":
            return _inside(tensor, list(tensor.shape), first=0, step=2)
        case "ones":
            strides = [
                _GAP if size == 1 else stride
                for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            ]
            return tensor.as_strided(tensor.shape, strides)
    first = tensor.flatten()[:1]
    same = bool((tensor == first).all())
    return first.clone().reshape((1,) * tensor.ndim).expand(tensor.shape) if same else tensor


def _inside(
    tensor: torch.Tensor, sizes: list[int], *, first: int = 1, step: int = 1
) -> torch.Tensor:
    """A copy of the tensor as a slice of a tensor of `sizes`, at the storage offset `first`.

    It takes each `step`-th element of the last dimension.
    """
    count = step
    strides = []
    for size in reversed(sizes):
        strides.append(count)
        count *= size
    noise = _noise(count + first, tensor)
    result = noise.as_strided(tensor.shape, strides[::-1], first)
    result.copy_(tensor)
    return result


def _noise(count: int, like: torch.Tensor) -> torch.Tensor:
    """Poison of the dtype and device of `like`, [count]."""
    if not like.dtype.is_floating_point:
        return like.new_ones(count)
    return like.new_full((count,), poison_scale(str(like.dtype).removeprefix("torch.")))
