"""`tlmatrix repro`, `explain`: one case in this process.

Output is not captured and no other process is started, so a debugger and `print` work in the code
under test, and a crash prints a traceback.
"""

from __future__ import annotations

import faulthandler
import sys
import textwrap
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.commands.results import recent_runs
from tlmatrix.commands.screen import screen_width
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.words import quoted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    import torch

    from tlmatrix.config import Config
    from tlmatrix.matrix import Case
    from tlmatrix.run.result import CaseResult
    from tlmatrix.spec.model.spec import Spec

_RECORDS = 5
"""Number of the latest results files that are searched for the case."""
_MARGIN = 3
"""Elements shown on each side of the worst one."""


def repro(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Run the case.

    Raises:
        UsageError: the spec or case does not exist, or the values are invalid.
        SpecError: the spec is invalid.
    """
    from tlmatrix.backend import BackendUnavailableError
    from tlmatrix.engine.settings import architectures
    from tlmatrix.options.table import ARCH, BACKEND, PERTURB
    from tlmatrix.run.result import Status
    from tlmatrix.run.runner import Runner

    path, spec, case = _named_case(arguments.case, arguments.values, config)
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # A replaced stderr may have no file.
    try:
        options = config.chosen(arguments)
        architectures(options[ARCH] or None, options[BACKEND])
        runner = Runner(options=options, roots=(config.root,))
    except BackendUnavailableError as error:
        raise UsageError(str(error)) from error
    runner.keep_compared = arguments.verbose
    backend = runner.backend
    where = backend.name if backend.arch == backend.name else f"{backend.name}, {backend.arch}"
    delays = options[PERTURB]
    print(f"{spec.name}: {case.id}\non {where}, seed {runner.seed}", end="")
    print("\n" if delays is None else f", delays of --perturb {delays}\n")
    result = runner.run(spec, case, path=path)
    for line in _finding_lines(result):
        print(line)
    for line in _recorded_lines(result, config):
        print(line)
    if arguments.verbose:
        for line in _excerpts(result, _width()):
            print(line)
    if any(finding.tensor and finding.index for finding in result.findings):
        print(f"  {'explain':<10}tlmatrix explain {quoted(result.node)}")
    print(f"\n{result.status} in {result.seconds:.2f} s ({_phases(result.phases)})")
    if result.failed:
        return ExitCode.FINDINGS
    return ExitCode.OK if result.status is not Status.SKIPPED else ExitCode.USAGE


def _width() -> int:
    return min(screen_width(100), 120)


def _finding_lines(result: CaseResult) -> Iterator[str]:
    from tlmatrix.report.text import describe_finding, distribution_words

    for finding in result.findings:
        yield from describe_finding(finding, width=_width(), full=True)
    if result.distribution:
        yield f"  {'inputs':<10}{distribution_words(result)}"
    if result.message:
        yield result.message


def _recorded_lines(result: CaseResult, config: Config) -> Iterator[str]:
    """Whether the last recorded run of the case had the same finding."""
    from tlmatrix.results_file import shown_path

    found = _last_record(result, config)
    if found is None:
        return
    path, before = found
    causes = [finding.cause for finding in result.findings]
    shown = shown_path(path)
    if not before.findings:
        if result.failed:
            yield f"  {'recorded':<10}{before.status} in {shown}, but it fails now"
    elif before.findings[0].cause in causes:
        yield f"  {'recorded':<10}the same finding as in {shown}"
    else:
        first = before.findings[0]
        yield f"  {'recorded':<10}another finding in {shown}: {first.summary}"


def _last_record(result: CaseResult, config: Config) -> tuple[Path, CaseResult] | None:
    for records in islice(recent_runs(None, config), _RECORDS):
        for each in records.results:
            for before in (each, each.smaller):
                if before is not None and _is_same_test(before, result):
                    return records.path, before
    return None


def _is_same_test(before: CaseResult, result: CaseResult) -> bool:
    alike = (before.case, before.key, before.seed) == (result.case, result.key, result.seed)
    return alike and before.spec == result.spec and before.backend == result.backend


def _phases(phases: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.3f}" for name, seconds in phases.items())


# Tensors around the worst element -----------------------------------------------------------


def _excerpts(result: CaseResult, width: int) -> Iterator[str]:
    """The tensors that each finding compared, around the worst element."""
    for finding in result.findings:
        compared = finding.compared
        if compared is None:
            continue
        if finding.call:
            words = f"{finding.check}, the call with {finding.call}:"
            yield ""
            yield from textwrap.wrap(words, width, subsequent_indent="  ")
        for label, tensor in (("expected", compared.expected), ("got", compared.got)):
            yield f"\n{label}: {finding.tensor} {_region(tensor, compared.index)}"
            yield from _table(tensor, compared.index)


def _region(tensor: torch.Tensor, place: tuple[int, ...]) -> str:
    """`[3, 14:21, 0, 5:12]`: the last two dimensions are a window, the others fixed."""
    parts = [str(at) for at in place]
    for axis in range(max(0, len(place) - 2), len(place)):
        low, high = _window(place[axis], tensor.shape[axis])
        parts[axis] = f"{low}:{high}"
    return f"[{', '.join(parts)}]"


def _window(at: int, size: int) -> tuple[int, int]:
    return max(0, at - _MARGIN), min(size, at + _MARGIN + 1)


def _table(tensor: torch.Tensor, place: tuple[int, ...]) -> Iterator[str]:
    fixed = tensor.detach().cpu()[place[:-2]] if len(place) > 2 else tensor.detach().cpu()
    if fixed.ndim < 2:
        fixed = fixed.reshape(1, -1)
        place = (0, *(place or (0,)))
    (top, bottom), (left, right) = (
        _window(at, size) for at, size in zip(place[-2:], fixed.shape, strict=True)
    )
    for row in range(top, bottom):
        yield "  " + " ".join(
            f"{float(fixed[row, column]):>12.5g}" for column in range(left, right)
        )


# explain ----------------------------------------------------------------------------------------


def explain(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Explain an element of the case.

    Raises:
        UsageError: the spec, case, tensor or element does not exist.
        SpecError: the spec is invalid.
    """
    _, spec, case = _named_case(arguments.case, arguments.values, config)
    from tlmatrix.explain.element import Options, explain_case
    from tlmatrix.run.runner import Runner

    runner = Runner("interpreter", config.chosen(arguments), roots=(config.root,))
    options = Options(
        tensor=arguments.tensor,
        index=_numbers(arguments.index, "--index"),
        buffer=arguments.buffer,
        block=_numbers(arguments.block, "--block"),
        rank=arguments.rank,
        full=arguments.full,
        inputs=not arguments.no_inputs,
        width=screen_width(120),
    )
    for line in explain_case(runner, spec, case, options):
        print(line)
    return ExitCode.OK


def _numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.replace(" ", ",").split(",") if part)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: must be numbers separated by commas") from error


# The case ---------------------------------------------------------------------------------------


def _named_case(name: str, values: str | None, config: Config) -> tuple[str, Spec, Case]:
    """The path, the spec and the case of `SPEC.yaml::ID`, or the case with `values`.

    Raises:
        UsageError: the spec or case does not exist, or the values are invalid.
        SpecError: the spec is invalid.
    """
    from tlmatrix.spec.importing import make_importable
    from tlmatrix.spec.loader import load_spec

    path, _, case_id = name.partition("::")
    if not Path(path).is_file():
        raise UsageError(f"no such spec: {path}; expected SPEC.yaml::ID, as a finding prints it")
    make_importable(Path(path), (config.root,))
    spec = load_spec(path)
    return path, spec, _case(spec, case_id, values)


def _case(spec: Spec, case_id: str, values: str | None) -> Case:
    from tlmatrix.commands.specs import values_of
    from tlmatrix.matrix import CaseNotFoundError, case_of, find_case

    try:
        if values is None:
            if not case_id:
                raise UsageError("no case given; write SPEC.yaml::ID or --values JSON")
            return find_case(spec, case_id)
        return case_of(spec, values_of(values, "--values", '{"head_dim": 96}'))
    except CaseNotFoundError as error:
        raise UsageError(str(error)) from error
