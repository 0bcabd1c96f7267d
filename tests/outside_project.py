"""A project of a user's own, in a folder of its own: a kernel file, a spec beside it, no packaging.

The entry is plain PyTorch, so a run costs milliseconds; its axis `how` makes it fail in every way
that a run must survive.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import preloaded_python
from tlmatrix import cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_KERNEL = """
import os
import signal
import time

import torch


def reference(x):
    return 2 * x


def scale(x, how="right"):
    if how == "raise":
        raise RuntimeError("the kernel gave up")
    if how == "unknown":
        from tlmatrix.interpreter import Unsupported

        raise Unsupported("the interpreter does not model T.call_extern")
    if how == "refuse":
        raise ValueError("how must be right")
    if how == "exit" or (how == "exit_late" and len(x) >= 17):
        os._exit(3)
    if how == "skip":
        import pytest

        pytest.skip("not today")
    if how == "sys_exit":
        raise SystemExit(0)
    if how == "keyboard":
        raise KeyboardInterrupt
    if how == "base":
        raise type("Unusual", (BaseException,), {})("gave up")
    if how == "surrogate":
        raise ValueError("a file \\udc80 \\x1b[31m")
    if how == "long":
        raise ValueError("x" * 3_000_000 + "\\nthe end")
    if how == "fork":
        os.fork()
    if how == "lose_gpu":  # as a backend whose CUDA context is lost
        from tlmatrix.backend.backends import InterpreterBackend

        InterpreterBackend.broken = lambda _self: True
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if how == "end_between":  # the process ends when no case runs
        from tlmatrix.fuzz.search import _Search

        _Search._over = lambda _self: os._exit(4)
    if how == "stuck":
        with open("processes", "a") as file:
            file.write(f"{os.getpid()}\\n")
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
    if how == "gpus":
        with open("seen", "a") as file:
            file.write(os.environ["CUDA_VISIBLE_DEVICES"] + "\\n")
    if how == "abort":
        os.abort()
    if how == "segfault":
        import ctypes

        ctypes.string_at(0)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "memory":
        raise MemoryError
    if how == "memory_once" and not os.path.exists("was_full"):
        open("was_full", "w").close()
        raise MemoryError
    if how == "sleep":
        time.sleep(60)
    if how == "hang" or (how == "hang_late" and len(x) >= 17):
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
    y = 2 * x
    if how == "slow" and not os.path.exists("hurry"):
        time.sleep(1)
    if how == "compiling":  # as a compiler that gets the signal too
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            raise RuntimeError("compilation failed") from None
    if how == "interrupting":
        signal.raise_signal(signal.SIGINT)
    if how == "wrong":
        y = y + torch.eye(*x.shape, dtype=x.dtype)
    return y
"""

_SPEC = """\
name: {name}
problem:
  inputs:
    x: {{shape: [rows, cols], dtype: $dtype, grad: true}}
  outputs: [y]
  reference: {module}:reference
entry: {module}:scale
axes:
  dtype: [float32, float16]
  rows: {rows}
  cols: [3]
  how: {how}
tiers: {{quick: product}}
checks: [numeric, gradients]
"""

_numbers = itertools.count()


@dataclass
class Outcome:
    """What a run said and returned."""

    code: int
    out: str

    def expect(self, code: int | None) -> Outcome:
        """Fail unless the exit code is `code`; None for any."""
        assert code is None or self.code == code, self.out
        return self


# `unraisableexception` collects garbage five times at the end of a session.
_PLAIN = ("--assert=plain", "-p", "no:cacheprovider", "-p", "no:warnings")
_PLAIN += ("-p", "no:unraisableexception")


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []
        # Python keeps modules: two projects of one process need two names.
        self.module = f"outside_kernel_{os.getpid()}_{next(_numbers)}"
        (folder / f"{self.module}.py").write_text(_KERNEL)

    def spec(
        self, name: str = "scale", *, how: str = "[right]", rows: str = "[1, 5]", more: str = ""
    ) -> Path:
        path = self.folder / f"{name}.yaml"
        text = _SPEC.format(name=name, module=self.module, how=how, rows=rows)
        path.write_text(text + textwrap.dedent(more))
        return path

    def pytest(self, *arguments: str, code: int | None = None) -> Outcome:
        """`pytest` in this process, as if called in the project's folder; see `command_line`."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            found = pytest.main([*_PLAIN, *arguments])
        return Outcome(int(found), out.getvalue()).expect(code)

    def tlmatrix(self, *arguments: str, code: int | None = None) -> Outcome:
        """See `command_line`."""
        return command_line(*arguments, code=code)

    def start(self, *words: str, executable: str = "") -> subprocess.Popen[str]:
        """A command in a process group of its own; Ctrl-C stops it even where it is ignored here.

        (A shell's background jobs ignore it, and so does what they start.)
        """
        executable = executable or preloaded_python.python()
        code = (
            "import runpy, signal, sys; sys.argv.pop(0); "
            "signal.signal(signal.SIGINT, signal.default_int_handler); "
            "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            [executable, "-c", code, *words],
            cwd=self.folder,
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, *words: str, code: int | None = None) -> Outcome:
        """A command in a process of its own, which must end with `code`, if given."""
        process = self.start(*words)
        out, _ = process.communicate(timeout=120)
        return Outcome(process.returncode, out).expect(code)

    def end(self) -> None:
        """End what a test that failed left running, which would fail a later one."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition holds, such as that a process has written a file."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def command_line(*arguments: str, code: int | None = None) -> Outcome:
    """`tlmatrix` with these arguments, in this process; it must end with `code`, if given."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            found = cli.main(arguments)
        except SystemExit as stop:
            found = int(stop.code or 0)
    return Outcome(found, out.getvalue()).expect(code)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    environment = dict(os.environ)
    project = Project(tmp_path)
    with preloaded_python.used_by_this_process():
        yield project
    project.end()
    # Ray sets `PYTHONBREAKPOINT`, with which later tests would start no preloaded processes.
    os.environ.clear()
    os.environ.update(environment)
    for name in set(sys.modules) - before:
        if name.startswith("outside_kernel_"):
            del sys.modules[name]
