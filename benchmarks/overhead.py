"""Overhead of the framework per case, without the code under test and the reference.

    python benchmarks/overhead.py [--cases 200] [--specs SPEC.yaml ...]

Runs cases of the quick tier in this process and breaks down the time of each: the entry (kernels,
gradients), the reference and its low-precision counterpart, generating inputs, judging (comparison,
guards, explanations), and pytest (collection, hooks, recording, reporting; measured with cases that
do almost nothing). The target is 5 ms per case without entry and reference.

Building a relation's problems, and creating buffers with guards while the entry runs, count as
judging. The sizes of summed terms (`magnitude`, `spread`, `exponent`) count as reference. `own` is
inputs and judging. All are CPU time in one thread, which depends less on other load; pytest is wall
time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

from tlmatrix.backend import backend_named
from tlmatrix.backend.binding import bind, execute
from tlmatrix.check import guards, judge
from tlmatrix.problem import Problem, Relation, RelationKind, TensorInfo, family_for
from tlmatrix.problem.tensors import LazyMapping
from tlmatrix.run.harness import case_seed
from tlmatrix.run.plan import plan
from tlmatrix.run.records import RecordsWriter
from tlmatrix.run.result import CaseResult, Status
from tlmatrix.spec import find_specs, load_spec
from tlmatrix.spec.importing import make_importable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
TINY = """\
name: tiny
problem:
  inputs: {x: {shape: [rows, cols], dtype: float32}}
  outputs: [y]
  reference: tiny_kernel:reference
entry: tiny_kernel:entry
axes:
  rows: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  cols: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  repeat: %s
tiers: {quick: product}
checks: [numeric]
"""
TINY_KERNEL = """\
def reference(x, repeat=0):
    return x + 1

def entry(x):
    return x + 1
"""


class Clock:
    """CPU time of nested parts; the time of a nested part is not counted in the outer one."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time charged to `part`."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            self._inner.append(0.0)
            begin = time.process_time()
            try:
                return function(*arguments, **keywords)
            finally:
                whole = time.process_time() - begin
                self.spent[part] += whole - self._inner.pop()
                self._inner[-1] += whole

        return call


def main() -> None:
    """Print one row per spec, in milliseconds per case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--specs", nargs="+", default=[str(ROOT / "specs")])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parts = ("entry", "reference", "inputs", "judge")
    table = Table("spec", "cases", *parts, "own", "median", "most")
    for path in find_specs(arguments.specs):
        cases = measure(path, arguments.cases)
        own = [spent["inputs"] + spent["judge"] for spent in cases]
        row = [*(mean(spent[part] for spent in cases) for part in parts),
               mean(own), median(own), max(own)]  # fmt: skip
        table.add_row(path.stem, str(len(cases)), *(f"{1e3 * seconds:.2f}" for seconds in row))
    console = Console(width=100)
    console.print(
        "milliseconds a case: means, and for own (at most 5) median and most expensive case too; "
        "the first case of each spec is left out"
    )
    console.print(table)
    console.print(f"pytest, hooks and records: {1e3 * around():.2f} ms a case")
    console.print(f"of that, writing two records: {1e3 * writing():.3f} ms a case")


def measure(path: Path, most: int) -> list[dict[str, float]]:
    """Seconds by part of every case that ran."""
    make_importable(path)
    spec = load_spec(path)
    backend = backend_named()
    family, binding = family_for(spec), bind(spec, backend)
    clock = Clock()

    def run_entry(problem: Problem) -> Any:
        return execute(binding, problem)

    def make(values: Any, seed: int) -> Problem:
        return clocked(family.problem(spec, values, seed=seed, device=backend.device), clock)

    def run_case(case: Any) -> None:
        problem = clock.timed("inputs", make)(case.values, case_seed(case))
        entry = clock.timed("entry", run_entry)
        clock.timed("judge", judge)(
            spec, case, problem, entry, checks=spec.checks, arch=backend.arch, deterministic=True
        )

    cases = [case for case in plan(spec).cases() if case.origin != "invalid"]
    spent = []
    with guards_counted(clock):
        for case in islice(cases, most + 1):
            clock.spent = defaultdict(float)
            run_case(case)
            spent.append(clock.spent)
    return spent[1:] or spent


@contextmanager
def guards_counted(clock: Clock) -> Iterator[None]:
    """Charge the guards' work on an entry's tensor operations to judging."""
    mode = guards._GuardMode  # noqa: SLF001 - it dispatches the entry's operations
    plain = mode.__torch_dispatch__
    timed = clock.timed("judge", plain)

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return timed(self, Timed(func, clock), types, args, kwargs)

    mode.__torch_dispatch__ = dispatch
    try:
        yield
    finally:
        mode.__torch_dispatch__ = plain


class Timed:
    """A timed operation of the entry; equal to the operation itself for the guards."""

    def __init__(self, operation: Any, clock: Clock) -> None:
        self.operation = operation
        self.call = clock.timed("entry", operation)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the operation, charged to the entry."""
        return self.call(*arguments, **keywords)

    def __hash__(self) -> int:
        return hash(self.operation)

    def __eq__(self, other: object) -> bool:
        return self.operation == other


def clocked(problem: Problem, clock: Clock) -> Problem:
    """The problem, with the time of its references, and of its relations', charged to them."""

    def relations(kind: RelationKind) -> Iterator[Relation]:
        for relation in problem.relations(kind):
            if not relation.judge:  # the references of its problems are not used
                yield relation
                continue
            inner = tuple(clocked(each, clock) for each in relation.problems)
            yield replace(relation, problems=inner)

    def output(name: str) -> TensorInfo:
        info = problem.outputs[name]
        sizes = {
            part: clock.timed("reference", function)
            for part in ("magnitude", "spread", "exponent")
            if (function := getattr(info, part)) is not None
        }
        return replace(info, **sizes)

    return replace(
        problem,
        outputs=LazyMapping(problem.outputs, output),
        reference=clock.timed("reference", problem.reference),
        lowp=clock.timed("reference", problem.lowp),
        relations=relations,
    )


def around() -> float:
    """Seconds per case of pytest and the plugin, measured with cases that do almost nothing."""
    few, many = (min(tiny_run(count) for _ in range(2)) for count in (1, 21))
    return (many - few) / 2000


def tiny_run(repeats: int) -> float:
    """Seconds to run 100 cases per repeat, in a subprocess."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "tiny.yaml"
        spec.write_text(TINY % list(range(repeats)), encoding="utf-8")
        (Path(folder) / "tiny_kernel.py").write_text(TINY_KERNEL, encoding="utf-8")
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "tlmatrix", "run", "-n", "0", "--backend", "interpreter", "."],
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - begin
    if done.returncode:
        sys.exit(f"the run around cases failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return seconds


def writing() -> float:
    """Seconds to write the two records of a case."""
    with tempfile.TemporaryDirectory() as folder:
        writer = RecordsWriter(Path(folder) / "run.jsonl")
        result = CaseResult(spec="x", path="x.yaml", case="a=1-b=2", status=Status.PASSED)
        begin = time.perf_counter()
        for _ in range(1000):
            writer.start("x.yaml", "a=1-b=2", "main")
            writer.case(result)
        seconds = time.perf_counter() - begin
        writer.close()
    return seconds / 1000


if __name__ == "__main__":
    main()
