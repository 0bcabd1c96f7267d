"""Python processes that start in 50 ms where their imports take three seconds.

`python()` is a command like `sys.executable`, and `script("tlmatrix")` one like the script in the
environment. They are forks of a server that has imported PyTorch, TileLang and tlmatrix
(`preloaded_server`), and so is what they start, as workers of pytest-xdist. Tests of imports, of an
installation and of Ctrl-C in a process group use `PLAIN`.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import spawn
from pathlib import Path
from typing import Any

PLAIN = sys.executable
"""The interpreter itself, for processes that import on their own."""
_FOLDER = "TLMATRIX_TESTS_PRELOADED"
"""The variable with the folder of the server's commands, for workers of the tests."""
_SECONDS = 60
_COMMAND = """\
#!{python} -IS
import sys
sys.path.insert(0, {tests!r})
import preloaded_client
preloaded_client.main({socket!r}, {python!r}, {script!r})
"""


def python() -> str:
    """The command `python`; starts the server if this session has none."""
    return script("python")


def script(name: str) -> str:
    """The command `name`, which is `python`, `pytest` or `tlmatrix`."""
    return str(Path(scripts()) / name)


def run(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python` with these words; its output is captured."""
    command = [python(), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@contextmanager
def used_by_this_process() -> Iterator[None]:
    """Have this process start preloaded processes: `sys.executable`, and by `multiprocessing`."""
    before = sys.executable, spawn.get_executable()
    sys.executable = python()
    spawn.set_executable(sys.executable)
    try:
        yield
    finally:
        sys.executable = before[0]
        spawn.set_executable(before[1])


@cache
def scripts() -> str:
    """The folder of the commands, to be put in front of `PATH`."""
    folder = start()
    deadline = time.monotonic() + _SECONDS
    while not (folder / "socket").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (folder / "socket").exists(), (folder / "log").read_text()
    return str(folder)


def start() -> Path:
    """Start the server of this session without waiting for it; returns its folder."""
    if _FOLDER in os.environ:
        return Path(os.environ[_FOLDER])
    folder = Path(tempfile.mkdtemp(prefix="preloaded-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tests = Path(__file__).parent
    bin_folder = Path(PLAIN).parent
    for name in ("python", "pytest", "tlmatrix"):
        path = folder / name
        words = {
            "python": PLAIN,
            "tests": str(tests),
            "socket": str(folder / "socket"),
            "script": None if name == "python" else str(bin_folder / name),
        }
        path.write_text(_COMMAND.format(**words))
        path.chmod(0o755)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [PLAIN, tests / "preloaded_server.py", folder / "socket", folder / "python"],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # what a fork sends to its process group reaches no test
        )
    atexit.register(process.wait)
    atexit.register(process.stdin.close)
    os.environ[_FOLDER] = str(folder)
    return folder
