"""Large runs: 100,000 cases planned and listed, and how much a second worker saves.

    python benchmarks/run_scale.py [--repeat 3]

The targets: 100,000 cases are listed by `tlmatrix list --cases`, and collected as a run does, in
15 s and 500 MB; two workers on two cores run a tier of 200 cases at least 1.8 times as fast as one
worker; terminal and results file keep up with 2,000 results a second. The cases are plain PyTorch
on the interpreter's CPU, about a tenth of a second each, so that the time is that of cases and not
of starting. Times are of whole processes, the best of `--repeat`, and CPU seconds of all their
processes; on a machine that does other work too, only those are meaningful.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tlmatrix.check import Finding
from tlmatrix.report.terminal import TerminalReport
from tlmatrix.run.events import CaseFinished, RunFinished, RunStarted
from tlmatrix.run.records import RecordsWriter
from tlmatrix.run.result import CaseResult, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

_KERNEL = """\
import torch


def reference(x):
    return torch.linalg.matrix_power(x / x.shape[0], 8)


def entry(x, number=0):
    return reference(x)
"""
_SPEC = """\
name: %(name)s
problem:
  inputs: {x: {shape: [rows, rows], dtype: $dtype}}
  outputs: [y]
  reference: scale_kernel:reference
entry: scale_kernel:entry
axes:
  dtype: [float32]
  rows: %(rows)s
  number: %(numbers)s
tiers: {quick: product}
checks: [numeric]
"""


def main() -> None:
    """Print one row per measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    _adopt_orphans()
    table = Table("what", "seconds", "CPU seconds", "MB", "of")
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "scale_kernel.py").write_text(_KERNEL)
        write(project, "huge", list(range(1, 101)), list(range(1000)))
        write(project, "quick", [640, 704], list(range(100)))
        for words in (
            ("tlmatrix", "list", "huge.yaml", "--cases"),
            ("pytest", "huge.yaml", "--collect-only", "-q", "-n", "0"),
        ):
            each = [run(project, words) for _ in range(repeat)]
            memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
            table.add_row(" ".join(words), *_best(each), f"{memory:.0f}", "15 s, 500 MB")
        for name, command in (
            ("tlmatrix run", ("tlmatrix", "run", "quick.yaml", "-q", "--backend", "interpreter")),
            ("pytest", ("pytest", "quick.yaml", "-q", "--tlmatrix-backend", "interpreter")),
        ):
            pairs = [[run(project, (*command, "-n", n)) for n in "12"] for _ in range(repeat)]
            one, two = zip(*pairs, strict=True)
            table.add_row(f"{name}, 200 cases, 1 worker", *_best(one), "", "")
            table.add_row(f"{name}, 200 cases, 2 workers", *_best(two), "", "")
            ratio = min(seconds for seconds, _ in one) / min(seconds for seconds, _ in two)
            table.add_row("1 worker / 2 workers", f"{ratio:.2f}", "", "", "1.8")
        seconds, count = reported(project), 20_000
        table.add_row(f"{count} results, {count / seconds:.0f} a second", f"{seconds:.1f}", "", "",
                      "2,000 a second")  # fmt: skip
    Console(width=110).print(table)


def _best(runs: Iterable[tuple[float, float]]) -> tuple[str, str]:
    seconds, cpu = zip(*runs, strict=True)
    return f"{min(seconds):.1f}", f"{min(cpu):.1f}"


def reported(project: Path, count: int = 20_000) -> float:
    """Seconds to write and show the results of `count` cases, one in a hundred of which fails."""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    report, writer = TerminalReport(terminal), RecordsWriter(project / "out.jsonl")
    begin = time.perf_counter()
    report.handle(RunStarted({"x.yaml": count}, "out.jsonl"))
    for number in range(count):
        status = Status.PASSED if number % 100 else Status.FAILED
        result = CaseResult(
            "x",
            "x.yaml",
            f"n={number}",
            status,
            values={"n": number},
            seconds=0.001,
            findings=() if number % 100 else (Finding("numeric", "y: too far off", tensor="y"),),
        )
        writer.start("x.yaml", result.case, "main")
        writer.case(result)
        report.handle(CaseFinished(result))
    counts = {Status.PASSED: count - count // 100, Status.FAILED: count // 100}
    report.handle(RunFinished(counts, 1.0, interrupted=False))
    report.close()
    writer.close()
    return time.perf_counter() - begin


def write(project: Path, name: str, rows: list[int], numbers: list[int]) -> None:
    """Write a spec."""
    text = _SPEC % {"name": name, "rows": rows, "numbers": numbers}
    (project / f"{name}.yaml").write_text(text)


def _adopt_orphans() -> None:
    """Have this process wait for servers of a command that end after it (Linux)."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def run(project: Path, words: tuple[str, ...]) -> tuple[float, float]:
    """The seconds of a command, and the CPU seconds of it and all processes that it started."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before = _cpu_seconds()
    begin = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", *words], cwd=project, env=environment, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    seconds = time.monotonic() - begin
    with suppress(ChildProcessError):
        while True:
            os.wait()
    return seconds, _cpu_seconds() - before


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
