"""Runs what has the values that refute a property: only what it shows is a refutation.

The values are those of a launch: sizes, and elements of integer tensors. Of a spec they become a
case. Which axes they come from is seen in the launch of a case: an axis whose integer is a size of
the launch, or whose list has the steps of a tensor of offsets. Of a program, which has no cases,
the kernel alone is launched with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, chain, islice, pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import tilelang
import torch

from tlmatrix.check.memory import unwritten
from tlmatrix.dtypes import torch_dtype
from tlmatrix.interpreter import interpret
from tlmatrix.interpreter.analysis.accesses import constants_of
from tlmatrix.interpreter.analysis.expressions import evaluate
from tlmatrix.run.result import Status

from .answers import Values
from .launches import allowed, variants

if TYPE_CHECKING:
    from tlmatrix.check.finding import Finding
    from tlmatrix.interpreter.reports import Report
    from tlmatrix.matrix import Case
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

    from .answers import Proof
    from .facts import Observation
    from .launches import KernelUse

_MOST_CASES = 6
"""Cases that are run for one property."""
_LARGEST = 2048
"""Of a size of a case that is run."""
_MOST_ELEMENTS = 1 << 22
"""Of a tensor of a launch."""
SHOWS: dict[str, set[str]] = {
    "races": {"races"},
    "own sequence": {"sequences", "races"},
    "coverage": {"unwritten", "uninitialised", "poison"},
    "bounds": {"bounds", "fragments", "tables", "guards"},
    "overflow": {"overflow"},
    "assumptions": set(),
    "equal bits": {"atomics", "determinism"},
    "phases": {"barriers", "races"},
    "grid": set(),
}
"""By property, the checks and sanitizers whose findings show that it does not hold.

Wrong values show nothing: they have other causes as well. That an assumption does not hold is an
exception of the entry.
"""
_OF_BUFFERS = ("races", "own sequence", "coverage", "equal bits")


def refuted(
    runner: Runner, spec: Spec, use: KernelUse, cases: Sequence[Case], proof: Proof
) -> tuple[Proof, Case | None]:
    """The proof as refuted and the case on the interpreter that shows it; else the proof as it is.

    `cases` launch the kernel; sizes and lengths of the last are changed.
    """
    arch = next(iter(use.architectures))
    traced = spec.model_copy(update={"architectures": (arch,)}) if spec.architectures else spec
    nearest = _of_values(spec, cases[-1], use.observed[0], proof.values)
    tried = islice(chain(nearest, cases, variants(spec, cases[-1], _MOST_CASES)), _MOST_CASES)
    for each in {case.key: case for case in tried}.values():
        # Other checks would call the entry again, and show nothing.
        result = runner.judge(traced, each, reruns=SHOWS[proof.name])
        if result.status not in (Status.FAILED, Status.ERROR):
            continue
        for finding in result.findings:
            if shows(finding, proof, use.name):
                words = finding.title
                found = replace(proof, answer="refuted", case=each.id, arch=arch, finding=words)
                return found, each
    return proof, None


def shows(finding: Finding, proof: Proof, kernel: str) -> bool:
    """Whether a finding shows that a property of a kernel does not hold."""
    if finding.check == "entry":
        return proof.name == "assumptions" and "T.assume(" in finding.title
    if finding.check != "sanitizers":
        return finding.check in SHOWS[proof.name]
    # Other reports of one line are in the detail.
    for line in (finding.title, *(finding.detail or "").splitlines()):
        kind, _, words = line.strip().partition(":")
        named = re.search(rf"\b{re.escape(proof.subject)}\b", words)
        about = proof.name not in _OF_BUFFERS or named is not None
        if kind in SHOWS[proof.name] and finding.kernel == kernel and about:
            return True
    return False


def _of_values(
    spec: Spec, case: Case, observed: Observation, values: Values | None
) -> Iterator[Case]:
    """The case with its sizes and lengths taken from values; with all, then with each kind."""
    if values is None:
        return
    sizes = {
        axis: new
        for axis, value in case.values.items()
        for name, size in observed.symbols.items()
        if type(value) is int and size == value != (new := values.symbols.get(name, 0))
        if 0 < new <= _LARGEST
    }
    lengths = {
        axis: changed
        for axis, value in case.values.items()
        if (changed := _with_lengths(value, observed, values)) not in (None, value)
    }
    tried = [{**sizes, **lengths}, lengths, sizes, *({axis: v} for axis, v in sizes.items())]
    for changes in tried:
        if changes:
            made = replace(case, values={**case.values, **changes}, origin="tier")
            if allowed(spec, made.values):
                yield made


def _with_lengths(value: Any, observed: Observation, values: Values) -> Any:  # noqa: ANN401
    """The value of an axis with lists of lengths taken from values; None if it has none."""
    if isinstance(value, dict):
        changed = {key: _with_lengths(each, observed, values) for key, each in value.items()}
        if all(each is None for each in changed.values()):
            return None
        found = {key: value[key] if each is None else each for key, each in changed.items()}
        sizes = {len(each) for each in found.values() if isinstance(each, (list, tuple))}
        return found if len(sizes) == 1 else None
    if not isinstance(value, (list, tuple)) or not all(type(n) is int for n in value):
        return None
    offsets = list(accumulate(value, initial=0))
    for name, table in observed.tables.items():
        known = dict(values.tables.get(name, ()))
        if not known or table.ndim != 1:
            continue
        last = max(index[0] for index in known)
        if table.tolist() == offsets:
            # An offset that is not known is the one before it.
            counts = [size for size in values.symbols.values() if size > last]
            count = min(max(min(counts, default=last + 1), 2), _LARGEST)
            made = accumulate((known.get((k,), 0) for k in range(count)), max)
            return [min(b - a, _LARGEST) for a, b in pairwise(made)]
        if table.tolist() == list(value):
            return [max(known.get((k,), 1), 0) for k in range(min(last + 1, _LARGEST))]
    return None


# Of programs --------------------------------------------------------------------------------------


def refuted_by_launch(use: KernelUse, prim_func: Any, proof: Proof) -> Proof:  # noqa: ANN401
    """The proof as refuted, if a launch with its values shows it; else as it is.

    Where it depends on floats, the program's first launch is repeated with equal ones: those of a
    tensor are all 1, as ties are what a program's own random numbers do not have.
    """
    if proof.answer != "unknown" or proof.values is None:
        return proof
    tried = [(proof.values, "")] if proof.values.like_launch else []
    first, kernel = use.observed[0], use.kernel()
    read = (b.name for b in kernel.buffer_map.values() if b.data in constants_of(kernel))
    whole = {each.name for each in kernel.buffer_map.values() if "int" in each.dtype}
    if proof.values.of_floats and whole.intersection(read) <= first.tables.keys():
        tables = {
            name: tuple((index, int(n)) for index, n in np.ndenumerate(array))
            for name, array in first.tables.items()
        }
        tried.append((Values(dict(first.symbols), tables), " where all floats are equal"))
    for values, where in tried:
        for report in _reports(use, prim_func, proof, values, equal=bool(where)):
            shown = report.sanitizer in SHOWS[proof.name]
            if shown and (report.buffer == proof.subject or proof.name in ("bounds", "overflow")):
                words = f"{report.sanitizer}: {report.message}{where}"
                return replace(proof, answer="refuted", finding=words, values=values)
    return proof


def _reports(
    use: KernelUse,
    prim_func: Any,  # noqa: ANN401
    proof: Proof,
    values: Values,
    *,
    equal: bool,
) -> list[Report]:
    arguments = _arguments(use, values, equal=equal)
    if arguments is None:
        return []
    tensors = {name: a for name, a in arguments.items() if isinstance(a, torch.Tensor)}
    rows = {}
    if proof.name == "own sequence":
        offsets = [tensors[name] for name in values.tables if tensors[name].ndim == 1]
        ending = [t for t in offsets if len(t) and int(t[-1]) == len(tensors[proof.subject])]
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
        tensor = torch.zeros(shape, dtype=dtype)
        if buffer.name in values.tables:
            for index, value in values.tables[buffer.name]:
                if all(0 <= i < n for i, n in zip(index, shape, strict=True)):
                    tensor[index] = value
        elif dtype.is_floating_point:
            if buffer.name in outputs:
                tensor = unwritten(shape, dtype, None)
            elif equal:
                tensor.fill_(1)
            else:
                tensor = torch.randn(shape, generator=random).to(dtype)
        found[buffer.name] = tensor
    return found
