"""Results on disk: what is written is read back, whatever cut the writing short."""

import multiprocessing

import pytest

from tlmatrix.check import Finding
from tlmatrix.run import (
    CaseResult,
    RecordsError,
    RecordsWriter,
    RunHeader,
    SkipReason,
    Status,
    Summary,
    read_records,
)

_HEADER = RunHeader(
    tier="quick",
    backend="auto",
    seed=0,
    paths=("specs",),
    command="pytest specs",
    started="2026-01-01T00:00:00+00:00",
    folder="/somewhere",
    versions={"torch": "2"},
)
_FAILED = CaseResult(
    spec="x",
    path="specs/x.yaml",
    case="a=1-b=none",
    key='x:{"a":1,"b":null}',
    status=Status.FAILED,
    values={"a": 1, "b": None, "c": {"q": [1, 2]}},
    findings=(
        Finding(
            check="numeric",
            title="off",
            tensor="out",
            index={"head": 0},
            expected=0.0,
            got=float("nan"),
            ratio=float("inf"),
        ),
        Finding(check="guards", title="wrote past the end"),
    ),
    seconds=0.25,
    phases={"entry": 0.125},
    backend="interpreter",
    arch="interpreter",
    seed=3,
)
_SKIPPED = CaseResult(
    spec="x",
    path="specs/x.yaml",
    case="a=2-b=none",
    status=Status.SKIPPED,
    reason=SkipReason.UNSUPPORTED,
    message="T.thing",
)


def _write(path, *results):
    writer = RecordsWriter(path)
    writer.header(_HEADER)
    for result in results:
        writer.start(result.path, result.case, "gw0")
        writer.case(result)
    writer.summary(Summary({"failed": 1}, 1.5, 1))
    writer.close()


def test_written_records_are_read_back(tmp_path):
    _write(tmp_path / "a" / "run.jsonl", _FAILED, _SKIPPED)
    records = read_records(tmp_path / "a" / "run.jsonl")
    assert records.header == _HEADER
    assert records.summary == Summary({"failed": 1}, 1.5, 1)
    assert records.results[1] == _SKIPPED
    # NaN is equal to nothing, so by text.
    assert repr(records.results[0]) == repr(_FAILED)
    assert records.counts() == {Status.FAILED: 1, Status.SKIPPED: 1}


@pytest.mark.parametrize("keep", range(1, 120, 7))
def test_an_incomplete_last_line_is_ignored(tmp_path, keep):
    path = tmp_path / "run.jsonl"
    _write(path, _SKIPPED)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][: min(keep, len(lines[2]) - 2)])
    (result,) = read_records(path).results
    assert result.status is Status.CRASHED
    assert result.case == _SKIPPED.case


def test_a_resumed_run_appends_after_an_incomplete_line(tmp_path):
    path = tmp_path / "run.jsonl"
    _write(path, _SKIPPED)
    path.write_bytes(path.read_bytes()[:-20])
    _write(path, _FAILED)
    records = read_records(path)
    assert [item.status for item in records.results] == [Status.SKIPPED, Status.FAILED]


def test_the_last_result_of_a_case_counts(tmp_path):
    path = tmp_path / "run.jsonl"
    passed = CaseResult(spec="x", path=_FAILED.path, case=_FAILED.case, status=Status.PASSED)
    _write(path, _FAILED, _SKIPPED, passed)
    records = read_records(path)
    assert [result.status for result in records.results] == [Status.SKIPPED, Status.PASSED]


def test_an_unfinished_case_is_crashed_and_the_run_has_no_summary(tmp_path):
    path = tmp_path / "run.jsonl"
    writer = RecordsWriter(path)
    writer.header(_HEADER)
    writer.start("specs/x.yaml", "a=1", "gw0")
    records = read_records(path)
    assert records.summary is None
    assert [item.status for item in records.results] == [Status.CRASHED]
    writer.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no record of a run$"),
        ('{"record":"case"}\n{"record":"case"}\n', ":1: not a record: it has no 'status'"),
        ('{"a": 1}\n', ":1: not a record: it has no key 'record'"),
        ("not json\n[1]\n", ":1: not a record: Expecting value"),
        ("[1]\n", ":1: not a record: it is list, not an object"),
    ],
)
def test_a_file_without_records_is_an_error(tmp_path, text, words):
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(RecordsError, match=words):
        read_records(path)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1]",
        '{"record":"case","status":"passed"}',
        '{"record":"case","spec":"x","path":"y","case":"z","status":"unheard of"}',
        '{"record":"start"}',
        '{"record":"run","tier":"quick","backend":1,"seed":0}',
        '{"record":"summary"}',
    ],
)
def test_a_line_that_is_no_record_is_left_out(tmp_path, line):
    path = tmp_path / "run.jsonl"
    _write(path, _FAILED, _SKIPPED)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1], line, *lines[2:]]) + "\n")
    records = read_records(path)
    assert [item.status for item in records.results] == [Status.FAILED, Status.SKIPPED]
    assert records.header == _HEADER
    assert [text.partition(": not a record: ")[0] for text in records.problems] == [f"{path}:3"]


@pytest.mark.parametrize("header", ["nonsense", '{"record":"run","seed":"none"}', None])
def test_the_results_of_a_file_without_its_header_are_read(tmp_path, header):
    path = tmp_path / "run.jsonl"
    _write(path, _FAILED)
    _, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header or "", *rest]) + "\n")
    records = read_records(path)
    assert [item.status for item in records.results] == [Status.FAILED]
    assert records.header.paths == (_FAILED.path,)
    assert "has no header of a run" in records.problems[0]
    assert len(records.problems) == 1 + (header is not None)


def test_a_full_disk_is_an_error_of_the_writer(tmp_path):
    full = tmp_path / "run.jsonl"
    full.symlink_to("/dev/full")
    writer = RecordsWriter(full)
    writer.header(_HEADER)
    writer.case(_FAILED)
    assert "No space left" in writer.error
    writer.close()


def _append(path, worker, count):
    writer = RecordsWriter(path)
    for number in range(count):
        case = f"a={number}-b={worker * 200}"
        writer.start("specs/x.yaml", case, worker)
        writer.case(CaseResult(spec="x", path="specs/x.yaml", case=case, status=Status.PASSED))
    writer.close()


def test_processes_append_whole_lines_to_a_shared_file(tmp_path):
    path = tmp_path / "run.jsonl"
    writer = RecordsWriter(path)
    writer.header(_HEADER)
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_append, args=(path, f"gw{number}", 400)) for number in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    writer.close()
    assert read_records(path).counts() == {Status.PASSED: 800}
