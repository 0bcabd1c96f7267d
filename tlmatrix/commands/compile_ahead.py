"""Compiles the kernels of a run in a process beside it, and says what a run would compile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.ahead import FOLDER
from tlmatrix.backend.gpus import compute_capability
from tlmatrix.backend.kernel_cache import EVENTS
from tlmatrix.report.text import count
from tlmatrix.run.kernel_plan import KernelJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tlmatrix.engine.selection import SelectedCases
    from tlmatrix.matrix import Case

_MOST_CASES = 5000
"""Most cases of a spec whose kernels are found before the run."""


@dataclass
class CompiledKernels:
    """What the processes of a run compiled; filled when it ends."""

    compiled: int = 0
    reused: int = 0
    processor_seconds: float = 0.0
    last: float = 0.0
    """Seconds from the start of the run to the end of the compilation ahead."""

    def __str__(self) -> str:
        if not self.compiled and not self.reused:
            return ""
        took = f" in {self.last:.1f} s" if self.last else ""
        spent = f" ({self.processor_seconds:.0f} s of compilers)" if self.compiled else ""
        return f"kernels: {self.compiled} compiled{took}{spent}, {self.reused} from the cache"


def job_of(
    cases: Mapping[Path, Iterable[Case]],
    *,
    roots: Sequence[Path],
    backend: str,
    architectures: Sequence[str] = (),
    relations: bool = True,
) -> KernelJob | None:
    """The job of a run; None if the backend compiles nothing, or the GPU is unknown."""
    if backend == "auto":
        backend = "cuda" if compute_capability() else "interpreter"
    arch = ""
    if backend == "cuda":
        capability = compute_capability()
        if capability is None:
            return None
        arch = f"sm_{capability[0]}{capability[1]}" + ("a" if capability[0] >= 9 else "")
    elif backend != "compile":
        return None
    values = {
        str(path): [
            dict(case.values)
            for case in islice((each for each in mine if each.origin != "invalid"), _MOST_CASES)
        ]
        for path, mine in cases.items()
    }
    cores = len(os.sched_getaffinity(0))
    return KernelJob(
        values,
        roots=[str(root) for root in roots],
        backend=backend,
        arch=arch,
        architectures=list(architectures),
        relations=relations and backend == "cuda",
        processes=cores,
    )


def planned_kernels(job: KernelJob) -> list[dict[str, Any]]:
    """The distinct kernels of a job: `kernel`, `arch`, `key`, `cached`, expected `seconds`.

    Raises:
        RuntimeError: the process that traces them failed; the message is its output.
    """
    done = subprocess.run(  # noqa: S603 - this Python
        _command(),
        input=job.to_json() + "\n",
        capture_output=True,
        text=True,
        check=False,
        env=_environment(),
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def dry_run_lines(
    selected: Iterable[SelectedCases],
    tier: str,
    job: KernelJob | None,
    seconds: Mapping[tuple[Path, str], float],
) -> Iterator[str]:
    """The lines of `run --dry-run`: cases, kernels, and the time expected of both.

    `seconds` has the durations of cases in the last run.
    """
    total, work, unknown = 0, 0.0, 0
    for each in selected:
        ids = [case.id for case in each.cases]
        total += len(ids)
        spent = [seconds[each.path, case_id] for case_id in ids if (each.path, case_id) in seconds]
        work += sum(spent)
        unknown += len(ids) - len(spent)
        yield f"{each.plan.spec.name}  {count(len(ids), 'case')}"
    yield f"{count(total, 'case')} in the tier {tier}"
    if job is None:
        yield "kernels: none to compile on this backend"
    else:
        kernels = planned_kernels(job)
        new = [each for each in kernels if not each["cached"]]
        spent = sum(each["seconds"] for each in new)
        longest = max((each["seconds"] for each in new), default=0.0)
        yield (
            f"kernels: {len(kernels)} distinct, {len(kernels) - len(new)} in the cache; "
            f"{len(new)} to compile in about {max(spent / job.processes, longest):.0f} s on "
            f"{count(job.processes, 'core')} ({spent:.0f} s of compilers)"
        )
        names = Counter(each["kernel"] for each in kernels)
        missing = Counter(each["kernel"] for each in new)
        for name, number in names.most_common():
            yield f"    {name}: {number}, {missing[name]} to compile"
    if work:
        rest = f"; {count(unknown, 'case')} without a recorded time" if unknown else ""
        yield f"cases: {work:.0f} s of one worker in the last run, compiling included{rest}"


@contextmanager
def compiling_ahead(job: KernelJob | None) -> Iterator[CompiledKernels]:
    """Compile the kernels of a job while the code inside runs cases; None: only count kernels."""
    folder = Path(tempfile.mkdtemp(prefix="tlmatrix-ahead-"))
    events = folder / "events.jsonl"
    before = {name: os.environ.get(name) for name in (FOLDER, EVENTS)}
    os.environ[EVENTS] = str(events)
    found = CompiledKernels()
    begin = time.time()
    process = None
    try:
        if job is not None:
            process = _start(replace(job, folder=str(folder)), folder)
            os.environ[FOLDER] = str(folder)
        yield found
    finally:
        if process is not None:
            with suppress(OSError):
                os.killpg(process.pid, 9)
            process.wait()
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _count(found, events, begin)
        shutil.rmtree(folder, ignore_errors=True)


def _start(job: KernelJob, folder: Path) -> subprocess.Popen[str]:
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(  # noqa: S603 - this Python
            _command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            text=True,
            start_new_session=True,
            env=_environment(),
        )
    assert process.stdin is not None
    process.stdin.write(job.to_json() + "\n")
    process.stdin.flush()
    return process


def _command() -> list[str]:
    return [sys.executable, "-m", "tlmatrix.run.kernel_plan"]


def _environment() -> dict[str, str]:
    """Without GPUs: tracing and compiling need none, and a context takes memory."""
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def _count(found: CompiledKernels, events: Path, begin: float) -> None:
    compiled: set[str] = set()
    reused: set[str] = set()
    try:
        lines = events.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(ValueError, KeyError):
            fact = json.loads(line)
            key = fact["key"]
            if fact.get("reused"):
                reused.add(key)
                continue
            compiled.add(key)
            found.processor_seconds += fact["seconds"]
            found.last = max(found.last, fact.get("at", begin) - begin)
    found.compiled, found.reused = len(compiled), len(reused - compiled)
