"""Packed problems that YAML declares: the quick tier finds what goes wrong between sequences."""

from pathlib import Path

import pytest

from spec_results import results_of

OUTPUTS = {"rows": '["sum(seqlens)", 4]', "sequences": '["len(seqlens)", 4]'}
SPEC = """\
name: {entry}
problem:
  inputs:
    x:          {{shape: [sum(seqlens), 4], dtype: float32{grad}}}{more}
{lengths}
  outputs:
    y: {{shape: {shape}}}
  reference: packed_kernels:{reference}
entry: packed_kernels:{entry}
axes:
  seqlens: [[3, 0, 11], [9], [0, 2, 8, 1]]
  bug: [{bug}]
"""
WEIGHT = "\n    w:          {shape: [3, 4], dtype: float32, grad: true}"


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The results of the quick tier of a spec."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def run(text, reruns="all"):
        return results_of(text, tmp_path / "packed.yaml", reruns=reruns)

    return run


@pytest.fixture
def findings(results):
    """All findings of the quick tier of a kernel with a bug."""

    def run(entry, bug="none", *, reference, rows="rows", relations=None, **more):
        text = SPEC.format(
            entry=entry, reference=reference, shape=OUTPUTS[rows], bug=bug,
            grad=more.get("grad", ""), more=more.get("more", ""),
            lengths=more.get("lengths", "    cu_seqlens: {offsets_of: seqlens}"),
        )  # fmt: skip
        named = "all" if relations is None else {"isolation", "poison", "relations"}
        made = results(text, named)
        assert len(made) == 3
        if relations is not None:
            relations |= {name for result in made for name in result.relations}
        return [finding for result in made for finding in result.findings]

    return run


CONV = {"reference": "conv_reference", "grad": ", grad: true", "more": WEIGHT}


def test_correct_packed_kernels_pass(findings):
    assert findings("segment_softmax", reference="softmax_reference") == []
    assert findings("segment_sums", reference="sums_reference", rows="sequences") == []
    assert findings("conv", **CONV) == []


def test_relations_run_if_the_reference_satisfies_them(findings):
    relations = set()
    assert findings("segment_sums", reference="sums_reference", rows="sequences",
                    relations=relations) == []  # fmt: skip
    assert relations >= {"isolation_sequence", "poison_neighbours"}
    assert relations & {"batch_permuted", "batch_split", "batch_extended"}


def test_operator_that_mixes_sequences_passes(findings):
    assert findings("centred", reference="centred") == []
    relations = set()
    assert findings("centred", reference="centred", relations=relations) == []
    assert not relations - {"batch_permuted", "other_layouts", "scaled_input", "two_streams"}


def test_an_unguarded_store_into_the_next_sequence_is_found(findings):
    found = findings("segment_softmax", "store", reference="softmax_reference")
    store = next(each for each in found if each.check == "sanitizers")
    assert store.title.startswith("sequences: write of y")
    assert store.index["sequence"] > 0
    assert store.index["position"] == 0


def test_a_store_into_the_next_sequence_is_found_by_starts_and_lengths(findings):
    lengths = "    starts: {starts_of: seqlens}\n    lens: {lengths_of: seqlens}"
    both = {"reference": "doubled_reference", "lengths": lengths}
    assert findings("doubled", **both) == []
    titles = [each.title for each in findings("doubled", "store", **both)]
    assert any(title.startswith("sequences: write of y") for title in titles)


def test_a_read_across_a_boundary_is_found(findings):
    found = findings("segment_softmax", "read", reference="softmax_reference")
    assert found, "the largest element of the next sequence is read"
    for bug, tensor in (("forward", "y"), ("backward", "dx")):
        found = findings("conv", bug, **CONV)
        assert {each.check for each in found} & {"numeric", "gradients", "sanitizers"}
        assert tensor in {each.tensor for each in found}
        assert any("sequence" in each.index for each in found)


def test_a_missing_carry_for_empty_sequences_is_found(findings):
    found = findings("segment_sums", "carry", reference="sums_reference", rows="sequences")
    wrong = next(each for each in found if each.tensor == "y")
    assert wrong.index["sequence"] in (0, 1)


# Pages: reads outside the pool are findings although nothing depends on them ---------------------

PAGES = """\
name: page_sums
problem:
  inputs:
    pool: {{shape: ["pages(seqlens, page_size)", page_size, 8], dtype: float32}}
    table: {{pages_of: seqlens, page_size: page_size}}
    lengths: {{lengths_of: seqlens}}
  outputs:
    y: {{shape: ["len(seqlens)", 8]}}
  reference: packed_kernels:page_reference
entry: packed_kernels:page_sums
axes:
  page_size: [4]
  every_entry: [{every_entry}]
  seqlens: [[9, 3, 0], [4, 4]]
"""


@pytest.fixture
def findings_of_pages(results):
    def run(every_entry):
        made = results(PAGES.format(every_entry=every_entry))
        return {tuple(each.values["seqlens"]): list(each.findings) for each in made}

    return run


def test_a_kernel_that_reads_the_pages_of_its_sequence_passes(findings_of_pages):
    assert findings_of_pages("false") == {(9, 3, 0): [], (4, 4): []}


def test_a_masked_read_of_a_page_past_the_sequence_is_found(findings_of_pages):
    found = findings_of_pages("true")
    assert found[4, 4] == [], "all entries of the table are pages of the sequences"
    (finding,) = found[9, 3, 0]
    assert finding.check == "sanitizers"
    assert finding.title.startswith("guarded: index ")
    assert finding.tensor == "pool"
    assert "past the last page" in finding.hint
