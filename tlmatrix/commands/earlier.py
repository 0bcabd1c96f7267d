"""`--resume` and `--lf` of `tlmatrix run`: arguments from an earlier run."""

from __future__ import annotations

import argparse
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.commands.results import last_run
from tlmatrix.exit_codes import UsageError
from tlmatrix.options.table import LAST_RUN
from tlmatrix.report.text import count
from tlmatrix.results_file import shown_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tlmatrix.config import Config
    from tlmatrix.run.records import RunRecords

_SPECS = (".yaml", ".yml")
_PROBLEMS = 5
"""Most lines of a results file that are reported as unusable."""


def with_earlier_run(
    arguments: argparse.Namespace, config: Config
) -> tuple[argparse.Namespace, str]:
    """Complete the arguments of `run` from the run of `--resume` or `--lf`.

    Returns:
        The arguments, and a note for the user, which may be empty.

    Raises:
        UsageError: the run does not exist, or options exclude each other.
    """
    if arguments.resume is not None:
        arguments, found, note = _with_resumed_run(arguments, config)
        notes = [*_shortened(found.problems), note]
        return arguments, "\n".join(filter(None, notes))
    if not arguments.last_failed:
        return arguments, ""
    last = last_run(arguments.results, config)
    if last is None:
        return arguments, "--lf: there is no earlier run; running every case"
    return _with_failed_cases(arguments, last)


def _shortened(problems: Sequence[str]) -> list[str]:
    """The first problems of a results file, and how many more there are."""
    more = len(problems) - _PROBLEMS
    return [*problems[:_PROBLEMS], *([f"{count(more, 'more problem')}"] if more > 0 else [])]


def _with_resumed_run(
    arguments: argparse.Namespace, config: Config
) -> tuple[argparse.Namespace, RunRecords, str]:
    from tlmatrix.run.records import RecordsError, read_records

    if arguments.last_failed:
        raise UsageError("--lf and --resume: give one of them")
    paths, file = list(arguments.paths), arguments.resume
    if file != LAST_RUN and (Path(file).is_dir() or file.partition("::")[0].endswith(_SPECS)):
        paths, file = (
            [file, *paths],
            LAST_RUN,
        )  # `--resume specs/x.yaml`: a spec, not a results file.
    if file == LAST_RUN:
        found = last_run(arguments.results, config)
        if found is None:
            folder = arguments.results or config.results
            raise UsageError(f"--resume: no results in {folder}; give a results file")
        file = shown_path(found.path)
    else:
        try:
            found = read_records(Path(file))
        except (OSError, RecordsError) as error:
            raise UsageError(f"--resume {file}: {error}") from error
    header = found.header
    taken = {
        "resume": file,
        "paths": paths or _nodes(found, header.paths),
        "select": arguments.select or header.select,
        "no_fuzz": arguments.no_fuzz or not header.fuzz,
    }
    note = f"resuming {file}" if arguments.resume == LAST_RUN else ""
    if header.select and not arguments.select:
        note = f"{note or 'resuming'}, with its -k {header.select!r}"
    return argparse.Namespace(**{**vars(arguments), **taken}), found, note


def _with_failed_cases(
    arguments: argparse.Namespace, last: RunRecords
) -> tuple[argparse.Namespace, str]:
    """Select the failed cases of the last run under the given paths; all cases if none failed."""
    shown = shown_path(last.path)
    failed = _nodes(last, [result.node for result in last.results if result.failed])
    if arguments.paths:
        failed = [node for node in failed if any(_contains(path, node) for path in arguments.paths)]
    there = _existing(failed)
    missing = len(failed) - len(there)
    if there:
        paths, words = there, f"--lf: {count(len(there), 'case')} that failed in {shown}"
        if missing:
            words += f"; {missing} more are no longer in a spec"
    else:
        specs = dict.fromkeys(path.partition("::")[0] for path in _nodes(last, last.header.paths))
        paths = arguments.paths or list(specs)
        words = f"--lf: no case failed in {shown}; running every case"
        if missing:
            words = f"--lf: the failed cases of {shown} are no longer in a spec; running every case"
    seed = last.header.seed if arguments.seed is None else arguments.seed
    taken = {"paths": paths, "seed": seed, "tier": arguments.tier or last.header.tier}
    return argparse.Namespace(**{**vars(arguments), **taken}), words


def _nodes(records: RunRecords, nodes: Iterable[str]) -> list[str]:
    """Specs and cases of a run, with paths relative to the working directory."""
    folder = Path(records.header.folder)
    split = [node.partition("::") for node in nodes]
    return [f"{os.path.relpath(folder / path)}{mark}{case}" for path, mark, case in split]


def _contains(given: str, node: str) -> bool:
    """Whether a given folder, spec or case contains a case."""
    path, _, case = given.partition("::")
    file, _, wanted = node.partition("::")
    place, inside = Path(path).resolve(), Path(file).resolve()
    return case in ("", wanted) and (place == inside or place in inside.parents)


def _existing(nodes: Iterable[str]) -> list[str]:
    """The cases that their specs still have, and all of a spec with errors."""
    from tlmatrix.matrix import CaseNotFoundError, find_case
    from tlmatrix.spec.issues import SpecError
    from tlmatrix.spec.loader import load_spec

    load = cache(load_spec)
    found = []
    for node in nodes:
        path, _, case = node.partition("::")
        if not os.path.isfile(path):  # noqa: PTH113 - False for a name that no file can have
            continue
        try:
            find_case(load(path), case)
        except CaseNotFoundError:
            continue
        except SpecError:
            pass
        found.append(node)
    return found
