"""Taking attention cases apart by sequence, and putting their results together again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.attention.inputs import other_values
from tlmatrix.problem.attention.reference import Operands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.attention.build import Attention
    from tlmatrix.problem.model import Tensors
    from tlmatrix.spec.values import Value

__all__ = [
    "head_dim",
    "joined",
    "of_sequences",
    "other_operands",
    "parts",
    "preceded",
    "selected",
    "selected_setting",
    "some_sequence",
    "with_parts",
]

_OPERANDS = ("q", "k", "v", "do")
_OF_KEYS = frozenset({"k", "v", "dk", "dv"})


def _dim(setting: Setting, name: str) -> int:
    """Along which dimension the sequences of a tensor lie."""
    return 1 if setting.rows_last and name == "lse" else 0


def parts(setting: Setting, name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """An operand, output or gradient by sequence (views); dense parts keep a batch of one."""
    if not setting.packed:
        return tensor.split(1, 0)  # type: ignore[no-any-return, no-untyped-call]
    sizes = list(setting.lengths_k if name in _OF_KEYS else setting.lengths_q)
    return tensor.split(sizes, _dim(setting, name))  # type: ignore[no-any-return, no-untyped-call]


def joined(setting: Setting, name: str, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """The inverse of `parts`; one part alone is not copied."""
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat(list(pieces), _dim(setting, name))


def selected_setting(setting: Setting, order: Sequence[int]) -> Setting:
    """The setting of the sequences `order`, in that order."""
    return replace(
        setting,
        lengths_q=tuple(setting.lengths_q[number] for number in order),
        lengths_k=tuple(setting.lengths_k[number] for number in order),
    )


def selected(case: Attention, order: Sequence[int]) -> Attention:
    """The case of the sequences `order` alone, in that order."""
    setting = case.setting

    def pick(name: str) -> torch.Tensor:
        pieces = parts(setting, name, _operand(case.operands, name))
        return joined(setting, name, [pieces[number] for number in order])

    operands = Operands(pick("q"), pick("k"), pick("v"), pick("do"), case.operands.sink)
    return _with_lengths(case, selected_setting(setting, order), operands)


def preceded(case: Attention, model: int, first: Operands) -> Attention:
    """The case with one more sequence in front, `first`, as long as its sequence `model`."""
    setting = case.setting
    order = [model, *range(setting.batch)]
    made = {
        name: joined(setting, name, [_operand(first, name), _operand(case.operands, name)])
        for name in _OPERANDS
    }
    operands = replace(case.operands, **made)
    return _with_lengths(case, selected_setting(setting, order), operands)


def _with_lengths(case: Attention, setting: Setting, operands: Operands) -> Attention:
    """The case with another setting, whose lengths its values are made to say."""
    values = dict(case.setup.values)
    lengths: dict[str, Value] = {
        "seqlens": {"q": list(setting.lengths_q), "k": list(setting.lengths_k)},
        "batch": setting.batch,
    }
    values |= {axis: value for axis, value in lengths.items() if axis in values}
    return case.with_setting(setting, values, operands)


def with_parts(case: Attention, changes: dict[int, Operands]) -> Attention:
    """The case with the operands of some sequences replaced; each as `parts` gives them."""
    setting, operands = case.setting, case.operands
    made = {}
    for name in _OPERANDS:
        pieces = list(parts(setting, name, _operand(operands, name)))
        for number, other in changes.items():
            pieces[number] = _operand(other, name)
        made[name] = joined(setting, name, pieces)
    return case.with_tensors(**made)


def other_operands(case: Attention, sequences: Sequence[int]) -> Operands:
    """Other values, N(0, 1), for the sequences `sequences`, packed or stacked as they come."""
    setting = selected_setting(case.setting, sequences)
    return other_values(setting, case.setup.seed + 1, case.setup.device)


def some_sequence(case: Attention, fraction: float) -> int:
    """A sequence picked by a number in [0, 1); one with queries and keys if there is any."""
    setting = case.setting
    pairs = zip(setting.lengths_q, setting.lengths_k, strict=True)
    full = [number for number, (lq, lk) in enumerate(pairs) if lq and lk]
    some = full or range(setting.batch)
    return some[int(fraction * len(some))]


def of_sequences(setting: Setting, tensors: Tensors, *, keep: Sequence[int]) -> Tensors:
    """What belongs to the sequences `keep`; dsink belongs to all and is left out."""
    found = {}
    run = range(keep[0], keep[-1] + 1) if keep else range(0)
    for name, tensor in tensors.items():
        if name == "dsink":
            continue
        if keep and list(keep) == list(run):
            found[name] = _run(setting, name, tensor, run)
        else:
            pieces = parts(setting, name, tensor)
            found[name] = joined(setting, name, [pieces[number] for number in keep])
    return found


def _run(setting: Setting, name: str, tensor: torch.Tensor, run: range) -> torch.Tensor:
    """What belongs to sequences that follow one another: a view."""
    if not setting.packed:
        return tensor[run.start : run.stop]
    starts = setting.starts_k if name in _OF_KEYS else setting.starts_q
    begin = starts[run.start]
    return tensor.narrow(_dim(setting, name), begin, starts[run.stop] - begin)


def head_dim(setting: Setting, name: str) -> int:
    """Which dimension of an operand, output or gradient counts heads."""
    if name == "dsink":
        return 0
    if name == "lse":
        return 0 if setting.rows_last else 1
    return 2 if setting.layout == "bshd" else 1


def _operand(operands: Operands, name: str) -> torch.Tensor:
    tensor = getattr(operands, name)
    assert isinstance(tensor, torch.Tensor)
    return tensor
