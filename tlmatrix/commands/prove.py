"""`tlmatrix prove`: proves properties of the kernels of specs, for all sizes."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.commands.screen import print_wrapped
from tlmatrix.commands.specs import nodes_of, plan_all
from tlmatrix.engine.selection import processors
from tlmatrix.exit_codes import ExitCode, writing
from tlmatrix.options.table import TIER
from tlmatrix.prove.answers import PROPERTIES, PROVEN_TIER, SpecProofs, keep
from tlmatrix.prove.kernels import prove_kernel, prove_spec
from tlmatrix.prove.launches import Observer, asked_cases
from tlmatrix.prove.properties import LARGEST_DIMS
from tlmatrix.prove.refuting import refuted_by_launch
from tlmatrix.report.text import count
from tlmatrix.run.runner import Runner
from tlmatrix.tracebacks import short_path

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tlmatrix.config import Config
    from tlmatrix.interpreter.frontend.session import Session
    from tlmatrix.prove.answers import KernelProofs, Proof
    from tlmatrix.spec.model.spec import Spec

_LAUNCHES = 3
"""Of a program's launches of a kernel, those that launches which refute a property are like."""
_MOST_SHOWN = 32
"""Elements of a table of a launch."""
_UP_TO = ("overflow", "grid")
"""Properties that are proven up to a size."""
_WIDER = "for other options"
_WIDER_TIER = "each"
"""The tier of which the memory of kernels is looked at: it has each value of each axis."""


def prove(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Prove the kernels of specs; print the answers, and refutations as findings.

    Raises:
        UsageError: a path does not exist.
        SpecError: a spec is invalid.
        OutputError: the JSON file cannot be written.
    """
    began = time.monotonic()
    nodes = nodes_of(arguments.paths, config)
    tier = vars(arguments)[TIER.name] or PROVEN_TIER
    roots = [config.root]
    plans, others = (plan_all(nodes, each, roots=roots) for each in (tier, _WIDER_TIER))
    workers = processors() if arguments.workers == "auto" else int(arguments.workers)
    written = []
    kernels: list[KernelProofs] = []
    code = ExitCode.OK
    for plan, other, ids in zip(plans, others, nodes.values(), strict=True):
        spec = plan.spec
        wider = [] if ids else [c for c in other.cases() if c.origin in ("tier", "extra")]
        cases = [case for case in asked_cases(plan.cases()) if not ids or case.id in ids]
        runner = Runner("interpreter", roots=roots)
        arch = arguments.arch or ""
        found = prove_spec(
            spec, cases, runner, wider=wider, arch=arch, workers=workers, roots=roots
        )
        runner.close()
        if not ids:
            keep(spec, tier, found, roots)
        for line in _lines(spec, found, verbose=bool(arguments.verbose)):
            print_wrapped(line)
        sys.stdout.flush()
        kernels += found.kernels
        not_launched = found.failed and not found.kernels
        wrong = found.counts["refuted"] or found.contradicted or not_launched
        if wrong or list(_missing(spec, found)):
            code = ExitCode.FINDINGS
        written.append({"spec": spec.name, **asdict(found)})
    if arguments.json:
        with writing("--json", Path(arguments.json)):
            Path(arguments.json).write_text(json.dumps(written, indent=1) + "\n")
    print_wrapped(f"{_total(kernels)}, in {time.monotonic() - began:.1f} s")
    return code


@contextmanager
def proving(arch: str, proven: list[KernelProofs]) -> Iterator[Callable[[Session], None]]:
    """Prove the kernels that a program launched, when it has ended, and print the answers.

    Gives a function to call with the session of the program before it runs. What refutes a
    property is launched. The answers are added to `proven`.
    """
    observer = Observer(arch)
    try:
        yield lambda session: setattr(session, "on_launch", observer.on_launch)
    finally:
        for use in observer.uses():
            found = prove_kernel(use, (), use.observed[:_LAUNCHES])
            func = observer.prim_func(use)
            proofs = tuple(refuted_by_launch(use, func, proof) for proof in found.proofs)
            proven.append(replace(found, proofs=proofs))
            for line in (_table_line(use.name, "", proven[-1:]), *_details(proven[-1:], "")):
                print_wrapped(line)
        print_wrapped(_total(proven))


def _total(kernels: Sequence[KernelProofs]) -> str:
    counts = SpecProofs(tuple(kernels)).counts
    return (
        f"{counts['proven']} of {counts.total()} properties of {count(len(kernels), 'kernel')} "
        f"proven, {counts['refuted']} refuted, {counts['unknown']} unknown"
    )


def _lines(spec: Spec, found: SpecProofs, *, verbose: bool) -> Iterator[str]:
    yield f"{spec.path}"
    grouped: dict[tuple[str, str], list[KernelProofs]] = defaultdict(list)
    for each in found.kernels:
        memory_alone = each.proofs and all(proof.name == "budget" for proof in each.proofs)
        key = (_WIDER, "") if memory_alone else (each.name, ", ".join(each.architectures))
        grouped[key].append(each)
    for (name, archs), kernels in grouped.items():
        yield f"  {_table_line(name, archs, kernels)}"
        given = f"prove.given of {spec.path}"
        yield from _details(kernels, given, spec.architectures, verbose=verbose)
    yield from (f"  not launched: {words}" for words in found.failed[:3])
    yield from (f"  {words}" for words in found.contradicted)
    yield from (f"  the spec demands it: {words}" for words in _missing(spec, found))


def _table_line(name: str, archs: str, kernels: Sequence[KernelProofs]) -> str:
    """The name of kernels, their number, their architectures, and the answers by property."""
    label = name if len(kernels) == 1 else f"{name} x{len(kernels)}"
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for each in kernels:
        for proof in each.proofs:
            answers[proof.name][proof.answer] += 1
    parts = []
    for wanted in (name for name in PROPERTIES if name in answers):
        seen = answers[wanted]
        several = (f"{seen[a]} {a}" for a in ("proven", "refuted", "unknown") if seen[a])
        parts.append(f"{wanted} {', '.join(several) if len(seen) > 1 else next(iter(seen))}")
        if wanted in _UP_TO and set(seen) == {"proven"}:
            parts[-1] += _up_to(kernels, wanted)
    seconds = sum(each.seconds for each in kernels)
    unsupported = next((each.unsupported for each in kernels if each.unsupported), "")
    if unsupported:
        parts.append(f"not modelled: {unsupported}")
    return f"{label:<28} {archs and f'{archs}: '}{'; '.join(parts)}  {seconds:.1f} s"


def _up_to(kernels: Iterable[KernelProofs], name: str) -> str:
    """The sizes up to which a property is proven, if they are smaller than those asked for."""
    subjects = [each.subject for kernel in kernels for each in kernel.proofs if each.name == name]
    most = min(int(subject.rpartition(" ")[2]) for subject in subjects)
    return f" up to {most}" if most < LARGEST_DIMS[0] else ""


def _details(
    kernels: Iterable[KernelProofs], given: str, archs: Sequence[str] = (), *, verbose: bool = False
) -> Iterator[str]:
    """What is not proven, once for each reason; with `verbose` the facts of each proof."""
    seen: set[tuple[str, ...]] = set()
    cases: set[str] = set()
    for kernel in kernels:
        for proof in kernel.proofs:
            key = (str(proof), proof.answer, proof.reason, proof.place)
            if key in seen or (proof.answer == "proven" and not verbose):
                continue
            seen.add(key)
            if proof.answer == "proven":
                yield f"    {proof}: proven with {'; '.join(proof.facts) or 'no fact'}"
                continue
            file, _, line = proof.place.rpartition(":")
            at = f" ({short_path(file)}:{line})" if proof.place else ""
            yield f"    {proof}: {proof.answer}: {proof.reason}{at}"
            if proof.answer == "refuted":
                yield f"      {proof.finding}"
                if proof.values is not None and not proof.case:
                    yield f"      in a launch with {_values(proof)}"
                elif proof.case and proof.case not in cases:
                    # A case of a spec of several architectures is traced for the first.
                    arch = f" --backend interpreter --arch {proof.arch}" if len(archs) > 1 else ""
                    yield f"      repro: tlmatrix repro '{proof.case}'{arch}"
                cases.add(proof.case)
            elif proof.because:
                yield f"      allowed by the spec: {proof.because}"
            elif proof.values is not None:
                yield f"      not confirmed by a case; it would need {_values(proof)}"
                if given:
                    yield f"      if the host code excludes that, state it: {given}"


def _values(proof: Proof) -> str:
    assert proof.values is not None
    parts = [f"{name} = {value}" for name, value in proof.values.symbols.items()]
    for name, table in proof.values.tables.items():
        if all(index == (k,) for k, (index, _) in enumerate(table)):
            more = ", …" if len(table) > _MOST_SHOWN else ""
            shown = ", ".join(str(value) for _, value in table[:_MOST_SHOWN])
            parts.append(f"{name} = [{shown}{more}]")
            continue
        parts += [f"{name}[{', '.join(map(str, index))}] = {value}" for index, value in table[:4]]
    return ", ".join(parts[:10])


def _missing(spec: Spec, found: SpecProofs) -> Iterator[str]:
    """The properties that the spec demands and that are neither proven nor allowed unknown."""
    for kernel in found.kernels:
        if kernel.unsupported and spec.prove.properties:
            yield f"{kernel.name}: {kernel.unsupported}"
        for proof in kernel.proofs:
            demanded = proof.name in spec.prove.properties and not proof.because
            if demanded and proof.answer != "proven":
                yield f"{kernel.name}: {proof} is {proof.answer}"
