"""Kernels as outsiders write them: bound by YAML alone, and their bugs found by the quick tier."""

import statistics
import sys
from pathlib import Path

import pytest
import torch
import yaml

from outside_project import command_line
from tlmatrix.backend import backend_named
from tlmatrix.fuzz.search import tier_fuzz_cases
from tlmatrix.matrix import Case
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec import load_spec
from tlmatrix.spec.model.checks import SanitizerOptions

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "mutants"))
from mutant_catalog import load_mutants  # noqa: E402 - after its folder is on the path

SPECS = sorted((FOLDER / "project").glob("*.yaml"))
BUGS = load_mutants(FOLDER, kinds=["bugs", "operators"])
GRIDS = load_mutants(FOLDER, kinds=["grid"])
ARGUMENTS = load_mutants(FOLDER, kinds=["arguments"])
REDUCTIONS = '  reduction: [mean, sum, "none"]\n'
MEAN = """
from cross_entropy import reference


def mean(logits, target, ignore_index):
    return reference(logits, target, ignore_index, "mean")
"""
OF_OTHER_OPTIONS = {"decode_stages_left_out_of_the_budget"}
"""Bugs that only the memory of options shows that no case combines: the quick tier asks it too."""
PLAIN = yaml.safe_load((FOLDER / "plain.yaml").read_text())


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A working directory of its own, and modules of kernels imported from there anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for path in SPECS:
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    yield tmp_path
    for path in SPECS:
        sys.modules.pop(path.stem, None)


def planted(bug, folder):
    """A copy of a kernel with the bug in it, and of its spec, beside it."""
    source = FOLDER / "project" / bug.file
    (folder / bug.file).write_text(bug.applied(source.read_text()))
    spec = folder / source.with_suffix(".yaml").name
    spec.write_text(source.with_suffix(".yaml").read_text())
    return spec


def written(name, lines, folder):
    """A copy of a kernel and of its spec, in which lines are replaced."""
    text = (FOLDER / "project" / f"{name}.yaml").read_text()
    for before, after in lines.items():
        assert before in text
        text = text.replace(before, after)
    (folder / f"{name}.yaml").write_text(text)
    (folder / f"{name}.py").write_text((FOLDER / "project" / f"{name}.py").read_text())


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_quick_tier_passes(path, fresh):
    command_line("run", str(path), "-n", "0", "--unsupported", "fail", code=0)


@pytest.mark.parametrize("bug", [*BUGS, *ARGUMENTS], ids=lambda bug: bug.name)
def test_quick_tier_finds_the_bug(bug, fresh):
    spec = load_spec(planted(bug, fresh))
    planned = {case.id: case for case in plan(spec, "quick").cases()}
    # A fork of this process traces other options for their memory: only if nothing else fails.
    no_fork = spec.model_copy(update={"sanitizers": SanitizerOptions(without=("budget",))})
    assert not spec.sanitizers.without
    with Runner(backend_named("interpreter")) as runner:

        def fails(spec, cases, reruns="all"):
            # Not `run`, which also looks for where a wrong value comes from.
            return any(runner.judge(spec, case, reruns=reruns).failed for case in cases)

        assert (
            (bug.name in OF_OTHER_OPTIONS and fails(spec, planned.values(), set()))
            or fails(no_fork, planned.values())
            or fails(no_fork, tier_fuzz_cases(spec, "quick", planned), "rotate")
            or fails(spec, planned.values())
        )


@pytest.mark.parametrize(
    ("name", "missing", "lines"),
    [
        ("trailing_linear", "alpha", {"  alpha: [0.5, 1.0]\n": ""}),
        (
            "layer_norm",
            "eps",
            {"  eps: [1.0e-5, 0.1]\n": "", ", eps: eps}": "}", "bias, eps]": "bias]"},
        ),
        ("cross_entropy", "reduction", {REDUCTIONS: ""}),
        ("cross_entropy", "reduction='none'", {REDUCTIONS: "  reduction: [mean, sum]\n"}),
    ],
)
def test_check_names_an_option_that_no_case_passes(name, missing, lines, fresh):
    written(name, lines, fresh)
    outcome = command_line("check", f"{name}.yaml")
    assert f"no case passes {missing} to {name}:" in outcome.out


@pytest.mark.parametrize(
    ("missing", "axis"),
    [("reduction", ""), ("reduction='none'", "  reduction: [mean, sum]\n"), ("", REDUCTIONS)],
)
def test_check_names_an_option_that_the_backward_pass_lacks(missing, axis, fresh):
    written("cross_entropy", {"name: cross_entropy": "name: forward", ", grad: true": ""}, fresh)
    (fresh / "cross_entropy.yaml").rename(fresh / "forward.yaml")
    written("cross_entropy", {REDUCTIONS: axis}, fresh)
    outcome = command_line("check", ".")
    words = f"no case that checks gradients passes {missing} to cross_entropy:"
    assert (words in outcome.out) == bool(missing)
    assert ("warning" in outcome.out) == bool(missing)


def test_bug_of_an_option_in_the_backward_pass_needs_its_axis(fresh):
    """`check` asks for the axis; with it, `test_quick_tier_finds_the_bug`."""
    (bug,) = (each for each in BUGS if each.name == "sum_of_losses_divided_in_the_backward")
    spec = planted(bug, fresh)
    text = spec.read_text()
    assert REDUCTIONS in text
    spec.write_text(text.replace(REDUCTIONS, "").replace("cross_entropy:reference", "mean:mean"))
    (fresh / "mean.py").write_text(MEAN)
    command_line("run", str(spec), "-n", "0", code=0)
    assert "no case passes reduction to" in command_line("check", str(spec)).out


@pytest.mark.parametrize("bug", GRIDS, ids=lambda bug: bug.name)
def test_prove_says_up_to_which_sizes_a_grid_is_launched(bug, fresh):
    spec = planted(bug, fresh)
    assert "grid proven up to 32768;" in of_kernel("act_backward", command_line("prove", str(spec)))
    (fresh / bug.file).write_text((FOLDER / "project" / bug.file).read_text())
    del sys.modules[spec.stem]
    assert "grid proven;" in of_kernel("act_backward", command_line("prove", str(spec)))


def of_kernel(name, outcome):
    (line,) = [line for line in outcome.out.splitlines() if line.startswith(f"  {name} ")]
    return line


@pytest.mark.usefixtures("fresh")
def test_a_row_for_each_sequence_is_no_packed_tensor():
    """As many rows as sequences: the parts of dW have the shape of x."""
    spec = load_spec(FOLDER / "project" / "varlen_conv1d.yaml")
    values = {"dtype": "float32", "dim": 32, "width": 1, "seqlens": [1, 0, 0, 3]}
    result = Runner(backend_named("interpreter")).run(spec, Case(spec.name, values))
    assert result.findings == ()


@pytest.mark.parametrize("moved", ["x, weight, bias", "x, weight"])
def test_alignment_of_each_argument_that_a_spec_promises_to_take(moved, fresh):
    """The bias alone is moved, so that copies of other tensors hide nothing."""
    lines = {"fuzz:\n": "fuzz:\n  storage: [offset]\n", "[1, 40, 64]": "[64]"}
    written("layer_norm", lines, fresh)
    code = (fresh / "layer_norm.py").read_text()
    for call, copied in (("kernel(x, weight", moved), ("kernel(dy.contiguous()", "dy, x, weight")):
        assert code.count(call) == 1
        copies = f"{copied} = (aligned(each) for each in ({copied}))"
        code = code.replace(call, f"{copies}\n            {call}")
    code += "\n\ndef aligned(x):\n    return x.clone() if x.data_ptr() % 16 else x\n"
    (fresh / "layer_norm.py").write_text(code)
    outcome = command_line("run", "layer_norm.yaml", "-n", "0", "--tier", "smoke")
    assert outcome.code == ("bias" not in moved), outcome.out
    assert ("alignment: B begins 4 bytes" in outcome.out) == ("bias" not in moved)


@pytest.mark.parametrize(
    "bug", [bug for bug in [*BUGS, *ARGUMENTS] if bug.silent], ids=lambda bug: bug.name
)
def test_plain_test_passes_with_the_silent_bug(bug, fresh):
    assert plain_test(planted(bug, fresh)) == []


@pytest.mark.parametrize("bug", [bug for bug in BUGS if not bug.silent], ids=lambda bug: bug.name)
def test_plain_test_finds_the_other_bugs(bug, fresh):
    assert plain_test(planted(bug, fresh)) != []


def plain_test(path):
    """The outputs that `assert_close(rtol=1e-2, atol=1e-2)` refuses at one aligned shape."""
    spec = load_spec(path)
    case = Case(spec.name, {**PLAIN[path.stem], "values": "normal"}, "plain")
    assert set(spec.axes) <= set(case.values)
    problem, outputs = Runner(backend_named("interpreter")).outputs(spec, case)
    return [name for name, exact in problem.reference().items() if not close(outputs[name], exact)]


def close(found, exact):
    atol = (
        1 if found.dtype in (torch.int8, torch.uint8) else 1e-2
    )  # halves may be rounded either way
    return torch.allclose(found.double(), exact.double(), rtol=1e-2, atol=atol, equal_nan=True)


def test_there_are_twelve_kernels_or_more_with_two_bugs_each_or_more():
    assert len(SPECS) >= 12
    for path in SPECS:
        assert sum(bug.file == f"{path.stem}.py" for bug in BUGS) >= 2, path.stem


def test_half_of_the_bugs_are_silent_at_aligned_shapes():
    assert sum(bug.silent for bug in BUGS) * 2 >= len(BUGS)


def test_specs_are_short():
    assert statistics.median(len(path.read_text().splitlines()) for path in SPECS) < 30


def test_no_spec_names_a_class_of_python_for_its_problem():
    assert [
        path.stem
        for path in SPECS
        if ":" in str(yaml.safe_load(path.read_text())["problem"]).split("{")[0]
    ] == []
