"""Forks of this process, and the daemon of a shared CUDA context."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tlmatrix.processes import Fork, ForkError, in_fork, shared_context


def test_the_result_of_a_fork_is_returned():
    assert in_fork(lambda: {"pid": os.getpid()})["pid"] != os.getpid()


def test_what_a_fork_raises_is_named():
    with pytest.raises(ForkError, match=r"^ZeroDivisionError: "):
        in_fork(lambda: 1 / 0)


def test_a_fork_that_a_signal_ends_is_reported():
    with pytest.raises(ForkError, match="it was ended by SIGKILL"):
        in_fork(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_a_fork_that_takes_too_long_is_killed():
    start = time.monotonic()
    with pytest.raises(ForkError, match=r"it took more than 0\.2 s"):
        Fork(time.sleep)(60, 0.2)
    assert time.monotonic() - start < 10


def test_a_fork_that_ended_between_two_calls_is_replaced():
    """As it does with the thread that forked it."""
    fork = Fork(lambda _: os.getpid())
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(fork, None).result()
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert fork(None) != first
    fork.close()


def test_calls_share_a_fork_until_it_ends():
    numbers = []

    def added(number):
        if number < 0:
            os._exit(3)
        numbers.append(number)
        return os.getpid(), len(numbers)

    fork = Fork(added)
    first, _ = fork(5)
    assert fork(6) == (first, 2)
    with pytest.raises(ForkError, match="exit 3"):
        fork(-1)
    second, count = fork(7)
    assert in_fork(fork.close) == 0, "of another process"
    assert fork(8) == (second, 2)
    assert (second != first, count, numbers) == (True, 1, [])
    fork.close()
    for process in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.parametrize(
    ("pid", "runs"), [("own", True), (2**22 + 1, False), ("", False), (None, False)]
)
def test_a_context_is_shared_while_the_daemon_of_mps_runs(pid, runs, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    if pid is not None:
        text = str(os.getpid() if pid == "own" else pid)
        (tmp_path / "nvidia-cuda-mps-control.pid").write_text(text)
    assert shared_context.__wrapped__() is runs
