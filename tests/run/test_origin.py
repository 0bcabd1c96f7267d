"""Findings about values say where in the program they come from."""

from pathlib import Path

import pytest
import tilelang
import tilelang.language as T
import torch

from tlmatrix.matrix import Case
from tlmatrix.run.runner import Runner
from tlmatrix.spec import parse_spec

SPEC = """
name: doubled
problem:
  inputs:
    x: {shape: [rows, 8], dtype: float32}
    w: {shape: [8], dtype: float32, between: [1, 1]}
  outputs: [y]
  reference: test_origin:reference
factory: test_origin:BUG
call: [x, w]
axes: {rows: [4, 12, 64]}
"""


def program(line):
    """A factory of kernels that compute y = 2 * x * w, but for an edit of `line`."""

    @tilelang.jit(out_idx=[-1])
    def factory():
        rows = T.dynamic("rows")

        @T.prim_func
        def main(
            X: T.Tensor((rows, 8), "float32"),
            W: T.Tensor((8,), "float32"),
            Y: T.Tensor((rows, 8), "float32"),
        ):
            with T.Kernel(T.ceildiv(rows, 4), threads=32) as tile:
                product = T.alloc_fragment((4, 8), "float16" if line == "rounded" else "float32")
                for i, j in T.Parallel(4, 8):
                    at = T.min(tile * 4 + i, rows - 1)
                    if line == "row":
                        product[i, j] = X[at - T.Cast("int32", at == 9), j] * W[j]
                    elif line == "negated":
                        product[i, j] = X[at, j] * W[j] * (1 - 2 * (at + j == 0))
                    elif line == "sign":
                        product[i, j] = -X[at, j] * W[j] * W[j]
                    else:
                        product[i, j] = X[at, j] * W[j]
                for i, j in T.Parallel(4, 8):
                    if tile * 4 + i < rows:
                        if line == "constant":
                            Y[tile * 4 + i, j] = product[i, j] * T.float32(2.5)
                        else:
                            Y[tile * 4 + i, j] = product[i, j] * 2

        return main

    return factory


row, sign, negated = map(program, ("row", "sign", "negated"))
rounded, constant = map(program, ("rounded", "constant"))


def unstable(x, w):
    """A result that no other call has."""
    return reference(x, w) + torch.rand(x.shape) * (torch.arange(len(x)) == 1)[:, None]


def packed(x, w):
    """A result that is right if x is contiguous."""
    return reference(x.as_strided(x.shape, (8, 1)), w)


def two(x, w):
    """Two results: of the first, every part of the inputs is wrong, of the second, one row."""
    rows = torch.arange(len(x)) - (torch.arange(len(x)) == 3).int()
    return -reference(x, w) * w, reference(x[rows], w)


def twice(x, w):
    return reference(x, w), reference(x, w)


def reference(x, w):
    return 2 * x * w


def gathered(x, index):
    return torch.cat([x[index[:-1]], x[index[-2:-1]]]).sum(0)


def gathered_right(x, index):
    return x[index].sum(0)


def line_of(text):
    lines = Path(__file__).read_text().splitlines()
    (number,) = (n for n, each in enumerate(lines, 1) if each.strip() == text)
    return f"test_origin.py:{number}"


def findings(tmp_path, bug, *sizes, backend="interpreter"):
    text = SPEC.replace("BUG", bug)
    if bug in ("unstable", "packed"):
        text = text.replace("factory:", "entry:")
    spec = parse_spec(text, tmp_path / "doubled.yaml")
    with Runner(backend) as runner:
        cases = [Case("doubled", {"rows": rows, "values": "normal"}) for rows in sizes]
        return [runner.run(spec, case).findings[0] for case in cases]


def test_the_block_the_line_and_the_inputs_of_the_worst_element(tmp_path):
    (finding,) = findings(tmp_path, "row", 12)
    line = line_of("Y[tile * 4 + i, j] = product[i, j] * 2")
    assert f"the worst element is written by main, block (bx 2), at {line}" in finding.detail
    said = "a float64 run of the same kernels is as wrong: it is not their precision"
    assert said in finding.detail
    read = line_of('product[i, j] = X[at - T.Cast("int32", at == 9), j] * W[j]')
    j = finding.index["dim1"]
    assert finding.hint == (
        f"only the reference changes with x[9, 0:8] (read at {read}); "
        f"only the kernel changes with x[8, {j}] (read at {read})"
    )


def test_the_inputs_without_a_trace_of_the_kernel(tmp_path):
    (finding,) = findings(tmp_path, "row", 12, backend="lowered")
    assert finding.hint == (
        "only the reference changes with x[9, 0:8]; only the kernel changes with x[8, 0:8]"
    )
    assert "written by" not in (finding.detail or "")


def test_the_line_at_which_precision_is_lost(tmp_path):
    (finding,) = findings(tmp_path, "rounded", 12)
    assert "in a float64 run of the same kernels the error is " in finding.detail
    assert ": it is precision\n" in finding.detail
    line = line_of("product[i, j] = X[at, j] * W[j]")
    assert f"precision is lost: {line} (product rounded)" in finding.detail
    assert finding.hint is None


ONE = "the element is -1 times the reference, also for other inputs: wrong sign?"


@pytest.mark.parametrize(
    ("bug", "rows", "hint"),
    [
        ("constant", 64, "a uniform factor: got is 1.25 times expected"),
        ("constant", 4, None),  # four rows may have one factor by chance
        ("negated", 4, ONE),
        ("sign", 64, None),  # the factor is that of weights which happen to be 1
    ],
)
def test_a_factor_holds_for_other_inputs_too(tmp_path, bug, rows, hint):
    (finding,) = findings(tmp_path, bug, rows)
    assert finding.hint == hint


def test_only_the_smallest_case_of_a_cause_runs_with_other_inputs(tmp_path):
    small, large = findings(tmp_path, "constant", 12, 64)
    assert "not their precision" in small.detail
    assert "written by main" in large.detail
    assert "not precision" not in large.detail


def test_results_that_change_from_call_to_call_have_no_hint(tmp_path):
    assert findings(tmp_path, "unstable", 4)[0].hint is None


def test_inputs_are_no_cause_if_copies_of_them_give_another_result(tmp_path):
    (finding,) = findings(tmp_path, "packed", 4)
    assert (finding.check, finding.call) == ("relations", "the same arguments")
    assert finding.hint is None


def test_the_first_finding_says_what_another_one_shows(tmp_path):
    text = SPEC.replace("outputs: [y]", "outputs: [y, z]").replace(":reference", ":twice")
    spec = parse_spec(text.replace("factory:", "entry:").replace("BUG", "two"), tmp_path / "d.yaml")
    with Runner("interpreter") as runner:
        result = runner.run(spec, Case("doubled", {"rows": 4, "values": "normal"}))
    first, second = result.findings
    assert (first.tensor, first.hint, second.tensor) == ("y", None, "z")
    assert (
        second.hint
        == "only the reference changes with x[3, 0:8]; only the kernel changes with x[2, 0:8]"
    )
    assert f"z: {second.hint}" in first.detail


def test_an_index_that_the_entry_ignores_is_named(tmp_path):
    text = SPEC.replace("w: {shape: [8], dtype: float32, between: [1, 1]}", "w: INDEX")
    text = text.replace("INDEX", "{shape: [5], dtype: int64, between: [0, rows - 1]}")
    text = text.replace(":reference", ":gathered_right").replace("factory:", "entry:")
    text = text.replace("w:", "index:").replace("call: [x, w]", "").replace("BUG", "gathered")
    with Runner("interpreter") as runner:
        spec = parse_spec(text, tmp_path / "gathered.yaml")
        result = runner.run(spec, Case("doubled", {"rows": 12, "values": "normal"}))
    assert result.findings[0].hint == "only the reference changes with index[4]"


def test_a_judged_case_and_one_that_passes_have_none(tmp_path):
    text = SPEC.replace("BUG", "row")
    spec = parse_spec(text, tmp_path / "doubled.yaml")
    with Runner("interpreter") as runner:
        (judged,) = runner.judge(spec, Case("doubled", {"rows": 12, "values": "normal"})).findings
        assert "written by" not in (judged.detail or "")
        assert not runner.run(spec, Case("doubled", {"rows": 4, "values": "normal"})).findings
