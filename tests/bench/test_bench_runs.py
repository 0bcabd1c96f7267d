"""`tlmatrix bench` from the spec to the verdict, with a fake clock."""

import json
import re
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import sha256

import pytest
import torch

import tlmatrix
from tlmatrix import cli
from tlmatrix.backend.backends import CudaBackend
from tlmatrix.bench.engine import Machine
from tlmatrix.bench.machine import precompile
from tlmatrix.bench.results import read_bench
from tlmatrix.bench.roofs import roof_of
from tlmatrix.bench.timing import Timing
from tlmatrix.commands.bench import bench_cases

pytestmark = pytest.mark.usefixtures("preloaded")

_CODE = """
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Tiles:
    block: int = 64
    stages: int = 1


def tiled(x, tiles: Tiles | None = None):
    tiles = tiles or Tiles()
    calls.append(f"tiled {tiles.block} {tiles.stages}")
    return torch.tanh(x)


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
_CPU = torch.device("cpu")
_GPU = "NVIDIA H200"


@dataclass(frozen=True)
class Gpu(CudaBackend):
    """A GPU as far as a bench looks at it."""

    device: torch.device = _CPU
    arch: str = "sm_90"

    def active(self, _turn=0):
        return nullcontext()

    def synchronize(self):
        pass

    def broken(self):
        return False

    def release(self):
        pass


class Bench:
    """Runs `tlmatrix bench` in a project, on a machine whose clock is `times`' to tell."""

    def __init__(self, project, monkeypatch):
        self.project = project
        self.gpu = _GPU
        self.times = lambda _who, _round: 1.0
        self.calls: list[str] = []
        monkeypatch.setattr("tlmatrix.bench.machine.this_machine", self._machine)

    def spec(self, entry="fast", baselines="[]", configs="{}", code=_CODE):
        return self.written(self.project, entry, baselines, configs, code)

    @staticmethod
    def written(project, entry="fast", baselines="[]", configs="{}", code=_CODE):
        (project.folder / f"{project.module}.py").write_text(code)
        text = _SPEC.format(
            module=project.module, entry=entry, baselines=baselines, configs=configs
        )
        path = project.folder / "tanh.yaml"
        path.write_text(text.replace("MODULE", project.module))
        return path

    @property
    def output(self):
        return self.project.folder / "out.json"

    def seen_cases(self):
        """What is on disk while the run goes on."""
        return [case.case for case in read_bench(self.output).cases] if self.output.exists() else []

    def run(self, *words):
        return self.project.tlmatrix("bench", *words)

    def _machine(self):
        seen = Counter()

        def clock(call, _lead):

            calls = sys.modules[self.project.module].calls
            calls.clear()
            call()
            name = calls[0] if calls else "backward"
            self.calls.append(name)
            seen[name] += 1
            return Timing(self.times(name, seen[name]), 0.02)

        hardware = {"gpu": self.gpu, "driver": "580.1"}
        return Machine(Gpu(), clock, hardware, roof_of(self.gpu), lambda: {"sm_mhz": 1980.0})


@pytest.fixture
def bench(project, monkeypatch):
    return Bench(project, monkeypatch)


def _flat(text):
    return " ".join(text.split())


def test_faster_entry_is_reported_with_its_interval(bench):
    bench.spec("fast", "[MODULE:slow]")
    bench.times = lambda name, n: (1.2 if name == "slow" else 1.0) + 0.001 * (n % 3)
    outcome = bench.run("tanh.yaml", "-k", "rows=1000")
    assert outcome.code == 0, outcome.out
    assert "slow 1.2010 " in _flat(outcome.out)
    assert "1.200 (1.200-1.200) FASTER" in _flat(outcome.out), outcome.out
    assert "NVIDIA H200, driver 580.1" in outcome.out


@pytest.mark.parametrize(
    ("mine", "verdict"),
    [
        (lambda n: 1.0, "SAME"),
        (lambda n: 1.1 + 0.001 * (n % 2), "SLOWER"),
        (lambda n: 0.9 + 0.001 * (n % 2), "FASTER"),
        (lambda n: 0.9 if n % 2 else 1.1, "UNSURE"),
        (lambda n: 1.01 + 0.02 * (n % 2), "UNSURE"),
    ],
)
def test_the_verdict_is_where_the_whole_interval_lies(bench, mine, verdict):
    bench.spec("fast", "[MODULE:slow]")
    bench.times = lambda name, n: mine(n) if name == "fast" else 1.0
    outcome = bench.run("tanh.yaml", "-k", "rows=1000")
    (line,) = [line for line in outcome.out.splitlines() if " slow " in line][:1]
    assert line.split()[-1] == verdict, outcome.out


def test_common_drift_does_not_change_the_verdict(bench):
    bench.spec("fast", "[MODULE:slow]")
    bench.times = lambda _who, n: 1.0 + 0.05 * n  # clocks that fall to a tenth
    outcome = bench.run("tanh.yaml", "-k", "rows=1000")
    assert " 1.000 (1.000-1.000) SAME" in _flat(outcome.out), outcome.out


def test_implementations_alternate_and_rotate_the_start(bench):
    bench.spec("fast", "[MODULE:slow, MODULE:tuned]")
    bench.run("tanh.yaml", "-k", "rows=1000", "--seconds", "0.01")
    forward = [name for name in bench.calls if name != "backward"][9:]  # after the warm-up
    rounds = [forward[at : at + 3] for at in range(0, len(forward), 3)]
    assert len(rounds) == 20
    assert all(len(set(each)) == 3 for each in rounds)
    assert {each[0] for each in rounds} == {"fast", "slow", "tuned 64 1"}


_ONE_WRONG_ROW = _CODE.replace(
    "return torch.tanh(x) + 1", "return torch.tanh(x) + (torch.arange(len(x)) == 7)[:, None]"
)


@pytest.mark.parametrize(
    ("entry", "baseline", "code", "exit_code", "words"),
    [
        ("fast", "wrong", _CODE, 0, r"wrong is wrong and is not timed: y is off by \d+ % of its"),
        ("fast", "wrong", _ONE_WRONG_ROW, 0, "wrong is wrong and is not timed: y is"),
        ("wrong", "slow", _CODE, 1, "entry is wrong and is not timed"),
        ("raising", "slow", _CODE, 1, "entry failed: launch: a kernel cannot be launched"),
    ],
    ids=["wrong baseline", "one wrong row", "wrong entry", "raising entry"],
)
def test_an_implementation_that_is_wrong_is_not_timed(
    bench, entry, baseline, code, exit_code, words
):
    """An entry that is wrong is a finding."""
    bench.spec(entry, f"[MODULE:{baseline}]", code=code)
    outcome = bench.run("tanh.yaml", "-k", "rows=1000")
    assert outcome.code == exit_code
    assert re.search(words, outcome.out)
    assert " SAME" not in outcome.out


def test_baselines_that_do_not_apply_are_reported_and_the_others_timed(bench):
    bench.spec("fast", "[sdpa_cudnn, MODULE:slow, torch]")
    outcome = bench.run("tanh.yaml", "-k", "rows=1000")
    assert outcome.code == 0
    assert "sdpa_cudnn not applicable: implements attention only" in outcome.out
    assert "4 comparisons with other implementations: 4 SAME" in outcome.out, outcome.out


# Files ---------------------------------------------------------------------------------------


def test_results_file_records_the_environment_and_samples(bench):
    path = bench.spec("fast", "[MODULE:slow]")
    bench.run("tanh.yaml", "--output", "out.json", "--baseline", "torch")
    data = json.loads((bench.project.folder / "out.json").read_text())
    assert (data["format"], data["kind"]) == (1, "tlmatrix bench")
    assert data["hardware"] == {"gpu": _GPU, "driver": "580.1"}
    assert data["versions"]["torch"] == torch.__version__
    assert data["specs"] == {"tanh.yaml": sha256(path.read_bytes()).hexdigest()[:16]}
    first, second = data["cases"]
    assert first["case"] == "dtype=float16-rows=1000"
    assert second["values"] == {"dtype": "float32", "rows": 2000}
    assert [each["name"] for each in first["implementations"]] == ["entry", "torch"]
    forward = first["passes"]["forward"]
    assert forward["bytes"] == 2 * 1000 * 8 * 2
    assert first["passes"]["backward"]["bytes"] == 3 * 1000 * 8 * 2
    assert len(forward["milliseconds"]["entry"]["samples"]) >= 20
    assert first["clocks"]["after"] == {"sm_mhz": 1980.0}


def test_killed_run_keeps_the_finished_cases(bench):
    bench.spec("fast")

    def times(_who, _n):
        if len(bench.seen_cases()) == 1:
            raise KeyboardInterrupt
        return 1.0

    bench.times = times
    outcome = bench.run("tanh.yaml", "--output", "out.json")
    assert outcome.code == 130
    assert [case.case for case in read_bench(bench.output).cases] == ["dtype=float16-rows=1000"]


def test_json_goes_to_stdout_alone(bench, capsys):
    bench.spec("fast")
    cli.main(["bench", "tanh.yaml", "--json"])
    out, err = capsys.readouterr()
    assert json.loads(out)["kind"] == "tlmatrix bench"
    assert "NVIDIA H200" in err


@pytest.mark.parametrize(
    ("now", "code", "verdict"), [(1.0, 0, "SAME"), (1.1, 1, "SLOWER"), (0.9, 0, "FASTER")]
)
def test_against_an_earlier_file_each_case_has_a_verdict(bench, now, code, verdict):
    bench.spec("fast")
    bench.run("tanh.yaml", "--output", "old.json")
    bench.times = lambda name, _n: now if name == "fast" else 1.0
    outcome = bench.run("tanh.yaml", "--against", "old.json", "--output", "new.json")
    assert outcome.code == code, outcome.out
    told = [line.split() for line in outcome.out.splitlines() if "entry before" in line]
    assert [line[-1] for line in told] == [verdict, "SAME", verdict, "SAME"]


def test_against_another_gpu_is_refused_before_anything_is_timed(bench):
    bench.spec("fast")
    bench.run("tanh.yaml", "--output", "old.json")
    bench.gpu = "NVIDIA H100 80GB HBM3"
    bench.calls.clear()
    outcome = bench.run("tanh.yaml", "--against", "old.json")
    assert outcome.code == 2
    assert "was timed on NVIDIA H200, not on NVIDIA H100 80GB HBM3" in outcome.out
    assert not bench.calls


def test_case_missing_from_the_earlier_file_is_reported(bench):
    bench.spec("fast")
    bench.run("tanh.yaml", "-k", "rows=1000", "--output", "old.json")
    outcome = bench.run("tanh.yaml", "--against", "old.json")
    assert outcome.out.count("not in old.json") == 1


def test_stored_timings_are_shown_again_without_a_gpu(project, bench):
    bench.spec("fast", "[MODULE:slow]")
    first = bench.run("tanh.yaml", "--output", "old.json").out
    bench.calls.clear()
    again = bench.run("--from", "old.json")
    assert again.code == 0
    tables = first.partition("tanh: ")[2].partition("timings:")[0]
    assert tables in again.out
    assert not bench.calls


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "not written by `tlmatrix bench`"),
        (
            '{"kind": "tlmatrix bench", "format": 99}',
            "has format 99, and this tlmatrix reads format 1",
        ),
        ("nonsense", "not JSON"),
    ],
)
def test_a_file_that_holds_no_timings_is_refused(bench, text, words):
    (bench.project.folder / "x.json").write_text(text)
    outcome = bench.run("--from", "x.json")
    assert outcome.code == 2
    assert words in outcome.out


# Choosing, sweeping, refusing ----------------------------------------------------------------


def test_a_case_can_be_given_in_place_of_the_specs(bench):
    bench.spec("fast")
    outcome = bench.run("tanh.yaml", "--case", '{"rows": 3}')
    assert "tanh: dtype=float16 rows=3" in _flat(outcome.out)
    assert "rows=1000" not in outcome.out
    outcome = bench.run("tanh.yaml", "--case", '{"cols": 3}')
    assert outcome.code == 2
    assert "the spec has no axis 'cols'" in outcome.out


def test_sweep_ranks_configurations_and_names_the_best(bench):
    bench.spec("tuned", configs="{block: [32, 64], stages: [1, 2, 3]}")
    speed = {"tuned 32 2": 0.8, "tuned 64 2": 0.9, "tuned 64 1": 1.0, "tuned 32 1": 1.1}
    bench.times = lambda name, _n: speed.get(name, 1.0)
    outcome = bench.run("tanh.yaml", "-k", "rows=1000", "--sweep")
    ranked = re.findall(r"(block=\d+,stages=\d) +[\d.]+ ", outcome.out.partition("backward")[0])
    assert ranked == [
        "block=32,stages=2",
        "block=64,stages=2",
        "block=64,stages=1",
        "block=32,stages=1",
    ]
    assert "block=32,stages=3 is wrong and is not timed" in outcome.out
    best = _flat(outcome.out.partition("best of")[2])
    assert best.startswith(f"4 configurations, forward, on {_GPU}: block: 32 stages: 2"), best


def test_sweep_over_an_unknown_parameter_is_an_error(bench):
    bench.spec("fast", configs="{blok: [32]}")
    outcome = bench.run("tanh.yaml", "-k", "rows=1000", "--sweep")
    assert outcome.code == 2
    assert re.search(r"tanh.yaml:11:\d+: bench: .* takes no 'blok'. It takes: x", outcome.out)


def test_a_mapping_fills_the_dataclass_that_a_parameter_takes(bench):
    bench.spec("tiled", configs="{tiles: [{block: 32, stages: 2}, {block: 128}]}")
    bench.times = lambda name, _n: 0.5 if name == "tiled 32 2" else 1.0
    outcome = bench.run("tanh.yaml", "-k", "rows=1000", "--sweep", "--output", "out.json")
    assert "on NVIDIA H200: tiles: {block: 32, stages: 2}" in _flat(outcome.out), outcome.out
    (case,) = read_bench(bench.output).cases
    assert case.implementations[-1].config == {"tiles": {"block": 128}}


def test_unknown_dataclass_key_is_reported_at_its_line(bench):
    bench.spec("tiled", configs="{tiles: [{blok: 32}]}")
    outcome = bench.run("tanh.yaml", "-k", "rows=1000", "--sweep")
    assert outcome.code == 2
    assert re.search(r"tanh.yaml:11:\d+: bench: tiles has no 'blok'; did you mean", outcome.out)


def test_long_configurations_are_listed_by_value(bench):
    bench.spec(
        "tiled", configs="{tiles: [{block: 32, stages: 2}, {block: 128, stages: 3333333333333}]}"
    )
    outcome = bench.run("tanh.yaml", "-k", "rows=1000", "--sweep")
    assert "configurations as block/stages" in outcome.out
    assert "  128/3333333333333 " in outcome.out


def test_cases_and_configurations_are_compiled_side_by_side(bench):
    noting = """
import os


def tuned(x, block=64, stages=1):
    with open("seen.txt", "a") as file:
        file.write(f"{os.getpid()} {block}\\n")
    return torch.tanh(x)
"""
    spec = tlmatrix.load(bench.spec("tuned", code=_CODE + noting))
    (one, two) = bench_cases(spec)
    pairs = [(one, {"block": 32}), (one, {}), (two, {"block": 128}), (two, {"blok": 1})]
    precompile(spec, pairs, [bench.project.folder], backend="interpreter")
    seen = [line.split() for line in (bench.project.folder / "seen.txt").read_text().splitlines()]
    assert sorted(block for _, block in seen) == ["128", "32", "64"]
    assert len({process for process, _ in seen}) == 3


def test_unknown_gpu_is_reported_to_have_no_roof(bench):
    bench.gpu = "Somebody's Accelerator"
    bench.spec("fast")
    outcome = bench.run("tanh.yaml", "-k", "rows=1000")
    assert "the peak rates of Somebody's Accelerator are unknown" in outcome.out
    assert " % " not in _flat(outcome.out.partition("forward")[2]).replace("0.0 %", "")


def test_without_a_gpu_the_error_says_what_to_do(project):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    Bench.written(project)
    outcome = project.tlmatrix("bench", "tanh.yaml", code=2)
    assert "bench needs a GPU" in outcome.out
    assert "tlmatrix bench --from FILE" in outcome.out


@pytest.mark.parametrize("columns", [80, 140])
def test_tables_fit_the_terminal(bench, monkeypatch, columns):
    bench.spec("fast", "[MODULE:slow]")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    outcome = bench.run("tanh.yaml")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", outcome.out)
    lines = [line.rstrip() for line in plain.splitlines()]
    assert max(map(len, lines)) <= columns
    assert any(line.endswith("SAME") for line in lines), plain
