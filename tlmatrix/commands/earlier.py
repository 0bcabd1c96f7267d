"""What `tlmatrix run` takes from an earlier run: its cases and options, or those that failed."""

from __future__ import annotations

import argparse
import math
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.commands.arguments import LAST_RUN
from tlmatrix.exit_codes import UsageError
from tlmatrix.report.text import count
from tlmatrix.results_file import kept_results, shown_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tlmatrix.config import Config
    from tlmatrix.run.records import RunRecords

__all__ = ["last_run", "repeated"]

_SPECS = (".yaml", ".yml")


def repeated(
    arguments: argparse.Namespace, config: Config
) -> tuple[argparse.Namespace, RunRecords | None, str]:
    """The arguments of `run` with what `--resume` or `--lf` adds, the run it is of, and words.

    The words are for the user; empty where there is nothing to add.

    Raises:
        UsageError: there is no such run, or the options do not go together.
    """
    if arguments.resume is not None:
        return _resumed(arguments, config)
    if not arguments.last_failed:
        return arguments, None, ""
    last = last_run(arguments.results, config)
    if last is None:
        return arguments, None, "--lf: there is no earlier run; running every case"
    return _failed(arguments, last)


def last_run(given: str | None, config: Config, *, at_most: float = math.inf) -> RunRecords | None:
    """The newest run on record in the project's folder, or in that `given` as `--results`.

    None also where that has more bytes than `at_most`.
    """
    from tlmatrix.run.records import RecordsError, read_records

    for path in kept_results(given, config, "run"):
        if path.stat().st_size > at_most:
            return None
        try:
            return read_records(path)
        except (OSError, RecordsError):
            continue  # One that has just begun, or is no file of ours.
    return None


def _resumed(
    arguments: argparse.Namespace, config: Config
) -> tuple[argparse.Namespace, RunRecords, str]:
    from tlmatrix.run.records import RecordsError, read_records

    if arguments.last_failed:
        raise UsageError("--lf and --resume are two ways to go on; give one of them")
    paths, file = list(arguments.paths), arguments.resume
    if file != LAST_RUN and (Path(file).is_dir() or file.partition("::")[0].endswith(_SPECS)):
        paths, file = [file, *paths], LAST_RUN  # `--resume specs/x.yaml`: a path, not its value.
    if file == LAST_RUN:
        found = last_run(arguments.results, config)
        if found is None:
            folder = arguments.results or config.root / config.results
            raise UsageError(f"--resume: no run is on record in {folder}; name its file")
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
    words = f"going on with {file}" if arguments.resume == LAST_RUN else ""
    if header.select and not arguments.select:
        words = f"{words or 'going on'}, with its -k {header.select!r}"
    return argparse.Namespace(**{**vars(arguments), **taken}), found, words


def _failed(
    arguments: argparse.Namespace, last: RunRecords
) -> tuple[argparse.Namespace, RunRecords, str]:
    """Cases that failed last, under the paths given; everything, if there are none."""
    shown = shown_path(last.path)
    failed = _nodes(last, [result.node for result in last.results if result.failed])
    if arguments.paths:
        failed = [node for node in failed if any(_holds(path, node) for path in arguments.paths)]
    there = _still_there(failed)
    gone = len(failed) - len(there)
    if there:
        paths, words = there, f"--lf: {count(len(there), 'case')} that failed in {shown}"
        if gone:
            words += f"; {gone} more are in no spec now"
    else:
        specs = dict.fromkeys(path.partition("::")[0] for path in _nodes(last, last.header.paths))
        paths = arguments.paths or list(specs)
        words = f"--lf: no case failed in {shown}; running every case"
        if gone:
            words = f"--lf: what failed in {shown} is in no spec now; running every case"
    seed = last.header.seed if arguments.seed is None else arguments.seed
    return argparse.Namespace(**{**vars(arguments), "paths": paths, "seed": seed}), last, words


def _nodes(records: RunRecords, nodes: Iterable[str]) -> list[str]:
    """Specs and cases of a run, as one would write them in the working directory."""
    folder = Path(records.header.folder)
    split = [node.partition("::") for node in nodes]
    return [f"{os.path.relpath(folder / path)}{mark}{case}" for path, mark, case in split]


def _holds(given: str, node: str) -> bool:
    """Whether a path given (a folder, a spec, a case) holds a case."""
    path, _, case = given.partition("::")
    file, _, wanted = node.partition("::")
    place, inside = Path(path).resolve(), Path(file).resolve()
    return case in ("", wanted) and (place == inside or place in inside.parents)


def _still_there(nodes: Iterable[str]) -> list[str]:
    """Cases that their specs still have; of a spec with errors all, for those are told later."""
    from tlmatrix.matrix import CaseNotFoundError, find_case
    from tlmatrix.spec.issues import SpecError
    from tlmatrix.spec.loader import load_spec

    load = cache(load_spec)
    found = []
    for node in nodes:
        path, _, case = node.partition("::")
        if not Path(path).is_file():
            continue
        try:
            find_case(load(path), case)
        except CaseNotFoundError:
            continue
        except SpecError:
            pass
        found.append(node)
    return found
