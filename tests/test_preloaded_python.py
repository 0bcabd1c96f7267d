"""Preloaded processes behave as those of the interpreter itself."""

import json
import os
import signal
import socket
import struct
import subprocess
from pathlib import Path

import pytest

import preloaded_python


def _run(*words, **options):
    return preloaded_python.run(*words, timeout=60, **options)


def test_imports_are_there(tmp_path):
    done = _run("-c", "import sys, os; print('torch' in sys.modules, os.getcwd())", cwd=tmp_path)
    assert done.stdout == f"True {tmp_path}\n", done.stderr


def test_what_a_process_starts_is_preloaded_too():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(1)'])"
    assert _run("-c", code).stdout == "1\n"
    shown = _run("-c", "import sys; print(sys.executable)").stdout.strip()
    assert shown == preloaded_python.python()


@pytest.mark.parametrize("interpreter", ["python", "PLAIN"])
def test_arguments_and_streams(tmp_path, interpreter):
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, sys\n"
        "print(json.dumps([__name__, __file__, sys.argv, sys.path[:2], sys.stdin.read()]))\n"
        "print(os.environ['ADDED'], file=sys.stderr)\n"
        "sys.exit('the end')\n"
    )
    python = getattr(preloaded_python, interpreter)
    done = subprocess.run(
        [python if isinstance(python, str) else python(), str(script), "a b"],
        input="typed", capture_output=True, text=True, check=False,
        env={**os.environ, "ADDED": "more", "PYTHONPATH": "/elsewhere"},
    )  # fmt: skip
    assert json.loads(done.stdout) == [
        "__main__", str(script), [str(script), "a b"], [str(tmp_path), "/elsewhere"], "typed",
    ]  # fmt: skip
    assert done.stderr == "more\nthe end\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("code", "returned"),
    [
        ("import sys; sys.exit(3)", 3),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os._exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_exit_codes(code, returned):
    done = _run("-c", code)
    assert done.returncode == returned
    assert "preloaded" not in done.stderr


def test_options_of_the_interpreter_are_its_own():
    assert _run("-I", "-c", "import sys; print(sys.flags.isolated)").stdout == "1\n"
    seeded = {**os.environ, "PYTHONHASHSEED": "1"}
    code = "import sys; print('torch' in sys.modules, sys.flags.hash_randomization)"
    assert _run("-c", code, env=seeded).stdout.startswith("False")


def test_signals_reach_the_process_and_killing_the_command_kills_it():
    code = "import time; print('started', flush=True); time.sleep(60)"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(
            [preloaded_python.python(), "-c", code],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ) as command:  # fmt: skip
            assert command.stdout.readline() == "started\n"
            command.send_signal(number)
            # The pipe is closed when the process has ended too.
            assert command.stdout.read() == ""
            assert command.wait() == -number


@pytest.mark.parametrize("leads", [True, False])
def test_a_process_that_kills_its_group_kills_itself_alone(leads):
    code = "import os; print(os.getpid() == os.getpgrp(), os.getpid() == os.getsid(0))"
    assert _run("-c", code, start_new_session=leads).stdout == f"True {leads}\n"
    killed = _run("-c", "import os; os.killpg(0, 9)", start_new_session=leads)
    assert killed.returncode == -signal.SIGKILL
    assert _run("-c", "import sys; print('torch' in sys.modules)").stdout == "True\n"


@pytest.mark.parametrize(
    "sent", [b"", b"\1", struct.pack("ii", 100, 3), struct.pack("ii", 9, 0) + b"ab"]
)
def test_the_server_survives_commands_killed_while_they_ask(sent):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(Path(preloaded_python.scripts(), "socket")))
        connection.sendall(sent)
    assert _run("-c", "import sys; print('torch' in sys.modules)").stdout == "True\n"
