"""Coverage on record: what cases counted is read back merged, also from a file cut short."""

import json

from tlmatrix.interpreter.coverage import Coverage, Guard, GuardSite, Loop, LoopSite
from tlmatrix.run import CaseResult, RecordsWriter, RunHeader, Status, read_records

_HEADER = RunHeader("quick", "auto", 0, ("specs",), "pytest specs", "2026-01-01T00:00:00+00:00")
_FILE = "kernels/sum.py"


def _coverage(hits, *, partly=0, trips=1):
    return Coverage(
        {(_FILE, 3): hits, (_FILE, 4): hits, (_FILE, 9): 0},
        {
            GuardSite(_FILE, 4, "edge", 1, "x, y"): Guard(hits, 0, partly, lanes=True),
            GuardSite(_FILE, 4, "if", 1, ""): Guard(hits, 1),
        },
        {LoopSite(_FILE, 3, "k"): Loop(0, int(trips == 1), int(trips > 1), trips, trips)},
    )


def _result(case, coverage):
    return CaseResult("s", "specs/s.yaml", case, Status.PASSED, key=case, coverage=coverage)


def _written(path, *results):
    writer = RecordsWriter(path)
    writer.header(_HEADER)
    for result in results:
        writer.case(result)
    writer.close()
    return path


def test_the_coverage_of_a_run_merges_that_of_its_cases(tmp_path):
    one, other = _coverage(2), _coverage(5, partly=1, trips=3)
    records = read_records(_written(tmp_path / "r.jsonl", _result("a", one), _result("b", other)))
    assert records.coverage() == one + other
    assert [item.coverage for item in records.results] == [None, None]


def test_each_process_that_appends_to_a_file_writes_its_own_sites(tmp_path):
    path = _written(tmp_path / "r.jsonl", _result("a", _coverage(1)))
    _written(path, _result("b", _coverage(2)))
    assert read_records(path).coverage() == _coverage(1) + _coverage(2)


def test_a_case_that_ran_again_in_a_resumed_run_counts_once(tmp_path):
    path = _written(tmp_path / "r.jsonl", _result("a", _coverage(1)), _result("a", _coverage(2)))
    assert read_records(path).coverage() == _coverage(2)


def test_sites_are_written_once_and_counts_for_every_case(tmp_path):
    results = [_result(str(n), _coverage(n)) for n in range(1, 6)]
    lines = _written(tmp_path / "r.jsonl", *results).read_text().splitlines()
    kinds = [json.loads(line)["record"] for line in lines]
    assert kinds.count("coverage") == 5
    assert kinds.count("sites") == 1
    assert sum("x, y" in line for line in lines) == 1


def test_an_incomplete_line_loses_only_its_own_record(tmp_path):
    path = _written(tmp_path / "r.jsonl", _result("a", _coverage(1)), _result("b", _coverage(2)))
    lines = path.read_text().splitlines()
    torn = next(n for n, line in enumerate(lines) if '"record":"sites"' in line)
    lines[torn] = lines[torn][:40]
    path.write_text("\n".join(lines) + "\n")
    assert not read_records(path).coverage()


def test_a_run_without_measurement_has_no_coverage(tmp_path):
    assert not read_records(_written(tmp_path / "r.jsonl", _result("a", None))).coverage()
