"""Reports of kernel coverage: summary, table, gaps, annotated source."""

from tlmatrix.interpreter.coverage import Coverage, Guard, GuardSite, Loop, LoopSite
from tlmatrix.report.coverage import (
    annotated_lines,
    coverage_lines,
    gap_lines,
    summary,
    table_lines,
)

_FILE = "kernels/a/rather/deep/folder/kernel.py"
_SOURCE = [
    "import tilelang",
    "",
    "def main(A):",
    "    for k in T.serial(n):",
    "        T.copy(A[k], tile)",
    "        if T.And(i < n, j < m):",
    "            tile[i] = 1",
    "            # why",
    "            tile[j] = 2",
]


def _mask(text, true, false, partly):
    return GuardSite(_FILE, 6, "if", 1, text), Guard(true, false, partly, lanes=True)


_GAPS = Coverage(
    {(_FILE, 4): 3, (_FILE, 5): 6, (_FILE, 6): 6, (_FILE, 7): 0, (_FILE, 9): 0},
    {
        GuardSite(_FILE, 5, "edge", 1, "A"): Guard(6, 0, 0, lanes=True),
        **dict([_mask("", 0, 0, 6), _mask("i < n", 0, 0, 6), _mask("j < m", 6, 0, 0)]),
    },
    {LoopSite(_FILE, 4, "k"): Loop(0, 0, 3, 2, 2)},
)
_FULL = Coverage({(_FILE, 4): 3}, dict([_mask("", 1, 0, 2)]), {})


def test_the_summary_counts_gaps():
    assert summary(_GAPS) == (
        "3 of 5 lines; 2 guards one way; never with trips 0: 1 loop, 1: 1 loop"
    )
    assert summary(_FULL) == "1 of 1 line"
    once = Coverage({(_FILE, 4): 3}, {}, {LoopSite(_FILE, 4, "k"): Loop(1, 2, 0, 0, 1)})
    assert summary(once) == "1 of 1 line; never with trips more: 1 loop"


def test_a_mask_that_was_never_partial_is_a_gap_of_its_own():
    coverage = Coverage({(_FILE, 6): 2}, dict([_mask("", 1, 1, 0)]), {})
    assert summary(coverage) == "1 of 1 line; 1 mask never partly"


def test_gaps_are_named_by_line_with_the_comparison_that_never_decides():
    assert list(gap_lines(_GAPS, 80)) == [
        _FILE,
        "  4         loop k: never 0 or 1 trips",
        "  5         edge of A: never clipped",
        "  6         if j < m: never false",
        "  7-9       never run",
    ]


def test_a_constant_loop_and_an_unreached_guard_are_not_gaps():
    coverage = Coverage(
        {(_FILE, 4): 1},
        {GuardSite(_FILE, 4, "if", 1, ""): Guard()},
        {LoopSite(_FILE, 4, "k"): Loop(0, 0, 2, 4, 4, constant=True)},
    )
    assert not coverage.gaps()


def test_the_table_has_a_line_per_file_and_a_total():
    lines = list(table_lines(_GAPS, 100))
    assert [line.split()[0] for line in lines] == ["kernel", _FILE, "all"]
    assert lines[1].split()[1:] == ["5", "3", "4", "2", "1", "1", "1"]


def test_lines_have_at_most_the_given_width():
    for width in (80, 90):
        lines = [*table_lines(_GAPS, width), *gap_lines(_GAPS, width)]
        lines += annotated_lines(_GAPS, _FILE, _SOURCE, width)
        assert max(map(len, lines)) <= width


def test_the_command_of_the_summary_is_not_wrapped():
    command = "tlmatrix coverage results/run-20260101-000000-1.jsonl"
    narrow = list(coverage_lines(_GAPS, command, "summary", 80))
    assert narrow[1:] == [f"  {command}"]
    (wide,) = coverage_lines(_GAPS, command, "summary", 160)
    assert wide.endswith(f"; {command}")
    assert len(list(coverage_lines(_GAPS, command, "table", 80))) == 3 + 2


def test_annotated_source_marks_gaps_and_shows_each_guard():
    lines = list(annotated_lines(_GAPS, _FILE, _SOURCE, 80))
    assert lines == [
        "runs  guard  trips",
        "                      3  def main(A):",
        "   3         2       !4      for k in T.serial(n):",
        "   6  T--            !5          T.copy(A[k], tile)",
        "   6                 !6          if T.And(i < n, j < m):",
        "      --P                  if",
        "      --P                  if i < n",
        "      T--            !     if j < m",
        "   0                 !7              tile[i] = 1",
        "                      8              # why",
        "   0                 !9              tile[j] = 2",
    ]
