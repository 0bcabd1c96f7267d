"""Ids of drawn cases lead back to the very cases, in every spec that draws some."""

from pathlib import Path

import pytest

from tlmatrix.fuzz.generation import generate_cases
from tlmatrix.fuzz.strategies import cases
from tlmatrix.matrix import CaseNotFoundError, find_case
from tlmatrix.spec.loader import load_spec

_SPECS = [
    path
    for path in sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
    if load_spec(path).fuzz is not None
]


@pytest.mark.parametrize("path", _SPECS, ids=lambda path: path.stem)
def test_an_id_of_a_drawn_case_leads_back_to_it(path):
    spec = load_spec(path)
    drawn = generate_cases(cases(spec, "quick"), count=40, first=5)
    assert len(drawn) == 40
    for case in drawn:
        found = find_case(spec, case.id)
        # The key holds the exact values, on which the data depend.
        assert (found.key, found.seed) == (case.key, case.seed)


@pytest.mark.parametrize("label", ["q3.4", "q3.4_k", "q3_k5.x", "3.4_k5", "q3.4_k5.6_z1"])
def test_a_label_of_no_batch_is_no_case(label):
    spec = load_spec(next(path for path in _SPECS if path.stem == "gqa_varlen"))
    (case,) = generate_cases(cases(spec, "quick"), count=1, first=5)
    parts = [part for part in case.id.split("-") if not part.startswith("seqlens=")]
    with pytest.raises(CaseNotFoundError, match="seqlens has no value"):
        find_case(spec, "-".join([*parts, f"seqlens={label}"]))
