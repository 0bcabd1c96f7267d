"""The command line: output and exit codes of commands."""

import html
import json
import re
import signal
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest
import torch

from tlmatrix import cli
from tlmatrix.exit_codes import ExitCode
from tlmatrix.run import Status, read_records


def _modules_after(code):
    program = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


# Imports --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import tlmatrix; dir(tlmatrix)",
        "import tlmatrix.pytest_plugin",
        "from tlmatrix.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from tlmatrix.cli import main\nmain(['list', 'specs/gemm.yaml'])",
        "from tlmatrix.cli import main\nmain(['check', 'specs/gemm.yaml'])",
    ],
)
def test_torch_is_not_imported_before_a_case_runs(code):
    modules = _modules_after(code)
    assert "tlmatrix" in modules
    assert not modules & {"torch", "tilelang", "hypothesis"}


def test_pytest_without_specs_imports_little(tmp_path):
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    modules = _modules_after(
        "import pytest, contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        # A root of its own: pytest looks at every file beside the way to the root.
        f"    pytest.main([{str(tmp_path)!r}, '--rootdir', {str(tmp_path)!r}, '-n', '0',"
        " '-p', 'no:hypothesispytest'])\n"
        "assert '1 passed' in out.getvalue(), out.getvalue()"
    )
    assert "tlmatrix.pytest_plugin" in modules
    assert not modules & {"torch", "tilelang", "rich", "tlmatrix.spec.model.spec", "pydantic"}


# run ------------------------------------------------------------------------------------------


def test_run_prints_a_table_and_the_group_of_failures(project):
    project.spec(how="[right, wrong]", rows="[5, 8]")
    outcome = project.tlmatrix("run", ".", "-n", "0", "--results", "out.jsonl")
    assert outcome.code == ExitCode.FINDINGS
    assert "8 cases of 1 spec" in outcome.out
    assert "1. scale: failed in 4 cases" in outcome.out
    assert "all have how=wrong; no case with that passed" in outcome.out
    assert "tlmatrix repro 'scale.yaml::cols=3-dtype=float16-how=wrong-rows=5'" in outcome.out
    assert "4 passed, 4 failed" in outcome.out
    assert "results: out.jsonl" in outcome.out
    (row,) = [line.split() for line in outcome.out.splitlines() if line.startswith("scale ")]
    assert row[:6] == ["scale", "8", "4", "4", "0", "0"]


@pytest.mark.parametrize("name", ["it's mine", "$(touch PWN)", 'a `b` "c" !d'])
def test_a_shell_reads_printed_commands_back(project, name):
    text = project.spec(how="[wrong]", rows="[5]").read_text()
    text = text.replace("[float32, float16]", '[float32]\n  note: ["it\'s; $(x)"]')
    (project.folder / f"{name}.yaml").write_text(text)
    (project.folder / "scale.yaml").unlink()
    kernel = project.folder / f"{project.module}.py"
    kernel.write_text(kernel.read_text().replace('how="right"', 'how="right", note=""'))
    ran = project.tlmatrix("run", ".", "-n", "0", "--results", "r.jsonl", "--junitxml", "j.xml")
    assert ran.code == ExitCode.FINDINGS, ran.out
    (result,) = read_records(project.folder / "r.jsonl").results
    assert result.node.startswith(f"{name}.yaml::")
    project.tlmatrix("report", "r.jsonl", "-o", "r.html")
    texts = (
        ran.out,
        ET.parse(project.folder / "j.xml").find(".//failure").text,
        html.unescape(re.sub("</(?:code|pre)>", "\n", (project.folder / "r.html").read_text())),
        project.tlmatrix("repro", result.node).out,
    )
    for printed in texts:
        commands = re.findall("(?<=tlmatrix )(?:repro|explain) .*", printed)
        assert commands, printed
        for command in commands:
            words = ["bash", "-c", f"printf '%s\\0' {command}"]
            read = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            assert read.split("\0")[1] == result.node, command
    assert not (project.folder / "PWN").exists()


def test_run_of_correct_kernels_is_ok(project):
    project.spec()
    assert project.tlmatrix("run", ".", "-n", "0").code == ExitCode.OK
    assert len(list((project.folder / ".tlmatrix").glob("*.jsonl"))) == 1
    assert (project.folder / ".tlmatrix" / ".gitignore").read_text() == "*\n"


def test_run_takes_specs_from_the_configuration(project):
    project.spec()
    (project.folder / "pyproject.toml").write_text(
        '[tool.tlmatrix]\nspecs = ["scale.yaml"]\nresults = "out"\n'
        '[tool.pytest.ini_options]\naddopts = "--no-such-option"\nfilterwarnings = ["error"]\n'
    )
    project.tlmatrix("run", "-n", "0", code=ExitCode.OK)
    assert len(list((project.folder / "out").glob("*.jsonl"))) == 1


def test_run_selects_without_a_path(project):
    (project.folder / "specs").mkdir()
    project.spec(rows="[1, 5]").rename(project.folder / "specs" / "scale.yaml")
    outcome = project.tlmatrix("run", "-n", "0", "-k", "scale and dtype=float16 and rows=5")
    assert outcome.code == ExitCode.OK
    assert "1 case in" in outcome.out


def test_run_selects_by_axis(project):
    project.spec()
    outcome = project.tlmatrix("run", ".", "-n", "0", "-k", "dtype=float16 and rows=5")
    assert "1 case of 1 spec" in outcome.out
    outcome = project.tlmatrix("run", ".", "-n", "0", "-k", "dtype=float64", code=ExitCode.USAGE)
    assert "no case matches" in outcome.out


def test_run_reports_errors_of_all_specs_before_it_runs_any(project):
    for name in ("one", "two"):
        path = project.spec(name)
        path.write_text(path.read_text() + "wrong_key: 1\n")
    project.spec("three")
    outcome = project.tlmatrix("run", ".", "-n", "0", code=ExitCode.USAGE)
    assert "one.yaml:15:1: " in outcome.out
    assert "two.yaml:15:1: " in outcome.out
    assert not list(project.folder.rglob("*.jsonl"))


def test_run_writes_junit(project):
    project.spec(how="[right, wrong]", rows="[5]")
    project.tlmatrix("run", ".", "-n", "0", "--junitxml", "junit.xml")
    text = (project.folder / "junit.xml").read_text()
    assert 'tests="4"' in text
    assert "tlmatrix repro" in text


def test_run_prints_known_bugs_and_skips(project):
    project.spec(
        how="[wrong]",
        rows="[5]",
        more="""\
        known_bugs:
          - {when: dtype == 'float32', issue: "#7", expires: 2999-01-01, mode: tolerate}
          - {when: dtype == 'float16', issue: "#8", expires: 2999-01-01, mode: quarantine}
        """,
    )
    outcome = project.tlmatrix("run", ".", "-n", "0", code=ExitCode.OK)
    assert "1 case known-bug: known bug #7" in outcome.out
    assert "1 case quarantined: known bug #8" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nowhere"], "no such file or folder: nowhere"),
        (["run"], "set `specs` in [tool.tlmatrix]"),
        (["run", "."], "no spec in"),
        (["run", "--resume", "nothing.jsonl"], "nothing.jsonl"),
        (["run", "--backend", "gpu"], "argument --backend: no 'gpu'; known: auto, compile"),
        (["repro", "nowhere.yaml::a=1"], "no such spec: nowhere.yaml"),
        (["list", "--explain", "a=1", "."], "no spec in"),
        (["run", "scale", "--tier", "quik"], "did you mean 'quick'?"),
        pytest.param(
            ["run", "scale", "-n", "0", "--backend", "cuda"],
            "PyTorch sees no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_invalid_arguments(project, arguments, words):
    if "scale" in arguments:
        (project.folder / "scale").mkdir()
        project.spec().rename(project.folder / "scale" / "scale.yaml")
    outcome = project.tlmatrix(*arguments, code=ExitCode.USAGE)
    assert words in outcome.out


def test_an_interrupted_command_of_a_program_leaves_its_signals_alone(project, monkeypatch):
    """The process goes on, and so does what it starts, which would inherit an ignored SIGINT."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "command_named", lambda _: interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert project.tlmatrix("list", ".").code == ExitCode.INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is before


def test_help_lists_the_exit_codes(project):
    outcome = project.tlmatrix("--help", code=0)
    for code in ExitCode:
        assert f"  {code.value:>3}  " in outcome.out


_PLANTED = '''
import torch

def attention(q, k, v, *, causal):
    """Bottom-right causal attention that, from position 64 on, also sees the next key."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * q.shape[-1] ** -0.5
    position = torch.arange(q.shape[1])
    last = position + (position >= 64)
    if causal:
        scores = scores.masked_fill(torch.arange(k.shape[1]) > last[:, None], float("-inf"))
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.float())
    return out.to(q.dtype)
'''
_PLANTED_SPEC = """\
name: planted
problem: attention
entry: {module}:attention
axes:
  dtype: [float16]
  kv_heads: [2]
  head_dim: [16]
  layout: [bshd]
  seqlen_q: [64, 130]
  causal: [false, true]
  values: [normal]
tiers: {{quick: product}}
checks: [numeric, gradients]
"""


def test_the_finding_of_a_wrong_mask_names_the_rows(project):
    (project.folder / f"{project.module}.py").write_text(_PLANTED)
    (project.folder / "planted.yaml").write_text(_PLANTED_SPEC.format(module=project.module))
    outcome = project.tlmatrix("run", ".", "-n", "0", code=ExitCode.FINDINGS)
    assert "1 failed" in outcome.out
    assert "rows 64-128" in outcome.out
    assert "causal=true-" in outcome.out
    assert "seqlen_q=130" in outcome.out


# list and check -------------------------------------------------------------------------------


def test_list_counts_cases_and_what_rules_remove(project):
    project.spec(
        rows="[1, 5, 7]",
        more="constraints: [{when: rows == 7, require: dtype == float32, because: so}]",
    )
    outcome = project.tlmatrix("list", ".", "--cases", code=ExitCode.OK)
    assert "quick: 5 cases (product) of 6 combinations" in outcome.out
    assert "constraint dtype == float32 when rows == 7 (so): removes 1" in outcome.out
    assert sum("cols=3-dtype=" in line for line in outcome.out.splitlines()) == 5
    assert "5 cases of 1 spec in the tier quick" in outcome.out


def test_list_explains_a_case(project):
    project.spec(
        more="constraints: [{when: rows == 5, require: dtype == float32, because: so it is}]"
    )
    outcome = project.tlmatrix(
        "list", ".", "--explain", "scale.yaml::cols=3-dtype=float16-how=right-rows=5"
    )
    assert outcome.code == ExitCode.OK
    assert "so it is" in outcome.out
    outcome = project.tlmatrix("list", ".", "--explain", "cols=3-dtype=float61-how=right-rows=5")
    assert outcome.code == ExitCode.USAGE
    assert "float16" in outcome.out


def test_list_and_check_import_nothing_that_a_spec_names(project):
    """The page on the spec language promises it."""
    (project.folder / "loud.py").write_text("open('imported', 'w').close()\n")
    (project.folder / "loud.yaml").write_text(
        "name: loud\n"
        "problem: {inputs: {x: {shape: [m], dtype: float32}}, outputs: [y], reference: loud:ref}\n"
        "entry: loud:entry\naxes: {m: [1, 2]}\n"
        "relations: [loud:relation]\nagree: [{entry: loud:other}]\n"
        "invalid_inputs: {cases: {bad: {raises: loud:Error, axes: {m: 1}}}}\n"
        "fuzz: {axes: {m: 1..9}, examples: {quick: 2}}\n"
    )
    for command in ("list", "check"):
        project.tlmatrix(command, "loud.yaml", code=ExitCode.OK)
    assert not (project.folder / "imported").exists()
    project.tlmatrix("repro", "loud.yaml::m=1")
    assert (project.folder / "imported").exists()


def test_check_prints_every_error_with_its_line(project):
    path = project.spec()
    path.write_text(path.read_text().replace("rows: [1, 5]", "rows: []") + "wrong_key: 1\n")
    outcome = project.tlmatrix("check", ".", code=ExitCode.USAGE)
    places = [line.split(": ")[0] for line in outcome.out.splitlines()]
    assert places == ["scale.yaml:10:3", "scale.yaml:15:1"], outcome.out


def test_list_describes_fuzz_cases_and_check_rejects_wide_ranges(project):
    fuzz = "fuzz: {axes: {rows: 0..RANGE}, storage: [sliced], examples: {quick: 3}}"
    rule = "constraints: [{require: rows != cols, because: so}]"
    path = project.spec(more=f"{fuzz}\n{rule}")
    text = path.read_text()
    path.write_text(text.replace("RANGE", "40"))
    outcome = project.tlmatrix("list", ".")
    assert "each time: rows 0..40; values of all distributions; storage sliced" in outcome.out
    assert "mostly as in the tier (2): dtype" in " ".join(outcome.out.split())
    assert project.tlmatrix("check", ".").code == ExitCode.OK
    path.write_text(text.replace("RANGE", "40000"))
    assert project.tlmatrix("check", ".").code == ExitCode.OK
    path.write_text(text.replace("RANGE", "4000000"))
    for command in ("check", "run", "fuzz", "list"):
        outcome = project.tlmatrix(command, ".", code=ExitCode.USAGE)
        assert "a range of 4,000,001 numbers; a constraint names 'rows'" in outcome.out


# repro ----------------------------------------------------------------------------------------


def test_repro_runs_the_case_that_a_finding_names(project):
    project.spec(how="[right, wrong]", rows="[5]")
    project.tlmatrix("run", ".", "-n", "0", "--results", "out.jsonl", "--seed", "3")
    records = read_records(project.folder / "out.jsonl")
    failed = next(item for item in records.results if item.status is Status.FAILED)
    words = failed.command.replace("'", "").split()
    assert words[:2] == ["tlmatrix", "repro"]
    outcome = project.tlmatrix(*words[1:], "--verbose", code=ExitCode.FINDINGS)
    assert failed.findings[0].title in " ".join(outcome.out.split())
    assert "expected: y [" in outcome.out
    assert "got: y [" in outcome.out
    outcome = project.tlmatrix(*[word.replace("wrong", "right") for word in words[1:]])
    assert outcome.code == ExitCode.OK


def test_repro_accepts_values_outside_of_all_tiers(project):
    project.spec(how="[right, wrong]", rows="[5]")
    outcome = project.tlmatrix("repro", "scale.yaml", "--values", '{"rows": 77, "how": "wrong"}')
    assert outcome.code == ExitCode.FINDINGS
    assert "rows=77" in outcome.out


@pytest.mark.parametrize(
    ("case", "values", "words"),
    [
        ("scale.yaml::cols=3-dtype=float16-how=write-rows=5", None, "right"),
        ("scale.yaml", None, "no case given"),
        ("scale.yaml", '{"row": 1}', "rows"),
        ("scale.yaml", "{rows: 1}", "not JSON"),
    ],
)
def test_repro_rejects_unknown_cases_and_values(project, case, values, words):
    project.spec()
    options = [] if values is None else ["--values", values]
    outcome = project.tlmatrix("repro", case, *options, code=ExitCode.USAGE)
    assert words in outcome.out


# schema ---------------------------------------------------------------------------------------


def test_schema_is_json(project):
    outcome = project.tlmatrix("schema")
    assert "axes" in json.loads(outcome.out)["properties"]
