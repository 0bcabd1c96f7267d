"""Runs a new spec, and removes values of axes that the operator rejects."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from tlmatrix.commands.new.drafts import drop_values
from tlmatrix.commands.new.spec_text import spec_text
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.loader import load_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tlmatrix.commands.new.drafts import Draft
    from tlmatrix.run.result import CaseResult

_REJECTIONS = ("ValueError", "AssertionError", "NotImplementedError")
"""Exceptions of an operator that does not support a size."""
_ROUNDS = 3


def run_draft(draft: Draft, path: Path, roots: Iterable[Path]) -> Iterator[str]:
    """Run the quick tier of a spec, and yield lines about the results.

    Values of axes whose cases are all rejected are removed from the file.
    """
    for _ in range(_ROUNDS):
        try:
            results = _run(path, roots)
        except SpecError as error:
            yield str(error)
            return
        rejected = rejected_values(results)
        if not rejected:
            break
        for name, values in rejected.items():
            for value, why in values.items():
                yield f"  left out {name}={value}: {why}"
        draft = drop_values(draft, rejected)
        path.write_text(spec_text(draft), encoding="utf-8")
    yield from _summary(results, path)
    if not any(result.failed for result in results):
        yield from _proven(path, roots)


def _proven(path: Path, roots: Iterable[Path]) -> Iterator[str]:
    """Demand in a spec what is proven of all its kernels, and yield lines about the answers."""
    from tlmatrix.prove.answers import PROPERTIES, PROVEN_TIER
    from tlmatrix.prove.cases import asked_cases
    from tlmatrix.prove.specs import prove_spec
    from tlmatrix.run.plan import plan
    from tlmatrix.run.runner import Runner

    spec = load_spec(path)
    cases = asked_cases(plan(spec, PROVEN_TIER).cases())
    with Runner("interpreter", roots=tuple(roots)) as runner:
        found = prove_spec(spec, cases, runner, roots=tuple(roots))
    proofs = [proof for kernel in found.kernels for proof in kernel.proofs]
    open_ones = {proof.name for proof in proofs if proof.answer != "proven"}
    held = [p for p in PROPERTIES if p in {proof.name for proof in proofs} - open_ones]
    if held and not any(kernel.unsupported for kernel in found.kernels):
        text = f"\n# Proven for all sizes.\nprove:\n  properties: [{', '.join(held)}]\n"
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")
        yield f"proven for all sizes: {', '.join(held)}"
    for proof in proofs:
        if proof.answer == "refuted":
            yield f"  {proof} is refuted: {proof.finding}"
    if open_ones:
        command = f"tlmatrix prove {shlex.quote(str(path))}"
        yield f"not proven: {', '.join(sorted(open_ones))} ({command})"


def _run(path: Path, roots: Iterable[Path]) -> list[CaseResult]:
    from tlmatrix.run.plan import plan
    from tlmatrix.run.runner import Runner

    make_importable(path, roots)
    spec = load_spec(path)
    with Runner() as runner:
        return [runner.run(spec, case) for case in plan(spec, "quick").cases()]


def rejected_values(results: Sequence[CaseResult]) -> dict[str, dict[str, str]]:
    """Values of axes that occur only in cases whose entry raises, with the first message.

    Empty if every case raises, or if an axis would have no values left.
    """
    raising = {k: _rejection(result) for k, result in enumerate(results)}
    if all(raising.values()):
        return {}
    found: dict[str, dict[str, str]] = {}
    names = {name for result in results for name in result.values}
    for name in sorted(names):
        values = [str(_as_yaml(result.values.get(name))) for result in results]
        fine = {value for k, value in enumerate(values) if not raising[k]}
        for k, value in enumerate(values):
            why = raising[k]
            if why and value not in fine and fine:
                found.setdefault(name, {}).setdefault(value, why)
    return found


def _as_yaml(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return value


def _rejection(result: CaseResult) -> str:
    for finding in result.findings:
        if finding.check == "entry" and finding.pattern in _REJECTIONS:
            return finding.title
    return ""


def _summary(results: Sequence[CaseResult], path: Path) -> Iterator[str]:
    counts = Counter(str(result.status) for result in results)
    counted = ", ".join(f"{count} {status}" for status, count in counts.items())
    failed = [result for result in results if result.failed]
    yield f"{len(results)} cases of its quick tier: {counted}"
    if failed:
        first = next(iter(failed[0].findings), None)
        words = f"{first.check}: {first.title}" if first is not None else failed[0].message
        yield f"  {failed[0].case}: {words}"
        yield f"next: tlmatrix run {shlex.quote(str(path))}"
