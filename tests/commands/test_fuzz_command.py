"""`tlmatrix fuzz`: faults, crashed and hanging processes, records, exit codes, saving."""

import os
import re
import signal
import time

import pytest

import preloaded_python
from tlmatrix.run import Status, read_records
from tlmatrix.spec.loader import load_spec

_FUZZ = """\
fuzz:
  axes: {rows: 1..300}
  examples: {quick: 12}
"""


def _records(project):
    (path,) = project.folder.rglob("*.jsonl")
    return read_records(path)


def test_a_search_without_failures_exits_with_0_and_records_every_example(project):
    project.spec(more=_FUZZ)
    outcome = project.tlmatrix("fuzz", "scale.yaml", "-n", "2", "--examples", "30", code=0)
    assert "30 examples in" in outcome.out
    results = _records(project).results
    assert [result.status for result in results] == [Status.PASSED] * 30
    assert len({result.key for result in results}) == 30
    assert _records(project).summary.counts == {"passed": 30}
    (path,) = project.folder.rglob("*.jsonl")
    assert path.read_text().count('"record":"case"') == 30


def test_errors_of_workers_are_reported_once(project):
    rule = 'constraints: ["rows < 3000 or (rows - 4321) ** -1 != 7"]'
    wide = _FUZZ.replace("1..300", "{range: 1..90000, around: [4321]}")
    project.spec(more=f"{wide}  storage: [offset]\n{rule}")
    outcome = project.tlmatrix("fuzz", "scale.yaml", "-n", "2", "--examples", "60", code=2)
    assert "Traceback" not in outcome.out
    assert outcome.out.count("has no value for rows=4321: 0 ** -1 divides by zero") == 1
    assert "its cases cannot be generated" in " ".join(outcome.out.split())


def test_a_fault_is_reported_once_shrunk_and_saved(project):
    path = project.spec(how="[right, wrong]", rows="[1]", more=_FUZZ)
    assert "regressions:" not in path.read_text()  # --save adds the key
    outcome = project.tlmatrix("fuzz", "scale.yaml", "-n", "1", "--save", code=1)
    assert "12 examples in" in outcome.out
    assert outcome.out.count("tlmatrix repro") == 1
    assert "saved to scale.yaml: 1 regression" in outcome.out
    (saved,) = load_spec(path).regressions
    assert saved.case == {"how": "wrong", "rows": 1, "cols": 3, "dtype": "float32"}
    assert saved.failed.startswith("numeric: y")
    replayed = project.tlmatrix("replay", "scale.yaml", "-n", "0")
    assert "FAILED" in replayed.out


def test_the_search_continues_after_a_case_that_ends_its_process(project):
    project.spec(how="[right, exit_late]", rows="[1]", more=_FUZZ)
    outcome = project.tlmatrix("fuzz", "scale.yaml", "-n", "2", "--examples", "14", code=1)
    counts = _records(project).counts()
    assert counts[Status.CRASHED] >= 1
    assert counts[Status.PASSED] >= 1
    assert counts.total() == 14
    # All of them are one fault.
    assert outcome.out.count("the process ended while this case was running (3)") == 1
    assert "14 examples in" in outcome.out
    assert "rows=17'" in outcome.out  # where it begins: shrunk in processes of its own


def test_faults_of_all_kinds_cost_one_case_each(project):
    """Also of a case that leaves its process unusable, as a lost CUDA context does."""
    hows = ["right", "skip", "surrogate", "lose_gpu"]
    project.spec(how=f"[{', '.join(hows)}]", rows="[1]", more=_FUZZ)
    outcome = project.tlmatrix("fuzz", "scale.yaml", "-n", "2", "--examples", "16", "--seed", "3")
    assert outcome.code == 1, outcome.out
    results = _records(project).results
    assert len(results) == 16
    statuses = {(result.values["how"], result.status) for result in results}
    ended = {"right": Status.PASSED}
    assert statuses == {(how, ended.get(how, Status.ERROR)) for how in hows}
    assert "16 examples in" in outcome.out
    printed = " ".join(outcome.out.split())
    for title in (
        "raises Skipped: not today",
        r"raises ValueError: a file \udc80 \x1b[31m",
        "an illegal memory access was encountered; the CUDA context is lost",
    ):
        assert printed.count(title) == 1, (title, outcome.out)


def test_workers_that_end_between_cases_do_not_end_the_search_of_other_specs(project):
    project.spec("ends", how="[end_between]", rows="[1]", more=_FUZZ)
    project.spec("scale", rows="[1]", more=_FUZZ)
    outcome = project.tlmatrix("fuzz", ".", "-n", "1", code=3)
    assert "ends.yaml: not searched to the end" in outcome.out
    assert re.search(r"^scale +12 +12 ", outcome.out, re.MULTILINE), outcome.out
    results = _records(project).results
    assert sum(result.spec == "scale" for result in results) == 12


def test_results_of_a_search_that_cannot_be_written(project):
    project.spec(more=_FUZZ)
    (project.folder / "file").write_text("")
    outcome = project.tlmatrix("fuzz", ".", "-n", "1", "--results", "file/out.jsonl", code=3)
    assert "file/out.jsonl: the results cannot be written: " in outcome.out
    assert "file is not a folder" in outcome.out


def test_a_case_that_hangs_is_ended_by_the_timeout(project):
    project.spec(how="[hang]", rows="[1]", more=_FUZZ)
    outcome = project.tlmatrix("fuzz", "scale.yaml", "-n", "1", "--examples", "1", "--timeout", "1")
    assert outcome.code == 1, outcome.out
    (result,) = _records(project).results
    assert result.status is Status.TIMEOUT
    assert "the case exceeded its time limit" in outcome.out


def test_ctrl_c_keeps_the_records_and_reports_the_faults(project):
    project.spec(how="[right, wrong]", rows="[1]", more=_FUZZ)
    words = ("tlmatrix", "fuzz", "scale.yaml", "-n", "1", "--minutes", "5")
    # Not preloaded: the whole process group gets the signal.
    process = project.start(*words, executable=preloaded_python.PLAIN)
    try:
        for _ in range(600):
            time.sleep(0.1)
            found = list(project.folder.rglob("*.jsonl"))
            if found and found[0].read_text().count('"record":"case"') > 5:
                break
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, out
    assert "interrupted" in out
    assert "numeric: y" in out
    records = _records(project)
    assert records.summary is None
    ended = [result for result in records.results if result.key]
    assert len(ended) > 5


def test_minutes_end_a_search(project):
    project.spec(more=_FUZZ)
    project.tlmatrix("fuzz", "scale.yaml", "-n", "1", "--minutes", "0.05", code=0)
    assert _records(project).counts()[Status.PASSED] > 1


@pytest.mark.parametrize("words", [("--examples", "3"), ("--minutes", "0.02")])
def test_specs_without_sizes_to_try_are_named_and_have_other_numbers(project, words):
    project.spec()
    outcome = project.tlmatrix("fuzz", "scale.yaml", *words, code=0)
    assert "scale.yaml: no section `fuzz`, so that sizes are the listed ones; add" in outcome.out
    ids = [result.case for result in _records(project).results]
    assert ids
    assert all("values=" in each for each in ids)
    project.spec(more="fuzz: {axes: {rows: 1..30}}\n")
    outcome = project.tlmatrix("fuzz", "scale.yaml", *words, code=0)
    assert "no section" not in outcome.out


def test_specs_without_examples_are_searched_if_there_is_a_limit(project):
    project.spec()
    outcome = project.tlmatrix("fuzz", "scale.yaml", code=2)
    assert "no spec here has fuzz cases in the tier quick; give --examples 20" in outcome.out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--examples", "3", "--minutes", "1"), "give one of them"),
        (("-n", "0"), "'0' is not a whole number from 1 to 1,024, or auto"),
        (("--backend", "compile"), "does not run kernels"),
        (("--tier", "full"), "no spec here has fuzz cases in the tier full"),
        (("--tier", "fool"), "fool"),
    ],
)
def test_invalid_arguments_are_reported_before_anything_runs(project, words, text):
    project.spec(more=_FUZZ)
    outcome = project.tlmatrix("fuzz", "scale.yaml", *words, code=2)
    assert text in outcome.out
    assert not list(project.folder.rglob("*.jsonl"))
