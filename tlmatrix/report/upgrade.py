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

FIGURES = ("registers", "spills", "shared_memory", "ptx")
"""What the table compares; `ptx` is the number of PTX instructions."""
_COMPARED = (*FIGURES, "stack", "tensor_memory", "barriers", "threads", "instructions", "error")
_IDENTITY = ("key", *_COMPARED)
"""A kernel has a fact, with the same key, for each of its device functions."""

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
    """A kernel of a case under both releases; without a fact, `missing` says why.

    Attributes:
        old: its fact under the old release.
        new: its fact under the new one.
        missing: why a release has none; "" if both have one.
        cases: the cases with this pair.
    """

    spec: str
    kernel: str
    arch: str
    old: Fact | None
    new: Fact | None
    missing: str = ""
    cases: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the facts that differ."""
        old, new = self.old or {}, self.new or {}
        if self.missing:
            return ()
        return tuple(name for name in _COMPARED if old.get(name) != new.get(name))


class Upgrade:
    """Two releases, compared.

    Attributes:
        sides: the old and the new release.
        pairs: the distinct kernels, each with both of its facts.
        compared: the cases of each backend that ran under both releases.
    """

    def __init__(self, old: Side, new: Side) -> None:
        self.sides = (old, new)
        self.compared = {
            # Without a GPU, times are those of the interpreter and of compilers.
            name: Comparison(old.runs[name], new.runs[name], slower=_SLOWER.get(name, math.inf))
            for name in old.runs
            if name in new.runs
        }
        self.pairs = [pair for name in self.compared for pair in self._pairs(name)]

    @property
    def worse(self) -> bool:
        """Whether the new release fails where the old did not, or nothing was compared."""
        failed = self.sides[1].failed or self.sides[1].import_error
        return bool(failed or not self.compared or any(c.worse for c in self.compared.values()))

    def other_values(self, backend: str) -> list[str]:
        """The cases with another error ratio: the kernels gave other numbers."""
        found = self.compared[backend]
        old = {(r.path, r.case): r.error_ratio for r in found.before.results}
        return [
            result.node
            for result in found.after.results
            if None not in (ratio := old.get((result.path, result.case)), result.error_ratio)
            and ratio != result.error_ratio
        ]

    def _pairs(self, backend: str) -> Iterator[KernelPair]:
        found = self.compared[backend]
        cases: dict[tuple[str, str], list[CaseResult | None]] = defaultdict(lambda: [None, None])
        for index, run in enumerate((found.before, found.after)):
            for result in run.results:
                cases[result.path, result.case][index] = result
        pairs: dict[str, KernelPair] = {}
        for old, new in cases.values():
            for pair in self._pairs_of(old, new):
                facts = [f and [f.get(n) for n in _IDENTITY] for f in (pair.old, pair.new)]
                key = str((pair.spec, pair.kernel, pair.arch, pair.missing, facts))
                before = pairs.setdefault(key, pair)
                if before is not pair:
                    about = {**vars(pair), "cases": (*before.cases, *pair.cases)}
                    pairs[key] = KernelPair(**about)
        yield from pairs.values()

    def _pairs_of(self, old: CaseResult | None, new: CaseResult | None) -> Iterator[KernelPair]:
        result = new or old
        assert result is not None
        by_name: dict[tuple[str, str], list[list[Fact]]] = defaultdict(lambda: [[], []])
        for index, each in enumerate((old, new)):
            for fact in each.kernels if each is not None else ():
                by_name[fact["kernel"], fact["arch"]][index].append(dict(fact))
        for (kernel, arch), facts in by_name.items():
            for one, other in zip_longest(*facts):
                missing = ""
                if one is None or other is None:
                    index = 0 if one is None else 1
                    missing = f"{self.sides[index].release}: {_absent((old, new)[index], arch)}"
                yield KernelPair(result.spec, kernel, arch, one, other, missing, (result.case,))

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
        found["kernels"] = [{**asdict(p), "changed": list(p.changed)} for p in self.pairs]
        return found


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
        facts = [[p.old for p in found.pairs], [p.new for p in found.pairs]]
        traced = [[fact for fact in each if fact is not None] for each in facts]
        table.add_row("kernels traced", *(str(_distinct(each)) for each in traced))
        compiled = [[fact for fact in each if not fact.get("error")] for each in traced]
        table.add_row("kernels compiled", *(str(_distinct(each)) for each in compiled))
    for name in dict.fromkeys(name for side in found.sides for name in (*side.runs, *side.failed)):
        table.add_row(f"cases passed, {name}", *(_passed(side, name) for side in found.sides))
    return table


def _distinct(facts: Sequence[Fact]) -> int:
    return len({fact["key"] for fact in facts})


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
    columns = ("arch", "changed", "registers", "spills", "shared", "PTX")
    table = numbers_table("kernel", columns)
    table.columns[1].justify = "left"
    for (kernel, arch), pairs in sorted(groups.items(), key=lambda item: kernel_order(*item[0])):
        changed = sum(bool(pair.changed) for pair in pairs)
        if changed:
            figures = (_figure(pairs, name) for name in FIGURES)
            table.add_row(kernel, arch, f"{changed}/{len(pairs)}", *figures)
    return table if table.row_count else None


def _figure(pairs: Sequence[KernelPair], name: str) -> str:
    values = [((p.old or {}).get(name, 0), (p.new or {}).get(name, 0)) for p in pairs]
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
        old, new = ((fact or {}).get("instructions", {}) for fact in (pair.old, pair.new))
        for kind in old.keys() | new.keys():
            one, other = old.get(kind, 0), new.get(kind, 0)
            if one != other:
                kinds[kind][f"{pair.kernel} {pair.arch} {one}→{other}"] += 1
    for kind, where in sorted(kinds.items())[:most]:
        first = where.most_common(1)[0][0]
        more = where.total() - 1
        yield f"  {kind}: {first}{f', and {more} more' if more else ''}"
