"""NVLink between GPUs, asked of a stand-in for NVML: the answers, and that it is asked once."""

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tlmatrix import simulate
from tlmatrix_kernels.distributed import (
    all_gather,
    all_gather_gemm,
    create_context,
    gemm_reduce_scatter,
    reduce_scatter,
    topology,
)
from tlmatrix_kernels.distributed.attention import sequence_attention


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
    monkeypatch.setenv("PATH", "")
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
    assert answer.reason.startswith(
        "not known: NVML does not start (Driver Not Loaded); nvidia-smi "
    )
    monkeypatch.setitem(sys.modules, "pynvml", None)
    answer = topology.nvlinks([0, 2])
    assert answer.every_pair is None
    assert "nvidia-ml-py is not installed (pip install 'tlmatrix[distributed]')" in answer.reason


def test_query_error_is_reported_and_the_library_closed(library, monkeypatch):
    def unknown(name):
        raise NVMLError(f"no {name}")

    monkeypatch.setattr(library, "nvmlDeviceGetHandleByUUID", unknown)
    answer = topology.nvlinks([0, 1])
    assert answer.every_pair is None
    assert answer.reason.startswith("not known: NVML does not say (no GPU-0); nvidia-smi does not")
    assert library.open == 0


def test_missing_gpu_is_an_error(library):
    with pytest.raises(ValueError, match=r"devices must be from 0 to 3, for 4 GPUs, got \[0, 4\]"):
        topology.nvlinks([0, 4])


SMI = """#!/bin/sh
if [ "$1" = topo ]; then
  printf ' \\033[4mGPU0\\tGPU1\\tGPU2\\033[0m\\n'
  printf ' GPU0\\tX\\tOK\\tNS\\n GPU1\\tOK\\tX\\tOK\\n GPU2\\tNS\\tOK\\tX\\n\\n  OK = supported\\n'
else
  printf '0, GPU-3\\n1, GPU-1\\n2, GPU-0\\n'
fi
"""


def test_nvidia_smi_answers_without_nvml(library, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert topology.nvlinks([0, 1]).every_pair is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI, encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    # That it was unknown is not remembered; indices are those of nvidia-smi, by UUID.
    assert topology.nvlinks([0, 1]) == topology.Links(
        True, "all of GPUs [0, 1] are connected by NVLink"
    )
    assert topology.nvlinks([0, 3]).reason == "GPUs 0 and 3 are not connected by NVLink"
    answer = topology.nvlinks([0, 2])
    assert answer.every_pair is None
    assert answer.reason.endswith("nvidia-smi has no GPU 0 or 2")


def calls_between(links, monkeypatch, **options):
    """What all operators give on two ranks whose GPUs have these links, and the simulation."""
    monkeypatch.setattr("tlmatrix_kernels.distributed.context._links", lambda context: links)
    a = torch.arange(80).reshape(2, 5, 8).remainder(3).half()
    b = torch.arange(64).reshape(8, 8).remainder(2).half()

    def program(rank):
        context = create_context(**options)
        got = [
            all_gather(a[rank], context=context),
            all_gather_gemm(a[rank], b, context=context),
            gemm_reduce_scatter(a[rank], b, context=context),
            reduce_scatter(a[rank], context=context),
        ]
        rows = slice(3) if rank == 0 else slice(3, 5)
        whole = [a.flatten(0, 1), a.flatten(0, 1) @ b, (a.sum(0) @ b)[rows], a.sum(0)[rows]]
        with pytest.raises(ValueError, match="overlap must be False or None between GPUs without"):
            all_gather_gemm(a[rank], b, context=context, overlap=True)
        q = torch.zeros(1, 4, 1, 32).half()
        with pytest.raises(RuntimeError, match="sequence_attention needs GPUs with NVLink"):
            sequence_attention(q, q, q, context=context)
        return [torch.equal(x, y) for x, y in zip(got, whole, strict=True)], context._buffers == {}

    return simulate(program, world=2)


def test_gpus_without_nvlink_are_refused_or_take_collectives(monkeypatch):
    links = topology.Links(False, "GPUs 0 and 1 are not connected by NVLink")
    with pytest.raises(RuntimeError, match="not connected by NVLink: pass require_nvlink=False"):
        calls_between(links, monkeypatch)
    with pytest.warns(UserWarning, match="not connected by NVLink: operators use collectives"):
        found = calls_between(links, monkeypatch, require_nvlink=False)
    assert found.results == [([True] * 4, True)] * 2
    assert not found.reports
