"""What the monitor knows of the tensors of a launch before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tlmatrix.dtypes import torch_dtype

from .packed import Boundaries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.interpreter.reports import Checks, Sequences

    from .codecs import Array

    Tensors = Mapping[str, torch.Tensor]

__all__ = ["aliases_of", "blank_elements", "boundaries_of", "merged_usage"]


def boundaries_of(tensors: Tensors, declared: Mapping[str, Sequences]) -> dict[str, Boundaries]:
    """The parameters that hold the boundaries of declared sequences, or their starts."""
    if not declared:
        return {}
    known = {sequences.boundaries for sequences in declared.values()}
    starts = {boundaries[:-1]: boundaries for boundaries in known}
    lengths = {len(boundaries) for boundaries in (*known, *starts)}
    found = {}
    for name, tensor in tensors.items():
        if (
            tensor.dim() == 1
            and tensor.dtype in (torch.int32, torch.int64)
            and len(tensor) in lengths
        ):
            values = tuple(tensor.tolist())
            if values in known:
                found[name] = Boundaries(values)
            elif values in starts:
                found[name] = Boundaries(starts[values], ended=False)
    return found


def blank_elements(
    tensors: Tensors, checks: Checks, layouts: Mapping[str, Any]
) -> dict[str, Array]:
    """Which elements of parameters hold the caller's poison; only parameters that have some."""
    found = {}
    for name, tensor in tensors.items():
        poison = checks.poison.get(tensor.dtype)
        # A layout puts elements elsewhere, and has gaps between them.
        if poison is None or name in layouts:
            continue
        # numpy looks through a few thousand elements in a third of torch's time.
        blank = tensor.view(torch_dtype(f"int{8 * tensor.element_size()}")).numpy() == poison
        if np.count_nonzero(blank):
            found[name] = blank
    return found


def aliases_of(tensors: Tensors) -> dict[str, str]:
    """Of parameters that are one tensor the first one's name, by each name."""
    addresses: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        addresses.setdefault(tensor.data_ptr(), []).append(name)
    addresses.pop(0, None)  # of empty tensors
    aliases = {}
    for names in addresses.values():
        if len(names) == 1:
            continue
        first: dict[Any, str] = {}
        for name in names:
            tensor = tensors[name]
            known = first.setdefault((tensor.shape, tensor.stride(), tensor.dtype), name)
            if known != name:
                aliases[name] = aliases[known] = known
    return aliases


def merged_usage(
    usage: Mapping[str, frozenset[str]], aliases: Mapping[str, str]
) -> dict[str, frozenset[str]]:
    """What a kernel does with each buffer; the same for parameters that are one tensor."""
    merged = dict(usage)
    for first in set(aliases.values()):
        names = [name for name, of in aliases.items() if of == first]
        together = frozenset().union(*(usage.get(name, frozenset()) for name in names))
        merged.update(dict.fromkeys(names, together))
    return merged
