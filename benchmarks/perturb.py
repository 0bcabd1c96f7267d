"""Shows races on a GPU: mutants and right kernels under `--perturb`, for many seeds.

    python benchmarks/perturb.py [-j N] [--seeds N] [--minutes M] [NAME...]

For each mutant of `perturb.yaml` a process runs its case on the GPU, without delays and then under
seeds from 1 until its values are wrong. Other processes run right kernels under all seeds, which
must pass. NAME selects by a part of a name. `--interpreter` runs the mutants on the CPU
instead, and prints what the sanitizers report. The exit code is 1 if a right kernel fails, or if
less than 15 of 20 mutants have wrong values.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))

from mutant_catalog import Mutant, load_mutants, plant  # noqa: E402

from tlmatrix.run.plan import plan  # noqa: E402
from tlmatrix.spec.loader import load_spec  # noqa: E402

VALUES = ("numeric", "gradients", "poison", "guards", "repeat")
"""The checks of values; others run the case in more ways, which costs time."""


_LIMIT, _FIRST_LIMIT = 20.0, 200.0
"""Seconds of a case, after which its kernel hangs; those of the first, which compiles."""
_RESTARTS = 4
_CASES = 4
"""Cases of a smoke tier that one process compiles and runs."""


@dataclass(frozen=True)
class Task:
    """What one process runs: a case of a mutant, or cases of right kernels."""

    name: str
    spec: str
    values: dict[str, Any] | None = None
    cases: tuple[str, ...] = ()
    """Ids of cases of the smoke tier; without them the case is that of `values`."""
    mutant: str = ""
    """The mutant as JSON; empty for right kernels."""


@dataclass
class Outcome:
    """The first finding of a task, of each way to run it."""

    name: str
    plain: str = ""
    """The finding without delays."""
    seed: int = 0
    """The first seed with a finding; 0 if all pass."""
    finding: str = ""
    runs: int = 0
    first: float = 0.0
    """Seconds of the first run, which compiles."""
    seconds: float = 0.0
    ended: list[str] = field(default_factory=list)
    """Seeds under which the process ended, as with a kernel that hangs, and how."""
    trouble: str = ""
    late: bool = False
    """Whether the time for everything was over before all seeds had run."""


def main() -> int:
    """Run all tasks, print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names of tasks; all by default")
    parser.add_argument("-j", "--jobs", type=int, default=14, help="processes at a time (14)")
    parser.add_argument("--seeds", type=int, default=50, help="seeds of a case (50)")
    parser.add_argument("--minutes", type=float, default=8.0, help="for everything (8)")
    parser.add_argument("--interpreter", action="store_true", help="run mutants on the CPU")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--outcome", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.task:
        task, outcome = Task(**json.loads(asked.task)), Outcome(**json.loads(asked.outcome))
        return _child(task, outcome, asked.seeds, interpreter=asked.interpreter)
    end = time.monotonic() + 60 * asked.minutes
    tasks = [
        task
        for task in (*mutants(), *([] if asked.interpreter else right()))
        if not asked.names or any(name in task.name for name in asked.names)
    ]
    found: list[tuple[Task, Outcome]] = []
    with ThreadPoolExecutor(asked.jobs) as threads:
        running = {
            threads.submit(_run, task, asked.seeds, end, interpreter=asked.interpreter): task
            for task in tasks
        }
        for future in as_completed(running):
            found.append((running[future], future.result()))
            print(_line(running[future], future.result()), flush=True)
    return _judged(found, asked.seeds, interpreter=asked.interpreter)


def _judged(found: list[tuple[Task, Outcome]], seeds: int, *, interpreter: bool) -> int:
    mutated = [outcome for task, outcome in found if task.mutant]
    correct = [outcome for task, outcome in found if not task.mutant]
    if interpreter:
        races = sum("races: " in each.plain for each in mutated)
        print(f"\nmutants: the interpreter reports races of {races} of {len(mutated)}")
        return 0 if races == len(mutated) else 1
    wrong = [each for each in mutated if each.seed]
    failed = [each for each in correct if each.seed or each.plain or each.trouble or each.ended]
    plain = sum(bool(each.plain) for each in mutated)
    late = [sum(each.late for each in outcomes) for outcomes in (mutated, correct)]
    print(
        f"\nmutants: {len(wrong)} of {len(mutated)} have wrong values within {seeds} seeds, "
        f"{plain} without delays, {late[0]} not run to the end\n"
        f"right kernels: {len(failed)} of {len(correct)} tasks fail, {late[1]} not run to the end, "
        f"{sum(each.runs for each in correct)} runs"
    )
    return 1 if failed or 4 * len(wrong) < 3 * len(mutated) else 0


def _line(task: Task, outcome: Outcome) -> str:
    what = outcome.finding or outcome.trouble or ("not run to the end" if outcome.late else "")
    ended = f"[ended: {'; '.join(outcome.ended)}] " if outcome.ended else ""
    seed = f"seed {outcome.seed:2}" if outcome.seed else "passes " if not what else "-      "
    kind = "mutant" if task.mutant else "right "
    plain = "wrong " if outcome.plain else "passes" if outcome.first else "-     "
    return (
        f"{kind} {task.name:<45} {seed} plain: {plain} "
        f"{outcome.runs:4} runs {outcome.first:5.1f} + {outcome.seconds:5.1f} s  {ended}{what[:90]}"
    )


# What runs ----------------------------------------------------------------------------------------


def mutants() -> list[Task]:
    """The mutants of `perturb.yaml`."""
    declared = {mutant.id: mutant for mutant in load_mutants()}
    tasks = []
    for entry in _catalog()["mutants"]:
        spec, values = entry.pop("spec"), entry.pop("values")
        mutant = declared[entry["mutant"]] if "mutant" in entry else Mutant(kind="perturb", **entry)
        tasks.append(Task(mutant.name, spec, values, mutant=json.dumps(asdict(mutant))))
    return tasks


def right() -> list[Task]:
    """The unchanged kernels of the mutants' cases, and the smoke tier of other specs."""
    cases = {(task.spec, str(task.values)): task for task in mutants()}
    named = [
        Task(f"case {number} of {task.spec}", task.spec, task.values)
        for number, task in enumerate(cases.values())
    ]
    for name in _catalog()["right"]:
        tier = plan(load_spec(ROOT / "specs" / f"{name}.yaml"), "smoke")
        ids = [case.id for case in tier.cases() if case.origin != "invalid"]
        parts = [tuple(ids[k : k + _CASES]) for k in range(0, len(ids), _CASES)]
        named += [
            Task(f"part {number} of the smoke tier of {name}", name, cases=part)
            for number, part in enumerate(parts)
        ]
    return named


def _catalog() -> dict[str, Any]:
    catalog: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return catalog


def _run(task: Task, seeds: int, end: float, *, interpreter: bool) -> Outcome:
    """Run a task in a process, and after a seed under which a kernel hangs in another one."""
    outcome = Outcome(task.name)
    for _ in range(_RESTARTS):
        if end - time.monotonic() < 1:
            outcome.late = True
            break
        outcome = _part(task, outcome, seeds, end, interpreter=interpreter)
        if outcome.late or not outcome.trouble or outcome.seed or outcome.runs > seeds:
            break
        outcome.ended.append(f"seed {outcome.runs}: {outcome.trouble}")
        outcome.runs += 1
    return outcome


def _part(task: Task, outcome: Outcome, seeds: int, end: float, *, interpreter: bool) -> Outcome:
    command = [sys.executable, __file__, "--seeds", str(seeds)]
    command += ["--task", json.dumps(asdict(task)), "--outcome", json.dumps(asdict(outcome))]
    if interpreter:
        command.append("--interpreter")
    over = False
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            child.wait(max(1.0, end - time.monotonic()))
            how = f"exit code {child.returncode}"
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            how, over = "", True
        output.seek(0)
        lines = output.read().splitlines()
    reports = [line.removeprefix("@") for line in lines if line.startswith("@")]
    if reports:
        outcome = Outcome(**json.loads(reports[-1]))
    outcome.late = over
    failed = child.returncode and not over
    outcome.trouble = f"{how}, after {' '.join(lines[-1:])[:300]}" if failed else ""
    return outcome


# In the process of a task -------------------------------------------------------------------------


def _child(task: Task, outcome: Outcome, seeds: int, *, interpreter: bool) -> int:
    """Continue a task and print its outcome after each run, on lines that begin with `@`."""
    with tempfile.TemporaryDirectory(prefix="tlmatrix-perturb-") as folder:
        if task.mutant:
            data = json.loads(task.mutant)
            mutant = Mutant(**{**data, "specs": tuple(data["specs"])})
            sys.path.insert(0, str(plant(mutant, Path(folder))))
        sys.path.insert(1, str(ROOT))
        for seed in range(outcome.runs, 1 if interpreter else seeds + 1):
            began = time.perf_counter()
            finding = _finding(task, seed, interpreter=interpreter)
            origin = Path(sys.modules["tlmatrix_kernels"].__file__ or "")
            if task.mutant and Path(folder) not in origin.parents:
                raise RuntimeError(f"the kernels came from {origin}, not from {folder}")
            outcome.runs += 1
            if seed == 0:
                outcome.plain = outcome.finding = finding
                outcome.first = time.perf_counter() - began
            else:
                outcome.seconds += time.perf_counter() - began
                if finding:
                    outcome.seed, outcome.finding = seed, finding
            print(f"@{json.dumps(asdict(outcome))}", flush=True)
            if outcome.seed:
                break
    return 0


def _finding(task: Task, seed: int, *, interpreter: bool) -> str:
    """The first finding of the task's cases under a seed; "" if they pass.

    The kernels under seed 0 are those of the others: they read the seed, and do not delay.

    Raises:
        RuntimeError: a case cannot be judged, as one whose kernel hangs or faults.
    """
    from tlmatrix.backend.perturb import SEED
    from tlmatrix.matrix import case_of

    spec = load_spec(ROOT / "specs" / f"{task.spec}.yaml")
    runner = _runner(interpreter=interpreter)
    checks = ("sanitizers",) if interpreter else VALUES
    runner.checks = [check for check in checks if check in spec.checks]
    if not interpreter:
        os.environ[SEED] = str(seed)
    cases = (
        [case_of(spec, task.values)]
        if task.values
        else [case for case in plan(spec, "smoke").cases() if case.id in task.cases]
    )
    judged = 0
    for case in cases:
        path = f"specs/{spec.path.name}"
        limit = None if interpreter else _LIMIT if seed else _FIRST_LIMIT
        result = runner.run(spec, case, path=path, time_limit=limit)
        if str(result.status) == "failed":
            return _race(result.findings) or result.headline
        if result.failed:
            raise RuntimeError(f"{result.status} under seed {seed}: {result.headline}")
        judged += str(result.status) == "passed"
    if not judged:
        raise RuntimeError(f"no case of {spec.name} ran: {result.message}")
    return ""


def _race(findings: Iterable[Any]) -> str:
    """The first race that the interpreter's sanitizers report, alone or with another fault."""
    for finding in findings:
        for line in (finding.summary, *(finding.detail or "").splitlines()):
            if "races: " in line:
                return line.strip()
    return ""


@cache
def _runner(*, interpreter: bool) -> Any:
    from tlmatrix.options.table import PERTURB, RunOptions
    from tlmatrix.run.runner import Runner

    options = RunOptions({} if interpreter else {PERTURB.name: 1})
    return Runner("interpreter" if interpreter else "cuda", options, roots=(ROOT,))


if __name__ == "__main__":
    sys.exit(main())
