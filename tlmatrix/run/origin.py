"""Where in the program a wrong value comes from.

On the interpreter the case runs once more, recorded, so that a finding about values names the block
and line that wrote the worst element. For the smallest failing cases, a float64 run of the same
launches says whether the error is precision, and parts of the inputs are replaced to find those on
which the kernel alone depends, or the reference alone. `tlmatrix explain` shows the rest.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tlmatrix.backend import EntryError
from tlmatrix.check.hints import ALL_ZERO, FACTOR, SOME_NAN, cause_of_factor
from tlmatrix.interpreter import NotMadeError, Unsupported, interpret
from tlmatrix.interpreter.explain import explain_element
from tlmatrix.interpreter.explain.text import rendered_indices
from tlmatrix.run.influence import influences, parts_of
from tlmatrix.run.location import Calls, locate, target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tlmatrix.check.finding import Finding
    from tlmatrix.interpreter import Explanation
    from tlmatrix.interpreter.explain import LaunchLog
    from tlmatrix.interpreter.explain.model import Writer
    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.run.influence import Influence
    from tlmatrix.run.location import Location
    from tlmatrix.spec.model.spec import Spec

_CHECKS = frozenset(
    {"numeric", "gradients", "poison", "isolation", "repeat", "relations", "agreement"}
)
_SECONDS = 6.0
"""Processor time of the runs with other inputs; it does not depend on other processes."""
_TRIES = 2
"""Most findings of a case that are followed, until one says what is wrong."""
_RUNS = 12
"""Least runs with other inputs that say something; slower cases make none."""
_SHOWN = 3
"""Most statements that lose precision that are named."""
_MOVED = 2
"""Least parts of inputs with which kernel and reference change differently, for a factor."""
_CLEAR = 4.0
"""Least difference of two such changes, as a multiple of what rounding explains."""
_ONLY = ("only the reference", "only the kernel")


def with_origin(
    spec: Spec,
    findings: Sequence[Finding],
    prepare: Callable[[], tuple[Problem, Callable[[Problem], Tensors]]],
    *,
    traced: bool,
    whole: bool,
) -> list[Finding]:
    """Add to the first finding about values where they come from; to another if that is not known.

    `prepare` gives the problem of the case and the function that runs its entry, on the interpreter
    if `traced`. Without `whole`, only the writer is named. The findings are returned as they are if
    the runs fail, or if the entry misused memory.
    """
    found, followed = list(findings), list[int]()
    if any(finding.check == "guards" for finding in found):
        return found
    for number, finding in enumerate(found):
        one = finding.compared is not None and finding.compared.element is not None
        if finding.check in _CHECKS and finding.index and (one or not finding.call):
            try:
                noted, settled = _origin(spec, finding, prepare, traced=traced, whole=whole)
            except Exception:  # noqa: BLE001 - a kernel that cannot run so has no notes
                break
            found[number] = noted
            if followed and noted.hint and noted.hint != finding.hint:
                first = found[followed[0]]  # reports of runs show no more than this one
                found[followed[0]] = first.with_notes(f"{noted.tensor}: {noted.hint}")
            followed.append(number)
            if settled or len(followed) == _TRIES:
                break
    return found


def _origin(
    spec: Spec,
    finding: Finding,
    prepare: Callable[[], tuple[Problem, Callable[[Problem], Tensors]]],
    *,
    traced: bool,
    whole: bool,
) -> tuple[Finding, bool]:
    """The finding, and whether it says enough that no other one is needed."""
    problem, run = prepare()
    target = target_of(finding, problem)
    if target is None or target.index is None:
        return finding, False
    calls = Calls(run, problem, target.calls, target.kind)
    with interpret(trace=True) if traced else nullcontext() as session:
        problem, outputs = calls.made()
    location = locate(spec, problem, outputs, target.name, target.index, None)
    explanation = precise = None
    if session is not None and session.log is not None:
        try:
            kernel, writers = session.writers(location.returned, location.mine)
            finding = finding.with_notes(_words(kernel, writers))
            if whole:
                explanation = explain_element(
                    session.log, *session.log.find(location.returned, location.mine)
                )
                precise = precision_of(explanation, problem, location, session.log)
        except (NotMadeError, Unsupported):
            pass
    if precise is not None and explanation is not None and precise.error > 0:
        finding = finding.with_notes(*_precision(precise, explanation))
    if not whole or (precise is not None and precise.lost):
        return finding, True
    parts = parts_of(problem, explanation, location)
    try:
        found = influences(calls, location.name, location.index, parts, _SECONDS, _RUNS)
    except (LookupError, EntryError):
        return finding, True
    if not found or not found[0].starts_at(finding.got):
        return finding, True  # another run has another result
    if (finding.hint or "").startswith(FACTOR) and not all(each.scaled for each in found):
        finding = replace(finding, hint=None)
    words = "; ".join(_dependence(found, problem, _lines_of_reads(explanation, location)))
    if not words and finding.hint is None:
        words = _factor(found, problem)
    if not words:
        return finding, finding.hint is not None
    weak = finding.hint in (None, ALL_ZERO, SOME_NAN)
    return replace(finding, hint=words) if weak else finding.with_notes(words), True


def _words(kernel: str, writers: Sequence[Writer]) -> str:
    """`the worst element is written by packed_forward, block tile 0, head 1, at forward.py:103`."""
    last = writers[-1]
    blocks = len({(each.block.names, each.block.index) for each in writers})
    place = f", at {_line(last.location)}" if last.location is not None else ""
    verb = "added to" if last.action == "atomic" else "written"
    more = f" and {blocks - 1} more" if blocks > 1 else ""
    return f"the worst element is {verb} by {kernel}, block ({last.block}){more}{place}"


def _line(location: object) -> str:
    return f"{Path(location.file).name}:{location.line}"  # type: ignore[attr-defined]


# Precision ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """An element and its float64 run, compared with the reference.

    Attributes:
        reference: its value in the reference.
        exact: its value in a float64 run of its kernels.
        error: the difference of the element from the reference.
        wide: that of the float64 run.
        certain: whether the float64 run begins with what no earlier kernel has rounded.
    """

    reference: float
    exact: float
    error: float
    wide: float
    certain: bool

    @property
    def lost(self) -> bool:
        """Whether rounding explains the error: the float64 run is closer to the reference."""
        return self.error == self.error and not (self.error > 0 and self.wide > self.error / 2)


def precision_of(
    explanation: Explanation, problem: Problem, location: Location, log: LaunchLog
) -> Precision | None:
    """The float64 run of an explained element, compared with the reference.

    None if the element has several writers, or if other kernels computed its inputs, unless these
    could be run in float64 as well.
    """
    exact, whole = explanation.rounding.exact, True
    if exact is None:
        exact, whole = explanation.exact, False
        if explanation.earlier is not None or len(explanation.writers) != 1:
            return None
        if any(source.made_by for source in explanation.sources):
            return None
    if exact is None or not problem.has_reference:
        return None
    if explanation.index != location.mine and explanation.buffer != location.name:
        return None
    reference = float(problem.reference()[location.name][location.index])
    certain = whole or not _inputs_may_be_rounded(explanation, location, log)
    error, wide = abs(explanation.value - reference), abs(exact - reference)
    return Precision(reference, exact, error, wide, certain)


def _inputs_may_be_rounded(explanation: Explanation, location: Location, log: LaunchLog) -> bool:
    """Whether an earlier kernel may have rounded a tensor that the explained kernel reads."""
    inputs = {tensor.data_ptr() for tensor in location.given.values()}
    read = [explanation.tensors(source.buffer) for source in explanation.sources]
    return any(tensor.data_ptr() not in inputs for tensor in read) and any(
        launch.live[name].is_floating_point()
        for launch in log.launches
        if launch.number < explanation.launch
        for name in launch.written
    )


def _precision(found: Precision, explanation: Explanation) -> Iterator[str]:
    """Whether the error is precision, and where that is lost."""
    if not found.lost:
        if found.certain:
            yield "a float64 run of the same kernels is as wrong: it is not their precision"
        return
    stored = [
        f"{each.launch} stores {each.buffer} as {each.dtype}"
        for each in explanation.rounding.carried
        if abs(each.change) > found.error / 4
    ]
    lines = dict.fromkeys(
        f"{_line(step.location)} ({step.buffer} {step.departs})"
        for step in explanation.departures
        if step.location is not None
    )
    sizes = f"{found.wide:.1e}, not {found.error:.1e}"
    yield f"in a float64 run of the same kernels the error is {sizes}: it is precision"
    if where := "; ".join([*stored, *lines][:_SHOWN]):
        yield f"precision is lost: {where}"


# Inputs ------------------------------------------------------------------------------------------


def _dependence(
    found: Sequence[Influence], problem: Problem, lines: Mapping[str, str]
) -> Iterator[str]:
    """How the element and its reference depend on the inputs, as far as that tells them apart."""
    by_verdict: dict[str, list[Influence]] = defaultdict(list)
    for each, later in zip_longest(found, found[1:]):
        if each.narrowed or later is None or not later.narrowed:  # else, its pieces follow
            by_verdict[each.verdict].append(each)
    one_sided = [verdict for verdict in _ONLY if by_verdict[verdict]]
    for verdict in one_sided:
        yield f"{verdict} changes with {_places(by_verdict[verdict], problem, lines)}"
    differ, equal = by_verdict["differ"], by_verdict["equal"]
    if one_sided or not differ:
        return
    places = _places(differ, problem, lines)
    few = len(differ) <= len(equal) or len({each.part.input for each in differ}) == 1
    if few and " elements of " not in places:
        change = f"{differ[0].kernel:+.3g}, the reference by {differ[0].reference:+.3g}"
        yield f"the kernel changes with {places} by {change}"


def _factor(found: Sequence[Influence], problem: Problem) -> str:
    """A known factor of the element, whatever changes; or none."""
    moved = [each for each in found if abs(each.kernel - each.reference) > _CLEAR * each.noise]
    if len(moved) < _MOVED or not all(each.scaled for each in found):
        return ""
    factor = found[0].values[0] / found[0].expected
    why = cause_of_factor(factor, problem)
    return why and f"the element is {factor:.4g} times the reference, also for other inputs{why}"


def _places(found: Sequence[Influence], problem: Problem, lines: Mapping[str, str]) -> str:
    """`k[0, 3:5, 0, 0:64] (read at forward.py:73), sink[3]`: the elements of parts."""
    places = []
    for name in dict.fromkeys(each.part.input for each in found):
        parts = [each.part.elements for each in found if each.part.input == name]
        flat = torch.unique(torch.cat(parts)).numpy()
        count, of, box = rendered_indices(flat, tuple(problem.inputs[name].shape)).rpartition("of ")
        places.append(f"{count}{of}{name}{box}{lines.get(name, '')}")
    return ", ".join(places)


def _lines_of_reads(explanation: Explanation | None, location: Location) -> Mapping[str, str]:
    """By input, ` (read at forward.py:73)`: the statements of the block that read it."""
    found: dict[str, str] = {}
    if explanation is None:
        return found
    for name, tensor in location.given.items():
        lines = dict.fromkeys(
            _line(step.location)
            for step in explanation.steps
            for read in step.reads
            if step.location is not None
            and read.is_global
            and explanation.tensors(read.buffer).data_ptr() == tensor.data_ptr()
        )
        if lines:
            found[name] = f" (read at {', '.join(lines)})"
    return found
