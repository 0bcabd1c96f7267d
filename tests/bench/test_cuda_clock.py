"""On a GPU: the clock tells device time, cold caches, and nothing of a slow host."""

import json
import time
from pathlib import Path

import pytest
import torch

import preloaded_python
from tlmatrix.bench.machine import this_machine
from tlmatrix.bench.timing import Schedule, interleaved

pytestmark = pytest.mark.cuda

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def machine():
    return this_machine()


def times(machine, *calls):
    named = {str(number): call for number, call in enumerate(calls)}
    found = interleaved(named, machine.clock, Schedule(seconds=0.2))
    return [sorted(samples.device)[len(samples.device) // 2] for samples in found.values()]


def test_twice_the_work_takes_twice_the_time(machine):
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)

    def products(count):
        for _ in range(count):
            torch.matmul(a, a)

    one, two = times(machine, lambda: products(2), lambda: products(4))
    assert 1.7 < two / one < 2.3


def test_a_slow_host_is_not_counted(machine):
    x = torch.zeros(1024, device="cuda")

    def slow():
        time.sleep(0.002)
        x.add_(1)

    fast, late = times(machine, lambda: x.add_(1), slow)
    assert late < fast + 0.2


def test_caches_are_cold(machine):
    # Half of the L2 cache: warm, it would be read at several times the memory's rate.
    size = machine.hardware["l2_bytes"] // 2
    x = torch.zeros(size // 4, device="cuda")
    (read,) = times(machine, x.sum)
    assert size / read / 1e-3 < 1.1 * machine.roof.bandwidth


def test_a_product_stays_below_the_roof(machine):
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    (one,) = times(machine, lambda: a @ a)
    share = 2 * 8192**3 / one / 1e-3 / machine.roof.peak("bfloat16")
    assert 0.5 < share < 1.0


def test_a_bench_of_a_spec_runs_from_the_command_line(tmp_path):
    words = ["bench", str(ROOT / "specs/gqa_dense.yaml"), "--output", "out.json"]
    words += ["--seconds", "0.2", "--baseline", "sdpa_flash"]
    words += ["--case", '{"batch": 2, "head_dim": 64, "seqlen_q": 1024, "causal": true}']
    done = preloaded_python.run("-m", "tlmatrix", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["hardware"]["gpu"] == torch.cuda.get_device_name()
    (case,) = data["cases"]
    assert {each["name"]: each["state"] for each in case["implementations"]} == {
        "entry": "timed",
        "sdpa_flash": "timed",
    }
    assert set(case["passes"]) == {"forward", "backward"}
