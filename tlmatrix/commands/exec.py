"""`tlmatrix exec`: a script written for a GPU, unchanged, on the interpreter."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.exit_codes import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse

    from tlmatrix.config import Config

__all__ = ["execute"]


def execute(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Run the script; an exception of its own is shown as Python would show it.

    What sanitizers find is logged as it is found, and makes the exit code FINDINGS.

    Raises:
        UsageError: if there is no such script.
        SystemExit: the script's own, with the script's own code.
    """
    path = Path(arguments.script)
    if not path.is_file():
        raise UsageError(f"no such script: {path}")
    from tlmatrix.interpreter import Unsupported
    from tlmatrix.interpreter.program import run_program

    try:
        session = run_program(
            path,
            arguments.arguments,
            arch=arguments.arch,
            sms=arguments.sms,
            sanitize=arguments.sanitize or None,
        )
    except Unsupported as error:
        print(f"tlmatrix: {error}", file=sys.stderr)
        return ExitCode.FINDINGS
    except Exception as error:  # noqa: BLE001  # the script's own: anything
        shown = traceback.TracebackException.from_exception(error)
        ours = len(shown.stack) - len(_users_frames(shown.stack, path))
        del shown.stack[:ours]
        print("".join(shown.format()), end="", file=sys.stderr)
        return ExitCode.FINDINGS
    return ExitCode.FINDINGS if session.reports else ExitCode.OK


def _users_frames(frames: traceback.StackSummary, path: Path) -> list[traceback.FrameSummary]:
    """What is left of a stack from the script's own first frame on; all of it if it has none."""
    for k, frame in enumerate(frames):
        if Path(frame.filename) == path:
            return list(frames[k:])
    return list(frames)
