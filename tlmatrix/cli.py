"""The command line: parses arguments, runs a command, and turns errors into exit codes.

`tlmatrix.commands.arguments` has the parser, and `tlmatrix.commands` a module for every command,
which is imported only when it runs.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.cache_files import prepare_caches
from tlmatrix.commands.arguments import command_line
from tlmatrix.commands.screen import print_wrapped
from tlmatrix.config import ConfigError, load_config
from tlmatrix.exit_codes import ExitCode, OutputError, UsageError
from tlmatrix.options.table import COMMANDS
from tlmatrix.processes import idle_rank

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from tlmatrix.config import Config

    Command = Callable[[argparse.Namespace, Config], ExitCode]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code (`tlmatrix.exit_codes.ExitCode`).

    Without `argv` the command is this process's own: once it is interrupted, SIGINT is ignored, so
    that another Ctrl-C while Python ends does not change the exit code.
    """
    try:
        code = _exit_code(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    if code == ExitCode.INTERRUPTED and argv is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _exit_code(given: list[str]) -> int:
    named = COMMANDS.get(given[0]) if given else None
    end = given.index("--") if named and named.words and "--" in given else len(given)
    arguments = command_line().parse_args(given[:end])
    arguments.words = given[end + 1 :]
    if idle := idle_rank():
        print_wrapped(f"tlmatrix: {idle}", sys.stderr)
        return ExitCode.OK
    command = COMMANDS[arguments.command]
    if command.caches and (note := prepare_caches()):
        print_wrapped(f"tlmatrix: {note}", sys.stderr)
    from tlmatrix.spec.issues import SpecError

    try:
        with _server_of_workers(arguments):
            code = command_named(command.target)(arguments, load_config(Path.cwd()))
        sys.stdout.flush()
    except SpecError as error:
        print_wrapped(str(error), sys.stderr)
        return ExitCode.USAGE
    except (ConfigError, UsageError) as error:
        print_wrapped(f"tlmatrix: {error}", sys.stderr)
        return ExitCode.USAGE
    except OutputError as error:
        print_wrapped(f"tlmatrix: {error}", sys.stderr)
        return ExitCode.INTERNAL
    except BrokenPipeError:
        # The reader, such as head, ended. Python must not report an error when it exits.
        _discard_output()
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001 - the exit code 1 would mean that a case failed
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            _discard_output()  # what is left of it must not fail again
            print_wrapped(f"tlmatrix: the output cannot be written: {error.strerror}", sys.stderr)
        else:
            traceback.print_exception(error)
            print_wrapped("tlmatrix: internal error; please report it with these lines", sys.stderr)
        return ExitCode.INTERNAL
    return code


def _discard_output() -> None:
    """Send what is still to be printed nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _server_of_workers(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """Have the server of workers import in the background, if the options ask for workers here."""
    if "workers" not in arguments or not _has_workers(arguments):
        return nullcontext()
    from tlmatrix.engine.server import importing

    return importing()


def _has_workers(arguments: argparse.Namespace) -> bool:
    given = vars(arguments)
    return given["workers"] != "0" and given.get("ray") is None and not given.get("dry_run")


def command_named(target: str) -> Command:
    """The function `module:function` of `tlmatrix.commands`."""
    module, _, name = target.partition(":")
    command: Command = getattr(import_module(f"tlmatrix.commands.{module}"), name)
    return command
