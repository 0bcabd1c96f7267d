"""NVLink between GPUs, asked of a stand-in for NVML: the answers, and that it is asked once."""

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tlmatrix_kernels.distributed import topology


class NVMLError(Exception):
    pass


@pytest.fixture
def library(monkeypatch):
    """Four GPUs, of which 0 and 1 are linked, 2 and 3, and 0 and 2; and what is asked of NVML."""
    nvml = ModuleType("pynvml")
    nvml.asked = []
    nvml.open = 0
    linked = {frozenset("01"), frozenset("23"), frozenset("02")}

    def start():
        nvml.open += 1

    def stop():
        nvml.open -= 1

    def status(one, other, index):
        assert (nvml.open, index) == (1, 7)
        nvml.asked.append((one, other))
        time.sleep(0.01)
        return 0 if frozenset((one, other)) in linked else 5

    nvml.NVMLError = NVMLError
    nvml.NVML_P2P_CAPS_INDEX_NVLINK, nvml.NVML_P2P_STATUS_OK = 7, 0
    nvml.nvmlInit, nvml.nvmlShutdown, nvml.nvmlDeviceGetP2PStatus = start, stop, status
    nvml.nvmlDeviceGetHandleByUUID = lambda name: name.removeprefix("GPU-")
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(topology, "_known", {})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=str(index))
    )
    return nvml


def test_first_unlinked_pair_is_named(library):
    assert topology.nvlinks([0, 1]).every_pair is True
    assert topology.nvlinks([3, 2]).reason == "all of GPUs [3, 2] are connected by NVLink"
    all_four = topology.nvlinks()
    assert all_four.every_pair is False
    assert all_four.reason == "GPUs 0 and 3 are not connected by NVLink"
    assert library.open == 0


def test_fewer_than_two_gpus_have_no_pair(library, monkeypatch):
    assert topology.nvlinks([2]).every_pair is True
    assert topology.nvlinks([2, 2]).every_pair is True
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert topology.nvlinks() == topology.Links(True, "0 GPU: there is no pair to connect")
    assert library.asked == []


def test_concurrent_queries_share_one_answer(library):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(topology.nvlinks([0, 2]))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert {id(answer) for answer in answers} == {id(answers[0])}
    assert library.asked == [("0", "2")]


def test_missing_package_or_driver_is_reported(library, monkeypatch):
    def no_driver():
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(library, "nvmlInit", no_driver)
    answer = topology.nvlinks([0, 1])
    assert answer.every_pair is None
    assert answer.reason == "not known: NVML does not start (Driver Not Loaded)"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    answer = topology.nvlinks([0, 2])
    assert answer.every_pair is None
    assert "nvidia-ml-py is not installed (pip install 'tlmatrix[distributed]')" in answer.reason


def test_query_error_is_reported_and_the_library_closed(library, monkeypatch):
    def unknown(name):
        raise NVMLError(f"no {name}")

    monkeypatch.setattr(library, "nvmlDeviceGetHandleByUUID", unknown)
    answer = topology.nvlinks([0, 1])
    assert (answer.every_pair, answer.reason) == (None, "not known: NVML does not say (no GPU-0)")
    assert library.open == 0


def test_missing_gpu_is_an_error(library):
    with pytest.raises(ValueError, match=r"devices must be from 0 to 3, for 4 GPUs, got \[0, 4\]"):
        topology.nvlinks([0, 4])
