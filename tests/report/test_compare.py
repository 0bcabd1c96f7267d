"""`tlmatrix diff`: what changed from one run to the next."""

from report.synthetic import case, recorded
from tlmatrix.report.compare import Comparison, comparison_lines
from tlmatrix.run import Status


def test_each_change_is_in_its_list(tmp_path):
    before = recorded(
        tmp_path / "a.jsonl",
        [
            case(1),
            case(2, Status.FAILED),
            case(3, Status.FAILED),
            case(4, error_ratio=0.1),
            case(5, seconds=0.3),
            case(6),
            case(7),
            case(8, error_ratio=0.001),
            case(9, seconds=0.01),
        ],
    )
    after = recorded(
        tmp_path / "b.jsonl",
        [
            case(1, Status.FAILED),
            case(2),
            case(3, Status.FAILED),
            case(4, error_ratio=0.6),
            case(5, seconds=0.9),
            case(7, Status.SKIPPED, message="refused"),
            case(8, error_ratio=0.01),
            case(9, seconds=0.03),
            case(10, Status.FAILED),
            case(11),
        ],
    )
    found = Comparison(before, after)

    def numbers(changes):
        return [change.after.values["n"] for change in changes]

    assert numbers(found.failing) == [1]
    assert [result.values["n"] for result in found.failing_added] == [10]
    assert numbers(found.fixed) == [2]
    assert found.still == 1
    assert numbers(found.grown) == [4]
    assert numbers(found.slower) == [5]
    assert numbers(found.unjudged) == [7]
    assert [result.values["n"] for result in found.removed] == [6]
    assert not found.new_faults  # the same cause failed before
    text = "\n".join(comparison_lines(found))
    assert "2 newly failing, 1 fixed, 1 still failing, 1 with a larger error ratio" in text
    assert "0.1 -> 0.6 of the error bound" in text
    assert "0.30 s -> 0.90 s" in text
    assert found.worse


def test_a_run_equals_itself(tmp_path):
    records = recorded(tmp_path / "a.jsonl", [case(1), case(2, Status.FAILED)])
    found = Comparison(records, records)
    assert not found.worse
    assert not found.new_faults
    lines = list(comparison_lines(found))
    assert lines[0] == "2 cases in both runs, 0 only in the later, 0 only in the earlier"
    assert lines[-1].startswith("0 newly failing, 0 fixed, 1 still failing")


def test_times_of_two_backends_are_not_compared(tmp_path):
    before = recorded(tmp_path / "a.jsonl", [case(1, seconds=0.1, backend="cuda", arch="sm_90")])
    after = recorded(tmp_path / "b.jsonl", [case(1, seconds=9.0)], seed=7)
    found = Comparison(before, after)
    assert not found.slower
    text = "\n".join(comparison_lines(found))
    assert "the backends differ: cuda and interpreter" in text
    assert "seed 0 and 7" in text


def test_long_lists_are_cut_and_the_rest_counted(tmp_path):
    before = recorded(tmp_path / "a.jsonl", [case(n) for n in range(30)])
    after = recorded(tmp_path / "b.jsonl", [case(n, Status.FAILED) for n in range(30)])
    lines = list(comparison_lines(Comparison(before, after), 20))
    assert "  … and 10 more (--all)" in lines
