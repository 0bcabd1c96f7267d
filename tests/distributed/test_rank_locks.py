"""Processes of ranks take turns on the GPUs of the machine."""

import threading
import time
from uuid import uuid4

import pytest

from tlmatrix.distributed.executors import machine_slot


class Busy:
    """How many threads are in it, and the most that ever were."""

    def __init__(self):
        self.now = self.most = 0

    def work(self):
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.02)
        self.now -= 1


def in_threads(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_no_more_have_a_place_at_a_time_than_there_are():
    busy, name = Busy(), f"test-{uuid4()}"

    def work():
        with machine_slot(name, 2):
            busy.work()

    in_threads(6, work)
    assert busy.most == 2


def test_a_place_is_free_again_after_an_error():
    name = f"test-{uuid4()}"
    with pytest.raises(ZeroDivisionError), machine_slot(name, 1):
        _ = 1 / 0
    with machine_slot(name, 1):
        pass
