"""`tlmatrix new`, `record` and `adopt`: first specs of existing code."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

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
    from tlmatrix.draft.text import spec_text
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
        path.write_text(spec_text(draft), encoding="utf-8")
    print("\n".join([f"wrote {path}", *(f"  {note}" for note in draft.notes)]))
    if draft.complete and not arguments.no_run:
        for line in tried(drafts, path, [config.root]).lines:
            print(line)
    elif draft.complete:
        print(f"next: tlmatrix run {shlex.quote(str(path))}")
    return ExitCode.OK


def record(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Run a program, and write the calls of kernels and operators that it makes to a file.

    Raises:
        UsageError: the program or a function does not exist.
        SystemExit: raised by the program.
    """
    from tlmatrix.draft.calls import definition, read_calls
    from tlmatrix.draft.recorder import record_program

    path = Path(arguments.output)
    try:
        with writing("-o", path):
            record_program(
                arguments.script,
                arguments.arguments,
                path,
                module=arguments.module,
                functions=arguments.of,
                trace_only=arguments.trace_only,
            )
    finally:
        found = read_calls(path) if path.is_file() else {}
        for target, calls in found.items():
            known = sum(bool(call.compared) for call in calls)
            compared = f", {known} compared with another result" if known else ""
            print(f"{target}: {len(calls)} different call{'s' * (len(calls) > 1)}{compared}")
        print(f"{len(found)} targets in {path}")
        if arguments.definitions is not None:
            folder = Path(arguments.definitions)
            with writing("--definitions", folder):
                folder.mkdir(parents=True, exist_ok=True)
                for target, calls in found.items():
                    file = folder / f"{target.replace(':', '.')}.json"
                    file.write_text(json.dumps(definition(calls), indent=1), encoding="utf-8")
    return ExitCode.OK


def adopt(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Write and run a spec of every kernel and operator of a repository.

    Raises:
        UsageError: the folder does not exist, or has no Python files.
    """
    from tlmatrix.draft.adopt import adopt_repository, counted
    from tlmatrix.draft.adopted import lines, write_page

    root = Path(arguments.folder)
    output = root / "specs" if arguments.output is None else Path(arguments.output)
    rows = adopt_repository(
        root,
        output,
        command=arguments.words,
        workers=processors() if arguments.workers == "auto" else int(arguments.workers),
        seconds=arguments.seconds,
    )
    page = output / "adopted.html"
    with writing("-o", page):
        write_page(page, root, rows)
    for line in lines(rows):
        print_wrapped(line)
    counts = ", ".join(f"{count} {status}" for status, count in counted(rows).items())
    print(f"{len(rows)} kernels and operators: {counts}\nspecs and page: {page}")
    return ExitCode.FINDINGS if any(row.status == "findings" for row in rows) else ExitCode.OK
