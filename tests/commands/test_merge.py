"""`tlmatrix run --shard` and `tlmatrix merge`: all shards make up the run, or the rest is named."""

import json

import pytest

from tlmatrix.exit_codes import ExitCode
from tlmatrix.run import read_records


def _run_shards(project, count, *words):
    folder = project.folder / "shards"
    for number in range(1, count + 1):
        outcome = project.tlmatrix(
            "run", ".", "-n", "0", "--shard", f"{number}/{count}", "--results", str(folder), *words
        )
        assert outcome.code in (ExitCode.OK, ExitCode.FINDINGS), outcome.out
        assert f"shard {number}/{count} of the plan" in outcome.out
        (file,) = folder.glob("run-*.jsonl")
        file.rename(folder / f"{number}.jsonl")
    return folder


def test_merged_shards_are_the_run(project):
    """More shards than groups, so that some are empty."""
    fuzz = "fuzz: {axes: {rows: 20..30}, examples: {quick: 3}}"
    project.spec(how="[right, wrong]", rows="[1, 5]", more=fuzz)
    whole = project.tlmatrix("run", ".", "-n", "0", "--results", "whole.jsonl")
    assert whole.code == ExitCode.FINDINGS
    wanted = {(each.path, each.case): each.status for each in _results(project, "whole.jsonl")}
    folder = _run_shards(project, 5, "--times", "whole.jsonl", "--coverage")
    of_shards = [len(read_records(folder / f"{number}.jsonl").results) for number in range(1, 6)]
    assert sum(of_shards) == len(wanted) == 11
    assert sum(map(bool, of_shards)) > 1
    outcome = project.tlmatrix("merge", "shards", "-o", "merged.jsonl", code=ExitCode.FINDINGS)
    assert "11 cases of 5 shards: " in outcome.out
    merged = read_records(project.folder / "merged.jsonl")
    assert {(each.path, each.case): each.status for each in merged.results} == wanted
    assert merged.summary is not None
    assert sum(merged.summary.counts.values()) == 11
    assert not merged.header.shard
    # Again, with one shard on two workers and through pytest: the same cases.
    process = project.start(
        "pytest", ".", "-n", "2", "--tlmatrix-shard", "1/5", "--tlmatrix-times", "whole.jsonl",
        "--tlmatrix-results", "again.jsonl",
    )  # fmt: skip
    out, _ = process.communicate(timeout=60)
    again, first = (
        read_records(project.folder / name) for name in ("again.jsonl", "shards/1.jsonl")
    )
    assert again.header.plan == first.header.plan, out
    assert again.planned == first.planned
    assert {each.case for each in again.results} == {each.case for each in first.results}


@pytest.mark.parametrize("other", ["--seed", "versions", "sources"])
def test_shards_of_several_runs_are_refused_with_both_values(project, other):
    project.spec()
    _run_shards(project, 2, "--times", "")
    file = project.folder / "shards" / "2.jsonl"
    if other == "--seed":
        file.unlink()
        words = ("--shard", "2/2", "--times", "", "--seed", "5", "--results", str(file))
        assert project.tlmatrix("run", ".", "-n", "0", *words).code == ExitCode.OK
        expected = "different values of --seed: 0 in shards/1.jsonl; 5 in shards/2.jsonl"
    elif other == "versions":
        lines = file.read_text().splitlines(keepends=True)
        header = json.loads(lines[0])
        header["versions"]["torch"] = "1.0"
        file.write_text(json.dumps(header) + "\n" + "".join(lines[1:]))
        expected = "; 1.0 in shards/2.jsonl"
    else:
        module = project.folder / f"{project.module}.py"
        module.write_text(module.read_text() + "# edited\n")
        assert project.tlmatrix("run", "--resume", str(file), "-n", "0").code == ExitCode.OK
        expected = f"different values of {module.name} (scale.yaml): "
    outcome = project.tlmatrix("merge", "shards", "-o", "merged.jsonl", code=ExitCode.USAGE)
    assert expected in outcome.out.replace("\n", " "), outcome.out
    assert not (project.folder / "merged.jsonl").exists()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_more_shards_than_cases_are_refused_and_an_empty_shard_is_said(project, workers):
    project.spec(more="compile_axes: [dtype]")  # four cases, two groups
    words = ("run", ".", "-n", workers, "--times", "")
    outcome = project.tlmatrix(*words, "--shard", "1000/1000", code=ExitCode.USAGE)
    shown = " ".join(outcome.out.split())
    assert "--shard 1000/1000: more shards than cases; of 4 cases there are at most 4" in shown
    outcome = project.tlmatrix(*words, "--shard", "4/4", code=ExitCode.OK)
    assert "is empty: 2 groups of cases that share kernels" in " ".join(outcome.out.split())


def _results(project, name):
    return read_records(project.folder / name).results


def test_what_is_missing_is_named_and_nothing_is_written(project):
    project.spec(rows="[1, 5]")
    folder = _run_shards(project, 3, "--times", "")
    file = max(folder.iterdir(), key=lambda file: len(read_records(file).results))
    records = read_records(file)
    last = records.results[-1]
    lines = [line for line in file.read_text().splitlines() if last.case not in line]
    plan = next(line for line in file.read_text().splitlines() if '"record":"plan"' in line)
    file.write_text("\n".join([lines[0], plan, *lines[1:]]) + "\n")
    other = next(each for each in folder.iterdir() if each != file)
    number = other.stem
    other.unlink()
    outcome = project.tlmatrix("merge", "shards", "-o", "merged.jsonl", code=ExitCode.USAGE)
    assert f"shard {number}/3 is missing" in outcome.out
    planned = sum(map(len, records.planned.values()))
    assert f"shard {file.stem}/3: 1 of {planned} case" in outcome.out
    assert f"scale.yaml::{last.case}; `tlmatrix run --resume shards/{file.stem}.jsonl`" in (
        outcome.out
    )
    assert not (project.folder / "merged.jsonl").exists()
    resumed = project.tlmatrix("run", "--resume", str(file), "-n", "0", code=ExitCode.OK)
    assert "1 case of 1 spec" in resumed.out
    outcome = project.tlmatrix("merge", "shards", "-o", "merged.jsonl")
    assert "have no result" not in outcome.out
    assert f"shard {number}/3 is missing" in outcome.out


def test_shards_of_two_plans_are_not_merged(project):
    project.spec(rows="[1, 5]")
    folder = _run_shards(project, 2, "--times", "")
    file = folder / "2.jsonl"
    first, *rest = file.read_text().splitlines()
    header = json.loads(first) | {"plan": "another"}
    file.write_text("\n".join([json.dumps(header), *rest]) + "\n")
    outcome = project.tlmatrix("merge", "shards", "-o", "merged.jsonl", code=ExitCode.USAGE)
    assert "the shards are of several plans" in outcome.out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("run", "--shard", "3/2"), "--shard: '3/2' is no shard; write NUMBER/COUNT"),
        (("merge", "nowhere", "-o", "x.jsonl"), "merge: no such file or folder: nowhere"),
        (("merge", ".", "-o", "x.jsonl"), "merge: no results of shards there"),
    ],
)
def test_wrong_arguments(project, words, text):
    project.spec()
    outcome = project.tlmatrix(*words, code=ExitCode.USAGE)
    assert text in outcome.out
