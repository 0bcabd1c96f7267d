"""Forks of this process."""

import os
import signal
import time

import pytest

from tlmatrix.processes import ForkError, in_fork


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
        in_fork(lambda: time.sleep(60), 0.2)
    assert time.monotonic() - start < 10
