"""The pytest plugin in a project: collection, runs, output and records."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

import preloaded_python
from outside_project import wait_until
from tlmatrix.commands.run import select
from tlmatrix.commands.specs import plan_all
from tlmatrix.config import load_config
from tlmatrix.engine.settings import RunSettings
from tlmatrix.engine.worker import Worker
from tlmatrix.run import Status, read_records

_INSTALLED = {
    "site/tlmatrix-9.dist-info/METADATA": "Metadata-Version: 2.1\nName: tlmatrix\nVersion: 9\n",
    "site/tlmatrix-9.dist-info/RECORD": "tlmatrix/__init__.py,,\n",
    "site/tlmatrix-9.dist-info/entry_points.txt": "[pytest11]\ntlmatrix = tlmatrix.pytest_plugin\n",
}
"""A distribution whose files include the package, as an editable install does not have it."""


def _results(path):
    return {result.case: result.status for result in read_records(path).results}


# Collection ---------------------------------------------------------------------------------


def test_a_spec_beside_its_kernel_file_runs_without_packaging(project):
    project.spec()
    outcome = project.pytest(".", "-q", "-n", "0", code=pytest.ExitCode.OK)
    assert "4 passed" in outcome.out


def test_only_yaml_files_that_are_specs_are_collected_from_a_folder(project):
    project.spec()
    (project.folder / "ci.yaml").write_text("on: push\njobs: {}\n")
    (project.folder / "broken.yaml").write_text("{not yaml")
    outcome = project.pytest(".", "-q", "-n", "0", "--collect-only", code=pytest.ExitCode.OK)
    assert "4 tests collected" in outcome.out


@pytest.mark.parametrize("folder", ["beside", "specs", "elsewhere"])
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_link_to_nothing_in_a_folder_of_specs_is_an_error(project, folder, workers):
    project.spec()
    link = project.folder / ("" if folder == "beside" else folder) / "gone.yaml"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to("moved/gone.yaml")
    outcome = project.pytest(".", "-q", "-n", workers)
    message = "gone.yaml:1:1: a link to moved/gone.yaml, which does not exist; remove or mend it"
    assert (message in outcome.out) == (folder != "elsewhere"), outcome.out
    assert (outcome.code == pytest.ExitCode.OK) == (folder == "elsewhere")


def test_collecting_writes_no_results(project):
    project.spec()
    project.pytest(".", "-q", "-n", "0", "--collect-only")
    assert not list(project.folder.rglob("*.jsonl"))


def test_a_file_on_the_command_line_is_always_a_spec(project):
    path = project.folder / "broken.yaml"
    path.write_text("name: x\n")
    outcome = project.pytest("broken.yaml", "-q", "-n", "0", code=pytest.ExitCode.INTERRUPTED)
    assert "broken.yaml:1:" in outcome.out


def test_errors_of_a_spec_are_lines_without_a_traceback(project):
    path = project.spec()
    path.write_text(path.read_text().replace("checks:", "check:") + "nonsense: 1\n")
    outcome = project.pytest(".", "-q", "-n", "0")
    places = re.findall(r"^scale\.yaml:(\d+):(\d+): .+$", outcome.out, re.MULTILINE)
    assert [line for line, _ in places] == ["14", "15"], outcome.out
    assert "Traceback" not in outcome.out
    assert "pydantic" not in outcome.out


def test_a_tier_without_cases_is_an_error(project):
    project.spec(more="constraints: [{require: rows > 100, because: only large ones}]")
    outcome = project.pytest(".", "-q", "-n", "0", code=pytest.ExitCode.INTERRUPTED)
    assert "scale.yaml:" in outcome.out


def test_an_expired_known_bug_is_an_error_with_its_line(project):
    project.spec(
        more="""\
        known_bugs:
          - {when: rows == 5, issue: "#7", expires: 2020-01-01, mode: tolerate}
        """
    )
    outcome = project.pytest(".", "-q", "-n", "0", code=pytest.ExitCode.INTERRUPTED)
    assert re.search(r"^scale\.yaml:16:\d+: .*#7.*2020-01-01", outcome.out, re.MULTILINE)


def test_a_value_added_to_an_axis_adds_its_cases(project):
    project.spec(rows="[1, 5]")
    before = project.pytest(".", "-q", "-n", "0", "--collect-only").out
    project.spec(rows="[1, 5, 64]")
    after = project.pytest(".", "-q", "-n", "0", "--collect-only").out
    assert "4 tests" in before
    assert "6 tests" in after


@pytest.mark.parametrize(
    ("select", "count"),
    [
        ("dtype=float16", 2),
        ("dtype=float16 and rows=5", 1),
        ("not rows=5", 2),
        ("rows=5 or (rows=1 and dtype=float32)", 3),
        ("cols=3-dtype=float16-how=right-rows=1", 1),
        ("rows=50", 0),
        ("ows=5", 0),
        ("float16", 2),
    ],
)
def test_k_selects_by_the_value_of_an_axis(project, select, count):
    project.spec(rows="[1, 5]")
    outcome = project.pytest(".", "-q", "-n", "0", "--collect-only", "-k", select)
    listed = [line for line in outcome.out.splitlines() if "::" in line]
    assert len(listed) == count, outcome.out


def test_one_case_can_be_selected_by_id(project):
    project.spec()
    outcome = project.pytest("scale.yaml::cols=3-dtype=float16-how=right-rows=5", "-q", "-n", "0")
    assert "1 passed" in outcome.out


def test_project_settings_choose_the_tier(project):
    project.spec(more="")
    path = project.folder / "scale.yaml"
    path.write_text(path.read_text().replace("quick: product", "tiny: {strategy: first, size: 1}"))
    (project.folder / "pyproject.toml").write_text('[tool.tlmatrix]\ntier = "tiny"\n')
    assert "1 passed" in project.pytest(".", "-q", "-n", "0").out


def test_an_invalid_setting_is_an_error_with_a_suggestion(project):
    project.spec()
    (project.folder / "pyproject.toml").write_text("[tool.tlmatrix]\nbackends = 'cuda'\n")
    outcome = project.pytest(".", "-q", "-n", "0", code=pytest.ExitCode.USAGE_ERROR)
    assert "did you mean 'backend'" in outcome.out


# Results ------------------------------------------------------------------------------------


def test_a_failing_case_prints_its_finding_and_the_repro_command(project):
    project.spec(how="[right, wrong]", rows="[5]")
    outcome = project.pytest(".", "-q", "-n", "0", code=pytest.ExitCode.TESTS_FAILED)
    assert "2 failed, 2 passed" in outcome.out
    assert "numeric: y:" in outcome.out
    assert "worst at  y at" in outcome.out
    assert "tlmatrix repro 'scale.yaml::cols=3-dtype=float16-how=wrong-rows=5'" in outcome.out
    assert "Traceback" not in outcome.out
    assert "plugin/items.py" not in outcome.out


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_group_of_failures_is_printed_once_and_with_v_every_case(project, monkeypatch, ci):
    monkeypatch.setenv("CI", ci)  # where it is set, pytest's summary shortens nothing
    project.spec(how="[right, wrong, raise]", rows="[5, 8]")
    outcome = project.pytest(".", "-q", "-n", "0")
    assert outcome.out.count("tlmatrix repro") == 2
    assert "all have how=wrong; no case with that passed" in outcome.out
    assert "all have how=raise; no case with that passed" in outcome.out
    assert outcome.out.count("\nFAILED scale.yaml::") == 8
    assert "8 failed, 4 passed" in outcome.out
    outcome = project.pytest(".", "-v", "-n", "0")
    assert outcome.out.count("tlmatrix repro") == 8


@pytest.mark.parametrize("columns", [60, 100])
def test_findings_fit_the_terminal(project, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    project.spec(how="[right, wrong]", rows="[5]")
    outcome = project.pytest(".", "-q", "-n", "0")
    lines = outcome.out.splitlines()
    told = lines[lines.index("scale: failed in 2 cases") :]
    told = told[: told.index(next(line for line in told if line.startswith("  repro")))]
    assert 0.6 * columns < max(map(len, told)) <= columns


def test_the_traceback_of_an_entry_has_only_its_own_frames(project):
    project.spec(how="[raise]", rows="[5]")
    outcome = project.pytest(".", "-q", "-n", "0")
    assert "entry: raises RuntimeError: the kernel gave up" in outcome.out
    assert f"{project.module}.py:15 in scale" in outcome.out
    assert "binding.py" not in outcome.out


def test_the_record_of_a_case_is_complete(project):
    project.spec(how="[right, wrong]", rows="[5]")
    project.pytest(".", "-q", "-n", "0", "--tlmatrix-results", "out.jsonl", "--tlmatrix-seed", "7")
    records = read_records(project.folder / "out.jsonl")
    assert records.header.tier == "quick"
    assert records.header.seed == 7
    assert records.summary is not None
    assert records.summary.counts == {"passed": 2, "failed": 2}
    wrong = next(item for item in records.results if item.status is Status.FAILED)
    assert wrong.values == {"cols": 3, "dtype": wrong.values["dtype"], "how": "wrong", "rows": 5}
    assert wrong.findings[0].check == "numeric"
    assert wrong.backend == "interpreter"
    assert wrong.command.endswith("--seed 7")


def test_invalid_inputs_are_cases(project):
    project.spec(
        more="""\
        invalid_inputs:
          how must be: {how: refuse}
          gave up: {how: raise}
          slow: {how: slow}
        """
    )
    outcome = project.pytest(".", "-q", "-n", "0")
    assert "2 failed, 5 passed" in outcome.out
    assert "raises RuntimeError, expected ValueError with 'gave up'" in outcome.out
    assert "accepts an invalid input" in outcome.out


@pytest.mark.parametrize(
    ("how", "mode", "code", "words"),
    [
        ("wrong", "tolerate", 0, "1 xfailed"),
        ("right", "tolerate", 1, "passes, though known_bugs expects #7 to break it"),
        ("wrong", "quarantine", 0, "1 skipped"),
    ],
)
def test_known_bugs(project, how, mode, code, words):
    project.spec(
        how=f"[{how}]",
        rows="[5]",
        more=f"""\
        known_bugs:
          - {{when: rows == 5, issue: "#7", expires: 2999-01-01, mode: {mode}}}
        constraints: [{{require: dtype == 'float32', because: one is enough}}]
        """,
    )
    outcome = project.pytest(".", "-q", "-n", "0", code=code)
    assert words in outcome.out


def test_a_case_over_its_time_limit_is_a_timeout_and_the_next_one_runs(project):
    project.spec(how="[sleep, right]", rows="[5]")
    outcome = project.pytest(
        ".", "-q", "-n", "0", "--timeout", "3", "--tlmatrix-results", "out.jsonl", "-k", "float32"
    )
    assert outcome.code == pytest.ExitCode.TESTS_FAILED
    assert _results(project.folder / "out.jsonl") == {
        "cols=3-dtype=float32-how=sleep-rows=5": Status.TIMEOUT,
        "cols=3-dtype=float32-how=right-rows=5": Status.PASSED,
    }


def test_the_timeout_of_a_case_that_compiles_names_the_compiler(project):
    """A compiler at work, as far as its path says."""
    project.spec(how="[sleep]", rows="[5]")
    entry = project.folder / f"{project.module}.py"
    compiler = project.folder / "tilelang" / "engine" / "lower.py"
    compiler.parent.mkdir(parents=True)
    compiler.write_text("import time\n\n\ndef lower():\n    time.sleep(1000)\n")
    entry.write_text(
        f"import runpy\n{entry.read_text()}".replace(
            "time.sleep(60)", f"runpy.run_path({str(compiler)!r})['lower']()"
        )
    )
    outcome = project.pytest(".", "-q", "-n", "0", "--timeout", "1", "-k", "float32")
    assert "the case exceeded its time limit while compiling" in outcome.out
    assert "lower.py" in outcome.out


def test_resuming_runs_only_cases_that_did_not_pass(project):
    project.spec(how="[right, wrong]", rows="[5]")
    project.pytest(".", "-q", "-n", "0", "--tlmatrix-results", "out.jsonl")
    outcome = project.pytest(".", "-q", "-n", "0", "--tlmatrix-resume", "out.jsonl")
    assert "2 failed, 2 deselected" in outcome.out
    assert len(_results(project.folder / "out.jsonl")) == 4
    elsewhere = ("--results", "new.jsonl")
    outcome = project.tlmatrix("run", "--resume", "out.jsonl", "-n", "0", *elsewhere, code=2)
    assert "--results new.jsonl: a resumed run appends to its own file, out.jsonl" in outcome.out


# Workers ------------------------------------------------------------------------------------


def test_a_test_with_the_name_of_a_case_in_its_id_is_not_a_planned_case(project):
    (project.folder / "test_other.py").write_text(
        "import pytest\n@pytest.mark.parametrize('case', ['spec.yaml::rows=3'])\n"
        "def test_other(case): pass\n"
    )
    outcome = project.pytest("test_other.py", "-q", "-n", "1", code=pytest.ExitCode.OK)
    assert "planned cases" not in outcome.out


def test_an_interrupted_run_can_be_resumed(project):
    project.spec(how="[slow]", rows="[1, 2, 3, 4, 5]")
    process = project.start(
        "tlmatrix", "run", ".", "--results", "out.jsonl", "--backend", "interpreter"
    )
    file = project.folder / "out.jsonl"
    wait_until(lambda: file.exists() and '"passed"' in file.read_text())
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "tlmatrix run --resume out.jsonl" in out
    assert re.search(r"stopped early, \d+ not run", out)
    records = read_records(file)
    assert records.summary is None
    passed = records.counts()[Status.PASSED]
    assert 1 <= passed < 10
    assert records.counts().keys() <= {Status.PASSED, Status.CRASHED}  # begun and stopped
    (project.folder / "hurry").touch()
    outcome = project.tlmatrix("run", "--resume", "out.jsonl", "-n", "0", code=0)
    assert f"{10 - passed} cases of 1 spec; {passed} passed before" in outcome.out
    assert read_records(file).counts() == {Status.PASSED: 10}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_interrupted_case_is_not_a_failure(project, workers):
    project.spec(how="[compiling]", rows="[1, 2, 3]")
    process = project.start(
        "tlmatrix", "run", ".", "-n", workers, "--results", "out.jsonl", "--backend", "interpreter",
        executable=preloaded_python.PLAIN,  # so that the whole process group gets the signal
    )  # fmt: skip
    file = project.folder / "out.jsonl"
    wait_until(lambda: file.exists() and '"start"' in file.read_text())
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    records = [json.loads(line)["record"] for line in file.read_text().splitlines()]
    assert "start" in records
    assert "case" not in records


def test_an_interrupt_just_before_a_case_stops_it(project, monkeypatch):
    project.spec(how="[sleep]", rows="[1, 2]")
    start = Worker.start

    def interrupted(worker, *arguments, **options):
        start(worker, *arguments, **options)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Worker, "start", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    try:
        outcome = project.tlmatrix("run", ".", "-n", "0", "--results", "out.jsonl")
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome.code == 130, outcome.out
    assert time.monotonic() - began < 30  # the case sleeps for 60 s
    assert read_records(project.folder / "out.jsonl").counts() == {Status.CRASHED: 1}


def test_an_ignored_sigint_stays_ignored(project):
    project.spec(how="[interrupting]", rows="[1, 2]")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome = project.tlmatrix("run", ".", "-n", "0")
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome.code == 0, outcome.out
    assert "4 passed" in outcome.out


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_that_stops_at_the_first_failure_is_not_interrupted(project, workers):
    project.spec(how="[wrong]", rows="[1, 2, 3, 4, 5, 6]")
    outcome = project.tlmatrix(
        "run", ".", "-x", "-n", workers, "--results", "out.jsonl", "--backend", "interpreter"
    )
    assert outcome.code == 1, outcome.out
    assert "interrupted; ending" not in outcome.out
    assert "tlmatrix run --resume out.jsonl" in outcome.out


# A project's own settings ----------------------------------------------------------------------


def test_specs_and_tests_of_a_project_are_collected_without_options(project):
    (project.folder / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\ntestpaths = ["specs", "tests"]\n'
    )
    (project.folder / "specs").mkdir()
    more = "fuzz: {axes: {rows: 20..30}, examples: {quick: 3}}"
    project.spec(more=more).rename(project.folder / "specs" / "scale.yaml")
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "test_own.py").write_text("def test_own():\n    assert True\n")
    out = project.run("pytest", "-n", "2", "-v", code=0).out
    assert "8 passed" in out
    assert "tests/test_own.py::test_own" in out
    judged = set(re.findall(r"specs/scale\.yaml::(\S+)", out))
    project.tlmatrix("run", "-n", "0", "--results", "out.jsonl", code=0)
    assert judged == set(_results(project.folder / "out.jsonl"))
    assert len(judged) == 7


def test_sessions_with_warnings_as_errors(project):
    """Of an installed package, which pytest rewrites unless its docstring declines that."""
    project.spec()
    for name, text in _INSTALLED.items():
        (project.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (project.folder / name).write_text(text)
    strict = ("--strict-markers", "--strict-config", "-W", "error")
    for words in (
        ("pytest", "-n", "1", *strict, "-p", "no:cacheprovider"),
        ("tlmatrix", "exec", "-m", "pytest", "-n", "0", *strict, "-p", "no:timeout"),
    ):
        done = subprocess.run(
            [preloaded_python.PLAIN, "-m", *words, "scale.yaml", "-q"],
            cwd=project.folder, capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "PYTHONPATH": str(project.folder / "site")},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "4 passed" in done.stdout


def test_pytest_and_make_run_collect_the_same_specs():
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [preloaded_python.python(), "-m", "pytest", "-n", "auto", "--collect-only", "-q"],
        cwd=root, check=True, capture_output=True, text=True,
    )  # fmt: skip
    plain = [line for line in done.stdout.splitlines() if "::" in line]
    specs = {node.partition("::")[0] for node in plain}
    assert specs == {f"specs/{path.name}" for path in (root / "specs").glob("*.yaml")}
    config = load_config(root)
    settings = RunSettings.of({}, config, root)
    paths = sorted((root / "specs").glob("*.yaml"))
    plans = plan_all(paths, "quick", roots=[root])
    selected = select(plans, [()] * len(paths), settings, root)
    nodes = [f"specs/{each.path.name}::{case.id}" for each in selected for case in each.cases]
    assert sorted(nodes) == sorted(plain)
