"""Makes a case of values that refute a property, and runs it: only what it shows is a refutation.

The values are those of a launch: sizes, and elements of integer tensors. Which axes of the spec
they come from is seen in the launch of a case: an axis whose integer is a size of the launch, or
whose list has the steps of a tensor of offsets.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import accumulate, chain, islice, pairwise
from typing import TYPE_CHECKING, Any

from tlmatrix.prove.cases import allowed, variants
from tlmatrix.run.result import Status

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tlmatrix.check.finding import Finding
    from tlmatrix.matrix import Case
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

    from .answers import Proof, Values
    from .facts import Observation
    from .launches import KernelUse

_MOST_CASES = 6
"""Cases that are run for one property."""
_LARGEST = 2048
"""Of a size of a case that is run."""
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
    for each in _candidates(spec, use, cases, proof.values):
        result = runner.judge(traced, each)
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


def _candidates(
    spec: Spec, use: KernelUse, cases: Sequence[Case], values: Values | None
) -> Collection[Case]:
    """Cases that may launch the kernel with values, the nearest first."""
    nearest = () if values is None else _of_values(spec, cases[-1], use.observed[0], values)
    found = islice(chain(nearest, cases, variants(spec, cases[-1], _MOST_CASES)), _MOST_CASES)
    return {each.key: each for each in found}.values()


def _of_values(spec: Spec, case: Case, observed: Observation, values: Values) -> Iterator[Case]:
    """The case with its sizes and lengths taken from values; with each kind of them, then all."""
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
