"""Compares the kernels of specs under two TileLang releases: what `tlmatrix upgrade` prints."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tlmatrix.report.compare import Comparison, comparison_lines
from tlmatrix.report.tally import numbers_table
from tlmatrix.report.terminal import kernel_order
from tlmatrix.report.text import count
from tlmatrix.run.result import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.table import Table

    from tlmatrix.run.records import RunRecords
    from tlmatrix.run.result import CaseResult

Fact = dict[str, Any]
"""A compiled kernel in a results file (`tlmatrix.run.compilation.kernel_facts`)."""

_FIGURES = ("registers", "spills", "shared_memory", "ptx")
_COMPARED = (*_FIGURES, "stack", "tensor_memory", "barriers", "threads", "instructions", "error")
_SLOWER = {"cuda": 1.5}


@dataclass(frozen=True)
class Side:
    """One of the two releases.

    Attributes:
        release: such as `0.1.15`.
        import_error: why it cannot be imported; "" if it can.
        runs: the records of each backend that ran.
        failed: why another backend did not run.
    """

    release: str
    import_error: str = ""
    runs: Mapping[str, RunRecords] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelPair:
    """The facts of a kernel under both releases; of a release without one, `missing` says why."""

    kernel: str
    arch: str
    old: Fact
    new: Fact
    missing: str = ""

    @property
    def changed(self) -> list[str]:
        """The names of the facts that differ."""
        if self.missing:
            return []
        return [name for name in _COMPARED if self.old.get(name) != self.new.get(name)]


class Upgrade:
    """Two releases, compared.

    Attributes:
        sides: the old and the new release.
        compared: the cases of each backend that ran under both.
        pairs: the distinct kernels.
    """

    def __init__(self, old: Side, new: Side) -> None:
        self.sides = (old, new)
        self.compared = {
            # Without a GPU, times are those of the interpreter and of compilers.
            name: Comparison(old.runs[name], new.runs[name], slower=_SLOWER.get(name, math.inf))
            for name in old.runs
            if name in new.runs
        }
        pairs = (pair for each in self.compared.values() for pair in self._pairs(each))
        # Cases share kernels; times of compilers are no difference.
        self.pairs = list({_identity(pair): pair for pair in pairs}.values())

    @property
    def worse(self) -> bool:
        """Whether the new release fails where the old did not, or nothing was compared."""
        failed = self.sides[1].failed or not self.compared
        return bool(failed or any(each.worse for each in self.compared.values()))

    def other_values(self, backend: str) -> list[str]:
        """The cases with another error ratio: the kernels gave other numbers."""
        found = self.compared[backend]
        old = {(r.path, r.case): r.error_ratio for r in found.before.results}
        new = {(r.path, r.case): r.error_ratio for r in found.after.results}
        both = ((key, old[key], new[key]) for key in new if key in old)
        return ["::".join(key) for key, *pair in both if None not in pair and pair[0] != pair[1]]

    def _pairs(self, found: Comparison) -> Iterator[KernelPair]:
        old = {(result.path, result.case): result for result in found.before.results}
        new = {(result.path, result.case): result for result in found.after.results}
        for key in old | new:
            cases = (old.get(key), new.get(key))
            facts: dict[tuple[str, str], tuple[list[Fact], list[Fact]]] = {}
            for index, case in enumerate(cases):
                for fact in case.kernels if case is not None else ():
                    name = (fact["kernel"], fact["arch"])
                    facts.setdefault(name, ([], []))[index].append(dict(fact))
            for (kernel, arch), both in facts.items():
                for one, other in zip_longest(*both, fillvalue=Fact()):
                    index = 0 if not one else 1
                    missing = f"{self.sides[index].release}: {_absent(cases[index], arch)}"
                    yield KernelPair(kernel, arch, one, other, "" if one and other else missing)

    def to_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        names = ("release", "import_error", "failed")
        old, new = ({name: getattr(side, name) for name in names} for side in self.sides)
        found: dict[str, Any] = {"old": old, "new": new, "backends": {}}
        for name, each in self.compared.items():
            found["backends"][name] = {
                "cases": each.common,
                "newly failing": [c.after.node for c in each.failing],
                "not judged now": [c.after.node for c in each.unjudged],
                "fixed": [c.after.node for c in each.fixed],
                "still failing": each.still,
                "other values": self.other_values(name),
            }
        found["kernels"] = [{**asdict(p), "changed": p.changed} for p in self.pairs]
        return found


def _identity(pair: KernelPair) -> str:
    facts = [[fact.get(name) for name in ("key", *_COMPARED)] for fact in (pair.old, pair.new)]
    return str((pair.kernel, pair.arch, pair.missing, facts))


def _absent(result: CaseResult | None, arch: str) -> str:
    """Why a case has no fact of a kernel."""
    if result is None:
        return "the case did not run"
    entry = [f.title for f in result.findings if f.check == "entry" and arch in f.title]
    if entry:
        return f"not traced: {entry[0].partition('raises ')[2] or entry[0]}"
    if result.status is Status.PASSED:
        return "not launched"
    return f"not traced: {result.headline or result.status}"


# Printed ----------------------------------------------------------------------------------------


def summary_table(found: Upgrade) -> Table:
    """A column for each release: imports, kernels that are traced and compiled, cases that pass."""
    table = numbers_table("", (side.release for side in found.sides))
    table.add_row("imports", *("no" if side.import_error else "yes" for side in found.sides))
    if found.pairs:
        facts = [[p.old for p in found.pairs if p.old], [p.new for p in found.pairs if p.new]]
        table.add_row("kernels traced", *(_distinct(each) for each in facts))
        compiled = [[fact for fact in each if not fact.get("error")] for each in facts]
        table.add_row("kernels compiled", *(_distinct(each) for each in compiled))
    for name in dict.fromkeys(name for side in found.sides for name in (*side.runs, *side.failed)):
        table.add_row(f"cases passed, {name}", *(_passed(side, name) for side in found.sides))
    return table


def _distinct(facts: Sequence[Fact]) -> str:
    return str(len({fact["key"] for fact in facts}))


def _passed(side: Side, backend: str) -> str:
    if backend not in side.runs:
        return "did not run"
    counts = side.runs[backend].counts()
    return f"{counts[Status.PASSED]} of {counts.total()}"


def kernel_table(found: Upgrade) -> Table | None:
    """The kernels that change, by name and architecture; None if none does.

    `changed` counts the kernels of that name with a change (dtypes, head dims, masks). Each figure
    is that of the kernel in which it changes most; if it changes in none, the largest one.
    """
    groups: dict[tuple[str, str], list[KernelPair]] = defaultdict(list)
    for pair in found.pairs:
        if not pair.missing:
            groups[pair.kernel, pair.arch].append(pair)
    table = numbers_table("kernel", ("arch", "changed", "registers", "spills", "shared", "PTX"))
    table.columns[1].justify = "left"
    for (kernel, arch), pairs in sorted(groups.items(), key=lambda item: kernel_order(*item[0])):
        changed = sum(bool(pair.changed) for pair in pairs)
        if changed:
            figures = (_figure(pairs, name) for name in _FIGURES)
            table.add_row(kernel, arch, f"{changed}/{len(pairs)}", *figures)
    return table if table.row_count else None


def _figure(pairs: Sequence[KernelPair], name: str) -> str:
    values = [(pair.old.get(name, 0), pair.new.get(name, 0)) for pair in pairs]
    old, new = max(values, key=lambda pair: (abs(pair[1] - pair[0]), pair[1]))
    return str(new) if old == new else f"{old}→{new}"


def upgrade_lines(found: Upgrade, most: int = 20) -> Iterator[str]:
    """The lines below the tables; of each kind of change at most `most`."""
    for side in found.sides:
        if side.import_error:
            yield f"{side.release} cannot be imported: {side.import_error}"
        for name, reason in side.failed.items():
            yield f"{side.release}, {name}: did not run: {reason}"
    whole = [pair for pair in found.pairs if not pair.missing]
    changed = sum(bool(pair.changed) for pair in whole)
    if whole:
        yield f"{count(len(whole), 'kernel')} compared, {len(whole) - changed} unchanged"
    yield from _instruction_lines(whole, most)
    missing = Counter((p.kernel, p.arch, p.missing) for p in found.pairs if p.missing)
    for (kernel, arch, reason), number in missing.most_common(most):
        yield f"  {kernel} {arch}, {count(number, 'kernel')}: {reason}"
    if len(missing) > most:
        yield f"  … and {len(missing) - most} more (--all)"
    for name, each in found.compared.items():
        yield f"{name}:"
        yield from (f"  {line}" for line in comparison_lines(each, most) if line)
        if values := found.other_values(name):
            yield f"  {count(len(values), 'case')} with another error ratio, so other values"


def _instruction_lines(pairs: Sequence[KernelPair], most: int) -> Iterator[str]:
    """The kinds of instructions that kernels use more or less often."""
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        old, new = (fact.get("instructions", {}) for fact in (pair.old, pair.new))
        for kind in old.keys() | new.keys():
            one, other = old.get(kind, 0), new.get(kind, 0)
            if one != other:
                kinds[kind][f"{pair.kernel} {pair.arch} {one}→{other}"] += 1
    for kind, where in sorted(kinds.items())[:most]:
        first = where.most_common(1)[0][0]
        more = where.total() - 1
        yield f"  {kind}: {first}{f', and {more} more' if more else ''}"
