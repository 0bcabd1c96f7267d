"""Runs one mutant: the specs' quick tier and its fuzzing, until the first finding.

Runs in a forked child of a process that has imported everything but the kernels, so that a mutant
costs no import of PyTorch, TileLang or the framework: the child puts a folder with the mutated
kernels in front of the import path and runs cases as `tlmatrix run` does, of each spec in the
order of its tier, of the specs in turn by the time they take, and then the tier's number of drawn
cases. The first case that does not pass is then judged by each check alone, to know which of them
see the bug by themselves.

A mutant with `compile` is given to the backend `compile` instead: its specs' cases are compiled,
into a cache of its own so that times do not depend on earlier runs; generated cases and plain tests
are left out.

Beside it, the plain tests of `baseline` judge the same kernels.
"""

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mutant_catalog import FOLDER, ROOT, Mutant, plant
from mutant_reach import Sources

from tlmatrix.backend import backend_named
from tlmatrix.fuzz.search import examples_of, fuzz_spec
from tlmatrix.fuzz.strategies import cases as generate_cases
from tlmatrix.matrix import Case
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec.expr.expression import Expression
from tlmatrix.spec.loader import find_specs, load_spec

sys.path.insert(0, str(FOLDER / "baseline"))
from plain import PlainTest, judge_plainly
from plain_tests import plain_tests

__all__ = ["Bits", "Hunt", "Plans", "Record", "hunt"]

Bits = dict[str, str]
"""Name of a plain test to the digest of what the kernels make of it without a bug."""

TIER = "quick"
JUDGING = 120.0
"""Seconds that each check by itself may take over the first failing case, all together."""


@dataclass
class Record:
    """What became of one mutant.

    `check` is that of the first finding, `title` its words, `case` what to reproduce it with.
    `seen_by` are the checks that see it on that case, each asked alone. `cases` and `seconds`
    count up to the first finding; `cpu` are the processor's seconds, which other work on the
    machine does not lengthen. `plain` is the first plain test that fails, `bits` are the digests
    of those until then. `trouble` says what went wrong with the hunt itself.
    """

    mutant: str
    key: str
    kind: str
    found: bool = False
    check: str = ""
    title: str = ""
    case: str = ""
    origin: str = ""
    seen_by: list[str] = field(default_factory=list)
    cases: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    specs: list[str] = field(default_factory=list)
    plain: str = ""
    bits: Bits = field(default_factory=dict)
    trouble: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data; times rounded to what they mean."""
        data = asdict(self)
        data.update(seconds=round(self.seconds, 2), cpu=round(self.cpu, 2))
        return data


class Plans:
    """The specs, and the cases of their quick tier: made once, for all mutants.

    `plain` limits the plain tests of each mutant.
    """

    def __init__(self, folder: Path = ROOT / "specs", *, plain: int | None = None) -> None:
        self._plain = plain
        self.specs = [load_spec(path) for path in find_specs([folder])]
        self._cases = {spec.name: list(plan(spec, TIER).cases()) for spec in self.specs}
        self.sources = Sources()
        self._reached = {
            spec.name: self.sources.reached(spec.entry or spec.factory) for spec in self.specs
        }
        entries = {test.entry for test in plain_tests()}
        self._reached_plainly = {entry: self.sources.reached(entry) for entry in entries}

    def affected(self, mutant: Mutant) -> list[Any]:
        """The specs to run for a mutant: those whose entry reaches what it changes.

        Raises:
            LookupError: no spec reaches it, or it names one that does not.
        """
        changed = self.sources.changed(mutant)
        reach = {name for name, reached in self._reached.items() if reached & changed}
        if not reach or (wrong := set(mutant.specs) - reach):
            missed = ", ".join(sorted(wrong)) if reach else "no spec"
            raise LookupError(f"{mutant.id}: {missed} reaches what it changes")
        chosen = set(mutant.specs) or reach
        return [spec for spec in self.specs if spec.name in chosen]

    def tier(self, specs: Iterable[Any], mutant: Mutant | None = None) -> Iterator[tuple[Any, Any]]:
        """(spec, case) of the specs' tiers, each in its running order; those to compile, if any.

        The next is always of the spec that has taken the least time: dear cases of one would
        else leave no time for those of another that shows the bug.
        """
        left = {spec.name: (spec, self._selected(spec.name, mutant)) for spec in specs}
        spent = dict.fromkeys(left, 0.0)
        while left:
            name = min(left, key=spent.__getitem__)
            spec, cases = left[name]
            case = next(cases, None)
            if case is None:
                del left[name]
                continue
            begin = time.perf_counter()
            yield spec, case
            spent[name] += time.perf_counter() - begin

    def _selected(self, spec: str, mutant: Mutant | None) -> Iterator[Any]:
        cases = iter(self._cases[spec])
        if mutant is None or mutant.compile is None:
            return cases
        when = Expression(mutant.when or "true")
        return (case for case in cases if case.origin != "invalid" and when.evaluate(case.values))

    def plain_tests(self, mutant: Mutant) -> list[PlainTest]:
        """The plain tests whose entry reaches what the mutant changes; none if it is compiled."""
        if mutant.compile:
            return []
        changed = self.sources.changed(mutant)
        found = [test for test in plain_tests() if self._reached_plainly[test.entry] & changed]
        return found[: self._plain]


@dataclass(frozen=True)
class Hunt:
    """What a child process is asked to do.

    `mutant` None leaves the kernels as they are. `plain` are the plain tests to make of them.
    """

    mutant: Mutant | None
    specs: tuple[Any, ...] = ()
    plain: tuple[PlainTest, ...] = ()
    limit: float = 60.0


def hunt(task: Hunt, plans: Plans) -> Record:
    """Run a hunt in a child process of its own, and end it after its time."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="tlmatrix-mutant-") as folder:
        planted = plant(task.mutant, Path(folder))
        child = context.Process(target=_child, args=(task, plans, planted, sender))
        began = time.perf_counter()
        child.start()
        sender.close()
        record = _blank(task)
        try:
            # The first finding comes first; what each check sees of it, later.
            end = began + task.limit
            while receiver.poll(max(0.0, end - time.perf_counter())):
                record = receiver.recv()
                if record.found:
                    end = time.perf_counter() + JUDGING
        except EOFError:
            child.join()
            if child.exitcode:
                record.trouble = record.trouble or f"the process ended with {child.exitcode}"
        else:
            record.trouble = record.trouble or f"stopped after {task.limit:.0f} seconds"
            if not record.found:
                record.seconds = time.perf_counter() - began
        finally:
            child.kill()
            child.join()
    return record


def _blank(task: Hunt) -> Record:
    mutant = task.mutant
    specs = [spec.name for spec in task.specs]
    if mutant is None:
        return Record("none", "", "none", specs=specs)
    return Record(mutant.id, mutant.key, mutant.kind, specs=specs)


def _child(task: Hunt, plans: Plans, planted: Path, sender: Any) -> None:
    record = _blank(task)
    try:
        sys.path.insert(0, str(planted))
        if task.mutant is not None and task.mutant.compile:
            os.environ["TLMATRIX_CACHE"] = str(planted / "cache")
        # What kernels print is not for the table.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _search(task, plans, record, sender)
        _confirm_origin(planted)
    except BaseException:  # noqa: BLE001 - whatever happens here belongs into the record
        record.trouble = traceback.format_exc()
        sender.send(record)
    finally:
        sender.close()
        os._exit(0)


def _search(task: Hunt, plans: Plans, record: Record, sender: Any) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    mutant = task.mutant
    compiled = mutant is not None and mutant.compile is not None
    runner = Runner(_backend(mutant))

    def failed(spec: Any, result: Any) -> bool:
        record.cases += 1
        record.seconds = time.perf_counter() - began
        record.cpu = time.process_time() - cpu
        findings = [each for each in result.findings if not compiled or each.check == "codegen"]
        if result.failed and findings:
            first = findings[0]
            record.found, record.check, record.title = True, first.check, first.title
            record.case, record.origin = result.node, result.origin
        sender.send(record)
        if record.found:
            case = Case(result.spec, result.values, result.origin)
            record.seen_by = [record.check] if compiled else _seen_by(spec, case)
            sender.send(record)
        return record.found

    for spec, case in plans.tier(task.specs, mutant):
        if failed(spec, runner.run(spec, case, path=f"specs/{spec.path.name}")):
            break
    else:
        if not compiled:
            _fuzz(task.specs, runner, failed)
    runner.close()
    for test in task.plain:
        verdict = judge_plainly(test)
        record.bits[verdict.name] = verdict.bits
        if verdict.failed:
            record.plain = verdict.name
            break
    sender.send(record)


def _backend(mutant: Mutant | None) -> Any:
    """The backend that finds a mutant."""
    if mutant is None or mutant.compile is None:
        return backend_named("interpreter")
    return backend_named("compile", [mutant.compile])


def _confirm_origin(planted: Path) -> None:
    """The kernels that ran are those with the bug in them."""
    origin = Path(sys.modules["tlmatrix_kernels"].__file__ or "")
    if planted not in origin.parents:
        raise RuntimeError(f"the kernels came from {origin}, not from {planted}")


class _Found(BaseException):
    """Ends a search; no exception that Hypothesis would take for a failing example."""


def _fuzz(specs: Iterable[Any], runner: Runner, failed: Callable[[Any, Any], bool]) -> None:
    """The drawn cases of the tier, spec by spec, until one fails; none is shrunk."""

    def stop_at(spec: Any) -> Callable[[Any], None]:
        def on_result(result: Any) -> None:
            if failed(spec, result):
                raise _Found

        return on_result

    for spec in specs:
        if not examples_of(spec, TIER):
            continue
        path = f"specs/{spec.path.name}"
        try:
            fuzz_spec(
                spec, runner, strategy=generate_cases(spec, TIER), tier=TIER, path=path,
                on_result=stop_at(spec), shrinking=0,
            )  # fmt: skip
        except _Found:
            return


def _seen_by(spec: Any, case: Any) -> list[str]:
    """The checks that see what is wrong with a case, each asked alone."""
    seen: list[str] = []
    runner = Runner(backend_named("interpreter"))
    for check in spec.checks:
        runner.checks = (check,)
        found = runner.run(spec, case)
        if found.failed:
            seen += sorted({finding.check for finding in found.findings} - set(seen))
    return seen
