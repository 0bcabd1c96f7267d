"""What `tlmatrix prove` says of the mutants of the kernels.

    python benchmarks/prove_mutants.py [NAME...] [--kinds lengths,memory,masks] [--json FILE]

For each mutant the first case that finds it is looked up as `make mutants` does, and run with all
sanitizers: what they report of a kernel are properties that the mutant breaks. The kernels of that
case, of a few of the spec's smoke tier, and of variants of them are proven with the bug and
without. A property that a sanitizer shows to be broken must not be proven; the exit code is 1 if
one is. Many mutants change values alone, of which nothing is proven: their proofs all stay.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "mutants"))

from mutant_catalog import KINDS, Mutant, load_mutants, plant
from mutant_hunt import Hunt, Plans, hunt

from tlmatrix.backend import backend_named
from tlmatrix.matrix.explain import find_case
from tlmatrix.prove.kernels import prove_spec
from tlmatrix.prove.launches import asked_cases
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.matrix import Case
    from tlmatrix.spec.model.spec import Spec

_KINDS = ("lengths", "memory", "masks", "sizes", "decode", "order")
_SMOKE = 1
"""Cases of the smoke tier beside the mutant's own."""
_BREAKS = {
    "races": "races",
    "sequences": "own sequence",
    "unwritten": "coverage",
    "bounds": "bounds",
    "fragments": "bounds",
    "tables": "bounds",
    "overflow": "overflow",
    "atomics": "equal bits",
}
"""By sanitizer, the property that its report shows to be broken."""

Answers = dict[str, str]
"""By kernel and property, the answer that is worst of its variants."""


@dataclass
class Row:
    """What became of a mutant.

    Attributes:
        mutant: its id.
        case: the case that finds it.
        finding: the first finding of it.
        broken: `KERNEL: PROPERTY of BUFFER` that sanitizers show to be broken.
        changed: the properties that are proven without the bug and not with it, with the answer.
        wrong: broken properties that are proven all the same.
        refuted: how many of the changed ones a case confirmed.
        trouble: why nothing can be said.
    """

    mutant: str
    case: str = ""
    finding: str = ""
    broken: list[str] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    refuted: int = 0
    seconds: float = 0.0
    trouble: str = ""


def main() -> int:
    """Print the table; the exit code is 1 if a broken property is proven."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of the ids of mutants")
    parser.add_argument("--kinds", default=",".join(_KINDS))
    parser.add_argument("--json", type=Path, help="a file for the rows")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds to find a mutant (60)")
    asked = parser.parse_args()
    kinds = asked.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no kind of mutants: {', '.join(sorted(unknown))}")
    mutants = [m for m in load_mutants() if m.kind in kinds and not m.compile]
    mutants = [m for m in mutants if not asked.names or any(n in m.id for n in asked.names)]
    plans = Plans(plain=0)
    rows = []
    without: dict[str, Any] = {}
    for mutant in mutants:
        row = row_of(mutant, plans, asked.limit, without)
        rows.append(row)
        print(_line(row), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps([asdict(each) for each in rows], indent=1) + "\n")
    counts = Counter(kind for row in rows for kind in _kinds_of(row))
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if any(row.wrong for row in rows) else 0


def _kinds_of(row: Row) -> Iterator[str]:
    yield "mutants"
    if row.trouble:
        yield "not judged"
    if row.broken:
        yield "break a property"
    if row.broken and not row.wrong:
        yield "break one that is not proven"
    if row.wrong:
        yield "WRONGLY PROVEN"
    if row.changed:
        yield "lose a proof"
    if row.refuted:
        yield "are refuted"


def _line(row: Row) -> str:
    changed = ", ".join(f"{name} {answer}" for name, answer in sorted(row.changed.items()))
    state = "WRONG " + "; ".join(row.wrong) if row.wrong else changed or "all proofs stay"
    broken = "; ".join(row.broken) or "values alone"
    return f"{row.mutant:<45} {row.seconds:5.0f} s  {broken}  ->  {row.trouble or state}"


def row_of(mutant: Mutant, plans: Plans, limit: float, without: dict[str, Any]) -> Row:
    """Hunt a mutant, then prove its kernels with and without it.

    `without` keeps the answers without any bug, by the case that they are of.
    """
    began = time.monotonic()
    row = Row(mutant.id)
    record = hunt(Hunt(mutant, tuple(plans.affected(mutant)), (), limit), plans)
    row.case, row.finding = record.case, f"{record.check}: {record.title}"
    if not record.found:
        row.trouble = f"not found: {record.trouble.strip()[-100:]}"
        return row
    spec = next(s for s in plans.specs if record.case.startswith(f"specs/{s.path.name}::"))
    own = _in_child(_judged, mutant, spec, record.case)
    if record.case not in without:
        without[record.case] = _in_child(_proven, None, spec, record.case)
    before = without[record.case]
    after = _in_child(_proven, mutant, spec, record.case)
    failed = [each for each in (own, before, after) if isinstance(each, str)]
    if failed:
        row.trouble = failed[0].strip().rpartition("\n")[2]
        return row
    row.broken = own
    row.changed = {
        name: answer
        for name, answer in after.items()
        if answer != "proven" and before.get(name, "proven") == "proven"
    }
    row.refuted = sum(answer == "refuted" for answer in row.changed.values())
    row.wrong = [name for name in row.broken if after.get(name) == "proven"]
    row.seconds = time.monotonic() - began
    return row


# In a process of its own, with the mutated kernels ------------------------------------------------


def _in_child(function: Any, mutant: Mutant | None, spec: Spec, node: str) -> Any:
    """What a function gives in a process with the bug in it; a text if it raises."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="tlmatrix-mutant-") as folder:
        planted = plant(mutant, Path(folder))
        arguments = (function, planted, spec, node, sender)
        child = context.Process(target=_child, args=arguments)
        child.start()
        sender.close()
        try:
            return receiver.recv()
        except EOFError:
            return "the process ended"
        finally:
            child.join()


def _child(function: Any, planted: Path, spec: Spec, node: str, sender: Any) -> None:
    try:
        sys.path.insert(0, str(planted))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sender.send(function(spec, node))
    except BaseException:  # noqa: BLE001 - whatever happens is for the table
        sender.send(traceback.format_exc())
    finally:
        sender.close()
        os._exit(0)


def _cases(spec: Spec, node: str) -> list[Case]:
    """The case of a node, and some of the smoke tier."""
    first = find_case(spec, node.partition("::")[2])
    return [first, *asked_cases(plan(spec, "smoke").cases())[:_SMOKE]]


def _judged(spec: Spec, node: str) -> list[str]:
    """The properties that sanitizers show to be broken in a case."""
    runner = Runner(backend_named("interpreter"))
    runner.checks = ("sanitizers",)
    result = runner.judge(spec, _cases(spec, node)[0])
    runner.close()
    found = []
    for finding in result.findings:
        sanitizer = re.match(r"(\w+)", finding.title)
        name = _BREAKS.get(sanitizer.group(1)) if sanitizer else None
        if finding.check != "sanitizers" or name is None:
            continue
        buffer = re.search(r"(\w+)(\[| is | has )", finding.title.partition(":")[2])
        subject = buffer.group(1) if buffer else ""
        if name == "bounds":
            words = {"fragments": "fragments", "tables": "tables", "bounds": "shared memory"}
            subject = words[sanitizer.group(1)] if sanitizer else ""
        if name == "overflow":
            subject = "int32"
        found.append(f"{finding.kernel}: {name} of {subject}")
    return sorted(set(found))


def _proven(spec: Spec, node: str) -> Answers:
    """The worst answers about the kernels of a case and a few others."""
    runner = Runner(backend_named("interpreter"))
    proofs = prove_spec(spec, _cases(spec, node), runner)
    runner.close()
    order = ("proven", "unknown", "refuted")
    found: Answers = {}
    for kernel in proofs.kernels:
        for proof in kernel.proofs:
            subject = "int32" if proof.name == "overflow" else proof.subject
            name = f"{kernel.name}: {proof.name} of {subject}"
            found[name] = max(found.get(name, "proven"), proof.answer, key=order.index)
    return found


if __name__ == "__main__":
    sys.exit(main())
