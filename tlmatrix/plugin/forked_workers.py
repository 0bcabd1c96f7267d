"""Workers of pytest-xdist that are forked from a server with their imports, in sessions of specs.

Importing PyTorch and TileLang takes each worker three seconds of a core. The server imports them
once, while the controller starts and plans, and a worker that replaces a lost one starts at once.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import random
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from execnet.gateway_base import Popen2IO
from execnet.gateway_bootstrap import bootstrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext

    from execnet import Gateway, Group, XSpec
    from execnet.gateway_base import ExecModel

_PRELOADED = ["tlmatrix.plugin.preload"]


def only_specs(arguments: Iterable[str]) -> bool:
    """Whether a session with these paths and node ids collects nothing but specs.

    Other tests may depend on what is imported when, and get workers of pytest-xdist's own.
    """
    paths = [Path(argument.partition("::")[0]) for argument in arguments]
    return bool(paths) and all(
        path.suffix in (".yaml", ".yml")
        or (path.is_dir() and next(path.rglob("*.py"), None) is None)
        for path in paths
    )


def start_server() -> None:
    """Start the server of this process, which imports in the background; only on Linux.

    Without it (its socket's path is too long below a long `$TMPDIR`) execnet starts workers.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return
    from multiprocessing import forkserver

    _context()
    # Ctrl-C reaches all processes of a terminal; the controller ends its workers, they the server.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with suppress(OSError):
            forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def fork_workers(group: Group) -> None:
    """Make `group`, of pytest-xdist's node manager, fork its workers where it would start them."""
    original = group.makegateway

    def makegateway(spec: XSpec) -> Gateway:
        elsewhere = ("python", "chdir", "nice", "env", "via", "dont_write_bytecode")
        if not spec.popen or any(getattr(spec, name, None) for name in elsewhere):
            return original(spec)
        group.allocate_id(spec)
        try:
            gateway = bootstrap(_ForkedIO(group.execmodel), spec)
        except (OSError, EOFError):  # the server could not import, or has ended
            return original(spec)
        gateway.spec = spec
        group._register(gateway)  # noqa: SLF001 - as `makegateway` does
        return gateway

    group.makegateway = makegateway  # type: ignore[method-assign, assignment]


class _ForkedIO(Popen2IO):
    """The input and output of a forked worker, as execnet has them of a subprocess."""

    def __init__(self, execmodel: ExecModel) -> None:
        context = _context()
        requests, ours = context.Pipe(duplex=False)
        answers, theirs = context.Pipe(duplex=False)
        # Not a daemon, which could not start processes of ranks.
        self._process = context.Process(
            target=_serve, args=(requests, theirs, dict(os.environ)), name="worker"
        )
        with requests, theirs, _without_main():
            self._process.start()
        super().__init__(
            os.fdopen(os.dup(ours.fileno()), "wb"),
            os.fdopen(os.dup(answers.fileno()), "rb"),
            execmodel=execmodel,
        )
        ours.close()
        answers.close()

    def wait(self) -> int | None:
        """The exit code, when the worker has ended."""
        with suppress(OSError, AssertionError):
            self._process.join()
        return self._process.exitcode

    def kill(self) -> None:
        """End the worker."""
        with suppress(OSError):
            self._process.kill()


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module, which a process of multiprocessing would import again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(requests: Connection, answers: Connection, environment: dict[str, str]) -> None:
    """Do in a fork what `python -c` does for execnet, by way of standard input and output."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    for number, connection in enumerate((requests, answers)):
        os.dup2(connection.fileno(), number)
        connection.close()
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    main: dict[str, Any] = {"__name__": "__main__"}
    exec(eval(sys.stdin.readline()), main)  # noqa: S307, S102 - the line that execnet sends
    atexit._run_exitfuncs()  # noqa: SLF001 - which multiprocessing leaves out
