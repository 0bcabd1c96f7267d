"""`tlmatrix bench`: times a spec's entry against its baselines.

Each case is written to the file as soon as it is timed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.bench.report import BenchReport
from tlmatrix.bench.results import BenchFile, BenchFileError, State, read_bench
from tlmatrix.bench.roofs import roof_of
from tlmatrix.bench.statistics import CONFIDENCE, Verdict
from tlmatrix.commands.screen import console_on
from tlmatrix.commands.specs import selector_of, spec_paths, values_of
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.matrix import Case
from tlmatrix.report.text import count
from tlmatrix.results_file import versions
from tlmatrix.spec.importing import make_importable
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.loader import load_spec
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from tlmatrix.bench.engine import Machine
    from tlmatrix.bench.results import CaseTimes
    from tlmatrix.config import Config
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


def bench(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Time the bench cases of specs, or show a file of an earlier run.

    Raises:
        UsageError: the arguments are invalid, or there is no GPU.
        SpecError: a spec is invalid.
    """
    before = _read(arguments.against, "--against")
    if arguments.show is not None:
        shown = _read(arguments.show, "--from")
        assert shown is not None
        return _show(shown, before, arguments)
    specs = _specs(arguments, config)
    machine = _machine()
    file = BenchFile(_about(machine, arguments, specs))
    _require_same_gpu(file, before, arguments.against)
    stored = Path(arguments.output) if arguments.output else _new_path(config)
    report = _report(file, before, arguments)
    report.head(file)
    timed = _timed(specs, machine, arguments, config)
    total = sum(len(cases) for _path, _spec, cases in specs)
    while True:
        with report.busy(f"timing {len(file.cases) + 1} of {count(total, 'case')}"):
            case = next(timed, None)
        if case is None:
            break
        file.cases.append(case)
        file.write(stored)
        report.case(case)
        if arguments.sweep:
            report.best(case, file.gpu)
    return _ended(file, report, os.path.relpath(stored), as_json=arguments.json)


def _show(file: BenchFile, before: BenchFile | None, arguments: argparse.Namespace) -> ExitCode:
    """Print the tables of an earlier run."""
    _require_same_gpu(file, before, arguments.against)
    report = _report(file, before, arguments)
    report.head(file)
    for case in file.cases:
        report.case(case)
        report.best(case, file.gpu)
    return _ended(file, report, "", as_json=arguments.json)


def _report(
    file: BenchFile, before: BenchFile | None, arguments: argparse.Namespace
) -> BenchReport:
    console = console_on(sys.stderr if arguments.json else sys.stdout)
    roof = roof_of(file.gpu)
    since = arguments.against or ""
    return BenchReport(console, roof, arguments.margin, before, since)


def _ended(file: BenchFile, report: BenchReport, stored: str, *, as_json: bool) -> ExitCode:
    """Print the end of a report, or all as JSON; the exit code of the command."""
    report.end(stored)
    if as_json:
        print(json.dumps(file.to_json(), indent=1))
    entries = (each for case in file.cases for each in case.implementations if each.name == "entry")
    bad = (State.WRONG, State.FAILED)
    if any(each.state in bad for each in entries) or report.against[Verdict.SLOWER]:
        return ExitCode.FINDINGS
    return ExitCode.OK


def _timed(
    specs: Sequence[tuple[Path, Spec, list[Case]]],
    machine: Machine,
    arguments: argparse.Namespace,
    config: Config,
) -> Iterator[CaseTimes]:
    from tlmatrix.bench.engine import bench as timed
    from tlmatrix.bench.timing import Schedule

    for path, spec, cases in specs:
        yield from timed(
            spec,
            cases,
            machine,
            path=str(path),
            baselines=arguments.baseline,
            sweep=arguments.sweep,
            schedule=Schedule(seconds=arguments.seconds),
            roots=(config.root,),
        )


def _machine() -> Machine:
    from tlmatrix.backend import BackendUnavailableError
    from tlmatrix.bench.machine import this_machine

    try:
        return this_machine()
    except BackendUnavailableError as error:
        raise UsageError(
            "bench needs a GPU, and PyTorch finds none (torch.cuda.is_available() is False). "
            "`tlmatrix bench --from FILE` shows timings of another machine; `tlmatrix run "
            "--backend compile` counts registers, spills and shared memory without a GPU"
        ) from error


def _specs(arguments: argparse.Namespace, config: Config) -> list[tuple[Path, Spec, list[Case]]]:
    """The specs and their cases to time; of several specs those with a section `bench`."""
    given = [
        values_of(text, "--case", '{"head_dim": 128}', some=True) for text in arguments.case or ()
    ]
    selects = selector_of(arguments.select)
    found = []
    paths = spec_paths(arguments.paths, config)
    for path in paths:
        make_importable(path, (config.root,))
        spec = load_spec(path)
        if spec.bench is None and not given and len(paths) > 1:
            continue
        cases = [case for case in bench_cases(spec, given) if selects is None or selects(case, ())]
        if cases:
            found.append((path, spec, cases))
    if not found:
        message = "no case matches -k" if arguments.select else "no spec has a section `bench`"
        raise UsageError(message)
    return found


def bench_cases(spec: Spec, given: Sequence[Mapping[str, Value]] = ()) -> list[Case]:
    """The cases to time: those `given`, or else those of the spec's section `bench`.

    Raises:
        SpecError: the spec has no such section, or lacks an axis of a given case.
    """
    written = given or (spec.bench.cases if spec.bench is not None else ())
    if not written:
        message = "the spec lists no cases to time: add a section `bench`, or give --case"
        raise SpecError([spec.issue((), message)])
    for values in given:
        for axis in values:
            if axis not in spec.axes:
                message = (
                    f"--case: the spec has no axis {axis!r}{suggestion(axis, spec.axes, 'Axes')}"
                )
                raise SpecError([spec.issue(("axes",), message)])
    first = {name: values[0] for name, values in spec.axes.items()}
    cases = [Case(spec.name, {**first, **values}, "extra") for values in written]
    return list(dict.fromkeys(cases))


def _read(path: str | None, option: str) -> BenchFile | None:
    if path is None:
        return None
    try:
        return read_bench(Path(path))
    except (OSError, BenchFileError) as error:
        raise UsageError(f"{option} {path}: {error}") from error


def _require_same_gpu(file: BenchFile, before: BenchFile | None, name: str) -> None:
    if before is not None and before.gpu != file.gpu:
        raise UsageError(
            f"--against {name}: was timed on {before.gpu or 'an unknown GPU'}, not on "
            f"{file.gpu or 'an unknown GPU'}; compare runs on the same GPU"
        )


def _about(
    machine: Machine,
    arguments: argparse.Namespace,
    specs: Sequence[tuple[Path, Spec, list[Case]]],
) -> dict[str, Any]:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["tlmatrix", *sys.argv[1:]]),
        "hardware": dict(machine.hardware),
        "versions": versions("tlmatrix", "tilelang", "torch"),
        "commit": _commit(),
        "margin": arguments.margin,
        "confidence": CONFIDENCE,
        "cache": "flushed before each call",
        "specs": {
            str(path): sha256(path.read_bytes()).hexdigest()[:16] for path, _spec, _cases in specs
        },
    }


def _commit() -> str:
    """The commit of the working directory, with `-dirty` if files differ; "" if unknown."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],  # noqa: S607 - whichever the user has
            check=True,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _new_path(config: Config) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return config.results / f"bench-{stamp}-{os.getpid()}.json"
