"""A bench from the spec to the verdict, with a clock that says what the test wants to hear."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch

from outside_project import Outcome, Project, project
from tlmatrix.bench.engine import Machine
from tlmatrix.bench.roofs import roof_of
from tlmatrix.bench.timing import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

__all__ = ["project"]

_CODE = """
import torch

calls = []


def reference(x):
    return torch.tanh(x)


def fast(x):
    calls.append("fast")
    return torch.tanh(x)


def slow(x):
    calls.append("slow")
    return torch.tanh(x)


def wrong(x):
    return torch.tanh(x) + 1


def tuned(x, block=64, stages=1):
    calls.append(f"tuned {block} {stages}")
    return torch.tanh(x) if stages < 3 else x


def raising(x):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""
_SPEC = """\
name: tanh
problem:
  inputs: {{x: {{shape: [rows, 8], dtype: $dtype, grad: true}}}}
  outputs: [y]
  reference: {module}:reference
entry: {module}:{entry}
axes: {{dtype: [float16, float32], rows: [4, 6]}}
bench:
  cases: [{{rows: 1000}}, {{rows: 2000, dtype: float32}}]
  baselines: {baselines}
  configs: {configs}
"""
_GPU = "NVIDIA H200"


@dataclass(frozen=True)
class Gpu:
    """A GPU as far as a bench looks at it."""

    name: str = "cuda"
    arch: str = "sm_90"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def targeting(self, _architectures: Sequence[str]) -> Gpu:
        return self

    def active(self, _turn: int = 0) -> AbstractContextManager[None]:
        return nullcontext()

    def synchronize(self) -> None:
        pass

    def broken(self) -> bool:
        return False

    def release(self) -> None:
        pass


class Bench:
    """Runs `tlmatrix bench` in a project, on a machine whose clock is `times`' to tell."""

    def __init__(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        self.project = project
        self.gpu = _GPU
        self.times: Callable[[str, int], float] = lambda _who, _round: 1.0
        self.calls: list[str] = []
        monkeypatch.setattr("tlmatrix.bench.machine.this_machine", self._machine)

    def spec(
        self, entry: str = "fast", baselines: str = "[]", configs: str = "{}", code: str = _CODE
    ) -> Path:
        module = self.project.module
        (self.project.folder / f"{module}.py").write_text(code)
        path = self.project.folder / "tanh.yaml"
        path.write_text(
            _SPEC.format(module=module, entry=entry, baselines=baselines, configs=configs).replace(
                "MODULE", module
            )
        )
        return path

    def run(self, *words: str) -> Outcome:
        return self.project.tlmatrix("bench", *words)

    def _machine(self) -> Machine:
        seen: Counter[str] = Counter()

        def clock(call: Callable[[], object], _lead: float) -> Timing:
            import sys

            calls = sys.modules[self.project.module].calls
            calls.clear()
            call()
            who = calls[0] if calls else "backward"
            self.calls.append(who)
            seen[who] += 1
            return Timing(self.times(who, seen[who]), 0.02)

        hardware = {"gpu": self.gpu, "driver": "580.1"}
        return Machine(Gpu(), clock, hardware, roof_of(self.gpu), lambda: {"sm_mhz": 1980.0})


@pytest.fixture
def bench(project: Project, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(project, monkeypatch)


def _flat(text: str) -> str:
    return " ".join(text.split())


def test_a_faster_entry_is_told_so_with_its_interval(bench: Bench) -> None:
    bench.spec("fast", "[MODULE:slow]")
    bench.times = lambda who, n: (1.2 if who == "slow" else 1.0) + 0.001 * (n % 3)
    outcome = bench.run("tanh.yaml", "-k", "rows=1000", "--output", "out.json")
    assert outcome.code == 0, outcome.out
    assert "1.200 (1.200-1.200) FASTER" in _flat(outcome.out), outcome.out
    assert "NVIDIA H200, driver 580.1" in outcome.out
