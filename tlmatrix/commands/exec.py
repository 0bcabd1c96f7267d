"""`tlmatrix exec`: runs a script or module written for a GPU on the interpreter, unchanged."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.exit_codes import ExitCode, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from tlmatrix.config import Config
    from tlmatrix.interpreter.frontend.session import Session
    from tlmatrix.prove.answers import KernelProofs


def program_of(arguments: argparse.Namespace) -> tuple[str, list[str], bool]:
    """The program of a command line, its arguments, and whether it is a module.

    Behind `--` a command line may say `-m MODULE`, too.
    """
    program, words = arguments.script, list(arguments.arguments)
    if program == "-m" and words and not arguments.module:
        return words[0], words[1:], True
    return program, words, arguments.module


def execute(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Run the program; print its exceptions as Python does.

    Sanitizers log their findings as they occur; the exit code is then FINDINGS, however the
    program ends. So it is if a property of a kernel is refuted.

    Raises:
        UsageError: the program or a sanitizer does not exist.
        SystemExit: raised by the program, of which no sanitizer reported anything.
    """
    program, words, arguments.module = program_of(arguments)
    arguments.script, arguments.arguments = program, words
    path = Path(program)
    if arguments.module:
        if not _module_exists(program):
            raise UsageError(f"no such module: {program}")
    elif not path.is_file():
        raise UsageError(f"no such script: {path}")
    sanitizers = _sanitizers(arguments)
    sessions: list[Session] = []
    proven: list[KernelProofs] = []
    try:
        with ExitStack() as stack:
            starts: list[Callable[[Session], None]] = [sessions.append]
            if arguments.prove:
                from tlmatrix.commands.prove import proving

                starts.append(stack.enter_context(proving(arguments.arch, proven)))
            code = _run(arguments, path, sessions, starts, sanitizers)
    except SystemExit:
        if not _refuted(proven):
            raise
    return ExitCode.FINDINGS if _refuted(proven) else code


def _refuted(proven: list[KernelProofs]) -> bool:
    return any(proof.answer == "refuted" for each in proven for proof in each.proofs)


def _run(
    arguments: argparse.Namespace,
    path: Path,
    sessions: list[Session],
    starts: list[Callable[[Session], None]],
    sanitizers: bool | frozenset[str] | None,
) -> ExitCode:
    """Run the program; its exit code."""
    from tlmatrix.interpreter import Unsupported
    from tlmatrix.interpreter.frontend.scripts import run_program

    def started(session: Session) -> None:
        for start in starts:
            start(session)

    try:
        run_program(
            arguments.script,
            arguments.arguments,
            module=arguments.module,
            lower=arguments.lower,
            arch=arguments.arch,
            sms=arguments.sms,
            lowered=arguments.lowered,
            sanitize=sanitizers,
            started=started,
        )
    except SystemExit as stopped:
        reports = [report for session in sessions for report in session.reports]
        if not reports:
            raise
        if arguments.module:
            # pytest shows what a test logs only if it fails.
            print(*reports, sep="\n", file=sys.stderr)
        if isinstance(stopped.code, str):
            print(stopped.code, file=sys.stderr)
    except Unsupported as error:
        print(f"tlmatrix: {error}{_call_site(error)}", file=sys.stderr)
        return ExitCode.FINDINGS
    except Exception as error:  # noqa: BLE001 - any exception of the script
        shown = traceback.TracebackException.from_exception(error)
        ours = len(shown.stack) - len(_users_frames(shown.stack, path))
        del shown.stack[:ours]
        print("".join(shown.format()), end="", file=sys.stderr)
        return ExitCode.FINDINGS
    return ExitCode.FINDINGS if any(s.reports for s in sessions) else ExitCode.OK


def _module_exists(name: str) -> bool:
    """Whether `python -m` would find the module, in the working folder first."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent package
        return False
    finally:
        sys.path.pop(0)


def _sanitizers(arguments: argparse.Namespace) -> bool | frozenset[str] | None:
    """The argument of `interpret` for `--sanitize` and `--without`."""
    if arguments.without is None:
        return arguments.sanitize or None
    from tlmatrix.interpreter import DEFAULT_SANITIZERS, SANITIZERS

    if not arguments.sanitize:
        raise UsageError("--without needs --sanitize")
    names = {name.strip() for name in arguments.without.split(",")}
    for name in sorted(names - set(SANITIZERS)):
        raise UsageError(f"--without: no sanitizer {name!r}; known: {', '.join(SANITIZERS)}")
    return frozenset(DEFAULT_SANITIZERS) - names


def _call_site(error: BaseException) -> str:
    """The innermost line of the user's code in the traceback of an unsupported operation."""
    ours = str(Path(__file__).parents[1])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((ours, "<")) and "site-packages" not in frame.filename:
            return f"\n  called at {frame.filename}:{frame.lineno}"
    return ""


def _users_frames(frames: traceback.StackSummary, path: Path) -> list[traceback.FrameSummary]:
    """The frames from the script's first one on; all frames if there is none."""
    for k, frame in enumerate(frames):
        if Path(frame.filename) == path:
            return list(frames[k:])
    return list(frames)
