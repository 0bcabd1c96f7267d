"""Runs the cases of drafts in a limited time, such as one of the recorded sizes."""

from __future__ import annotations

import math
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.draft.sizes import BATCH, COUNT, holds
from tlmatrix.draft.text import write_spec
from tlmatrix.draft.verdicts import OTHER_RESULTS, broken, is_taken, passes, relax
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.loader import load_spec
from tlmatrix.spec.values import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tlmatrix.draft.text import Draft
    from tlmatrix.matrix import Case
    from tlmatrix.run.result import CaseResult
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

_WHATEVER_SIZE = re.compile(rf"{OTHER_RESULTS.pattern}|scalar type|same dtype|^races: ")
"""Titles of findings of all sizes."""
_MOST_STEPS = 1 << 35
"""Most multiplications of a recorded matrix product that is run as it was."""


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
class Attempts:
    """Runs cases of drafts until its time ends; writes each draft to the file."""

    path: Path
    roots: Sequence[Path]
    runner: Runner
    tier: str
    limit: Limit
    why: str = ""
    """The first finding of the last case that failed, if its results were judged."""
    broken: CaseResult | None = None
    """That of a case in which the code under test has a name that is not defined."""
    _known: dict[tuple[str, str], CaseResult] = field(default_factory=dict)
    """Results by the text of the spec and the values of the case."""

    def case(self, draft: Draft, values: Mapping[str, Any]) -> CaseResult:
        """The result of the case that has some values; other axes have their first.

        Raises:
            TimeoutError: the time ended before the case did.
        """
        from tlmatrix.matrix import Case

        spec = self._spec(draft)
        first = {name: each[0] for name, each in spec.axes.items()}
        result = self._run(spec, Case(spec.name, {**first, **values}, "extra"))
        if any(map(broken, result.findings)):
            self.broken = result
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
        key = self.path.read_text(encoding="utf-8"), canonical(dict(case.values))
        if key in self._known:
            return self._known[key]
        left = self.limit.left
        if left <= 0:
            raise TimeoutError
        # With little time a case that ignores its end for a moment would end this process.
        most = None if math.isinf(left) else 4 * max(left, 2.0)
        result = self.runner.run(spec, case, time_limit=most, explained=False)
        if str(result.status) == "timeout":
            raise TimeoutError
        self._known[key] = result
        return result


def recorded_case(draft: Draft, attempts: Attempts) -> CaseResult:
    """The result of a case of the recorded sizes alone, or of smaller ones if they are taken.

    Checks use other sizes of the axes. None is tried that would take longer than is left.

    Raises:
        TimeoutError: the time ended before the case did.
    """
    rate = 0.0
    found: list[CaseResult] = []
    for values in (*(smaller := recorded_sizes(draft)), *_with_one_recorded(draft)):
        steps = math.prod(value for value in values.values() if type(value) is int and value > 0)
        if rate and rate * steps > attempts.limit.left:
            break
        if len(found) >= len(smaller) and any(map(is_taken, found)):
            break
        known = {name: (value,) for name, value in values.items()}
        result = attempts.case(replace(draft, axes={**draft.axes, **known}, fuzz={}), {})
        found.append(result)
        other = any(_WHATEVER_SIZE.search(finding.title) for finding in result.findings[:1])
        relaxed, _ = relax(draft, [result])
        skipped = str(result.status) == "skipped"
        if passes(result) or other or relaxed != draft or skipped:
            return result  # no other size changes that
        refused = any(finding.check == "entry" for finding in result.findings[:1])
        rate = 0.0 if refused else result.seconds / steps
    return next(filter(is_taken, found), found[-1])


def recorded_sizes(draft: Draft) -> list[Mapping[str, Any]]:
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
    rules = [rule for rule, _ in draft.constraints]
    found = [each for each in found if all(holds(rule, each) is not False for rule in rules)]
    first = [each for k, each in enumerate(found) if each not in (recorded, *found[:k])]
    return first if first and _is_large(recorded) else [*first, recorded]


def _with_one_recorded(draft: Draft) -> list[Mapping[str, Any]]:
    """The recorded values of axes, of which all large ones but one are small.

    Code may take one size in steps of several tiles.
    """
    smaller = [each for each in recorded_sizes(draft) if each != draft.recorded]
    return [
        {**small, name: draft.recorded[name]}
        for small in (*smaller[:1], *smaller[-1:])
        for name in small
        if small[name] != draft.recorded[name]
    ]


def _is_large(sizes: Mapping[str, Any]) -> bool:
    """Whether sizes are those of a product of large matrices."""
    numbers = sorted(value for value in sizes.values() if type(value) is int)
    return math.prod(numbers[-3:]) > _MOST_STEPS
