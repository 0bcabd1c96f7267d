"""Coverage of runs of specs, with workers, in reports and by command."""

import json
import os

import pytest

from tlmatrix.exit_codes import ExitCode
from tlmatrix.run import read_records

_KERNEL = """
import tilelang
import tilelang.language as T
import torch

BLOCK = 16


@tilelang.jit(out_idx=[1])
def doubling():
    n = T.dynamic("n")

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, BLOCK), threads=32) as bx:
            for i in T.Parallel(BLOCK):
                if bx * BLOCK + i < n:
                    Y[bx * BLOCK + i] = 2 * X[bx * BLOCK + i]

    return main


def reference(x):
    return 2 * x


def double(x):
    return doubling()(x)
"""
_SPEC = """
name: double
problem:
  inputs:
    x: {{shape: [n], dtype: float32}}
  outputs: [y]
  reference: {module}:reference
entry: {module}:double
axes:
  n: {n}
tiers: {{quick: product}}
checks: [numeric]
"""


def _doubling(project, n):
    """A kernel and a spec of its own; gives the kernel's file."""
    (project.folder / f"{project.module}.py").write_text(_KERNEL)
    (project.folder / "double.yaml").write_text(_SPEC.format(module=project.module, n=n))
    return f"{project.module}.py"


def _run(project, *options):
    outcome = project.tlmatrix(
        "run",
        "double.yaml",
        "--backend",
        "interpreter",
        "--results",
        "r.jsonl",
        "--coverage",
        *options,
    )
    assert outcome.code == ExitCode.OK, outcome.out
    return outcome.out


def test_an_unaligned_length_closes_the_gap_of_aligned_ones(project):
    file = _doubling(project, "[16, 32]")
    out = _run(project, "-n", "0")
    assert "coverage: 4 of 4 lines; 1 guard one way" in out
    assert "tlmatrix coverage r.jsonl" in out
    shown = project.tlmatrix("coverage", "r.jsonl", code=ExitCode.OK)
    line = next(n for n, text in enumerate(_KERNEL.splitlines(), 1) if "if bx" in text)
    assert shown.out.splitlines()[-2:] == [file, f"  {line:<9} if: never false"]

    (project.folder / "r.jsonl").unlink()
    _doubling(project, "[16, 32, 33]")
    assert "coverage: 4 of 4 lines; tlmatrix" in _run(project, "-n", "0")


def test_workers_and_one_process_count_the_same_coverage(project):
    _doubling(project, "[1, 16, 33, 64]")
    _run(project, "-n", "0")
    alone = read_records(project.folder / "r.jsonl").coverage()
    (project.folder / "r.jsonl").unlink()
    assert "coverage: 4 of 4 lines" in _run(project, "-n", "2")
    assert read_records(project.folder / "r.jsonl").coverage() == alone


def test_coverage_adds_the_table_and_no_coverage_counts_nothing(project):
    file = _doubling(project, "[16]")
    assert any(line.startswith(file) for line in _run(project, "-n", "0").splitlines())
    (project.folder / "r.jsonl").unlink()
    assert "coverage" not in _run(project, "-n", "0", "--no-coverage")
    records = map(json.loads, (project.folder / "r.jsonl").read_text().splitlines())
    assert {record["record"] for record in records} == {"run", "plan", "start", "case", "summary"}
    refused = project.tlmatrix("coverage", "r.jsonl", code=ExitCode.USAGE)
    assert "the file has no coverage" in refused.out


def test_the_source_is_shown_with_its_counts(project):
    file = _doubling(project, "[17]")
    _run(project, "-n", "0")
    shown = project.tlmatrix("coverage", "r.jsonl", "--source")
    assert shown.out.startswith(f"{file}\n")
    (guard,) = (line for line in shown.out.splitlines() if "if bx" in line)
    assert guard.split()[:2] == ["2", "T-P"]
    (project.folder / file).write_text("# moved\n" + _KERNEL)
    os.utime(project.folder / file, (4e9, 4e9))
    assert "changed since the run" in project.tlmatrix("coverage", "r.jsonl", "--source").out


def test_the_last_run_is_shown_by_default(project):
    file = _doubling(project, "[17]")
    outcome = project.tlmatrix("coverage", code=ExitCode.USAGE)
    assert "no results" in outcome.out
    assert project.tlmatrix("run", "double.yaml", "-n", "0", "--coverage").code == ExitCode.OK
    assert file in project.tlmatrix("coverage").out
    wrong = project.tlmatrix("coverage", "--file", "other", code=ExitCode.USAGE)
    assert file in wrong.out


@pytest.mark.parametrize("mode", ["summary", "table", "off"])
def test_pytest_reports_coverage(project, mode):
    _doubling(project, "[16]")
    options = ["-n", "0", "--tlmatrix-results", "r.jsonl", "--tlmatrix-backend", "interpreter"]
    (project.folder / "pyproject.toml").write_text(f'[tool.tlmatrix]\ncoverage = "{mode}"\n')
    out = project.pytest("double.yaml", *options).out
    assert ("coverage: 4 of 4 lines" in out) is (mode != "off")
    assert ("kernel file" in out) is (mode == "table")


def test_an_unknown_mode_is_an_error(project, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.tlmatrix]\ncoverage = "all"\n')
    outcome = project.tlmatrix("list", ".", code=ExitCode.USAGE)
    assert "coverage = 'all': must be one of off, summary, table" in outcome.out
