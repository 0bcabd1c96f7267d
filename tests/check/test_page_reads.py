"""Reads of pages outside the pool are findings although nothing depends on them."""

from pathlib import Path

import pytest

from tlmatrix.backend import backend_named
from tlmatrix.run.plan import plan
from tlmatrix.run.runner import Runner
from tlmatrix.spec import load_spec

SPEC = """\
name: page_sums
problem:
  inputs:
    pool: {{shape: ["pages(seqlens, page_size)", page_size, 8], dtype: float32}}
    table: {{pages_of: seqlens, page_size: page_size}}
    lengths: {{lengths_of: seqlens}}
  outputs:
    y: {{shape: ["len(seqlens)", 8]}}
  reference: page_kernels:reference
entry: page_kernels:page_sums
axes:
  page_size: [4]
  every_entry: [{every_entry}]
  seqlens: [[9, 3, 0], [4, 4]]
"""


@pytest.fixture
def findings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def run(every_entry):
        path = tmp_path / "page_sums.yaml"
        path.write_text(SPEC.format(every_entry=every_entry))
        spec = load_spec(path)
        runner = Runner(backend_named("interpreter"))
        results = [runner.run(spec, case) for case in plan(spec).cases()]
        return {tuple(each.values["seqlens"]): list(each.findings) for each in results}

    return run


def test_a_kernel_that_reads_the_pages_of_its_sequence_passes(findings):
    assert findings("false") == {(9, 3, 0): [], (4, 4): []}


def test_a_masked_read_of_a_page_past_the_sequence_is_found(findings):
    found = findings("true")
    assert found[4, 4] == [], "all entries of the table are pages of the sequences"
    (finding,) = found[9, 3, 0]
    assert finding.check == "sanitizers"
    assert finding.title.startswith("guarded: index ")
    assert finding.tensor == "pool"
    assert "past the last page" in finding.hint
