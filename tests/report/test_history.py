"""The history of a folder of runs: what it keeps, reads again and forgets."""

import json
import sqlite3

import pytest

from report.synthetic import case, recorded
from tlmatrix.report.history import DATABASE, History, HistoryError, opened
from tlmatrix.run import Status


def _run(folder, day, failed=()):
    results = [case(n, Status.FAILED if n in failed else Status.PASSED) for n in range(3)]
    path = folder / f"run-{day}.jsonl"
    recorded(path, results, started=f"2026-01-{day:02d}T00:00:00+00:00")
    return path


def test_runs_and_cases_over_time(tmp_path):
    for day, failed in ((1, ()), (2, (1,)), (3, ()), (4, (1, 2)), (5, (2,))):
        _run(tmp_path, day, failed)
    (tmp_path / "other.jsonl").write_text("no records\n")
    with opened(tmp_path) as history:
        assert [run["failed"] for run in history.runs(10)] == [0, 1, 0, 2, 1]
        assert [run["started"][:10] for run in history.runs(2)] == ["2026-01-04", "2026-01-05"]
        rows = history.case("specs/x.yaml::dtype=float16-n=1", 10)
        assert [row["status"] for row in rows] == ["passed", "failed", "passed", "failed", "passed"]
        assert rows[1]["finding"].startswith("numeric: Y: largest error 504")
        assert len(history.case("dtype=float16-n=1", 10)) == 5
        # n=2 began to fail once, which is no more than a change.
        (unstable,) = history.unstable(10)
        assert (unstable["case_id"], unstable["changes"]) == ("dtype=float16-n=1", 4)
        assert [name for name, _ in history.unreadable()] == ["other.jsonl"]


def test_only_new_and_changed_files_are_read(tmp_path):
    first = _run(tmp_path, 1)
    second = _run(tmp_path, 2)
    history = History(tmp_path)
    assert history.update() == 2
    assert history.update() == 0
    with first.open("a") as file:
        result = case(7, Status.FAILED).to_json()
        file.write(json.dumps({"record": "case", **result}) + "\n")
    second.unlink()
    _run(tmp_path, 3)
    assert history.update() == 2
    assert [(run["file"], run["cases"]) for run in history.runs(9)] == [
        ("run-1.jsonl", 4),
        ("run-3.jsonl", 3),
    ]
    _, rows = history.query("SELECT COUNT(*) FROM cases")
    assert rows == [(7,)]
    history.close()


def test_queries_cannot_change_the_database(tmp_path):
    _run(tmp_path, 1, failed=(0,))
    with opened(tmp_path) as history:
        columns, rows = history.query("SELECT spec, SUM(failed) AS bad FROM cases GROUP BY spec")
        assert (columns, rows) == (["spec", "bad"], [("x", 1)])
        for text in (
            "DELETE FROM cases",
            "DROP TABLE runs",
            "SELECT nothing",
            "SELECT 1; SELECT 2",
        ):
            with pytest.raises(HistoryError):
                history.query(text)
        assert history.query("SELECT COUNT(*) FROM cases")[1] == [(3,)]


def test_a_database_of_another_program_is_left_alone(tmp_path):
    with sqlite3.connect(tmp_path / DATABASE) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(HistoryError, match="not a history of runs; remove the file"):
        History(tmp_path)
    (tmp_path / DATABASE).write_bytes(b"no database at all, but some bytes" * 40)
    with pytest.raises(HistoryError, match="remove the file"):
        History(tmp_path)
