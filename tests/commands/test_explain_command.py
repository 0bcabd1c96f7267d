"""`tlmatrix explain` reports the line, the iteration and the inputs of an inserted fault."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tlmatrix.cli import main

KERNELS = Path(__file__).parents[1] / "interpreter" / "fixtures" / "traced_kernels.py"
SPEC = """\
name: causal
problem:
  inputs:
    q: {shape: [length, 16], dtype: float16, fill: normal}
    k: {shape: [length, 16], dtype: float16, fill: normal}
    v: {shape: [length, 16], dtype: float16, fill: normal}
  outputs: {out: {dtype: float32}}
  reference: causal_reference:causal
factory: planted_kernels:attention
factory_args: {length: length, fault: fault}
call: [q, k, v]
returns: [out]
axes:
  length: [64]
  fault: [none, mask, scale, weights, last]
"""
REFERENCE = """\
import torch


def causal(q, k, v):
    scores = q @ k.T * q.shape[1] ** -0.5
    seen = torch.ones_like(scores, dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ v
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explained")
    (folder / "causal.yaml").write_text(SPEC)
    (folder / "causal_reference.py").write_text(REFERENCE)
    shutil.copy(KERNELS, folder / "planted_kernels.py")
    return folder


@pytest.fixture
def explain(project, monkeypatch, capsys):
    monkeypatch.chdir(project)

    def run(fault, *options, code=0):
        assert main(["explain", f"causal.yaml::fault={fault}-length=64", *options]) == code
        return capsys.readouterr().out

    return run


def line_of(project, text):
    lines = (project / "planted_kernels.py").read_text().splitlines()
    (found,) = (k for k, line in enumerate(lines, start=1) if text in line)
    return f"planted_kernels.py:{found}"


def row(text, start):
    """The cells of the line of the last table that begins so."""
    table = text.rpartition("change of the element")[2]
    (found,) = (x for x in table.splitlines() if x.strip().startswith(start))
    return re.split(r"\s{2,}", found.strip())


def test_a_correct_element_depends_on_the_same_inputs_as_the_reference(explain, project):
    text = explain("none", "--index", "55,3")
    assert "out[55, 3]: length 55, dim1 3" in text
    assert "block     bx 3, of a grid of bx 4" in text
    assert f"{line_of(project, 'Out[tile * ROWS + i, d]')} (store), once" in text
    assert "made of   K[0:56, 0:16]" in text
    assert "<- only" not in text
    assert "<- differ" not in text
    assert row(text, "v[48:56, 3]")[1] == "step 3"
    assert row(text, "v: ")[1:4] == ["not read", "0", "0"]


def test_the_key_of_a_mask_that_is_off_by_one_is_reported(explain):
    text = explain("mask", "--index", "21,3")
    assert "as far from it" in text
    assert "not precision" in text
    assert row(text, "v[22, 3]")[-1] == "<- only the kernel"


def test_the_iteration_with_a_wrong_scale_is_reported(explain, project):
    text = explain("scale", "--index", "55,3")
    assert "not precision" in text
    step = text[text.index("  step 2\n") :]
    step = step[: step.index("  step 3\n")]
    assert line_of(project, "s[i, j] = s[i, j] * scale") in step
    assert text.count(line_of(project, "s[i, j] = s[i, j] * scale")) == 1
    places = ("v[0:16, 3]", "v[16:32, 3]", "v[32:48, 3]", "v[48:56, 3]")
    ratios = [float(cells[2]) / float(cells[3]) for cells in (row(text, p) for p in places)]
    usual = sorted(ratios)[1]
    assert max(range(4), key=lambda step: abs(ratios[step] / usual - 1)) == 2


def test_lost_precision_is_distinguished_from_a_wrong_formula(explain, project):
    text = explain("weights", "--index", "55,3")
    assert "the error is precision" in text
    lost = text[text.index("precision is lost, in order") :].splitlines()[1]
    assert lost.strip().startswith(f"{line_of(project, 'p[i, j] = T.exp2')}  p rounded in step 0")


def test_the_keys_of_a_missing_last_iteration_are_reported(explain):
    text = explain("last", "--index", "55,3")
    assert "step = 0 to 2, 3 iterations" in text
    assert row(text, "v: ")[-1] == "<- only the reference"
    named = [x.strip() for x in text.splitlines() if re.match(r"\s+v\[\d+, 0:16\]", x)]
    assert {int(re.match(r"v\[(\d+)", x)[1]) for x in named} <= set(range(48, 56))
    assert named


def test_the_worst_element_of_a_finding_is_the_default(explain):
    text = explain("last", "--no-inputs")
    place = re.search(r"^out\[(\d+), (\d+)\]: ", text, re.MULTILINE)
    assert place is not None
    expected, got = re.search(r"expected (\S+), got (\S+)", text).groups()
    assert expected != got
    assert "change of the element" not in text


def test_without_a_finding_the_first_element_is_the_default(explain):
    assert "\nout[0, 0]: length 0, dim1 0\n" in explain("none", "--no-inputs")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tensor", "y"], "--tensor: no output 'y'; the case has out"),
        (["--index", "55"], r"out has no element \[55\]: its shape is \[64, 16\]"),
        (["--index", "a,b"], "--index .a,b.: must be numbers"),
        (["--buffer", "Y", "--index", "0,0"], "--buffer: no kernel writes 'Y'"),
        (["--block", "0", "--index", "55,3"], r"block \(0,\) did not write Out"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_known_names(
    project, monkeypatch, capsys, options, words
):
    monkeypatch.chdir(project)
    assert main(["explain", "causal.yaml::fault=none-length=64", *options]) == 2
    assert re.search(words, capsys.readouterr().err)


def test_a_parameter_of_a_kernel_is_explained_by_name(explain):
    text = explain("none", "--buffer", "Out", "--index", "40,1")
    assert "Out[40, 1] of kernel causal, launch 1" in text
    assert "expected" not in text
    assert "change of the element" not in text


def test_repro_of_a_failing_case_prints_the_explain_command(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    assert main(["repro", "causal.yaml::fault=last-length=64"]) == 1
    assert "  explain   tlmatrix explain 'causal.yaml::fault=last-length=64'" in (
        capsys.readouterr().out
    )


LATER = """\
name: later
problem:
  inputs:
    x: {shape: [sum(groups), 8], dtype: float32, fill: normal}
    sizes: {lengths_of: groups}
  outputs: [y]
  reference: later:reference
entry: later:entry
axes: {groups: [[16, 32]]}
"""
LATER_ENTRY = """\
import tilelang
import tilelang.language as T


@tilelang.jit(out_idx=[-1])
def doubled(rows, bad):
    @T.prim_func
    def main(X: T.Tensor((rows, 8), "float32"), Y: T.Tensor((rows, 8), "float32")):
        with T.Kernel(rows // 16, threads=32) as tile:
            for i, j in T.Parallel(16, 8):
                Y[tile * 16 + i, j] = X[tile * 16 + i, j] * T.if_then_else(
                    tile * 16 + i == bad, 3.0, 2.0
                )

    return main


def reference(x, sizes):
    return x * 2


def entry(x, sizes):
    first = int(sizes[0])
    return doubled(len(x), -1 if first == 16 else first)(x)
"""


@pytest.fixture
def later(tmp_path, monkeypatch, capsys):
    """A command on a case that is right for the lengths of its first call, [16, 32]."""
    (tmp_path / "later.yaml").write_text(LATER)
    (tmp_path / "later.py").write_text(LATER_ENTRY)
    monkeypatch.chdir(tmp_path)

    def run(command, *options, code=0):
        assert main([command, "later.yaml::groups=16.32", *options]) == code
        return capsys.readouterr().out

    yield run
    sys.modules.pop("later", None)


def test_the_failing_call_is_explained_not_the_first(later):
    text = later("explain")
    assert "call 2, of repeat: groups [24, 24] instead of [16, 32]" in text
    assert "y[24, " in text
    expected, got = map(float, re.search(r"expected (\S+), got (\S+)", text).groups())
    assert got == pytest.approx(expected * 1.5)
    # The kernel makes 3 * x of it, in the table too.
    (line,) = (x for x in text.splitlines() if x.strip().startswith("x[24, "))
    kernel, reference = (float(cell) for cell in re.findall(r"[+-]\d\S+", line)[:2])
    assert kernel == pytest.approx(1.5 * reference, rel=1e-3)


def test_repro_prints_the_lengths_and_tensors_of_the_failing_call(later):
    text = later("repro", "-v", code=1)
    assert re.search(r"^  call +groups \[24, 24\] instead of \[16, 32\]", text, re.MULTILINE)
    _, expected, got = re.split(r"^(?:expected|got): y \[21:28, .*\n", text, flags=re.MULTILINE)[:3]
    rows = [[float(cell) for cell in part.splitlines()[3].split()] for part in (expected, got)]
    assert rows[1] == pytest.approx([1.5 * each for each in rows[0]], rel=1e-3)
