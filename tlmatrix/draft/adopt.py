"""Specs for a repository: finds its kernels and operators, records calls, drafts and runs specs."""

from __future__ import annotations

import ast
import json
import math
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from importlib import import_module
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from tlmatrix.draft import manifest
from tlmatrix.draft.attempts import Limit
from tlmatrix.draft.calls import MOST_CALLS, read_calls, signature
from tlmatrix.draft.recorder import record_program
from tlmatrix.draft.sources import drafts_for, drafts_of_calls, recorded_calls
from tlmatrix.draft.targets import is_test_file, makes_prim_func, target_of
from tlmatrix.draft.text import write_spec
from tlmatrix.draft.trial import tried
from tlmatrix.draft.verdicts import broken, refusal, wrong_guess
from tlmatrix.engine.pool import muted
from tlmatrix.exit_codes import UsageError
from tlmatrix.report.html import rendered
from tlmatrix.run.runner import UNUSABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tlmatrix.draft.calls import Call
    from tlmatrix.draft.manifest import Entry
    from tlmatrix.draft.sources import Drafts
    from tlmatrix.draft.verdicts import Trial

_ORDER = ("findings", "errors", "judged", "incomplete", "not drafted")
"""The order of rows by status."""
_TESTS = 20
"""The part of the time of the command that a test may take."""
_SCRIPT_SECONDS = 30.0
"""The most time for a script."""
_SECONDS = 45.0
"""The most time for a target, of which trying its draft has what drafting leaves, or a sixth."""
_LEAST, _SHARES = 10.0, 3
"""The least time for a target; the most if the time is short, in equal shares of it."""


@dataclass(frozen=True)
class Row:
    """A target of a repository, and what judges it.

    Attributes:
        status: `judged` (all cases passed), `findings` (a case fails, or the spec leaves out sizes
            that are wrong), `errors` (cases could not be judged), `incomplete` (it needs a
            reference, or inputs that it accepts), or `not drafted`.
        reference: the function that judges it.
        note: the first finding, the error, or what a person must add.
        varies: whether lengths of packed sequences vary.
    """

    target: str
    source: str
    status: str
    spec: str = ""
    reference: str = ""
    cases: int = 0
    failed: int = 0
    note: str = ""
    varies: bool = False
    seconds: float = 0.0
    key: str = ""


@dataclass(frozen=True)
class Job:
    """A target to draft, in at most so many seconds of the processor.

    `source` is `calls`, `manifest`, `trace`, or `script` for one that is only recorded.
    """

    target: str
    source: str
    draft: Callable[[], Drafts]
    key: str
    seconds: float = 1.5 * _SECONDS


def adopt_repository(
    root: Path,
    output: Path,
    *,
    command: Sequence[str] = (),
    workers: int = 1,
    seconds: float = 360.0,
    warn: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Write and run specs of the kernels and operators of a repository.

    Args:
        root: the repository.
        output: the folder for the specs, the recorded calls and the rows, as they come.
        command: what calls its kernels: a script, or `-m` and a module, with arguments. Scripts
            with kernels that it does not call are run, too, without arguments.
        workers: how many specs are run side by side.
        seconds: time for the command; a third of it for scripts. Specs have as much as the command,
            and what the others leave.
        warn: called with what is wrong with the command.

    Raises:
        UsageError: the folder has no Python files.
    """
    if not root.is_dir() or not any(root.rglob("*.py")):
        raise UsageError(f"{root}: not a folder with Python files")
    start = time.monotonic()
    output.mkdir(parents=True, exist_ok=True)
    output, root = output.resolve(), root.resolve()
    os.chdir(root)
    sys.path[:0] = [str(each) for each in (root / "src", root) if each.is_dir()]
    calls = output / "calls.jsonl"
    if command and not calls.is_file():
        ended = _record(command, calls, root, seconds)
        if not calls.is_file() or not read_calls(calls):
            log = calls.parent / "record.log"
            warn(f"the command {ended} and called no kernel; what it printed is in {log}")
            calls.unlink(missing_ok=True)  # so that another command is run
    list(_run_jobs([*_scripts(root, calls)], output, root, workers, time.monotonic() + seconds / 3))
    jobs = list(_jobs(root, calls))
    known = _earlier(output / "rows.jsonl", {(job.target, job.key) for job in jobs})
    todo = [job for job in jobs if job.target not in known]
    with (output / "rows.jsonl").open("a", encoding="utf-8") as file:
        end = start + (2 + 1 / 3) * seconds
        for row in _run_jobs(todo, output, root, workers, end):
            known[row.target] = row
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()
    return [known[job.target] for job in jobs if job.target in known]


def _record(command: Sequence[str], calls: Path, root: Path, seconds: float) -> str:
    """Run a command under `tlmatrix record`; what it has recorded when its time ends stays.

    Its kernels are only traced, as it may call them with any size. Returns how it ended.
    """
    words = [sys.executable, "-m", "tlmatrix", "record", "--trace-only", "-o", str(calls)]
    if command[:2] == ["-m", "pytest"]:
        # Specs that lie there are not run.
        options = ["--continue-on-collection-errors", "-p", "no:tlmatrix"]
        options += ["-p", "tlmatrix.draft.sampled"]
        command = [*command[:2], *options, f"--timeout={seconds / _TESTS:g}", *command[2:]]
    words += command
    path = os.pathsep.join([str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")])
    with suppress(subprocess.TimeoutExpired), (calls.parent / "record.log").open("w") as log:
        done = subprocess.run(  # noqa: S603 - the command of the user
            words,
            cwd=root,
            env={**os.environ, "PYTHONPATH": path},
            stdout=log,
            stderr=log,
            timeout=seconds,
            check=False,
        )
        return f"ended with exit code {done.returncode}"
    return f"was stopped after {seconds:g} s"


def _earlier(path: Path, current: set[tuple[str, str]]) -> dict[str, Row]:
    """The rows of an earlier run whose target and sources are as they were."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError, TypeError):
            row = Row(**json.loads(line))
            if (row.target, row.key) in current:
                found[row.target] = row
    return found


def _scripts(root: Path, calls: Path) -> Iterator[Job]:
    """Jobs that record the scripts with kernels which nothing called, each in its own file."""
    called = {target.partition(":")[0] for target in _recorded(calls)}
    for module, script in definitions_of(root)[2].items():
        path = calls.parent / "scripts" / f"{module}.jsonl"
        if module not in called and not path.exists():
            draft = partial(_record_script, script, path)
            yield Job(module, "script", draft, "", _SCRIPT_SECONDS)


def _record_script(script: Path, path: Path) -> Drafts:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        record_program(str(script), (), file, module=False, trace_only=True)
    raise UsageError(f"recorded in {path}")


# What there is ---------------------------------------------------------------------------------


def _jobs(root: Path, calls: Path) -> Iterator[Job]:
    """The targets: recorded ones, then those of manifests, then factories that nothing called."""
    recorded = _recorded(calls)
    definitions, factories, _ = definitions_of(root)
    entries = {each.target: each for each in manifest.manifest_entries(root, definitions)}
    taken = set()
    for target, found in sorted(recorded.items(), key=lambda each: each[0] not in entries):
        if all(call.inner for call in found) and target not in entries:
            taken.add(target)  # its operator is another target
        else:
            taken.add(target)
            reference = manifest.reference_of_entry(entries[target]) if target in entries else ""
            draft = partial(_of_calls, target, found, reference)
            # Not the text of calls, whose sets have another order in each process.
            kept = [(signature(call), call.compared) for call in found]
            yield Job(target, "calls", draft, _digest(str(kept)))
    for target, entry in entries.items():
        if target in taken:
            continue
        taken.add(target)
        yield Job(target, "manifest", partial(_of_manifest, entry), _digest(str(entry)))
    for target in factories:
        if target not in taken:
            yield Job(target, "trace", partial(drafts_for, target), "trace")


def _recorded(calls: Path) -> dict[str, list[Call]]:
    """The calls that the command made, and of other targets those that scripts made."""
    found = read_calls(calls) if calls.is_file() else {}
    for path in sorted((calls.parent / "scripts").glob("*.jsonl")):
        with suppress(UsageError):  # it was ended while it wrote its first line
            found = read_calls(path) | found
    return found


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _of_calls(target: str, calls: Sequence[Call], reference: str) -> Drafts:
    return drafts_of_calls(target_of(target), calls[:MOST_CALLS], reference)


def _of_manifest(entry: Entry) -> Drafts:
    target = target_of(entry.target)
    errors: list[Exception] = []

    def call_all() -> None:
        for example in manifest.examples(entry):
            try:
                made = target.found(**example.construct) if target.constructs else target.found
                made(**example.arguments)
            except Exception as error:  # noqa: BLE001 - an operator may refuse a size
                errors.append(error)

    calls = recorded_calls(target, call_all)
    if not calls:
        words = [f"{type(error).__name__}: {error}"[:300] for error in errors]
        raise UsageError((*words, "no call of the manifest could be made")[0])
    return drafts_of_calls(target, calls, manifest.reference_of_entry(entry))


def definitions_of(root: Path) -> tuple[dict[str, str], list[str], dict[str, Path]]:
    """Names of classes and functions with where they are, the factories, and their scripts.

    Scripts are by module, and do something if they are run as a program.
    """
    definitions: dict[str, str] = {}
    factories: list[str] = []
    scripts = {}
    for path in manifest.files_of(root, ".py"):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (ValueError, SyntaxError):
            continue
        module = _module_name(root, path)
        tests = is_test_file(path.relative_to(root).as_posix())
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                definitions.setdefault(node.name, f"{module}:{node.name}")
                decorators = " ".join(map(ast.unparse, node.decorator_list))
                decorated = re.search(r"\bjit\b", decorators) and "triton" not in decorators
                if (decorated or makes_prim_func(node)) and not tests:
                    factories.append(f"{module}:{node.name}")
                    if any(map(_is_main, tree.body)):
                        scripts[module] = path
    return definitions, factories, scripts


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "'__main__'" in ast.unparse(node.test)


def _module_name(root: Path, path: Path) -> str:
    """The name by which a file is imported, from the repository or its folder `src`."""
    folder = root / "src" if path.is_relative_to(root / "src") else root
    relative = path.relative_to(folder).with_suffix("")
    return ".".join(relative.parts).removesuffix(".__init__")


# Drafting and running, a process for each module -------------------------------------------------


def _run_jobs(
    jobs: Sequence[Job], output: Path, root: Path, workers: int, end: float
) -> Iterator[Row]:
    """Run jobs in forks of this process until a time, so that one that crashes or hangs is one row.

    A fork has the jobs of one source and module, whose import may take long; if it ends, another
    one takes what is left.
    """
    import_module("tlmatrix.engine.preload")  # once, for all forks
    context = multiprocessing.get_context("fork")
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.source, job.target.partition(":")[0]), []).append(job)
    waiting = list(groups.values())
    running: dict[Any, tuple[list[Job], Any, float]] = {}
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (2 * max(1, workers))
    while waiting or running:
        while waiting and len(running) < max(1, workers):
            group = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            behind = [group, *waiting, *(each for each, *_ in running.values())]
            share = _SHARES * workers * (end - time.monotonic()) / sum(map(len, behind))
            arguments = (group, output, root, theirs, memory, end, max(_LEAST, share))
            process = context.Process(target=_run_group, args=arguments)
            process.start()
            theirs.close()
            running[ours] = (group, process, time.monotonic())
        ready = wait(list(running), timeout=1.0)
        for ours, (group, process, start) in list(running.items()):
            late = time.monotonic() - start > 4 * group[0].seconds
            if ours not in ready and not late:
                continue
            try:
                row = ours.recv() if ours in ready else None
            except EOFError:
                row = None
            job, *left = group
            running[ours] = (left, process, time.monotonic())
            if row is None or not left:
                process.kill()
                process.join()
                del running[ours]
                waiting += [left] if left else []
            late = late or process.exitcode in (UNUSABLE, -signal.SIGXCPU)
            why = "it took too long" if late else f"its process ended (exit {process.exitcode})"
            key = "" if late else job.key  # to be tried again with more time
            yield row or Row(job.target, job.source, "not drafted", note=why, key=key)


def _run_group(
    jobs: Sequence[Job],
    output: Path,
    root: Path,
    connection: Any,  # noqa: ANN401 - of multiprocessing
    most: int,
    end: float,
    share: float,
) -> None:
    """Draft and run specs with at most so much memory and time, and send their rows."""
    _limit(resource.RLIMIT_DATA, most)
    for job in jobs:
        if time.monotonic() > end:
            connection.send(Row(job.target, job.source, "not drafted", note="no time was left"))
        else:
            _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + job.seconds))
            connection.send(_run_job(job, output, root, min(_SECONDS, share)))
    connection.close()
    os._exit(0)  # threads of the repository's code need not end


def _limit(kind: int, most: int) -> None:
    """Set a soft limit of this process, below the hard one."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _run_job(job: Job, output: Path, root: Path, seconds: float) -> Row:
    """Draft and run a spec."""
    limit = Limit(seconds)
    name = re.sub(r"\W+", "_", job.target.partition(":")[2])
    path = output / f"{name}.yaml"
    if path.exists():
        path = output / f"{re.sub(r'[^0-9A-Za-z]+', '_', job.target)}.yaml"
    row = Row(job.target, job.source, "not drafted", key=job.key)
    with muted():
        try:
            trial: Trial | None = None
            drafts = job.draft()
            draft = drafts()
            if draft.runs:
                left = max(limit.left, seconds / 6)
                trial = tried(drafts, path, [root], tier="each", prove=False, seconds=left)
                draft = trial.draft
                row = _judged(row, trial, path)
            else:
                write_spec(draft, path)
            if not draft.complete and row.status != "findings":
                note = draft.notes[-1] if draft.notes else "it needs a reference"
                note = (trial.refused if trial is not None else "") or note
                row = replace(row, status="incomplete", note=note, spec=path.name)
        except BaseException as error:  # noqa: BLE001 - whatever the repository's code raises
            words = str(error).strip().splitlines() or [""]
            text = (
                words[0] if isinstance(error, UsageError) else f"{type(error).__name__}: {words[0]}"
            )
            row = replace(row, note=text[:300])
    return replace(row, seconds=round(seconds - limit.left, 1))


def _judged(row: Row, trial: Trial, path: Path) -> Row:
    draft, results = trial.draft, trial.results
    failed = [result for result in results if result.failed]
    counts = Counter(str(result.status) for result in failed)
    skipped = [result for result in results if str(result.status) == "skipped"]
    errors = trial.error or counts["error"] + counts["crashed"] + counts["timeout"]
    status = "judged"
    if errors or (results and skipped == results):
        status = "errors"
    elif failed or trial.wrong:
        status = "findings"
    every = [finding for result in failed for finding in result.findings]
    first = next(iter(every), None)
    if failed and not trial.wrong and all(wrong_guess(draft, result) for result in failed):
        status = "incomplete"
    unsure = all(f.check == "reference" for result in failed for f in result.findings[:1])
    if failed and (unsure or all(map(refusal, results))):
        status = "incomplete"  # nothing is accepted that a draft can tell, or it needs a reference
    if sure := [each for each in every if each.title.startswith("races: ") or broken(each)]:
        status, first = "findings", sure[0]  # whatever else is refused
    left_out = trial.wrong or trial.left_out
    note = trial.error or (f"{first.check}: {first.title}" if first else left_out)
    note = note or next((each.message for each in skipped), "")
    if not results and not trial.error:
        status, note = "incomplete", "no case ended in time"
        row = replace(row, key="")
    reference = f"problem {draft.problem}" if draft.problem else ""
    if draft.reference is not None and not draft.problem:
        reference = draft.reference.method or draft.reference.target
    varies = any(isinstance(each, list | dict) for v in draft.axes.values() for each in v)
    return replace(
        row,
        status=status,
        spec=path.name,
        reference=reference,
        cases=len(results) - len(skipped),
        failed=len(failed),
        note=note[:300],
        varies=varies,
    )


# The table -------------------------------------------------------------------------------------


def counted(rows: Sequence[Row]) -> Mapping[str, int]:
    """How many rows have each status."""
    counts = Counter(row.status for row in rows)
    return {status: counts[status] for status in _ORDER if counts[status]}


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each row, those with findings first, and its note below."""
    for row in _ordered(rows):
        cases = f"  {row.cases - row.failed} of {row.cases} cases passed" if row.cases else ""
        by = f", judged by {row.reference}" if row.reference else ""
        yield f"{row.status:12}{row.target}{cases}{by}"
        if row.note:
            yield f"            {row.note}"


def write_page(path: Path, root: Path, rows: Sequence[Row]) -> None:
    """Write the rows as one page that needs no network."""
    counts = list(counted(rows).items())
    name = root.resolve().name
    page = rendered("adopted.html.j2", name=name, rows=_ordered(rows), counts=counts)
    path.write_text(page, encoding="utf-8")


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (_ORDER.index(row.status), row.target))
