"""Searches: findings, smallest cases, known bugs, and reproducibility."""

import time
from dataclasses import replace

from fuzz_specs import packed_cases, packed_spec, rows_cases, rows_spec, scaled_spec, windows_spec
from hypothesis import assume
from hypothesis import strategies as st

from tlmatrix.fuzz.search import fuzz_spec, shrink_failure
from tlmatrix.fuzz.strategies import case_domain, cases
from tlmatrix.fuzz.strategies.case_strategy import case_strategy
from tlmatrix.interpreter.frontend import programs
from tlmatrix.matrix import Case
from tlmatrix.run.result import Status
from tlmatrix.spec import load_spec


def _search(spec, runner, strategy, **options):
    results = []
    report = fuzz_spec(spec, runner, strategy=strategy, on_result=results.append, **options)
    return report, results


def test_unguarded_store_is_found_and_shrunk_in_20_seconds(tmp_path, runner):
    spec = packed_spec(tmp_path, "unguarded_from_the_second_tile")
    begin = time.process_time()  # of an idle core: tests run beside others
    report, _ = _search(spec, runner, None, examples=50)  # what the spec alone says to draw
    assert time.process_time() - begin < 20
    (found,) = report.found
    lengths = found.smallest.values["seqlens"]["q"]
    # Past the first tile of 32 rows, into a sequence that has a row.
    assert len(lengths) <= 2
    assert abs(max(lengths) - 33) <= 1
    assert (found.smallest.values["kv_heads"], found.smallest.values["head_dim"]) == (1, 32)
    finding = found.smallest.findings[0]
    assert finding.source.startswith("tests/fuzz/fuzzed_kernels.py")
    assert "overwrites the next one" in finding.hint
    assert found.cases > 1


def test_wrong_values_are_reported_with_their_region(tmp_path, runner):
    spec = packed_spec(tmp_path, "unguarded_from_the_second_tile", checks="numeric")
    report, _ = _search(spec, runner, packed_cases(spec), examples=15)
    (found,) = report.found
    assert len(found.smallest.values["seqlens"]["q"]) == 2
    assert found.region == "row 0 of sequence 1, head 0, dims 0-31"


def test_correct_kernel_has_a_report_without_findings(tmp_path, runner):
    spec = packed_spec(tmp_path, "right")
    report, results = _search(spec, runner, packed_cases(spec), examples=30)
    assert not report.found
    assert report.counts == {Status.PASSED: 30}
    assert report.examples == len({result.key for result in results}) == 30
    launched = [any(result.values["seqlens"]["q"]) for result in results]
    assert report.counted == sum(launched) > 20
    assert any(site.kind == "if" for site in report.coverage.guards)
    ratios = [result.error_ratio for result in results if result.error_ratio is not None]
    assert 0 < max(ratios) <= 1


def test_search_continues_after_a_finding(tmp_path, runner):
    spec = rows_spec(tmp_path, "two_faults")
    report, results = _search(spec, runner, rows_cases(spec), examples=60)
    assert report.examples == 60
    raising, wrong = sorted(report.found, key=lambda found: found.cause.check)
    assert (raising.cause.check, wrong.cause.check) == ("entry", "numeric")
    assert raising.smallest.values == {
        "rows": 101, "cols": 3, "dtype": "float32", "turned": False
    }  # fmt: skip
    assert wrong.smallest.values == {"rows": 1, "cols": 8, "dtype": "float32", "turned": True}
    assert raising.cases + wrong.cases == sum(result.failed for result in results)


def test_number_is_shrunk_to_the_failing_boundary(tmp_path, runner):
    spec = rows_spec(tmp_path, "long_rows")
    report, _ = _search(spec, runner, rows_cases(spec), examples=20)
    (found,) = report.found
    assert found.smallest.values["rows"] == 17
    assert found.region.startswith("row 16")


def test_fault_past_the_step_of_a_loop_is_found_beyond_the_range(tmp_path, runner):
    path = rows_spec(tmp_path, "steps_of_256").path
    text = path.read_text()
    for alone, faults in (("", 0), (", alone: 300", 1)):
        path.write_text(f"{text}  axes: {{rows: {{range: 1..9{alone}}}, cols: 1..20}}\n")
        report, results = _search(load_spec(path), runner, None, examples=60)
        assert len(report.found) == faults
        assert all(each.values["cols"] == 1 for each in results if each.values["rows"] > 9)


def test_fault_of_a_difference_of_two_lengths_is_found(tmp_path, runner):
    spec = windows_spec(tmp_path)
    domain = case_domain(spec)
    apart = case_strategy(replace(domain, combined=frozenset()))  # each length by itself
    assert not _search(spec, runner, apart, examples=200, seed=1)[0].found
    for seed in range(3):
        report, _ = _search(spec, runner, None, examples=200, seed=seed)
        assert report.found
        for found in report.found:
            keys, window = (found.smallest.values[name] for name in ("seqlen_k", "window"))
            assert (keys - window) % 256 == 0 < keys % 256


def test_numbers_in_the_kernel_are_drawn_without_a_tile_in_the_spec(tmp_path, runner):
    spec = scaled_spec(tmp_path)
    assert runner.kernel_edges(spec, [{"n": 5}]) == [96, 4321]
    assert not _search(spec, runner, cases(spec), examples=200, seed=1)[0].found
    report, _ = _search(spec, runner, None, examples=200, seed=1)
    (found,) = report.found
    assert found.smallest.values == {"n": 4321}


def test_seed_determines_the_cases(tmp_path, runner):
    spec = rows_spec(tmp_path, "right")
    keys = [
        [result.key for result in _search(spec, runner, rows_cases(spec), examples=20, seed=n)[1]]
        for n in (1, 1, 2)
    ]
    assert keys[0] == keys[1]
    assert len(set(keys[0]) & set(keys[2])) < 5


def test_search_ends_when_exhausted(tmp_path, runner):
    spec = rows_spec(tmp_path, "right")
    few = st.sampled_from([1, 2, 3]).map(
        lambda rows: Case("rows", {"rows": rows, "cols": 3, "dtype": "float32"}, "fuzz")
    )
    report, results = _search(spec, runner, few, examples=100)
    assert report.exhausted
    assert len(results) == 3


def test_known_bugs_and_quarantined_cases_are_not_findings(tmp_path, runner):
    ledger = """\
    known_bugs:
      - {when: rows >= 200, issue: "#1", expires: 2999-01-01, mode: quarantine}
      - {when: rows >= 10, issue: "#2", expires: 2999-01-01}
    """
    spec = rows_spec(tmp_path, "long_rows", ledger)
    report, _ = _search(spec, runner, rows_cases(spec), examples=40)
    # Rows 10 to 16 pass although the ledger says otherwise: with other lengths they do not.
    assert not report.found
    assert set(report.counts) == {Status.PASSED, Status.KNOWN_BUG, Status.QUARANTINED}


def test_error_ratios_show_how_near_a_kernel_comes_to_its_bounds(tmp_path, runner):
    close = {}
    for entry in ("right", "nearly"):
        folder = tmp_path / entry
        folder.mkdir()
        spec = rows_spec(folder, entry)
        report, results = _search(spec, runner, rows_cases(spec), examples=40)
        assert not report.found
        close[entry] = max(result.error_ratio for result in results)
    assert close["right"] < 0.5 < close["nearly"] <= 1


def test_cases_of_other_workers_are_skipped(tmp_path, runner):
    spec = rows_spec(tmp_path, "right")
    started = []
    report, results = _search(
        spec, runner, rows_cases(spec), examples=10,
        admits=lambda case: case.values["rows"] % 2 == 0,
        on_start=lambda case, _shrinking: started.append(case),
    )  # fmt: skip
    assert report.examples == len(started) == 10
    assert all(result.values["rows"] % 2 == 0 for result in results)


def test_search_stops_at_its_time_limit(tmp_path, runner):
    spec = rows_spec(tmp_path, "right")
    report, _ = _search(spec, runner, rows_cases(spec), seconds=0.3)
    assert report.examples > 1
    assert report.seconds < 3


def test_a_search_whose_draws_are_all_invalid_stops_at_its_time_limit(tmp_path, runner):
    """Hypothesis may draw for minutes without a case to judge."""

    @st.composite
    def slow(draw):
        time.sleep(0.1)
        draw(st.integers(0, 1 << 40))
        assume(False)

    began = time.monotonic()
    report, _ = _search(scaled_spec(tmp_path), runner, slow(), seconds=0.5)
    assert time.monotonic() - began < 5
    assert report.examples == 0


def test_shrink_failure_of_any_case(tmp_path, runner):
    spec = rows_spec(tmp_path, "long_rows")
    case = Case("rows", {"rows": 250, "cols": 8, "dtype": "float16"})
    found = shrink_failure(spec, runner, case, runner.run(spec, case))
    assert found.smallest.values == {"rows": 17, "cols": 3, "dtype": "float32"}
    assert found.ended


def test_search_writes_no_files(tmp_path, runner, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    spec = rows_spec(tmp_path, "long_rows")
    monkeypatch.chdir(folder)
    _search(spec, runner, rows_cases(spec), examples=20)
    assert not list(folder.iterdir())


def test_kernels_are_traced_once_for_all_lengths(tmp_path, runner, monkeypatch):
    made = []
    generate = programs.generate

    def counted(func, text, options):
        made.append(options)
        return generate(func, text, options)

    monkeypatch.setattr(programs, "generate", counted)
    spec = packed_spec(tmp_path, "right")
    one = {axis: values[0] for axis, values in spec.axes.items()}
    one["head_dim"] = 48  # not traced before in this process
    cases = packed_cases(spec).map(
        lambda case: Case("packed", one | {"seqlens": case.values["seqlens"]}, "fuzz")
    )
    _search(spec, runner, cases, examples=5)
    begun = len(made)
    report, results = _search(spec, runner, cases, examples=25, seed=2)
    assert report.examples == len(results) == 25
    assert 0 < begun == len(made)
