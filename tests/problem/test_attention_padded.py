"""Padded attention: tokens at the positions of the masks, poison in the padding."""

import pytest
import torch
from problem_cases import CPU, make_problem, make_spec

from tlmatrix.problem import family_for
from tlmatrix.problem.attention.axes import AxisError

LENGTHS = {"q": [5, 0, 9], "k": [7, 3, 9]}
PADDINGS = ["right", "left", "holes"]


def padded(padding, **values):
    base = {"dtype": "float16", "kv_heads": 2, "groups": 2, "head_dim": 8, "head_dim_v": 4}
    asked = {"layout": "padded", "padding": padding, "seqlens": LENGTHS, "values": "normal"}
    return {**base, **asked, **values}


def packed(padding):
    values = padded(padding, layout="thd")
    del values["padding"]
    return make_problem(values)


@pytest.mark.parametrize("padding", PADDINGS)
def test_tokens_of_padded_inputs_equal_packed_sequences(padding):
    names, flat = make_problem(padded(padding)).names, packed(padding).names
    for name in ("q", "k", "v", "do"):
        mask = names["mask_k" if name in ("k", "v") else "mask_q"]
        assert torch.equal(names[name][mask], flat[name])
        rest = names[name][~mask]
        assert rest.numel()
        assert (rest.isnan() | (rest.abs() > 1000)).all()
    assert names["mask_q"].sum(1).tolist() == LENGTHS["q"]
    assert names["mask_k"].sum(1).tolist() == LENGTHS["k"]
    assert names["q"].shape[1] == names["seqlen_q"]


@pytest.mark.parametrize(("padding", "first"), [("right", [True, False]), ("left", [False, True])])
def test_padding_is_at_the_position_of_the_axis(padding, first):
    row = make_problem(padded(padding)).names["mask_q"][0]
    assert [bool(row[0]), bool(row[-1])] == first


@pytest.mark.parametrize("padding", PADDINGS)
def test_results_equal_packed_ones_and_are_zero_in_the_padding(padding):
    problem, flat = make_problem(padded(padding)), packed(padding)
    want = flat.reference()
    for name, tensor in problem.reference().items():
        assert tensor.shape == problem.outputs[name].shape
        mask = problem.names["mask_k" if name in ("dk", "dv") else "mask_q"]
        if name == "lse":
            assert torch.equal(tensor.transpose(1, 2)[mask].T, want[name])
            assert (tensor.transpose(1, 2)[~mask] == -torch.inf).all()
        else:
            assert torch.equal(tensor[mask], want[name])
            assert not tensor[~mask].any()
        assert problem.outputs[name].magnitude().shape == tensor.shape


@pytest.mark.parametrize("kind", ["relations", "isolation", "poison", "repeat"])
def test_relations_hold_for_the_reference(kind):
    problem = make_problem(padded("holes"))
    for relation in problem.relations(kind):
        left = relation.left(problem.reference())
        right = relation.right([other.reference() for other in relation.problems])
        for name in left:
            torch.testing.assert_close(left[name], right[name], rtol=1e-9, atol=1e-9)


def test_layout_padded_needs_seqlens():
    values = {"dtype": "float16", "heads": 1, "head_dim": 8, "layout": "padded", "seqlen_q": 4}
    spec = make_spec(axes={axis: [value] for axis, value in values.items()})
    with pytest.raises(AxisError, match="layout padded needs the axis seqlens"):
        family_for(spec).problem(spec, values, seed=0, device=CPU)


@pytest.mark.parametrize("padding", PADDINGS)
def test_q_and_k_can_share_a_mask(padding):
    asked = {"shared_mask": True, "seqlens": [5, 0, 9]}
    names = make_problem(padded(padding, **asked)).names
    assert names["mask"] is names["mask_q"]
    assert torch.equal(names["mask"], names["mask_k"])
    assert names["seqlen"] == names["q"].shape[1] == names["k"].shape[1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "write seqlens with k: same"),
        ({"layout": "thd"}, "shared_mask needs the layout padded, not thd"),
    ],
)
def test_invalid_shared_masks_are_errors(values, words):
    with pytest.raises(AxisError, match=words):
        make_problem(padded("right", shared_mask=True, **values))
