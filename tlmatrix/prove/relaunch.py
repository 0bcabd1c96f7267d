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

from .answers import Values
from .refuting import SHOWS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tlmatrix.interpreter.reports import Report

    from .answers import Proof
    from .launches import KernelUse

_MOST_ELEMENTS = 1 << 22
"""Of a tensor of a launch."""


def refuted_by_launch(use: KernelUse, proof: Proof) -> Proof:
    """The proof as refuted, if a launch with its values shows it; else as it is.

    Where it depends on floats, the program's first launch is repeated with equal ones: those of a
    tensor are all 1, as ties are what a program's own random numbers do not have.
    """
    if proof.answer != "unknown" or proof.values is None:
        return proof
    tried = [(proof.values, "")] if proof.values.like_launch else []
    if proof.values.of_floats:
        first = use.observed[0]
        tables = {
            name: tuple((index, int(n)) for index, n in np.ndenumerate(array))
            for name, array in first.tables.items()
        }
        tried.append((Values(dict(first.symbols), tables), " where all floats are equal"))
    for values, where in tried:
        for report in _reports(use, proof, values, equal=bool(where)):
            shown = report.sanitizer in SHOWS[proof.name]
            if shown and (report.buffer == proof.subject or proof.name in ("bounds", "overflow")):
                words = f"{report.sanitizer}: {report.message}{where}"
                return replace(proof, answer="refuted", finding=words, values=values)
    return proof


def _reports(use: KernelUse, proof: Proof, values: Values, *, equal: bool) -> list[Report]:
    arguments = _arguments(use, values, equal=equal)
    if arguments is None:
        return []
    tensors = {name: a for name, a in arguments.items() if isinstance(a, torch.Tensor)}
    rows = {}
    if proof.name == "own sequence":
        offsets = [tensors[name] for name in values.tables]
        ending = [each for each in offsets if int(each[-1]) == len(tensors[proof.subject])]
        if len(ending) != 1:
            return []  # it is not known whose rows they are
        rows[proof.subject] = ending[0]
    # The report may come with an exception, of an access that has no meaning.
    with interpret(
        arch=next(iter(use.architectures)), sanitize=True, on_report="keep", sequences=rows
    ) as session:
        with suppress(Exception):
            tilelang.compile(tilelang.tvm.ir.load_json(use.text))(*arguments.values())
        return list(session.reports)


def _arguments(use: KernelUse, values: Values, *, equal: bool) -> dict[str, Any] | None:
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
            made = torch.ones(shape) if equal else torch.randn(shape, generator=random)
            found[buffer.name] = made.to(dtype)
        else:
            found[buffer.name] = torch.zeros(shape, dtype=dtype)
    return found


def _table(shape: list[int], known: Iterable[tuple[tuple[int, ...], int]]) -> np.ndarray[Any, Any]:
    table = np.zeros(shape, np.int64)
    for index, value in known:
        if all(0 <= i < n for i, n in zip(index, shape, strict=True)):
            table[index] = value
    return table
