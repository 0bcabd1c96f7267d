"""Splits the tensors of attention cases by sequence, and joins them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.problem.attention.inputs import generate_replacements
from tlmatrix.problem.attention.reference import Operands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.problem.attention.axes import Setting
    from tlmatrix.problem.attention.build import Attention
    from tlmatrix.problem.model import Tensors
    from tlmatrix.spec.values import Value

_OPERANDS = ("q", "k", "v", "do")
_OF_KEYS = frozenset({"k", "v", "dk", "dv"})


def _dim(setting: Setting, name: str) -> int:
    """The dimension of a tensor along which sequences lie."""
    return 1 if setting.rows_last and name == "lse" else 0


def split_sequences(setting: Setting, name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The sequences of an operand, output or gradient, as views; dense ones have a batch of 1."""
    if not setting.packed:
        return tensor.split(1, 0)  # type: ignore[no-any-return, no-untyped-call]
    sizes = list(setting.lengths_k if name in _OF_KEYS else setting.lengths_q)
    return tensor.split(sizes, _dim(setting, name))  # type: ignore[no-any-return, no-untyped-call]


def join_sequences(setting: Setting, name: str, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """The inverse of `split_sequences`; does not copy a single piece."""
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


def select_sequences(case: Attention, order: Sequence[int]) -> Attention:
    """The case of the sequences `order`, in that order."""
    setting = case.setting

    def pick(name: str) -> torch.Tensor:
        pieces = split_sequences(setting, name, _operand(case.operands, name))
        return join_sequences(setting, name, [pieces[number] for number in order])

    operands = Operands(pick("q"), pick("k"), pick("v"), pick("do"), case.operands.sink)
    return _with_lengths(case, selected_setting(setting, order), operands)


def prepend_sequence(case: Attention, model: int, first: Operands) -> Attention:
    """The case with the sequence `first` prepended, which is as long as sequence `model`."""
    setting = case.setting
    order = [model, *range(setting.batch)]
    made = {
        name: join_sequences(setting, name, [_operand(first, name), _operand(case.operands, name)])
        for name in _OPERANDS
    }
    operands = replace(case.operands, **made)
    return _with_lengths(case, selected_setting(setting, order), operands)


def _with_lengths(case: Attention, setting: Setting, operands: Operands) -> Attention:
    """The case with another setting, and axis values with its lengths."""
    values = dict(case.setup.values)
    lengths: dict[str, Value] = {
        "seqlens": {"q": list(setting.lengths_q), "k": list(setting.lengths_k)},
        "batch": setting.batch,
    }
    values |= {axis: value for axis, value in lengths.items() if axis in values}
    return case.with_setting(setting, values, operands)


def replace_sequences(case: Attention, changes: dict[int, Operands]) -> Attention:
    """The case with some sequences replaced, by number, as `split_sequences` returns them."""
    setting, operands = case.setting, case.operands
    made = {}
    for name in _OPERANDS:
        pieces = list(split_sequences(setting, name, _operand(operands, name)))
        for number, other in changes.items():
            pieces[number] = _operand(other, name)
        made[name] = join_sequences(setting, name, pieces)
    return case.with_tensors(**made)


def other_operands(case: Attention, sequences: Sequence[int]) -> Operands:
    """New values, N(0, 1), for some sequences, in the layout of the case."""
    setting = selected_setting(case.setting, sequences)
    return generate_replacements(setting, case.setup.seed + 1, case.setup.device)


def some_sequence(case: Attention, fraction: float) -> int:
    """The number of a sequence, chosen by `fraction` in [0, 1); not an empty one if possible."""
    setting = case.setting
    pairs = zip(setting.lengths_q, setting.lengths_k, strict=True)
    full = [number for number, (lq, lk) in enumerate(pairs) if lq and lk]
    some = full or range(setting.batch)
    return some[int(fraction * len(some))]


def select_results(setting: Setting, tensors: Tensors, *, keep: Sequence[int]) -> Tensors:
    """The results of the sequences `keep`, without dsink, to which all contribute."""
    found = {}
    run = range(keep[0], keep[-1] + 1) if keep else range(0)
    for name, tensor in tensors.items():
        if name == "dsink":
            continue
        if keep and list(keep) == list(run):
            found[name] = _run(setting, name, tensor, run)
        else:
            pieces = split_sequences(setting, name, tensor)
            found[name] = join_sequences(setting, name, [pieces[number] for number in keep])
    return found


def _run(setting: Setting, name: str, tensor: torch.Tensor, run: range) -> torch.Tensor:
    """The results of consecutive sequences, as a view."""
    if not setting.packed:
        return tensor[run.start : run.stop]
    starts = setting.starts_k if name in _OF_KEYS else setting.starts_q
    begin = starts[run.start]
    return tensor.narrow(_dim(setting, name), begin, starts[run.stop] - begin)


def head_dim(setting: Setting, name: str) -> int:
    """The head dimension of an operand, output or gradient."""
    if name == "dsink":
        return 0
    if name == "lse":
        return 0 if setting.rows_last else 1
    return 2 if setting.layout == "bshd" else 1


def _operand(operands: Operands, name: str) -> torch.Tensor:
    tensor = getattr(operands, name)
    assert isinstance(tensor, torch.Tensor)
    return tensor
