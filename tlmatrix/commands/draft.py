"""`tlmatrix new`, `record` and `adopt`: first specs of existing code."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.commands.exec import program_of
from tlmatrix.commands.screen import print_wrapped
from tlmatrix.engine.selection import processors
from tlmatrix.exit_codes import ExitCode, UsageError, writing

if TYPE_CHECKING:
    import argparse

    from tlmatrix.config import Config


def new(arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Print the spec, or write it to a new file and run it.

    Raises:
        UsageError: the callable does not exist, its example fails, or the file exists.
    """
    from tlmatrix.draft.sources import drafts_for
    from tlmatrix.draft.text import spec_text, write_spec
    from tlmatrix.draft.trial import tried

    path = None if arguments.output is None else Path(arguments.output)
    if path is not None and path.exists():
        raise UsageError(f"{path} exists; remove it, or choose another file")
    script = None if arguments.script is None else Path(arguments.script)
    calls = None if arguments.calls is None else Path(arguments.calls)
    drafts = drafts_for(arguments.target, call=arguments.call, script=script, calls=calls)
    if path is None:
        print(spec_text(drafts()), end="")
        return ExitCode.OK
    draft = drafts()
    with writing("-o", path):
        write_spec(draft, path)
    print("\n".join([f"wrote {path}", *(f"  {note}" for note in draft.notes)]))
    if draft.runs and not arguments.no_run:
        for line in tried(drafts, path, [config.root]).lines:
            print(line)
    elif draft.runs:
        print(f"next: tlmatrix run {shlex.quote(str(path))}")
    return ExitCode.OK


def record(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Run a program, and write the calls of kernels and operators that it makes to a file.

    Raises:
        UsageError: the program or a function does not exist.
        SystemExit: raised by the program.
    """
    from tlmatrix.draft.recorder import codes_of, record_program

    program, words, module = program_of(arguments)
    if not module and not Path(program).is_file():
        raise UsageError(f"no such script: {program}")
    wanted = codes_of(arguments.of)
    path = Path(arguments.output)
    with writing("-o", path):
        file = path.open("w", encoding="utf-8")
    try:
        with file:
            record_program(
                program,
                words,
                file,
                module=module,
                wanted=wanted,
                trace_only=arguments.trace_only,
            )
    finally:
        folder = arguments.definitions
        _summarize(path, None if folder is None else Path(folder))
    return ExitCode.OK


def _summarize(path: Path, definitions: Path | None) -> None:
    """Print the targets in a file of calls, and write their definitions to a folder."""
    from tlmatrix.draft.calls import definition, read_calls

    found = read_calls(path)
    for target, calls in found.items():
        known = sum(bool(call.compared) for call in calls)
        compared = f", {known} compared with another result" if known else ""
        print(f"{target}: {len(calls)} different call{'s' * (len(calls) > 1)}{compared}")
    print(f"{len(found)} targets in {path}")
    if definitions is not None:
        with writing("--definitions", definitions):
            definitions.mkdir(parents=True, exist_ok=True)
            for target, calls in found.items():
                file = definitions / f"{target.replace(':', '.')}.json"
                file.write_text(json.dumps(definition(calls), indent=1), encoding="utf-8")


def adopt(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Write and run a spec of every kernel and operator of a repository.

    Raises:
        UsageError: the folder does not exist, or has no Python files.
    """
    from tlmatrix.draft.adopt import adopt_repository, counted, lines, write_page

    root = Path(arguments.folder)
    output = root / "specs" if arguments.output is None else Path(arguments.output)
    rows = adopt_repository(
        root,
        output,
        command=arguments.words,
        workers=processors() if arguments.workers == "auto" else int(arguments.workers),
        seconds=arguments.seconds,
        warn=lambda words: print_wrapped(f"tlmatrix: {words}", sys.stderr),
    )
    page = output / "adopted.html"
    with writing("-o", page):
        write_page(page, root, rows)
    for line in lines(rows):
        print_wrapped(line)
    counts = ", ".join(f"{count} {status}" for status, count in counted(rows).items())
    print(f"{len(rows)} kernels and operators: {counts}\nspecs and page: {page}")
    return ExitCode.FINDINGS if any(row.status == "findings" for row in rows) else ExitCode.OK
