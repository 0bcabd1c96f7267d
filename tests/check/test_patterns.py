"""Pictures of wrong elements: which dimensions, what a cell holds, and how large they get."""

import json

import numpy as np
import torch

from tlmatrix.check.finding import Finding
from tlmatrix.check.patterns import LEVELS, cells_of, pictures
from tlmatrix.problem.model import Dim


def test_rows_by_columns_then_heads_by_rows():
    region = [0] * 5 + [1] * 7
    dims = (
        Dim("position", 12, region=region, starts=[0, 5, 12], region_name="sequence", tile=4),
        Dim("head", 3),
        Dim("dim", 8),
    )
    wrong = torch.zeros(12, 3, 8, dtype=torch.bool)
    wrong[6, 1] = True
    first, second = pictures(wrong, dims, (6, 1, 0))
    assert (first["axes"], second["axes"]) == (["position", "dim"], ["head", "position"])
    assert first["tile"] == [4, None]
    assert first["starts"] == [[0, 5], None]
    assert first["worst"] == [6, 0]
    expected = np.zeros((12, 8))
    expected[6] = LEVELS / 3  # one head of three
    assert (cells_of(first) == expected).all()
    expected = np.zeros((3, 12))
    expected[1, 6] = LEVELS
    assert (cells_of(second) == expected).all()


def test_one_wrong_element_of_a_million_is_seen():
    wrong = torch.zeros(1000, 1000, dtype=torch.bool)
    wrong[999, 503] = True
    (picture,) = pictures(wrong, (Dim("m", 1000), Dim("n", 1000)), (999, 503))
    cells = cells_of(picture)
    assert np.argwhere(cells).tolist() == [[999 // 16, 503 // 11]]
    assert cells.max() == 1


def test_the_last_cells_are_smaller_and_still_full():
    wrong = torch.ones(65, 97, dtype=torch.bool)
    (picture,) = pictures(wrong, (Dim("m", 65), Dim("n", 97)), (0, 0))
    assert (cells_of(picture) == LEVELS).all()


def test_vectors_and_scalars():
    (picture,) = pictures(torch.tensor([False, True, True]), (Dim("row", 3),), (1,))
    assert cells_of(picture).tolist() == [[0, LEVELS, LEVELS]]
    assert picture["worst"] == [0, 1]
    assert pictures(torch.tensor(True), (), ()) == ()
    assert pictures(torch.tensor([[True]]), (Dim("a", 1), Dim("b", 1)), (0, 0)) == ()


def test_a_record_stays_small():
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(4, 16, 500, 128, generator=generator) < 0.5
    dims = (Dim("batch", 4), Dim("head", 16), Dim("row", 500), Dim("dim", 128))
    finding = Finding("numeric", "wrong", pictures=pictures(wrong, dims, (0, 0, 0, 0)))
    assert len(finding.pictures) == 3
    text = json.dumps(finding.to_json())
    assert len(text) < 20_000
    assert Finding.from_json(json.loads(text)).pictures == finding.pictures
    assert "pictures" not in Finding("numeric", "wrong").to_json()
