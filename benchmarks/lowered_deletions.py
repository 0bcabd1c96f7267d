"""What the sanitizers of lowered code report of mutants of it: deleted synchronization, and others.

    python benchmarks/lowered_deletions.py [SPEC...] [--arch sm_80,sm_90a] [--each N] [-j N]
        [--json FILE]

Each distinct kernel that the smoke tier of a spec launches is lowered, and changed at one place at
a time: an operation that synchronizes is removed, a vector access is made twice as wide, a term of
a swizzled address or the swizzle of a TMA descriptor is changed. A mutant is *reported* by a
sanitizer or by an error, *refused* when its program is written, or gives *wrong values*. One that
is neither reported nor wrong is run one warp after another under several schedules
(`lowered_schedules`): if its values never differ from those of the kernel itself it is *without
effect*, otherwise *missed*; one in code that the launch does not reach is *not executed*. The exit
code is 1 if one is missed, or if something is reported of the kernel as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lowered_launches import Recorded, cases, copied, recorded, size
from lowered_mutations import REMOVED, Mutation, mutated, mutations, trapped
from lowered_schedules import SCHEDULES, Schedule, run_scheduled

from tlmatrix.cache_files import cache_folder
from tlmatrix.interpreter.errors import DeadlockError, InterpreterError, Unsupported
from tlmatrix.interpreter.lowered.arithmetic import NOTHING
from tlmatrix.interpreter.lowered.emit import Emitter, Val
from tlmatrix.interpreter.lowered.execution import function_of, run
from tlmatrix.interpreter.lowered.lowering import HANDLERS, LoweredKernel
from tlmatrix.interpreter.lowered.machine import Watching
from tlmatrix.interpreter.reports import DEFAULT_SANITIZERS, ReportSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tlmatrix.interpreter.ir import nodes as ir

_SPECS = Path(__file__).parents[1] / "specs"
_CACHE = cache_folder() / "lowered-deletions"
"""Launches of earlier runs."""
_OUTCOMES = ("reported", "wrong values", "refused", "without effect", "not executed", "missed")


@dataclass
class Row:
    """What became of a mutant."""

    spec: str
    arch: str
    kernel: str
    kind: str
    place: str
    outcome: str
    detail: str
    seconds: float


# Runs ---------------------------------------------------------------------------------------------


class Trapped(Exception):  # noqa: N818 - no error
    """A statement is executed."""


def _trap(e: Emitter, call: ir.Call) -> Val:
    del call
    e.line(f"if np.any({e.mask} is None or {e.mask}):")
    with e.indented():
        e.line("raise trap")
    return NOTHING


def program(launch: Recorded, *, suspends: bool = False) -> LoweredKernel:
    """The programs of a launch."""
    programs = {}
    for function in launch.functions:
        emitter = Emitter(function, {**HANDLERS, "trap": _trap})
        emitter.suspends |= suspends
        programs[function.name] = emitter.program()
    return LoweredKernel(launch.kernel, launch.steps, programs)


def results(launch: Recorded) -> tuple[list[Any], list[str]]:
    """The arguments after a launch, and what sanitizers reported."""
    kernel, values, reports = program(launch), copied(launch.values), ReportSet()
    for each in kernel.programs.values():
        function_of(each).__globals__["trap"] = Trapped  # type: ignore[attr-defined]
    run(kernel, values, Watching(DEFAULT_SANITIZERS, reports, launch.kernel.name))
    return values, [f"{each.sanitizer}: {each.message}" for each in reports.reports()]


def scheduled(launch: Recorded, schedule: Schedule) -> list[Any]:
    """The arguments after a launch one warp after another."""
    values = copied(launch.values)
    run_scheduled(program(launch, suspends=True), values, schedule)
    return values


def same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether tensors have equal bits."""
    pairs = [p for p in zip(a, b, strict=True) if isinstance(p[0], torch.Tensor)]
    return all(_bits(x).equal(_bits(y)) for x, y in pairs)


def _bits(tensor: Any) -> Any:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


class Judge:
    """Judges mutants of a launch by what the launch itself gives."""

    def __init__(self, launch: Recorded) -> None:
        """Run the launch; `alarms` has what is reported of it."""
        self._launch = launch
        self._expected, self.alarms = results(launch)
        self._scheduled: dict[Schedule, list[Any]] = {}

    def outcome(self, mutation: Mutation) -> tuple[str, str]:
        """What becomes of a mutant, and why."""
        changed = mutated(self._launch, mutation)
        try:
            values, reports = results(changed)
        except Unsupported as error:
            return "refused", str(error).splitlines()[0]
        except InterpreterError as error:
            return "reported", f"{type(error).__name__}: {str(error).splitlines()[0]}"
        except Exception as error:  # noqa: BLE001 - a fault of ours, to be mended
            return "missed", f"internal {type(error).__name__}: {error}"
        new = [each for each in reports if each not in self.alarms]
        if new:
            return "reported", new[0]
        if not same(values, self._expected):
            return "wrong values", ""
        if not self._executes(mutation):
            return "not executed", ""
        for schedule, values in self._expectations().items():
            try:
                if not same(scheduled(changed, schedule), values):
                    return "missed", f"values differ under {schedule}"
            except InterpreterError as error:
                return "missed", f"{error} under {schedule}"
        return "without effect", ""

    def _expectations(self) -> dict[Schedule, list[Any]]:
        """What the launch gives under each schedule that it can be run under.

        A warp that only waits for an mbarrier can miss two of its phases, and then waits for ever;
        it does where TileLang lets all warps of a producer wait, of which one thread copies.
        """
        if not self._scheduled:
            for schedule in SCHEDULES:
                with suppress(DeadlockError):
                    self._scheduled[schedule] = scheduled(self._launch, schedule)
        if not self._scheduled:
            raise RuntimeError(f"{self._launch.kernel.name} can be run under no schedule")
        return self._scheduled

    def _executes(self, mutation: Mutation) -> bool:
        """Whether the launch executes what a mutation changes."""
        if mutation.host:
            return True
        try:
            results(trapped(self._launch, mutation))
        except Trapped:
            return True
        return False


def _judged(launch: Recorded, spec: str, each: int) -> list[Row]:
    """The mutants of a launch, and what is reported of itself; printed as they are judged."""
    began = time.process_time()
    judge = Judge(launch)
    name = launch.kernel.name
    rows: list[Row] = []

    def add(kind: str, place: str, outcome: str, detail: str) -> None:
        seconds = round(time.process_time() - began, 2)
        row = Row(spec, launch.arch, name, kind, place, outcome, detail, seconds)
        words = f"{spec} {launch.arch} {name} {kind:22} {outcome:15} {seconds:6.2f} {detail[:150]}"
        print(words, flush=True)
        rows.append(row)

    for alarm in judge.alarms:
        add("none", "", "false alarm", alarm)
    kinds: dict[str, list[Mutation]] = {}
    for mutation in mutations(launch):
        kinds.setdefault(mutation.kind, []).append(mutation)
    for kind, found in kinds.items():
        step = 1 if kind in REMOVED.values() else -(-len(found) // each)
        for mutation in found[::step]:
            began = time.process_time()
            outcome, detail = judge.outcome(mutation)
            add(kind, f"{mutation.function}:{'.'.join(map(str, mutation.path))}", outcome, detail)
    return rows


def _launched(path: Path, arch: str, cache: Path, number: int) -> dict[str, int]:
    """Record a case; its kernels, and how many elements the launch of each has."""
    found = recorded(path, arch, cache, number)
    return {key: size(launch.values) for key, launch in found.items()}


def _mutants(path: Path, arch: str, cache: Path, number: int, key: str, each: int) -> list[Row]:
    return _judged(recorded(path, arch, cache, number)[key], path.stem, each)


def table(rows: Sequence[Row]) -> str:
    """Mutants by kind and outcome, as a table of Markdown."""
    counts = Counter((row.kind, row.outcome) for row in rows)
    lines = [f"| mutation | {' | '.join(_OUTCOMES)} |", "| --- |" + " ---: |" * len(_OUTCOMES)]
    kinds = dict.fromkeys(row.kind for row in rows if row.kind != "none")
    lines += [f"| {k} | {' | '.join(str(counts[k, o]) for o in _OUTCOMES)} |" for k in kinds]
    total = Counter(row.outcome for row in rows)
    lines.append(f"| all | {' | '.join(str(total[o]) for o in _OUTCOMES)} |")
    return "\n".join(lines)


def main() -> int:
    """Print the mutants and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("specs", nargs="*", help="names of specs (all)")
    parser.add_argument("--arch", default="sm_80,sm_90a")
    parser.add_argument(
        "--each",
        type=int,
        default=6,
        help="changed widths, terms and descriptors of a kernel, of each kind (6)",
    )
    parser.add_argument("--cache", type=Path, default=_CACHE, help="a folder for launches")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="processes, a kernel each (1)")
    asked = parser.parse_args()
    names = asked.specs or sorted(path.stem for path in _SPECS.glob("*.yaml"))
    rows: list[Row] = []
    groups = product((_SPECS / f"{name}.yaml" for name in names), asked.arch.split(","))
    with ProcessPoolExecutor(asked.jobs) as pool:
        recording = {
            (*group, asked.cache): [
                pool.submit(_launched, *group, asked.cache, number)
                for number in range(len(cases(*group)))
            ]
            for group in groups
        }
        jobs: list[Future[list[Row]]] = []
        for group, launches in recording.items():
            largest: dict[str, tuple[int, int]] = {}  # elements, and the number of the case
            for number, launched in enumerate(launches):
                for key, elements in launched.result().items():
                    largest[key] = max(largest.get(key, (0, 0)), (elements, number))
            jobs += [
                pool.submit(_mutants, *group, number, key, asked.each)
                for key, (_, number) in largest.items()
            ]
        for done, job in enumerate(as_completed(jobs), 1):
            rows += job.result()
            print(f"{done} of {len(jobs)} kernels", flush=True)
            if asked.json:
                asked.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    print(table(rows))
    return 1 if any(row.outcome in ("missed", "false alarm") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
