"""Tries a draft: runs its spec, and narrows what the code under test or the reference refuses."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations, product
from typing import TYPE_CHECKING, Any

from tlmatrix.draft.references import parameters_read
from tlmatrix.draft.sizes import BATCH, COUNT
from tlmatrix.draft.text import Draft, write_spec
from tlmatrix.engine.pool import muted
from tlmatrix.exit_codes import UsageError
from tlmatrix.spec.expr.expression import Expression, ExpressionError
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.loader import load_spec
from tlmatrix.spec.model.calling import SKIPPED
from tlmatrix.spec.values import canonical, label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tlmatrix.draft.sources import Drafts
    from tlmatrix.matrix import Case
    from tlmatrix.run.result import CaseResult
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec


_ROUNDS = 4
_MORE = 6
"""Further cases that tell conditions apart."""
_LEAST_TRIED = 2
"""Such cases before a condition of two axes is believed."""
_SIZES = (2, 3, 4, 6, 8, 16, 24, 32)
_RAISED = re.compile(r"\braise[sd] ")
_NO_GRAPH = re.compile(r"backward through the graph a second time|does not require grad")
_RETURNED = re.compile(r"returned (\d+) (tensors|results)")
_OTHER_RESULTS = re.compile(rf"{_RETURNED.pattern}|has shape ")
_OTHER_DTYPE = re.compile(r" is \w+, expected \w+$")
_MOST_OUTPUTS = 4
"""Most outputs whose orders are tried."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_ONLY_RECORDED = "only the recorded sizes"
_WITHOUT_GRADIENTS = "without gradients"
_NOT_JUDGED = "does not judge"
_DRAWN_AS_RECORDED = "drawn as recorded"
_NOT_WATCHED = "does not model sanitizers of"
_WITHOUT_SANITIZERS = "without sanitizers"
_NO_REFERENCE = "is no reference"
_NOT_REFUSED = "is not refused, and is wrong"
_REFUSALS = ("entry", "reference", "problem", "spec")
"""Checks of what is no result."""
_VALUES = ("numeric", "gradients", *_REFUSALS)
"""Checks that tell whether a reference agrees."""
_MOST_STEPS = 1 << 35
"""Most multiplications of a recorded matrix product that is run as it was."""
_FACTORS = (256, 128, 64, 32, 16, 8, 4, 2)


@dataclass
class Trial:
    """What trying a draft gave.

    Attributes:
        draft: the draft as narrowed; its spec is in the file.
        results: of the cases of its last run.
        lines: what to print.
        error: why the spec could not run at all.
    """

    draft: Draft
    results: list[CaseResult] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def wrong(self) -> str:
        """The first line about values left out as wrong though nothing refuses them, or ""."""
        return next((line.strip() for line in self.lines if _NOT_REFUSED in line), "")

    @property
    def refused(self) -> str:
        """The line that says why the reference that was found is none; or ""."""
        return next((line.strip() for line in self.lines if _NO_REFERENCE in line), "")

    @property
    def left_out(self) -> str:
        """The line that says what is not judged: sizes, gradients, buffers, accesses; or ""."""
        words = (
            *(_ONLY_RECORDED, _WITHOUT_GRADIENTS, _WITHOUT_SANITIZERS),
            *(_NOT_JUDGED, _DRAWN_AS_RECORDED),
        )
        return next((line.strip() for line in self.lines if line.strip().startswith(words)), "")


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
            attempts = _Attempts(path, tuple(roots), runner, tier, Limit(seconds / 2))
            recorded = _match_reference(drafts, attempts, trial.lines)
            _untie(drafts, attempts)
        if drafts.found is not None and drafts.found.part:
            name = drafts.found.method or drafts.found.target
            why = attempts.why or "none ended in time"
            trial.lines.append(f"  {name} {_NO_REFERENCE}: no recorded case passes: {why}")
            drafts.found = next((each for each in drafts.references if not each.part), None)
        trial.draft = drafts()
        if not trial.draft.runs:
            write_spec(trial.draft, path)
            return trial
        with Runner() as runner, muted():  # the other keeps what it knows of other outputs
            attempts = _Attempts(path, tuple(roots), runner, tier, limit)
            _narrow(trial, attempts)
            _probe(trial, attempts)
        found = drafts.found
        if found is not None and not found.passed and trial.results:
            firsts = [finding for result in trial.results for finding in result.findings[:1]]
            if len(firsts) == len(trial.results) and all(f.check == "reference" for f in firsts):
                # It has the name of a reference, and is none.
                left = limit.left
                others = drafts.changed(found=None, references=())
                again = tried(others, path, roots, tier=tier, prove=prove, seconds=left)
                again.lines.insert(0, f"  {found.target} {_NO_REFERENCE}: {firsts[0].title}")
                return again
        _keep_recorded(trial, recorded)
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


class Limit:
    """Seconds of the processor, or four times as many: other programs may run beside this one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._start = time.process_time(), time.monotonic()

    @property
    def left(self) -> float:
        """What is left of them; less than 0 after the end."""
        own, passed = time.process_time() - self._start[0], time.monotonic() - self._start[1]
        return self._seconds - max(own, passed / 4)


@dataclass
class _Attempts:
    """Runs cases of drafts until its time ends; writes each draft to the file."""

    path: Path
    roots: Sequence[Path]
    runner: Runner
    tier: str
    limit: Limit
    why: str = ""
    """The first finding of the last case that failed, if its results were judged."""

    def case(self, draft: Draft, values: Mapping[str, Any]) -> CaseResult:
        """The result of the case that has some values; other axes have their first.

        Raises:
            TimeoutError: the time ended before the case did.
        """
        from tlmatrix.matrix import Case

        spec = self._spec(draft)
        first = {name: each[0] for name, each in spec.axes.items()}
        result = self._run(spec, Case(spec.name, {**first, **values}, "extra"))
        title = next((each.title for each in result.findings), result.message)
        if not self.why or (title and str(result.status) == "failed"):
            self.why = title
        return result

    def cases(self, draft: Draft) -> list[CaseResult]:
        """The results of the tier; those before the time ended."""
        from tlmatrix.run.plan import plan

        spec = self._spec(draft)
        found: list[CaseResult] = []
        with suppress(TimeoutError):
            found.extend(self._run(spec, case) for case in plan(spec, self.tier).cases())
        return found

    def _spec(self, draft: Draft) -> Spec:
        write_spec(draft, self.path)
        make_importable(self.path, self.roots)
        return load_spec(self.path)

    def _run(self, spec: Spec, case: Case) -> CaseResult:
        left = self.limit.left
        if left <= 0:
            raise TimeoutError
        # With little time a case that ignores its end for a moment would end this process.
        most = None if math.isinf(left) else 4 * max(left, 2.0)
        result = self.runner.run(spec, case, time_limit=most)
        if str(result.status) == "timeout":
            raise TimeoutError
        return result


def _narrow(trial: Trial, attempts: _Attempts) -> None:
    """Narrow a draft in rounds, until all its cases are taken or the time ends."""
    for _ in range(_ROUNDS):
        trial.results = attempts.cases(trial.draft)
        relaxed, lines = _relaxed(trial.draft, trial.results)
        if relaxed != trial.draft:
            trial.draft = relaxed
            trial.lines += lines
            trial.results = attempts.cases(relaxed)
        wrong = [e for e in trial.results if e.failed and "NaN" in (_refusal(e) or "NaN")]
        if wrong and trial.draft.ranges and _of_zeros(wrong):
            results = attempts.cases(ranged := trial.draft.in_ranges())
            if sum(map(_passes, results)) > sum(map(_passes, trial.results)):
                trial.lines.append(_ranges_line(trial.draft, wrong[0]))
                trial.draft, trial.results = ranged, results
        base = _accepted(trial, attempts)
        if base is None or not any(_refused(trial.draft, each) for each in trial.results):
            return
        narrowed, lines = _narrowed(trial.draft, base, attempts)
        if narrowed == trial.draft:
            narrowed, lines = _explained(trial.draft, [base, *trial.results], attempts)
        if narrowed == trial.draft:
            return
        trial.draft = narrowed
        trial.lines += lines
        trial.results = [each for each in (*trial.results, base) if _has_case(narrowed, each)]
        if attempts.limit.left <= 0:
            return


def _probe(trial: Trial, attempts: _Attempts) -> None:
    """Try an odd size and the largest of each range of the fuzz section, if no case has such.

    Where they are refused and no condition tells which are, random cases have listed sizes alone.
    """
    axes = trial.draft.fuzz.get("axes", {})
    ranges = {
        name: e["range"] if isinstance(e, dict) and "range" in e else e for name, e in axes.items()
    }
    base = _accepted(trial, attempts) if ranges else None
    for name, drawn in ranges.items():
        if base is None or not isinstance(drawn, str) or attempts.limit.left <= 0:
            continue
        draft, most, listed = trial.draft, int(drawn.partition("..")[2]), trial.draft.axes[name]
        odd = [3] if most > 3 and not any(n % 2 and n > 1 for n in listed) else []
        group = [base, *_varied(draft, base, name, [*odd, most], attempts)]
        relaxed, lines = _relaxed(draft, group[1:])
        if relaxed != draft:
            trial.lines += lines
            draft = trial.draft = relaxed
            group = [base, *_varied(draft, base, name, [*odd, most], attempts)]
        reasons = [_refused(draft, each, base) for each in group[1:]]
        pairs = zip(group[1:], reasons, strict=True)
        trial.results += [each for each, why in pairs if each.failed and not why]
        if why := _worst(reasons):
            conditions = _distinguished(draft, name, group, attempts)
            if conditions:
                trial.draft = _with_condition(draft, conditions[0], why)
                trial.lines.append(f"  only {conditions[0]}: {why}")
            else:
                trial.draft = _without_values(draft, name, {}, None)
                trial.lines.append(f"  no other {name} in random cases: {why}")


def _keep_recorded(trial: Trial, recorded: CaseResult | None) -> None:
    """Restrict the spec to a recorded case that passes, if refusals of others remain unexplained.

    Not if a case fails for another reason, which is a finding.
    """
    draft, refusals = trial.draft, [_refusal(each) for each in trial.results]
    if recorded is None or recorded.values.keys() != draft.axes.keys():
        return
    if any(each.failed and not why for each, why in zip(trial.results, refusals, strict=True)):
        return
    why = next(filter(None, refusals), "" if refusals else "no other case ended in time")
    if why and _has_case(draft, recorded, listed=False):
        axes = {name: (recorded.values[name],) for name in draft.axes}
        trial.draft, trial.results = replace(draft, axes=axes, fuzz={}), [recorded]
        trial.lines.append(f"  {_ONLY_RECORDED}: {why}")


def _has_case(draft: Draft, result: CaseResult, *, listed: bool = True) -> bool:
    """Whether a draft still has the case of a result; its sizes need be listed by default."""
    numbers = _sizes(result)
    own = (numbers[name] in values for name, values in draft.axes.items() if name in numbers)
    fine = not listed or all(own)
    return fine and all(_holds(rule, numbers) is not False for rule, _ in draft.constraints)


def _passes(result: CaseResult) -> bool:
    return str(result.status) == "passed"


def _agrees(result: CaseResult) -> bool:
    """Whether the reference has the values of the code under test, whatever else is found."""
    judged = str(result.status) in ("passed", "failed")
    return judged and not any(e.check in _VALUES for e in result.findings)


# Guesses about sizes -----------------------------------------------------------------------------


def _untie(drafts: Drafts, attempts: _Attempts) -> None:
    """Give a dimension its own axis if code and reference agree where its expression is wrong.

    A size that is a product or a part of others in the recorded calls may be so by chance.
    """
    for size, (name, column) in drafts.interface.guesses.items():
        untied = drafts.changed(interface=drafts.interface.untied(size))
        draft = untied()
        sizes = {n: each[0] for n, each in untied.interface.symbols.items() if each}
        base = {n: each for n, each in sizes.items() if n in draft.axes}
        others = (2 * column[0], max(1, column[0] // 2), column[0] + 1)
        fine = name in draft.axes and draft.complete and not _is_large(base)
        if fine and any(_passes(attempts.case(draft, base | {name: other})) for other in others):
            drafts.interface = untied.interface
        else:
            drafts.interface = drafts.interface.with_fact(size)


def _relaxed(draft: Draft, results: Sequence[CaseResult]) -> tuple[Draft, list[str]]:
    """The draft without what right code need not do.

    That is to add in one order, and to keep values that are not finite from what they do not touch.
    """
    firsts = [finding for result in results for finding in result.findings[:1]]
    unordered = [finding.title for finding in firsts if finding.title.startswith("atomics: ")]
    if unordered and not draft.bounded:
        return replace(draft, bounded=True), [f"  determinism: bounded, as {unordered[0]}"]
    # Many right kernels multiply what a mask hides by 0, which a NaN survives.
    spread = [finding.title for finding in firsts if finding.check == "propagation"]
    if spread and "propagation" not in draft.without:
        without = (*draft.without, "propagation")
        return replace(draft, without=without), [f"  without propagation, as {spread[0]}"]
    return draft, []


def _match_reference(drafts: Drafts, attempts: _Attempts, lines: list[str]) -> CaseResult | None:
    """Take the first reference that agrees in a recorded case, and how it gives the outputs.

    Returns the result of that case; None if none passes, or if a problem brings the reference.
    Without a reference its values are not compared. A reference may refuse float64, return outputs
    in another order, or fewer of them. What the code under test updates, it may return as new
    tensors, or update its own arguments. If the code passes without gradients alone, the draft has
    none, and `lines` get a line.
    """
    for found in drafts.references:
        own = drafts.changed(found=found)
        draft = own()
        if draft.problem:
            drafts.found = found
            return None
        if not draft.complete:
            continue
        kept = drafts.found is found
        first = _recorded_case(draft, attempts)
        if _raised(first, "reference", _RAISED):  # it may refuse float64
            same = replace(found, same_dtype=True)
            other = drafts.changed(found=same)
            again = _recorded_case(other(), attempts)
            if not _raised(again, "reference", _RAISED):
                found, own, first = same, other, again  # noqa: PLW2901
        if _NOT_WATCHED in first.message:
            lines.append(f"  {_WITHOUT_SANITIZERS}: {first.message}")
            drafts.adapted = own.adapted = (*own.adapted, Draft.without_sanitizers)
            first = _recorded_case(draft := own(), attempts)
        if _agrees(first):
            relaxed, why = _relaxed(draft, [first])
            if relaxed != draft:
                lines += why
                drafts.adapted = own.adapted = (*own.adapted, partial(_with_demands_of, relaxed))
                first = _recorded_case(own(), attempts)
            drafts.found = replace(found, part=False)
            return first if _passes(first) else None
        if kept:
            drafts.found = found
        if _raised(first, "reference", _RAISED):
            continue  # however its results are compared
        if draft.ranges and (found.part or _of_zeros([first])):
            other = own.changed(adapted=(*own.adapted, Draft.in_ranges))
            if _agrees(again := _recorded_case(other(), attempts)):
                drafts.adapted, drafts.found = other.adapted, replace(found, part=False)
                lines.append(_ranges_line(draft, first))
                return again if _passes(again) else None
        plain = own.changed(interface=own.interface.without_gradients())
        if _raised(first, "entry", _RAISED) and plain.interface != own.interface:
            passed = _recorded_case(plain(), attempts)
            if _passes(passed):  # the backward pass may need what callers set
                lines.append(f"  {_WITHOUT_GRADIENTS}: {first.findings[0].title}")
                drafts.interface, drafts.found = plain.interface, replace(found, part=False)
                return passed
        for order, updates in _ways_of_returning(own, first):
            other = own.changed(
                interface=replace(own.interface, order=order),
                found=replace(found, updates=updates, part=False),
            )
            first = _recorded_case(other(), attempts)
            plain = other.changed(interface=other.interface.without_gradients())
            if _raised(first, "problem", _NO_GRAPH) and plain.interface != other.interface:
                again = _recorded_case(plain(), attempts)
                if _agrees(again):  # it has freed its graph
                    lines.append(f"  {_WITHOUT_GRADIENTS}, which the reference computes itself")
                    other, first = plain, again
            if _agrees(first):
                drafts.interface, drafts.found = other.interface, other.found
                if scratch := sorted(other.interface.scratch):
                    words = f"{', '.join(scratch)}, which the reference does not return"
                    lines.append(f"  {_NOT_JUDGED} {words}")
                return first if _passes(first) else None
    if (draft := drafts()).complete or not draft.runs:
        return None
    first = _recorded_case(draft, attempts)
    return first if _passes(first) else None


def _with_demands_of(other: Draft, draft: Draft) -> Draft:
    """The draft that demands what another one does."""
    return replace(draft, bounded=other.bounded, without=other.without)


def _ranges_line(draft: Draft, result: CaseResult) -> str:
    """The line that says of which sign inputs are, as another case fails."""
    words = ", ".join(f"{n} from {a} to {b}" for n, (a, b) in draft.ranges.items())
    why = next((each.title for each in result.findings), result.message)
    return f"  {_DRAWN_AS_RECORDED}: {words}: {why}"


def _of_zeros(results: Sequence[CaseResult]) -> bool:
    """Whether all cases are ones with zeros, or have results that are not numbers."""
    return all(
        str(each.values.get("values")) == "zero_rows"
        or any("NaN" in finding.title for finding in each.findings[:1])
        for each in results
    )


def _raised(result: CaseResult, check: str, words: re.Pattern[str]) -> bool:
    """Whether the first finding is of a check, and has these words."""
    firsts = result.findings[:1]
    return any(each.check == check and words.search(each.title) for each in firsts)


def _ways_of_returning(drafts: Drafts, first: CaseResult) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Outputs in an order, and whether a reference changes what the code under test changes.

    What the code writes, and the reference neither reads nor returns, may be scratch memory.

    Args:
        drafts: of the code under test, with the reference.
        first: the result of a case, which may say how many outputs the reference returns.
    """
    interface, reference = drafts.interface, drafts().reference
    read = None if drafts.found is None else parameters_read(drafts.found.function)
    given = (reference and reference.call) or {}
    takes = None if read is None else {str(given.get(name, name)) for name in read}
    names = [each.name for each in interface.outputs]
    written = {each.name for each in interface.outputs if each.name in interface.changed}
    updated = [each.name for each in interface.inputs if each.name in interface.changed]
    said = (_RETURNED.search(finding.title) for finding in first.findings)
    count = next((int(each[1]) for each in said if each), len(names))
    if max(len(names), count) <= _MOST_OUTPUTS:
        more = [SKIPPED] * (count - len(names))
        orders = dict.fromkeys(permutations([*names, *more], count))
        left = {order: written - {*order} for order in orders}
        fine = (order for order in orders if takes is not None and not left[order] & takes)
        returned = {*names} - written

        def dropped(order: tuple[str, ...]) -> tuple[int, int]:
            return len(returned - {*order}), len(left[order])

        yield from ((order, False) for order in sorted(fine, key=dropped))
        others = [name for name in names if name not in updated]
        yield from (((*order, *updated), True) for order in permutations(others) if updated)


def _recorded_case(draft: Draft, attempts: _Attempts) -> CaseResult:
    """The result of a case of the recorded sizes alone, or of smaller ones if it passes.

    Checks use other sizes of the axes.

    Raises:
        TimeoutError: the time ended before the case did.
    """
    for values in _recorded_sizes(draft):
        known = {name: (value,) for name, value in values.items()}
        result = attempts.case(replace(draft, axes={**draft.axes, **known}, fuzz={}), {})
        other = any(_OTHER_RESULTS.search(finding.title) for finding in result.findings[:1])
        relaxed, _ = _relaxed(draft, [result])
        skipped = str(result.status) == "skipped"
        if _passes(result) or other or relaxed != draft or skipped:
            break  # no other size changes that
    return result


def _recorded_sizes(draft: Draft) -> list[Mapping[str, Any]]:
    """The recorded values of axes, after those with small numbers for large ones.

    They stay multiples of the same power of two, up to 128, but for counts. A product of large
    matrices, which takes a minute in float64, is only tried with small ones.
    """
    recorded = draft.recorded
    large = sorted({v for v in recorded.values() if type(v) is int and v > 256})
    whole, odd = ([v for v in large if (v % 128 == 0) is is_whole] for is_whole in (True, False))
    found: list[Mapping[str, Any]] = []
    # A kernel may split a size in several parts, or take one size alone.
    for unit, others in ((128, odd), (128, []), (512, odd)):
        smaller = {value: min(value, unit * k) for k, value in enumerate(whole, 1)}
        for k, value in enumerate(others, 1):
            step = math.gcd(value, 128)
            smaller[value] = min(value, step * ((32 // step + 2) * k | 1))
        found.append({name: smaller.get(value, value) for name, value in recorded.items()})
    # Most counts may be any, and multiply the time of a case: of all two first, or of a batch.
    many = [name for name, value in recorded.items() if type(value) is int and value > 8]
    for counts in (BATCH, COUNT):
        found.insert(0, {**found[0], **{name: 2 for name in many if counts.search(name)}})
    first = [each for k, each in enumerate(found) if each not in (recorded, *found[:k])]
    return first if first and _is_large(recorded) else [*first, recorded]


def _is_large(sizes: Mapping[str, Any]) -> bool:
    """Whether sizes are those of a product of large matrices."""
    numbers = sorted(value for value in sizes.values() if type(value) is int)
    return math.prod(numbers[-3:]) > _MOST_STEPS


# Narrowing ---------------------------------------------------------------------------------------


def _accepted(trial: Trial, attempts: _Attempts) -> CaseResult | None:
    """The fastest case that passes, or one of the recorded sizes; None if there is none."""
    passed = [result for result in trial.results if _passes(result)]
    # Values such as rows of zeros hide that others are wrong, as sizes of 1 do, which broadcast.
    passed.sort(key=lambda e: (not _is_normal(e.values), 1 in _sizes(e).values(), e.seconds))
    if passed and not _is_normal(passed[0].values):
        with suppress(TimeoutError):
            normal = attempts.case(trial.draft, {**passed[0].values, "values": "normal"})
            passed = [normal, *passed] if _passes(normal) else passed
    if passed or not trial.draft.recorded:
        return next(iter(passed), None)
    for values in _recorded_sizes(trial.draft):
        with suppress(TimeoutError):
            if _passes(result := attempts.case(trial.draft, values)):
                return result
    return None


def _is_normal(values: Mapping[str, Any]) -> bool:
    return str(values.get("values", "normal")) == "normal"


def _narrowed(draft: Draft, base: CaseResult, attempts: _Attempts) -> tuple[Draft, list[str]]:
    """The draft without what is refused where one axis of an accepted case is another.

    Several axes are refused for a reason of one of them, so that each is varied alone.
    """
    narrowed, lines = draft, []
    for name, values in load_spec(attempts.path).axes.items():
        others = [value for value in values if canonical(value) != canonical(base.values[name])]
        found = narrowed.constraints[len(draft.constraints) :]
        if any(name in _NAME.findall(condition) for condition, _ in found):
            continue
        group = [base, *_varied(draft, base, name, others, attempts)]
        reasons = {canonical(r.values[name]): _refused(draft, r, base) for r in group[1:]}
        why = _worst(reasons.values())
        conditions = _distinguished(draft, name, group, attempts) if why else []
        if conditions:
            narrowed = _with_condition(narrowed, conditions[0], why)
            lines.append(f"  only {conditions[0]}: {why}")
        elif why:
            narrowed = _without_values(narrowed, name, reasons, base.values[name])
            left_out = [value for value in others if reasons.get(canonical(value))]
            lines += [f"  left out {name}={label(v)}: {reasons[canonical(v)]}" for v in left_out]
    return narrowed, lines


def _explained(
    draft: Draft, results: Sequence[CaseResult], attempts: _Attempts
) -> tuple[Draft, list[str]]:
    """The draft with a condition of two axes, of which nothing is refused that varies one alone.

    Further cases have sizes for which the conditions differ that fit, and for each left one that is
    to be refused and one that is not.
    """
    judged = [each for each in results if _passes(each) or _refused(draft, each)]
    why = _worst(_refused(draft, each) for each in judged)
    conditions: list[str] = []
    tried: list[dict[str, Any]] = []
    with suppress(TimeoutError):
        for _ in range(2 * _MORE):
            found = _conditions(judged, [_refused(draft, result) for result in judged])
            conditions = [each for each in found if len({*_NAME.findall(each)}) > 1]
            chosen = next(_doubtful(draft, conditions, judged[0].values, tried), None)
            if chosen is None:
                break
            tried.append(chosen)
            judged.append(attempts.case(draft, {**judged[0].values, **_tied(draft, chosen)}))
    if len(conditions) != 1 or len(tried) < _LEAST_TRIED:
        return draft, []
    return _with_condition(draft, conditions[0], why), [f"  only {conditions[0]}: {why}"]


def _doubtful(
    draft: Draft,
    conditions: Sequence[str],
    base: Mapping[str, Any],
    tried: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Sizes of two axes for which conditions differ; of one condition, of each side one."""
    for condition in conditions:
        a, b = dict.fromkeys(_NAME.findall(condition))
        known = [_holds(condition, {**base, **each}) for each in tried if {*each} == {a, b}]
        for one, other in product(_sizes_of(draft, a), _sizes_of(draft, b)):
            values = {a: one, b: other}
            if min(one, other) == 1 or one == other or values in tried:
                continue
            held = [_holds(each, {**base, **values}) for each in conditions]
            if len({*held}) > 1 or (len(held) == 1 and held[0] not in known):
                yield values


def _varied(
    draft: Draft, base: CaseResult, name: str, values: Sequence[Any], attempts: _Attempts
) -> list[CaseResult]:
    """Cases that differ from an accepted one in an axis; if all are refused, in two equal ones."""
    found: list[CaseResult] = []
    own = base.values[name]

    def run(changes: Iterable[Mapping[str, Any]]) -> None:
        cases = ({**base.values, **_tied(draft, each)} for each in changes)
        allowed = (c for c in cases if all(_holds(r, c) is not False for r, _ in draft.constraints))
        found.extend(attempts.case(draft, each) for each in allowed)

    with suppress(TimeoutError):
        run({name: value} for value in values)
        if type(own) is not int or own < 1 or not values or any(map(_passes, found)):
            return found
        run({name: factor * own} for factor in (2, 3))
        if not any(map(_passes, found)):
            equal = [n for n, v in base.values.items() if type(v) is int and v == own and n != name]
            run({name: 2 * own, other: 2 * own} for other in equal)
    return found


def _with_condition(draft: Draft, condition: str, why: str) -> Draft:
    """The draft with a condition, and values of axes that satisfy it, so that cases are left."""
    axes, fuzz = dict(draft.axes), dict(draft.fuzz)
    name, _, factor = condition.removesuffix(" == 0").partition(" % ")
    one, _, other = condition.partition(" == ")
    packed = re.fullmatch(r"min\((\w+)\) > 0", condition)
    if packed is not None:
        name = packed[1]
        axes[name] = tuple([length for length in each if length] for each in axes[name])
        if name in fuzz:
            fuzz[name] = fuzz[name] | {"length": fuzz[name]["length"].replace("0..", "1..")}
    elif factor.isdigit():
        fine = [value for value in axes[name] if value % int(factor) == 0]
        more = (k * (fine or [int(factor)])[0] for k in (1, 2, 3))
        axes[name] = tuple(dict.fromkeys([*fine, *more]))
    elif other in axes:
        axes[one] = axes[other] = tuple(dict.fromkeys([*axes[one], *axes[other]]))
    return replace(draft, axes=axes, fuzz=fuzz, constraints=(*draft.constraints, (condition, why)))


def _without_values(draft: Draft, name: str, reasons: Mapping[str, str], accepted: Any) -> Draft:  # noqa: ANN401 - a value
    """The draft without the values of an axis that are refused, for reasons by canonical text."""
    axes, fuzz = dict(draft.axes), dict(draft.fuzz)
    left = tuple(value for value in axes[name] if not reasons.get(canonical(value)))
    axes[name] = left or (accepted,)
    if "axes" in fuzz:
        fuzz["axes"] = {each: drawn for each, drawn in fuzz["axes"].items() if each != name}
        fuzz = fuzz if fuzz["axes"] else {}
    return replace(draft, axes=axes, fuzz=fuzz)


def _conditions(results: Sequence[CaseResult], refused: Sequence[str]) -> list[str]:
    """Conditions that exactly the accepted cases satisfy.

    Multiples of an axis, relations of two, or a packed axis without empty sequences.
    """
    cases = [
        (_sizes(result), why)
        for result, why in zip(results, refused, strict=True)
        if why or not result.failed
    ]
    if sum(not why for _, why in cases) < 2 or not any(why for _, why in cases):
        return []
    every = sorted(set.intersection(*({*values} for values, _ in cases)))
    names = [name for name in every if all(type(values[name]) is int for values, _ in cases)]
    found = [f"{name} % {factor} == 0" for name in names for factor in _FACTORS]
    for a, b in permutations(names, 2):
        found += [f"{a} == {b}", f"{a} % {b} == 0", f"{a} <= {b}", f"{a} < {b}"]
    found += [f"min({name}) > 0" for name in every if name not in names]
    return [c for c in found if all(_holds(c, values) == (not why) for values, why in cases)]


def _distinguished(
    draft: Draft, name: str, results: list[CaseResult], attempts: _Attempts
) -> list[str]:
    """The conditions of an axis that also fit further cases, of sizes for which they differ.

    Args:
        draft: the draft.
        name: the axis.
        results: cases that differ in it, the first of them accepted.
        attempts: runs cases.
    """
    base = results[0].values

    def fitting(results: Sequence[CaseResult]) -> list[str]:
        found = _conditions(results, [_refused(draft, result) for result in results])
        return [condition for condition in found if name in _NAME.findall(condition)]

    conditions = fitting(results)
    known: list[dict[str, Any]] = []
    with suppress(TimeoutError):
        while len(conditions) > 1 and len(known) < _MORE:
            telling = (e for e in _telling(draft, name, conditions, base) if e not in known)
            if (chosen := next(telling, None)) is None:
                break
            known.append(chosen)
            more = [*results, attempts.case(draft, {**base, **_tied(draft, chosen)})]
            if found := fitting(more):  # else it is refused because of another axis
                results, conditions = more, found
    return conditions


def _telling(
    draft: Draft, name: str, conditions: Sequence[str], base: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Values for which conditions differ, of the axis alone, or of another one beside it."""
    sizes = {each: _sizes_of(draft, each) for each in draft.axes if type(base.get(each)) is int}
    own = sizes.get(name, [])
    others = {n for c in conditions for n in _NAME.findall(c)} & sizes.keys() - {name}
    alone = [{name: size} for size in [*own, 128]]
    pairs = [{name: a, n: b} for n in sorted(others) for a, b in product(own, sizes[n])]
    for values in (*alone, *pairs):
        held = [_holds(condition, {**base, **values}) is True for condition in conditions]
        if 0 < sum(held) < len(held):
            yield values


def _sizes_of(draft: Draft, name: str) -> list[int]:
    """The numbers of an axis, and small ones that tell conditions apart."""
    return sorted({*(value for value in draft.axes[name] if type(value) is int), *_SIZES})


def _tied(draft: Draft, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changed values, also of the axes that constraints demand to be equal."""
    found = dict(changes)
    for rule, _ in draft.constraints:
        one, equal, other = rule.partition(" == ")
        for a, b in ((one, other), (other, one)) if equal else ():
            if a in changes and b in draft.axes:
                found.setdefault(b, changes[a])
    return found


def _sizes(result: CaseResult) -> dict[str, Any]:
    """The values of a case that are numbers or lengths of sequences."""
    return {name: each for name, each in result.values.items() if type(each) in (int, list)}


def _holds(condition: str, values: Mapping[str, Any]) -> bool | None:
    """Whether a condition holds; None if it divides by zero."""
    try:
        return bool(Expression(condition).evaluate(values))
    except ExpressionError:
        return None


def _refused(draft: Draft, result: CaseResult, base: CaseResult | None = None) -> str:
    """Why a case is not taken; sizes that it shares with a case that passes are not the reason."""
    if guess := wrong_guess(draft, result):
        return guess
    steps = draft.multiples
    if base is not None:
        pairs = ((result.values.get(name), base.values.get(name)) for name in steps)
        steps = {n: each for (n, each), (a, b) in zip(steps.items(), pairs, strict=True) if a != b}
    return _refusal(result) or _wrong_outside(result, steps)


def wrong_guess(draft: Draft, result: CaseResult) -> str:
    """What a draft without a reference says wrongly of results or calls; "" if nothing."""
    finding = next(iter(result.findings), None)
    if draft.complete or finding is None:
        return ""
    refused = finding.check in _REFUSALS or _OTHER_RESULTS.search(finding.title)
    return finding.title if refused else ""


def _worst(reasons: Iterable[str]) -> str:
    """Of several reasons one about wrong values, which nothing tells the caller; "" of none."""

    def rank(why: str) -> tuple[bool, ...]:
        return (_NOT_REFUSED in why, "numeric" in why, bool(why))

    return max(reasons, key=rank, default="")


def _refusal(result: CaseResult) -> str:
    """Why the code under test, the reference or the draft does not take a case; "" if they do."""
    for finding in result.findings:
        if finding.check in _REFUSALS and finding.pattern:
            return finding.title
        if finding.check == "numeric" and _OTHER_DTYPE.search(finding.title):
            return finding.title  # the draft has the dtype of one call
        if finding.title.startswith("budget: "):
            return finding.title  # a GPU refuses the launch
    return ""


def _wrong_outside(result: CaseResult, multiples: Mapping[str, int]) -> str:
    """What is wrong with a case whose sizes are not like any recorded one; "" if it passed."""
    outside = {
        name: result.values[name]
        for name, step in multiples.items()
        if type(result.values.get(name)) is int and result.values[name] % step  # type: ignore[operator]
    }
    if not outside or not result.failed or not result.findings:
        return ""
    sizes = ", ".join(f"{name}={value}" for name, value in outside.items())
    numeric = (finding for finding in result.findings if finding.check == "numeric")
    finding = next(numeric, result.findings[0])
    return f"{sizes} {_NOT_REFUSED}: {finding.check}: {finding.title}"


# The end ---------------------------------------------------------------------------------------


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
