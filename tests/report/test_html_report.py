"""The HTML report: what it says without scripts, and that it needs nothing else."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

from report.synthetic import case, many, pictured, recorded
from tlmatrix.check.finding import Finding
from tlmatrix.report.html import render
from tlmatrix.report.html.page import size_of
from tlmatrix.run import Status, read_records

SPEC = """\
name: x
axes:
  dtype: [float16, float32]
  n:
    - 1
    - 2
"""
BENCH = {
    "kind": "tlmatrix bench",
    "hardware": {"gpu": "NVIDIA H200"},
    "cases": [
        {
            "spec": "x",
            "case": "n=1",
            "passes": {
                "forward": {
                    "flops": 10**9,
                    "milliseconds": {
                        "entry": {"median": 0.5, "low": 0.4, "high": 0.7},
                        "torch": {"median": 0.75, "low": 0.72, "high": 0.8},
                    },
                }
            },
        }
    ],
}


class Page(HTMLParser):
    """The text of a page without its scripts, its ids, and every address that it loads or links."""

    def __init__(self, text):
        super().__init__()
        self.text, self.ids, self.loads, self.links = "", set(), [], []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id"))
        if tag == "a":
            self.links.append(given["href"])
        else:
            self.loads += [given[name] for name in ("src", "href") if name in given]
        if tag in ("script", "style"):
            self._inside = tag

    def handle_endtag(self, tag):
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data):
        if not self._inside:
            self.text += data + " "


def _page(tmp_path, results, bench=(), **header):
    text = render([recorded(tmp_path / "run.jsonl", results, **header)], bench)
    return text, Page(text)


def test_the_page_is_whole_without_scripts_and_loads_nothing(tmp_path):
    results = [case(n, Status.FAILED if n % 4 == 1 else Status.PASSED) for n in range(20)]
    results += [case(20, Status.SKIPPED, message="needs sm_100a")]
    _text, page = _page(tmp_path, results, [BENCH])
    assert all(address.startswith("data:") for address in page.loads)
    # Every link leads to a part of this page.
    assert {link.split("?")[0].removeprefix("#") for link in page.links} <= page.ids
    words = " ".join(page.text.split())
    assert "21 cases of 1 spec" in words
    assert "tlmatrix repro 'specs/x.yaml::dtype=float16-n=1'" in words
    assert "tlmatrix explain 'specs/x.yaml::dtype=float16-n=1'" in words
    assert "1/1" in words  # of n=1, dtype=float16
    assert "skipped" in words
    assert "0.4 – 0.7" in words  # noqa: RUF001


def test_text_of_cases_cannot_leave_its_place(tmp_path):
    evil = "</script><img src=x onerror=alert(1)> <!-- \u2028 \udc80"
    found = Finding("raised", evil, detail=evil)
    text, page = _page(tmp_path, [case(1, Status.ERROR, findings=(found,), case=evil)])
    text.encode("utf-8", "replace")
    assert page.loads == [page.loads[0]]  # its icon
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["cases"]["id"][0].startswith("</script>")


def test_a_fault_has_its_pictures_and_the_lines_of_its_spec(tmp_path):
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs/x.yaml").write_text(
        SPEC + "problem: gemm\nentry: a:b\n"  # its axes are those of no gemm, so it does not load
    )
    results = [case(n, Status.FAILED, findings=(pictured(),)) for n in (1, 3)] + [case(2)]
    text, _ = _page(tmp_path, results)
    assert text.count('<svg class="picture"') == 3  # one is the small one of the list
    assert "Wrong elements of out" in text


def test_a_picture_draws_cells_tiles_sequences_and_the_worst_element(tmp_path):
    text, _ = _page(tmp_path, [case(1, Status.FAILED, findings=(pictured(),))])
    first, second = text.split('<svg class="picture"')[2:]
    assert first.count('class="wrong"') == 1
    # Rows 88 to 99 of dims 0 to 31, in cells of two rows.
    assert 'd="M0 88H32v2H0zM0 90H32v2H0z' in first
    assert 'class="tile" d="M0 16H32M0 32H32M0 56H32M0 72H32M0 88H32"' in first
    assert 'class="start" d="M0 40H32"' in first
    assert 'class="worst"' in first
    assert "head by position: 4 by 100; a cell covers 1 by 2 elements" in second


def test_many_cases_are_written_fast_and_small(tmp_path):
    text, page = _page(tmp_path, list(many(2000)))
    assert len(text) < 2_500_000
    assert "2,000 cases of 4 specs" in " ".join(page.text.split())


def test_runs_without_failures_or_without_cases(tmp_path):
    _, page = _page(tmp_path, [case(1)])
    assert "No case failed." in page.text
    (tmp_path / "none").mkdir()
    _, page = _page(tmp_path / "none", [])
    assert "0 cases of 0 specs" in " ".join(page.text.split())


def test_unusable_lines_of_a_results_file_are_counted(tmp_path):
    path = tmp_path / "run.jsonl"
    recorded(path, [case(1)])
    path.write_text(path.read_text() + "not a record\n" + "{}\n")
    page = Page(render([read_records(path)]))
    assert "2 lines of the file cannot be used: " in " ".join(page.text.split())


def test_the_overview_begins_with_the_faults(tmp_path):
    _, page = _page(tmp_path, [case(1, Status.FAILED), case(2)])
    words = " ".join(page.text.split())
    overview = words[words.index("2 cases of 1 spec") :]
    assert overview.index("Y: largest error 504 times the error bound") < overview.index("Specs")


def test_of_several_runs_the_newest_result_of_a_case_counts(tmp_path):
    """Also if its file is given first; other backends and seeds are other results."""
    new = recorded(
        tmp_path / "new.jsonl",
        [case(1), case(2, Status.FAILED)],
        started="2026-01-03T00:00:00+00:00",
    )
    old = recorded(tmp_path / "old.jsonl", [case(1, Status.FAILED), case(2), case(3), case(4)])
    seeded = recorded(tmp_path / "seeded.jsonl", [case(4, Status.FAILED, seed=5)], seed=5)
    gpu = recorded(tmp_path / "gpu.jsonl", [case(2, backend="cuda", arch="sm_90a")])
    words = " ".join(Page(render([new, old, gpu, seeded])).text.split())
    assert "6 cases of 1 spec in 4 runs" in words
    assert "4 passed 2 failed" in words
    # name, start, backend; cases, passed, failed, other, replaced
    assert "new.jsonl 2026-01-03 00:00:00 interpreter 2 1 1 0 0" in words
    assert "old.jsonl 2026-01-02 03:04:05 interpreter 4 3 1 0 2" in words
    assert "seeded.jsonl 2026-01-02 03:04:05 interpreter 1 0 1 0 0" in words
    assert "gpu.jsonl 2026-01-02 03:04:05 cuda 1 1 0 0 0" in words


def test_the_error_ratio_of_a_case_is_that_of_its_finding(tmp_path):
    """Also if its numbers were judged right, and another check or a smaller case failed."""
    wrong = Finding("relations", "Y: largest error 77.7 times the error bound", ratio=77.7)
    smaller = case(1, Status.FAILED, findings=(wrong,), error_ratio=0.2)
    first = replace(wrong, title="Y: largest error 93.1 times the error bound", ratio=93.1)
    result = case(2, Status.FAILED, findings=(first,), error_ratio=0.3, smaller=smaller)
    text, page = _page(tmp_path, [result, case(3, error_ratio=0.0)])
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["cases"]["ratio"] == [77.7, 0.0]
    assert "93.1" not in page.text
    assert "0.3 " not in page.text
    assert "77.7 0.5 0.25" in " ".join(page.text.split())  # the row of the spec


def test_the_size_of_a_case_is_its_longest_length():
    assert size_of({"seqlens": {"q": [3, 70], "k": [65]}, "causal": True, "scale": 900.5}) == 70
    assert size_of({"dtype": "float16"}) == 0
