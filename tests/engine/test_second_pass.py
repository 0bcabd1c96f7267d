"""Two independent bugs of one entry are both reported."""

import json

import pytest

from tlmatrix.cli import main

CODE = """
import itertools

import tilelang
import tilelang.language as T
import torch

CALLS = itertools.count()

def reference(x):
    return 2 * x, -x

def right(x):
    return 2 * x, -x

def by_call(y):
    return y + (y != 0) * 0.5 * next(CALLS)

def wrong_and_by_call(x):
    return by_call(2 * x + 3), -x

def changes_its_input_and_by_call(x):
    y = 2 * x
    x.zero_()
    z = -y / 2
    if next(CALLS) % 2:
        y = y * (1 + 1e-6)
    return y, z

def wrong_sum_in_any_order(x):
    if next(CALLS) % 2:
        return 1e4 * x + 3 * x - 1e4 * x, -x
    return 1e4 * x - 1e4 * x + 3 * x, -x

def shape_and_by_call(x):
    return 2 * x * (1 + 1e-6 * (next(CALLS) % 2)), -x[:1]

def wrong_and_by_rows(x):
    return 2 * x + 3 + len(x), -x

def wrong_in_a_row(x):
    y = 2 * x
    y[-1:] += 1
    return y, -x

@tilelang.jit(out_idx=[1])
def past_the_end():
    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                Y[i] = X[i] + X[16]

    return main

def outside_and_by_call(x):
    past_the_end()(torch.ones(16))
    return 2 * x * (1 + 1e-6 * (next(CALLS) % 2)), -x

def outside(x):
    past_the_end()(torch.ones(16))
    return 2 * x, -x
"""
SPEC = """\
name: twice
problem:
  inputs: {{x: {{shape: [rows, 3], dtype: float32}}}}
  outputs: [y, z]
  reference: {module}:reference
entry: {module}:{entry}
axes: {{rows: [5, 6]}}
returns: [y, z]
checks: [numeric, guards, sanitizers, determinism, relations]
relations: [{{split: rows}}]
"""


@pytest.fixture
def findings(tmp_path, monkeypatch, request, capsys):
    """The function that runs an entry: the checks of the findings of each case, and the output."""
    module = "twice_" + "".join(each if each.isalnum() else "_" for each in request.node.name)
    (tmp_path / f"{module}.py").write_text(CODE)
    (tmp_path / "pyproject.toml").write_text("[tool.tlmatrix]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(entry, more=""):
        (tmp_path / "twice.yaml").write_text(SPEC.format(module=module, entry=entry) + more)
        main(["run", "twice.yaml", "-n", "0", "--backend", "interpreter"])
        (results,) = tmp_path.glob(".tlmatrix/run-*.jsonl")
        records = [json.loads(line) for line in results.read_text().splitlines()]
        found = [
            [each["check"] for each in record["findings"]]
            for record in records
            if record.get("findings")
        ]
        return found, capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("entry", "checks"),
    [
        ("wrong_and_by_call", ["numeric", "determinism"]),
        ("changes_its_input_and_by_call", ["guards", "determinism"]),
        ("shape_and_by_call", ["numeric", "determinism"]),
        ("wrong_and_by_rows", ["numeric", "relations"]),
        ("outside_and_by_call", ["sanitizers", "determinism"]),
    ],
)
def test_two_bugs_are_both_reported(findings, entry, checks):
    found, out = findings(entry)
    assert found[0] == checks
    assert f"also      {checks[1]}: " in out


@pytest.mark.parametrize("entry", ["wrong_in_a_row", "outside"])
def test_one_bug_is_reported_once(findings, entry):
    found, out = findings(entry)
    assert [len(each) for each in found] == [1, 1]
    assert "also  " not in out


def test_a_second_pass_is_made_once_for_each_cause(findings):
    found, _ = findings("wrong_and_by_rows")
    assert found == [["numeric", "relations"], ["numeric"]]


def test_rounding_of_wrong_sums_in_any_order_is_not_reported(findings):
    found, out = findings("wrong_sum_in_any_order", "determinism: bounded\n")
    assert found == [["numeric"], ["numeric"]]
    assert "also  " not in out
