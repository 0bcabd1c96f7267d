"""Launches one kernel with values that refute a property, where no spec has a case of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import tilelang
import torch

from tlmatrix.check.memory import unwritten
from tlmatrix.dtypes import torch_dtype
from tlmatrix.interpreter import interpret
from tlmatrix.interpreter.analysis.expressions import evaluate

from .refuting import SHOWS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tlmatrix.interpreter.reports import Report

    from .answers import Proof, Values
    from .launches import KernelUse

_MOST_ELEMENTS = 1 << 22
"""Of a tensor of a launch."""


def refuted_by_launch(use: KernelUse, prim_func: Any, proof: Proof) -> Proof:  # noqa: ANN401
    """The proof as refuted, if a launch with its values shows it; else as it is."""
    if proof.answer != "unknown" or proof.values is None or not proof.values.like_launch:
        return proof
    for report in _reports(use, prim_func, proof):
        shown = report.sanitizer in SHOWS[proof.name]
        if shown and (report.buffer == proof.subject or proof.name in ("bounds", "overflow")):
            words = f"{report.sanitizer}: {report.message}"
            return replace(proof, answer="refuted", finding=words)
    return proof


def _reports(use: KernelUse, prim_func: Any, proof: Proof) -> list[Report]:  # noqa: ANN401
    assert proof.values is not None
    arguments = _arguments(use, proof.values)
    if arguments is None:
        return []
    tensors = {name: a for name, a in arguments.items() if isinstance(a, torch.Tensor)}
    rows = {}
    if proof.name == "own sequence":
        offsets = [tensors[name] for name in proof.values.tables]
        ending = [each for each in offsets if int(each[-1]) == len(tensors[proof.subject])]
        if len(ending) != 1:
            return []  # it is not known whose rows they are
        rows[proof.subject] = ending[0]
    # The report may come with an exception, of an access that has no meaning.
    with interpret(
        arch=next(iter(use.architectures)), sanitize=True, on_report="keep", sequences=rows
    ) as session:
        with suppress(Exception):
            tilelang.compile(prim_func)(*arguments.values())
        return list(session.reports)


def _arguments(use: KernelUse, values: Values) -> dict[str, Any] | None:
    """The arguments of a launch with values; None if a tensor would be too large."""
    kernel = use.kernel()
    random = torch.Generator().manual_seed(0)
    outputs = {name for each in use.observed for name in each.unwritten}
    found: dict[str, Any] = {}
    for param in kernel.params:
        buffer = kernel.buffer_map.get(param)
        if buffer is None:
            found[param.name] = values.symbols.get(param.name, 1)
            continue
        shape = [int(evaluate(extent, values.symbols)) for extent in buffer.shape]
        if prod(shape) > _MOST_ELEMENTS:
            return None
        dtype = torch_dtype(buffer.dtype)
        if buffer.name in values.tables:
            found[buffer.name] = torch.from_numpy(_table(shape, values.tables[buffer.name])).to(
                dtype
            )
        elif buffer.name in outputs and dtype.is_floating_point:
            found[buffer.name] = unwritten(shape, dtype, None)
        elif dtype.is_floating_point:
            found[buffer.name] = torch.randn(shape, generator=random).to(dtype)
        else:
            found[buffer.name] = torch.zeros(shape, dtype=dtype)
    return found


def _table(shape: list[int], known: Iterable[tuple[tuple[int, ...], int]]) -> np.ndarray[Any, Any]:
    table = np.zeros(shape, np.int64)
    for index, value in known:
        if all(0 <= i < n for i, n in zip(index, shape, strict=True)):
            table[index] = value
    return table
