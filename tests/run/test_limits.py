"""The finding for a case that exceeded its time limit; a Ctrl-C that the code under test loses."""

import signal
import time

import pytest

from tlmatrix.run import limits
from tlmatrix.run.limits import Interrupts, out_of_time

LAUNCHED = '  File "/site-packages/torch/cuda/__init__.py", line 1162, in synchronize\n'
COMPILED = '  File "/site-packages/tilelang/engine/lower.py", line 300, in lower\n'


def test_timeout_of_a_running_case():
    finding = out_of_time(["a\n", "b\n", "c\n", "d\n", LAUNCHED])
    assert finding.title == "the case exceeded its time limit"
    assert finding.detail == "b\nc\nd\n" + LAUNCHED.rstrip()
    assert finding.hint.startswith("an endless loop, or a barrier at which no thread arrives")
    assert out_of_time().detail is None


def test_timeout_of_a_compiling_case():
    finding = out_of_time([COMPILED, '  File "subprocess.py", line 1209, in communicate\n'])
    assert finding.title == "the case exceeded its time limit while compiling"
    assert "run fewer processes" in finding.hint


class Finalized:
    """Its finalizer receives a Ctrl-C, and Python discards the exception."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def ctrl_c_raises():
    """Ctrl-C raises KeyboardInterrupt, also where it is ignored, as in background jobs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("ctrl_c_raises")
def test_ctrl_c_in_a_finalizer_ends_the_code_all_the_same(monkeypatch):
    monkeypatch.setattr(limits, "_AGAIN", 0.05)
    interrupts = Interrupts()
    start = time.monotonic()

    def sleep_after_ctrl_c():
        with interrupts.watch():
            Finalized()
            time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        sleep_after_ctrl_c()
    assert interrupts.received
    assert time.monotonic() - start < 30
    time.sleep(0.2)  # no Ctrl-C follows the end of the code
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c_raises")
def test_further_ctrl_c_do_not_interrupt_what_handles_the_first():
    interrupts, handled = Interrupts(), []

    def handles():
        with interrupts.watch():
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                for number in range(5):
                    signal.raise_signal(signal.SIGINT)
                    handled.append(number)

    with pytest.raises(KeyboardInterrupt):
        handles()
    assert handled == [0, 1, 2, 3, 4]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
