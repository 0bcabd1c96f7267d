"""Invalid axes and names are located issues, found without building a problem."""

import subprocess
import sys

import pytest

from tlmatrix.problem import family_for
from tlmatrix.problem.lint import lint_floors
from tlmatrix.spec import load_spec

GOOD = """\
name: made_up
problem: attention
entry: some.module:entry
axes:
  dtype: [float16]
  kv_heads: [1]
  head_dim: [64]
"""


def issues(tmp_path, text):
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    spec = load_spec(path)
    return [str(issue).removeprefix(f"{path}:") for issue in family_for(spec).lint(spec)]


def test_valid_spec_has_no_issue_and_unknown_axes_belong_to_the_entry(tmp_path):
    text = GOOD + "  seqlens: [{q: [3, 0], k: same}, [4]]\n  backward: [atomic]\n"
    assert issues(tmp_path, text) == []


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ("  seqlens: [{q: [3, -1]}]", "8:13: seqlens: seqlens.q has the length -1; lengths are"),
        ("  seqlens: [{q: [3], k: [1, 2]}]", "8:13: seqlens: seqlens has 1 query sequences and 2"),
        ("  seqlens: [{k: [3]}]", "8:13: seqlens: seqlens without q; write {q: [17, 64]"),
        ("  seqlens: [{q: [3], kv: [3]}]", "8:13: seqlens: unknown key 'kv' in seqlens"),
        ("  seqlens: [{q: []}]", "8:13: seqlens: seqlens.q is empty"),
        (
            "  seqlens: [[3]]\n  batch: [2]",
            "9:10: the axes batch and seqlens are both given; remove",
        ),
        (
            "  seqlens: [[3]]\n  layout: [thd, bshd]",
            "9:17: layout bshd is dense, and seqlens makes packed",
        ),
        ("  seqlen_q: [-1]", "8:14: seqlen_q: -1 is not an integer >= 0"),
        ("  seqlen_q: [1]\n  layout: [bsdh]", "9:12: layout: unknown layout 'bsdh'; did you mean"),
        ("  seqlen_q: [1]\n  groups: [0]", "9:12: groups: 0 is not an integer >= 1"),
        ("  seqlen_q: [1]\n  causal: [1]", "9:12: causal: 1 is not true or false"),
        ("  seqlen_q: [1]\n  sink: [2]", "9:10: sink: 2 is not none, true or a kind of sink"),
        (
            "  seqlen_q: [1]\n  sink: [fain]",
            "9:10: sink: 'fain' is not none, true or a kind of sink",
        ),
        (
            "  seqlen_q: [1]\n  sink: [{a: 1}]",
            "9:10: sink: {'a': 1} is not none, true or a kind of sink",
        ),
        (
            "  seqlen_q: [1]\n  window: [none, 4]\n  causal: [true]\nfuzz: {axes: {window: 0..9}}",
            "11:23: window: 0 is not none or a number of keys >= 1",
        ),
        ("  seqlen_q: [1]\n  sink_dtype: [half]", "9:16: sink_dtype: unknown dtype 'half'"),
        ("  seqlen_q: [1]\n  scale: [.inf]", "9:11: scale: inf is not none or a finite number"),
        ("  seqlen_q: [1]\n  values: [nromal]", "9:12: values: unknown distribution 'nromal'; did"),
        ("  seqlen_q: [1]\n  head_dim_v: [sam]", "9:16: head_dim_v: 'sam' is not same or an"),
        (
            "  seqlen_q: [1]\n  causal: [true]\n  window: [none, 0]",
            "10:18: window: 0 is not none or a number of keys >= 1",
        ),
        (
            "  seqlen_q: [1]\n  window: [none, 4]",
            "9:11: window 4 needs causal: true, which no case has",
        ),
        (
            "  seqlen_q: [1]\n  heads: [4]\n  groups: [2]",
            "9:10: two of heads, kv_heads and groups determine the third",
        ),
        ("  causal: [true]", "5:3: attention needs the axis seqlens (packed) or seqlen_q"),
        (
            "  seqlen_q: [1]\nextra_cases: [{seqlen_q: -3}]",
            "9:26: seqlen_q: -3 is not an integer >= 0",
        ),
        (
            "  seqlen_q: [1]\ntiers: {full: {strategy: product, axes: {head_dim: [0]}}}",
            "9:53: head_dim: 0 is not an integer >= 1",
        ),
    ],
)
def test_invalid_axes_are_located_issues(tmp_path, axes, expected):
    (found,) = issues(tmp_path, GOOD + axes + "\n")
    assert found.startswith(expected), found


def test_missing_axes_are_reported(tmp_path):
    found = issues(tmp_path, GOOD.split("axes:", maxsplit=1)[0] + "axes: {causal: [true]}\n")
    needed = ("dtype", "head_dim", "heads, or kv_heads", "seqlens (packed) or seqlen_q")
    assert len(found) == len(needed)
    for axis, issue in zip(needed, found, strict=True):
        assert f"attention needs the axis {axis}" in issue


def test_gemm_axes_are_checked(tmp_path):
    text = "name: g\nproblem: gemm\nentry: a:b\naxes:\n  m: [0, -1]\n  n: [4]\n  dtype: [flaot16]\n"
    assert issues(tmp_path, text + "  transpose_a: [yes_]\n") == [
        "5:10: m: -1 is not an integer >= 0",
        "7:11: dtype: unknown dtype 'flaot16'; did you mean 'float16'?",
        "8:17: transpose_a: 'yes_' is not true or false",
        "5:3: gemm needs the axis k; add k: [64]",
    ]


def test_names_of_a_factory_are_checked(tmp_path):
    text = (
        GOOD.replace("entry: some.module:entry", "factory: a:b")
        + """\
  seqlen_q: [4]
  block: [64]
factory_args: {heads: heads * groups, dim: headdim, rows: block + seqlen_q, q: q, scale: 3}
call: [q, k, vv, lse]
returns: [out, lsee]
tolerance: {dqq: {factor: 3}, by_arch: {sm_90: {dv: {factor: 2}, dkk: {factor: 2}}}}
"""
    )
    assert issues(tmp_path, text) == [
        "11:14: call: the problem has no 'vv'; did you mean 'v'?",
        "10:44: factory_args: dim: the name 'headdim' is unknown; did you mean 'head_dim'?",
        "10:80: factory_args: q: the name 'q' is a tensor, which has no value at compile time",
        (
            "12:16: returns: unknown output 'lsee'; did you mean 'lse'? "
            "Outputs: dk, dq, dsink, dv, lse, out"
        ),
        "13:18: tolerance: unknown tensor 'dqq'; did you mean 'dq'?",
        "13:71: tolerance: unknown tensor 'dkk'; did you mean 'dk'?",
    ]


def test_names_of_a_declared_factory_are_checked(tmp_path):
    text = """\
name: d
problem:
  inputs: {x: {shape: [rows], dtype: float16}}
  outputs: [y]
  reference: a:b
factory: a:b
factory_args: {M: rows, N: cols}
call: [x, y, z]
axes: {rows: [3]}
"""
    assert [issue.split(";")[0] for issue in issues(tmp_path, text)] == [
        "8:14: call: the problem has no 'z'",
        "7:28: factory_args: N: the name 'cols' is unknown",
    ]


def test_declared_fills_and_gradients_are_checked(tmp_path):
    text = """\
name: d
problem:
  inputs:
    x: {shape: [rows], dtype: $dtype, grad: true, fill: rmap}
    i: {shape: [rows], dtype: int32, grad: true}
  outputs: [y]
  reference: a:b
entry: a:b
axes: {rows: [3], dtype: [float16], values: [odd]}
"""
    found = issues(tmp_path, text)
    assert [issue.split(";")[0] for issue in found] == [
        "9:46: values: unknown distribution 'odd'",
        "4:57: fill: unknown distribution 'rmap'",
        "5:44: grad: i has dtype int32",
    ]


def test_lint_and_compile_keys_import_no_torch(tmp_path):
    (tmp_path / "spec.yaml").write_text(GOOD + "  seqlens: [[3]]\n")
    script = f"""
import sys
from tlmatrix.spec import load_spec
from tlmatrix.problem import family_for
from tlmatrix.problem.lint import lint_floors
spec = load_spec({str(tmp_path / "spec.yaml")!r})
family = family_for(spec)
assert family.lint(spec) == []
family.compile_key(spec, {{axis: values[0] for axis, values in spec.axes.items()}})
assert "torch" not in sys.modules, "torch was imported"
"""
    subprocess.run([sys.executable, "-c", script], check=True)


DECLARED = """\
name: made_up
problem:
  inputs:
    x: {shape: [rows, cols // block], dtype: float32}
    i: {shape: [rows], dtype: int32, between: [0, cols - 1]}
  outputs: [y]
  reference: some.module:reference
entry: some.module:entry
axes:
"""


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ("  rows: [1, 0]\n  cols: [8]\n  block: [4]", []),
        (
            "  rows: [-1, 2]\n  cols: [8]\n  block: [4]",
            ["10:10: rows: -1 makes the size of x of 'rows' -1; write a whole number"],
        ),
        (
            "  rows: [2]\n  cols: [8, .nan, text, 8.0]\n  block: [4]",
            [
                "11:13: cols: .nan makes the size of x of 'cols // block' .nan; write a whole",
                "11:19: cols: text makes the size of x of 'cols // block' impossible: '//' needs",
                "11:25: cols: 8.0 makes the size of x of 'cols // block' 2.0; write a whole",
            ],
        ),
        (
            "  rows: [2]\n  cols: [8]\n  block: [0, 4]",
            ["12:11: block: 0 makes the size of x of 'cols // block' impossible: 8 // 0 divides"],
        ),
    ],
)
def test_invalid_sizes_are_one_error_each(tmp_path, axes, expected):
    found = issues(tmp_path, DECLARED + axes + "\n")
    assert len(found) == len(expected)
    for got, start in zip(found, expected, strict=True):
        assert got.startswith(start)


@pytest.mark.parametrize(
    ("floor", "count"),
    [
        ("{default: {floor: 0.5}, out: {floor: 255}}", 0),
        ("{default: {floor: 1.0e+30}}", 1),
        ("{out: {floor: 256}, by_arch: {sm_90: {dq: {floor: 200000}}}}", 2),
    ],
)
def test_floor_above_every_error_is_a_warning(tmp_path, floor, count):
    path = tmp_path / "spec.yaml"
    path.write_text(GOOD + "  seqlen_q: [4]\ntolerance: " + floor + "\n")
    found = [str(issue) for issue in lint_floors(load_spec(path))]
    assert len(found) == count
    assert all(f"{path}:9:" in each and "every finite result passes" in each for each in found)
