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
        UsageError: if there is no such script, or no such sanitizer.
        SystemExit: the script's own, with the script's own code.
    """
    path = Path(arguments.script)
    if not path.is_file():
        raise UsageError(f"no such script: {path}")
    from tlmatrix.interpreter import Unsupported
    from tlmatrix.interpreter.program import run_program

    sanitizers = _sanitizers(arguments)
    try:
        session = run_program(
            path,
            arguments.arguments,
            arch=arguments.arch,
            sms=arguments.sms,
            sanitize=sanitizers,
        )
    except Unsupported as error:
        print(f"tlmatrix: {error}{_asked_at(error)}", file=sys.stderr)
        return ExitCode.FINDINGS
    except Exception as error:  # noqa: BLE001  # the script's own: anything
        shown = traceback.TracebackException.from_exception(error)
        ours = len(shown.stack) - len(_users_frames(shown.stack, path))
        del shown.stack[:ours]
        print("".join(shown.format()), end="", file=sys.stderr)
        return ExitCode.FINDINGS
    return ExitCode.FINDINGS if session.reports else ExitCode.OK


def _sanitizers(arguments: argparse.Namespace) -> bool | frozenset[str] | None:
    """What `--sanitize` and `--without` ask for, as `interpret` takes it."""
    if arguments.without is None:
        return arguments.sanitize or None
    from tlmatrix.interpreter import DEFAULT_SANITIZERS, SANITIZERS

    if not arguments.sanitize:
        raise UsageError("--without leaves sanitizers out: it goes with --sanitize")
    names = {name.strip() for name in arguments.without.split(",")}
    for name in sorted(names - set(SANITIZERS)):
        raise UsageError(f"no sanitizer {name!r}: there are {', '.join(SANITIZERS)}")
    return frozenset(DEFAULT_SANITIZERS) - names


def _asked_at(error: BaseException) -> str:
    """Where in the user's code it was that asked for what is refused."""
    ours = str(Path(__file__).parents[1])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((ours, "<")) and "site-packages" not in frame.filename:
            return f"\n  asked for at {frame.filename}:{frame.lineno}"
    return ""


def _users_frames(frames: traceback.StackSummary, path: Path) -> list[traceback.FrameSummary]:
    """What is left of a stack from the script's own first frame on; all of it if it has none."""
    for k, frame in enumerate(frames):
        if Path(frame.filename) == path:
            return list(frames[k:])
    return list(frames)
