"""Compares two runs case by case, and the kernels of specs under two TileLang releases."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tlmatrix.report.tally import numbers_table
from tlmatrix.report.terminal import kernel_order
from tlmatrix.report.text import count
from tlmatrix.results_file import shown_path
from tlmatrix.run.result import CaseResult, Status
from tlmatrix.triage.cause import cause_of
from tlmatrix.triage.groups import group_failures

if TYPE_CHECKING:
    from rich.table import Table

    from tlmatrix.run.records import RunRecords
    from tlmatrix.triage.groups import Group


_SMALL_RATIO = 0.1
"""Growth of an error ratio below this part of the error bound is rounding."""
_SMALL_SECONDS = 0.1
"""A case that takes less than this longer is not slower."""
_UNJUDGED = (Status.SKIPPED, Status.QUARANTINED)


@dataclass(frozen=True)
class Change:
    """A case of both runs."""

    before: CaseResult
    after: CaseResult

    def grown(self, factor: float) -> bool:
        """Whether its error ratio is that many times as large, although it passes."""
        if self.after.failed or self.before.failed:
            return False
        old, new = self.before.error_ratio, self.after.error_ratio
        if old is None or new is None:
            return False
        return new > factor * old and new - old > _SMALL_RATIO

    def slower(self, factor: float) -> bool:
        """Whether it takes that many times as long on the same backend."""
        old, new = self.before, self.after
        if (old.backend, old.arch) != (new.backend, new.arch) or not (
            _passed(old) and _passed(new)
        ):
            return False
        return new.seconds > factor * old.seconds and new.seconds - old.seconds > _SMALL_SECONDS

    @property
    def growth(self) -> float:
        """How many times as large its error ratio is."""
        return (self.after.error_ratio or 0.0) / max(self.before.error_ratio or 0.0, 1e-9)

    @property
    def delay(self) -> float:
        """How many seconds longer it takes."""
        return self.after.seconds - self.before.seconds


class Comparison:
    """Two runs, compared by the spec and the id of each case.

    Args:
        before: the earlier run.
        after: the later run.
        grown: an error ratio counts as grown if it is this many times as large.
        slower: a case counts as slower if it takes this many times as long on the same backend;
            None: times are not compared.
    """

    def __init__(
        self,
        before: RunRecords,
        after: RunRecords,
        *,
        grown: float = 2.0,
        slower: float | None = 1.5,
    ) -> None:
        old = {(result.path, result.case): result for result in before.results}
        new = {(result.path, result.case): result for result in after.results}
        common = [Change(old[key], result) for key, result in new.items() if key in old]
        added = [result for key, result in new.items() if key not in old]
        self.before, self.after = before, after
        self.common, self.added = len(common), len(added)
        self.removed = [result for key, result in old.items() if key not in new]
        self.failing = [c for c in common if c.after.failed and not c.before.failed]
        self.failing_added = [result for result in added if result.failed]
        self.fixed = [c for c in common if c.before.failed and _passed(c.after)]
        self.unjudged = [c for c in common if _passed(c.before) and c.after.status in _UNJUDGED]
        self.still = sum(c.before.failed and c.after.failed for c in common)
        self.grown = sorted((c for c in common if c.grown(grown)), key=lambda c: -c.growth)
        self.timed = slower is not None
        late = [c for c in common if slower is not None and c.slower(slower)]
        self.slower = sorted(late, key=lambda c: -c.delay)
        known = {(r.path, cause_of(r)) for r in before.results if r.failed}
        self.new_faults: list[Group] = [
            group
            for group in group_failures(after.results)
            if not any((r.path, cause_of(r)) in known for r in group.results)
        ]

    @property
    def worse(self) -> bool:
        """Whether a case fails that did not, is no longer judged, or has no result in a run."""
        incomplete = self.before.incomplete or self.after.incomplete
        return bool(self.failing or self.failing_added or self.unjudged or incomplete)


def _passed(result: CaseResult) -> bool:
    return result.status is Status.PASSED


def comparison_lines(found: Comparison, most: int = 20) -> Iterator[str]:
    """The lines of `tlmatrix diff`; of each kind of change at most `most` cases."""
    old, new = found.before, found.after
    yield (
        f"{count(found.common, 'case')} in both runs, {found.added:,} only in the later, "
        f"{len(found.removed):,} only in the earlier"
    )
    for run, place in ((old, "earlier"), (new, "later")):
        if run.incomplete:
            yield f"the {place} run is incomplete ({shown_path(run.path)}): {run.incomplete}"
    if new.header.seed != old.header.seed:
        yield f"the runs have other inputs: seed {old.header.seed} and {new.header.seed}"
    places = [{r.backend for r in run.results if r.backend} for run in (old, new)]
    if places[0] != places[1]:
        yield f"the backends differ: {_names(places[0])} and {_names(places[1])}"
    for name, rows in _changes(found):
        if rows:
            yield ""
            yield f"{name}: {len(rows):,}"
        for result, words in rows[:most]:
            yield f"  {result.node}"
            yield f"    {words}"
        if len(rows) > most:
            yield f"  … and {len(rows) - most:,} more (--all)"
    if found.new_faults:
        yield ""
        yield f"new faults: {len(found.new_faults)}"
        for group in found.new_faults[:most]:
            result = group.example
            yield f"  {result.spec}: {_finding(result)}, in {count(len(group.results), 'case')}"
            yield f"    {result.shown.command}"
    yield ""
    yield (
        f"{len(found.failing) + len(found.failing_added):,} newly failing, {len(found.fixed):,} "
        f"fixed, {found.still:,} still failing, {len(found.grown):,} with a larger error ratio"
        + f", {len(found.slower):,} slower"
        * found.timed
    )


def _changes(found: Comparison) -> Iterator[tuple[str, list[tuple[CaseResult, str]]]]:
    """Each kind of change, with its cases and what changed."""
    yield "newly failing", [(c.after, _finding(c.after)) for c in found.failing]
    added = [(result, _finding(result)) for result in found.failing_added]
    yield "failing, only in the later run", added
    unjudged = [(c.after, f"{c.after.status}: {c.after.message}") for c in found.unjudged]
    yield "passed before, not judged now", unjudged
    yield "fixed", [(c.after, f"was {_finding(c.before)}") for c in found.fixed]
    words = "{:.3g} -> {:.3g} of the error bound"
    ratios = [(c, words.format(c.before.error_ratio, c.after.error_ratio)) for c in found.grown]
    yield "error ratio grown", [(c.after, text) for c, text in ratios]
    seconds = [(c, f"{c.before.seconds:.2f} s -> {c.after.seconds:.2f} s") for c in found.slower]
    yield "slower", [(c.after, text) for c, text in seconds]


def _finding(result: CaseResult) -> str:
    if result.shown.findings:
        return result.headline
    return f"{result.status}{f': {result.message}' if result.message else ''}"


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


# Two releases of TileLang: what `tlmatrix upgrade` prints -----------------------------------------


Fact = dict[str, Any]
"""A compiled kernel in a results file (`tlmatrix.run.compilation.kernel_facts`)."""

_FIGURES = ("registers", "spills", "shared_memory", "ptx")
_COMPARED = (*_FIGURES, "stack", "tensor_memory", "barriers", "threads", "instructions", "error")


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
            # Times of cases are those of compilers and checks; `bench` times kernels.
            name: Comparison(old.runs[name], new.runs[name], slower=None)
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
        table.add_row(f"cases passed, {name}", *(_passed_of(side, name) for side in found.sides))
    return table


def _distinct(facts: Sequence[Fact]) -> str:
    return str(len({fact["key"] for fact in facts}))


def _passed_of(side: Side, backend: str) -> str:
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
