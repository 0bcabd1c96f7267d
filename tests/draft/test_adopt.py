"""`tlmatrix adopt`: specs for a whole repository, and a table of what judges it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from draft.test_record import finished, repository
from outside_project import project
from tlmatrix.check.finding import Finding
from tlmatrix.draft.adopt import Job, Row, _jobs, _judged, _run_jobs, definitions_of
from tlmatrix.draft.calls import Call, Seen, write_call
from tlmatrix.draft.manifest import Entry, examples
from tlmatrix.draft.text import Draft
from tlmatrix.draft.uses import Uses
from tlmatrix.draft.verdicts import Trial
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.run.result import CaseResult, Status

__all__ = ["project", "repository"]

MANIFEST = """
ScaleOp:
  ref_api: "torch.nn.functional.silu"
  signature:
    inputs:
      x: {dtype: "float32 | float16"}
    outputs:
      y: {dtype: "same_as(x)"}
    params:
      slope: {type: float, default: 1.0}
  workloads:
    - {x_shape: [2048, 4096], dtypes: [float32], label: large}
    - {x_shape: [4, 1024], dtypes: [float32], label: small}
"""
OPERATOR = """
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[1])
def silu_kernel(n, block=128):
    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=block) as b:
            for i in T.Parallel(block):
                if b * block + i < n:
                    Y[b * block + i] = X[b * block + i] / (1 + T.exp(-X[b * block + i]))
    return main

class ScaleOp:
    def __init__(self, slope: float = 1.0):
        if slope != 1.0:
            raise ValueError("not supported")
        self.slope = slope

    def __call__(self, x):
        return self.forward(x)

    def forward(self, x):
        return silu_kernel(x.numel())(x.flatten()).reshape(x.shape)
"""


def adopt(project, *words):
    with project.start("tlmatrix", "adopt", ".", "-n", "1", *words) as process:
        out, _ = process.communicate(timeout=180)
    rows = (project.folder / "specs" / "rows.jsonl").read_text().splitlines()
    return process.returncode, out, {row["target"]: row for row in map(json.loads, rows)}


def test_recorded_operators_and_those_of_a_manifest_are_judged(repository):
    (repository.folder / "ops.py").write_text(OPERATOR)
    (repository.folder / "manifest.yaml").write_text(MANIFEST)
    words = ["--", "-m", "pytest", "tests", "-q"]
    code, out, rows = adopt(repository, *words)
    assert set(rows) == {"rows:row_sum", "ops:ScaleOp", "ops:silu_kernel"}
    # Sizes that nothing refuses are a finding, though the cases of the others pass.
    assert code == ExitCode.FINDINGS, out
    assert rows["rows:row_sum"]["status"] == "findings", out
    assert rows["rows:row_sum"]["failed"] == 0, out
    assert "cols=33 is not refused, and is wrong: " in rows["rows:row_sum"]["note"]
    assert rows["rows:row_sum"]["reference"] == "tests.test_rows:expected"
    assert rows["ops:ScaleOp"]["status"] == "judged", out
    assert rows["ops:ScaleOp"]["reference"] == "torch.nn.functional:silu"
    page = (repository.folder / "specs" / "adopted.html").read_text()
    assert "tests.test_rows:expected" in page
    spec = repository.folder / "specs" / rows["rows:row_sum"]["spec"]
    finished(repository, "run", str(spec), "-n", "0")
    # A second time nothing is recorded or run again.
    before = (repository.folder / "specs" / "rows.jsonl").read_text()
    assert adopt(repository, *words)[1].splitlines()[-2:] == out.splitlines()[-2:]
    assert (repository.folder / "specs" / "rows.jsonl").read_text() == before


BESIDE = """
import tilelang
import tilelang.language as T
from helper import FACTOR, ref_program

@tilelang.jit(out_idx=[1])
def scaled_{name}(n, block=64):
    @T.prim_func
    def main(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=block) as b:
            for i in T.Parallel(block):
                if b * block + i < n:
                    y[b * block + i] = x[b * block + i] * FACTOR
    return main
"""


def test_kernels_import_the_modules_beside_them(project):
    for factor, name in enumerate(("one", "two"), 2):
        folder = project.folder / "examples" / name
        folder.mkdir(parents=True)
        (folder / f"kernel_{name}.py").write_text(BESIDE.format(name=name))
        helper = f"FACTOR = {factor}.0\n\ndef ref_program(x):\n    return x * FACTOR\n"
        (folder / "helper.py").write_text(helper)
    code, out, rows = adopt(project)
    assert code == ExitCode.OK, out
    assert {row["status"] for row in rows.values()} == {"judged"}, out
    assert set(rows) == {f"examples.{n}.kernel_{n}:scaled_{n}" for n in ("one", "two")}
    finished(project, "run", "specs", "-n", "0")  # both in one process


SCRIPT = """
import argparse
import torch
import tilelang
import tilelang.language as T

class Config:
    block = 32

@tilelang.jit(out_idx=[1])
def _scaled_kernel(n, config):
    @T.prim_func
    def main(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, config.block), threads=config.block) as b:
            for i in T.Parallel(config.block):
                if b * config.block + i < n:
                    y[b * config.block + i] = x[b * config.block + i] * 2
    return main

def scaled(x):
    return _scaled_kernel(x.shape[0], Config)(x)

@tilelang.jit(out_idx=[1])
def tripled(n, name):
    assert name == "three"

    @T.prim_func
    def main(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 32), threads=32) as b:
            for i in T.Parallel(32):
                if b * 32 + i < n:
                    y[b * 32 + i] = x[b * 32 + i] * 3
    return main

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=97)
    x = torch.randn(parser.parse_args().size, device="cuda")
    torch.testing.assert_close(scaled(x), x + x)
    torch.testing.assert_close(tripled(len(x), "three")(x), 3 * x)
"""


def test_scripts_are_run_whose_kernels_nothing_calls(project):
    """Guessed arguments are refused. What only an operator calls is judged with it."""
    (project.folder / "script.py").write_text(SCRIPT)
    code, out, rows = adopt(project)
    assert code == ExitCode.OK, out
    assert {target: row["status"] for target, row in rows.items()} == {
        "script:scaled": "judged",
        "script:tripled": "judged",
    }, out
    before = (project.folder / "specs" / "scripts" / "script.jsonl").stat().st_mtime_ns
    adopt(project)
    assert (project.folder / "specs" / "scripts" / "script.jsonl").stat().st_mtime_ns == before


def test_kernels_are_imported_from_folders_that_are_no_packages(project):
    """One has a dot in its name; the other has a module of its own name."""
    for name in ("net-1.5b", "two"):
        folder = project.folder / name
        folder.mkdir()
        (folder / "kernel.py").write_text(BESIDE.format(name="one").replace("helper", "two"))
        helper = "FACTOR = 2.0\n\ndef ref_program(x):\n    return x * FACTOR\n"
        (folder / "two.py").write_text(helper)
    code, out, rows = adopt(project)
    assert code == ExitCode.OK, out
    assert {row["status"] for row in rows.values()} == {"judged"}, out
    assert set(rows) == {"net-1.5b.kernel:scaled_one", "two.kernel:scaled_one"}
    finished(project, "run", "specs", "-n", "0")


def test_a_draft_that_takes_the_memory_of_the_machine_is_a_row(tmp_path):
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4

    def draft():
        torch.empty(size, dtype=torch.uint8)
        pytest.fail("allocated")

    (row,) = _run_jobs(
        [Job("m:f", "calls", draft, "key")], tmp_path, tmp_path, 1, time.monotonic() + 60
    )
    assert row.status == "not drafted"
    assert "memory" in row.note


def test_what_a_process_leaves_when_it_ends_is_done_by_another(tmp_path):
    """Jobs of one module share a process, in which it is imported once."""
    seen = tmp_path / "seen"

    def job(name):
        def draft():
            with seen.open("a") as file:
                file.write(f"{name} {os.getpid()}\n")
            if name == "b":
                os._exit(7)
            raise UsageError(f"{name} is refused")

        return Job(f"m:{name}", "calls", draft, "key")

    rows = list(
        _run_jobs([job(name) for name in "abc"], tmp_path, tmp_path, 1, time.monotonic() + 60)
    )
    assert [(row.target, row.status) for row in rows] == [
        ("m:a", "not drafted"),
        ("m:b", "not drafted"),
        ("m:c", "not drafted"),
    ]
    assert [row.note for row in rows[::2]] == ["a is refused", "c is refused"]
    assert "exit 7" in rows[1].note
    one, two, three = (line.split()[1] for line in seen.read_text().splitlines())
    assert one == two != three


def test_a_target_is_known_again_in_another_process(tmp_path, monkeypatch):
    """Sets of a call have another order there."""
    uses = Uses(written=frozenset("abcdefgh"))
    call = Call("m:f", {"a": Seen((3,), "float32")}, {"0": Seen((3,), "float32")}, uses=uses)
    with (tmp_path / "calls.jsonl").open("w") as file:
        write_call(file, call)
    code = (
        "from pathlib import Path; from tlmatrix.draft.adopt import _jobs;"
        f"print(*(job.key for job in _jobs(Path({str(tmp_path)!r}), Path('calls.jsonl'))))"
    )
    path = os.pathsep.join(sys.path)
    out = subprocess.check_output(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": path},
        text=True,
    )
    monkeypatch.chdir(tmp_path)
    assert out.split() == [job.key for job in _jobs(tmp_path, Path("calls.jsonl"))]


def test_cases_that_are_skipped_judge_nothing(tmp_path):
    """As of an operation that the interpreter does not model."""

    def row(*statuses):
        results = [CaseResult("a", "a.yaml", "", each, message="not modelled") for each in statuses]
        draft = Draft("a", "", "m:a", factory=False, problem="gemm")
        return _judged(Row("m:a", "calls", ""), Trial(draft, results), tmp_path / "a.yaml")

    none = row(Status.SKIPPED, Status.SKIPPED)
    assert (none.status, none.cases, none.note) == ("errors", 0, "not modelled")
    some = row(Status.SKIPPED, Status.PASSED)
    assert (some.status, some.cases, some.note) == ("judged", 1, "not modelled")


@pytest.mark.parametrize(
    ("problem", "check", "title", "status"),
    [
        ("", "numeric", "y has shape [4], expected [5]", "incomplete"),
        ("", "entry", "raises AssertionError", "incomplete"),
        ("", "sanitizers", "uninitialised: s[0] is read", "findings"),
        ("gemm", "numeric", "c has shape [4], expected [5]", "findings"),
    ],
)
def test_without_a_reference_shapes_of_results_are_guesses(problem, check, title, status, tmp_path):
    draft = Draft("a", "", "m:a", factory=False, problem=problem)
    findings = (Finding(check, title, ""),)
    result = CaseResult("a", "a.yaml", "", Status.FAILED, findings=findings)
    row = _judged(Row("m:a", "calls", ""), Trial(draft, [result]), tmp_path / "a.yaml")
    assert (row.status, row.note) == (status, f"{check}: {title}")


def test_a_race_is_a_finding_beside_sizes_that_are_refused(tmp_path):
    findings = Finding("entry", "raises ValueError", ""), Finding("sanitizers", "races: s[0]", "")
    pairs = zip((Status.ERROR, Status.FAILED), findings, strict=True)
    results = [CaseResult("a", "a.yaml", "", each, findings=(one,)) for each, one in pairs]
    draft = Draft("a", "", "m:a", factory=False, problem="gemm")
    row = _judged(Row("m:a", "calls", ""), Trial(draft, results), tmp_path / "a.yaml")
    assert (row.status, row.note) == ("findings", "sanitizers: races: s[0]")


@pytest.mark.parametrize(
    ("findings", "status"),
    [
        ([("reference", "ValueError"), ("spec", "a row")], "incomplete"),
        ([("reference", "ValueError"), ("numeric", None)], "errors"),
        ([("reference", None), ("", None)], "incomplete"),
        ([("entry", "NameError"), ("reference", "ValueError")], "findings"),
    ],
)
def test_what_accepts_no_case_needs_inputs_and_a_name_that_is_undefined_is_wrong(
    findings, status, tmp_path
):
    results = [
        CaseResult("a", "a.yaml", "", Status.ERROR, findings=(Finding(check, "no", pattern=kind),))
        if check
        else CaseResult("a", "a.yaml", "", Status.PASSED)
        for check, kind in findings
    ]
    draft = Draft("a", "", "m:a", factory=False, problem="gemm")
    row = _judged(Row("m:a", "calls", ""), Trial(draft, results), tmp_path / "a.yaml")
    assert row.status == status


def test_a_folder_without_code_is_an_error(project, tmp_path):
    outcome = project.tlmatrix("adopt", str(tmp_path / "nothing"))
    assert outcome.code == ExitCode.USAGE
    assert "not a folder with Python files" in outcome.out


def test_workloads_are_made_small_with_equal_sizes_alike(tmp_path, monkeypatch):
    (tmp_path / "made.py").write_text("def op(x, weight, eps=0.1):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    signature = {
        "inputs": {"x": {"dtype": "float16"}, "weight": {"dtype": "same_as(x)"}},
        "shape_rules": ["weight.shape == (x.shape[-1],)"],
    }
    entry = Entry("made:op", signature, [{"x_shape": [4096, 8192], "dtypes": ["bfloat16"]}])
    shapes = [
        [tuple(each.shape) for each in example.arguments.values()] for example in examples(entry)
    ]
    assert all(len(shape) == 2 and shape[0][1:] == shape[1] for shape in shapes)
    assert all(max(shape[0]) <= 512 for shape in shapes)
    assert len({shape[0] for shape in shapes}) == len(shapes) > 1
    kinds = {each.dtype for example in examples(entry) for each in example.arguments.values()}
    assert kinds == {torch.bfloat16}


@pytest.mark.parametrize(
    "rules",
    [
        ["x.shape == y.shape", "z.shape == x.shape"],
        ["out.shape == broadcast_shapes(x.shape, y.shape, z.shape)"],
    ],
)
def test_shapes_follow_from_rules_in_either_direction(rules, tmp_path, monkeypatch):
    (tmp_path / "made3.py").write_text("def op(x, y, z):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    inputs = {
        "x": {"dtype": "bool"},
        "y": {"dtype": "float16 | float32"},
        "z": {"dtype": "same_as(y)"},
    }
    workload = {"x_shape": [4, 6], "dtypes": ["float32"]}
    signature = {"inputs": inputs, "shape_rules": rules}
    example = next(iter(examples(Entry("made3:op", signature, [workload]))))
    assert [tuple(each.shape) for each in example.arguments.values()] == [(4, 6)] * 3
    dtypes = [each.dtype for each in example.arguments.values()]
    assert dtypes == [torch.bool, torch.float32, torch.float32]


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ({"inputs": {"x": {}, "y": {}, "z": {}}}, "does not tell the shape of y"),
        ({"inputs": {"x": {"dtype": "fp3"}}}, "has the dtype 'fp3' for x"),
    ],
)
def test_a_manifest_that_tells_too_little_is_an_error(signature, words, tmp_path, monkeypatch):
    (tmp_path / "made2.py").write_text("def op(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Exception, match=words):
        list(examples(Entry("made2:op", signature, [{"x_shape": [4]}])))


def test_a_command_that_calls_no_kernel_is_reported_and_not_taken_for_recorded(repository):
    (repository.folder / "empty.py").write_text("raise SystemExit(3)\n")
    code, out, rows = adopt(repository, "--", "empty.py")
    assert code == ExitCode.OK, out
    assert "the command ended with exit code 3 and called no kernel" in " ".join(out.split())
    assert {row["source"] for row in rows.values()} == {"trace"}
    code, out, rows = adopt(repository, "--", "-m", "pytest", "tests", "-q")
    assert "called no kernel" not in out
    assert rows["rows:row_sum"]["reference"] == "tests.test_rows:expected"


_PLAIN_FACTORY = """
import tilelang.language as T

def plain(n):
    @T.prim_func
    def main(X: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            T.fill(X, 0)
    return main

def helper(n):
    return n + 1
"""


def test_a_function_that_defines_and_returns_a_kernel_is_a_target(tmp_path):
    (tmp_path / "kernels.py").write_text(_PLAIN_FACTORY)
    assert definitions_of(tmp_path)[1] == ["kernels:plain"]
