"""Tries a draft: runs its spec, and narrows what the code under test or the reference refuses."""

from __future__ import annotations

import shlex
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from tlmatrix.draft.attempts import Attempts, Limit
from tlmatrix.draft.matching import match_reference, untie
from tlmatrix.draft.narrowing import keep_recorded, narrow, probe
from tlmatrix.draft.text import write_spec
from tlmatrix.draft.verdicts import NO_REFERENCE, Trial, agrees
from tlmatrix.engine.pool import muted
from tlmatrix.exit_codes import UsageError
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.loader import load_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tlmatrix.draft.sources import Drafts
    from tlmatrix.run.result import CaseResult


def tried(
    drafts: Drafts,
    path: Path,
    roots: Iterable[Path],
    *,
    tier: str = "quick",
    prove: bool = True,
    seconds: float = float("inf"),
) -> Trial:
    """Run the spec of a draft, and narrow it to what is supported; writes the file.

    Args:
        drafts: makes the draft, and others with other guesses.
        path: the file of the spec.
        roots: folders with the modules that it names.
        tier: the tier of the spec that runs.
        prove: whether properties of its kernels that are proven are demanded.
        seconds: the limit after which the draft stays as narrowed by then.
    """
    from tlmatrix.run.runner import Runner

    trial = Trial(drafts())
    limit = Limit(seconds)
    recorded: CaseResult | None = None
    try:
        with Runner() as runner, muted(), suppress(TimeoutError):
            attempts = Attempts(path, tuple(roots), runner, tier, Limit(seconds / 2))
            recorded = match_reference(drafts, attempts, trial.lines)
            untie(drafts, attempts, recorded)
        if attempts.broken is not None:  # whatever it is called with
            trial.draft, trial.results = drafts(), [attempts.broken]
            write_spec(trial.draft, path)
            trial.lines += _summary(trial.results, path)
            return trial
        trial.draft, why = drafts(), ""
        if drafts.found is not None and drafts.found.part:
            why = f"no recorded case passes: {attempts.why or 'none ended in time'}"
            reference = trial.draft.reference
            if reference is not None and reference.missing:
                why = reference.difference
        elif not trial.draft.runs:
            write_spec(trial.draft, path)
            return trial
        else:
            with Runner() as runner, muted():  # each checks once what one case does for all
                attempts = Attempts(path, tuple(roots), runner, tier, limit)
                narrow(trial, attempts, recorded)
                probe(trial, attempts)
            why = _why_refuted(drafts, trial.results, recorded)
        if drafts.found is not None and why:
            none = drafts.found
            others = [e for e in drafts.references if not e.part and e.function != none.function]
            drafts = drafts.changed(found=next(iter(others), None), references=others)
            again = tried(drafts, path, roots, tier=tier, prove=prove, seconds=limit.left)
            again.lines.insert(0, f"  {none.method or none.target} {NO_REFERENCE}: {why}")
            return again
        keep_recorded(trial, recorded)
        write_spec(trial.draft, path)  # attempts wrote others
    except (SpecError, UsageError) as error:
        trial.error = str(error)
        trial.lines.append(str(error))
        return trial
    trial.lines += _summary(trial.results, path)
    if prove and trial.results and not any(result.failed for result in trial.results):
        with muted():
            lines = list(_proven(path, roots))
        trial.lines += lines
    return trial


def _why_refuted(drafts: Drafts, results: Sequence[CaseResult], recorded: CaseResult | None) -> str:
    """Why the function is no reference: it raises in all cases, or is a guess and seldom agrees."""
    if drafts.interface.calls and recorded is not None and agrees(recorded):
        return ""
    firsts = [finding for result in results for finding in result.findings[:1]]
    checks = {finding.check for finding in firsts if len(firsts) == len(results)}
    of_recorded = () if recorded is None else recorded.findings[:1]
    raises = checks == {"reference"} or (
        # Where it is called at all: the code under test refuses other sizes before.
        checks <= {"reference", "entry"} and any(f.check == "reference" for f in of_recorded)
    )
    own = [e for e in drafts.references if drafts.found and e.function == drafts.found.function]
    differs = any(each.part for each in own) and 2 * sum(map(agrees, results)) < len(results)
    why = next((f.title for f in firsts if f.check == "reference"), "")
    return (why or firsts[0].title) if firsts and (raises or differs) else ""


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


def _proven(path: Path, roots: Iterable[Path]) -> Iterator[str]:
    """Demand in a spec what is proven of all its kernels, and yield lines about the answers."""
    from tlmatrix.prove.answers import PROPERTIES, PROVEN_TIER
    from tlmatrix.prove.kernels import prove_spec
    from tlmatrix.prove.launches import asked_cases
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
