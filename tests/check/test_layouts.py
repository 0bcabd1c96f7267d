"""Memory layouts of single tensors: what an entry may refuse, and what is a finding."""

import pytest
import torch

from tlmatrix.check import judge
from tlmatrix.matrix.listed_cases import Case
from tlmatrix.problem.model import Dim, LayoutRelation, Problem, TensorInfo
from tlmatrix.problem.storage import laid_out, layouts_of, tensors_of
from tlmatrix.spec.model.checks import Tolerance


def problem_of(**inputs):
    size = inputs["x"].shape[0]
    info = TensorInfo("y", (Dim("row", size), Dim("col", 4)), torch.float32, 2.0**-24)

    def expected():
        return {"y": inputs["x"].double() * inputs["scale"].double()[:, None]}

    return Problem(
        values={}, names=dict(inputs), inputs=inputs, outputs={"y": info}, returns=("y",),
        reference=expected, lowp=expected,
    )  # fmt: skip


def right(problem):
    return {"y": problem.inputs["x"] * problem.inputs["scale"][:, None]}


def by_address(problem):
    """Reads the scales one after the other in memory."""
    scale = problem.inputs["scale"]
    scale = scale.as_strided(scale.shape, (1,), scale.storage_offset())
    return {"y": problem.inputs["x"] * scale[:, None]}


def refusing(words):
    def entry(problem):
        if not problem.inputs["scale"].is_contiguous():
            raise ValueError(words)
        return by_address(problem)

    return entry


def findings(entry, layouts, promises=()):
    problem = problem_of(x=torch.randn(6, 4), scale=torch.arange(1.0, 7.0))
    relation = LayoutRelation(
        "other_layouts", "relations", layouts=layouts, promises=frozenset(promises),
        laid_out=lambda layouts: laid_out(problem, layouts),
    )  # fmt: skip
    problem = problem.with_relations("relations", lambda: (relation,))
    return judge(
        SPEC, Case("layouts", {}), problem, entry, checks=("relations",), arch="interpreter",
        deterministic=True,
    )  # fmt: skip


class SPEC:
    """What the checks ask of a spec; nothing is sanitized here."""

    tolerance = Tolerance()

    class sanitizers:  # noqa: N801
        also = ()
        without = ()
        sequences: dict = {}  # noqa: RUF012


def test_layouts_change_no_values_and_no_other_tensor():
    problem = problem_of(x=torch.randn(6, 4), scale=torch.ones(6))
    for layout in ("offset", *layouts_of(problem.inputs["x"])):
        moved = laid_out(problem, {"x": layout})
        assert torch.equal(moved.inputs["x"], problem.inputs["x"])
        assert moved.names["x"] is moved.inputs["x"]
        assert moved.inputs["scale"] is problem.inputs["scale"]


def test_offset_moves_a_tensor_off_its_alignment_and_the_others_do_not():
    problem = problem_of(x=torch.randn(6, 4), scale=torch.ones(6))
    assert layouts_of(problem.inputs["scale"]) == ("strided", "expanded")
    for layout in layouts_of(problem.inputs["x"]):
        assert laid_out(problem, {"x": layout}).inputs["x"].data_ptr() % 16 == 0
    assert laid_out(problem, {"x": "offset"}).inputs["x"].data_ptr() % 16


def test_a_tensor_with_two_names_is_moved_once():
    bounds = torch.arange(3)
    problem = problem_of(x=torch.randn(6, 4), scale=torch.ones(6), a=bounds, b=bounds)
    assert sorted(tensors_of(problem)) in (["a", "scale", "x"], ["b", "scale", "x"])


def test_wrong_values_name_the_one_tensor():
    (finding,) = findings(by_address, {"x": "transposed", "scale": "strided"})
    assert finding.title.startswith("other_layouts: y: ")
    assert "scale has stride 2" in finding.detail
    assert "x has" not in finding.detail


def test_a_right_entry_has_no_findings():
    assert findings(right, {"x": "aligned", "scale": "strided"}) == []


@pytest.mark.parametrize("words", ["scale must be contiguous", "strides of scale"])
def test_an_entry_may_refuse_a_layout_in_its_own_words(words):
    assert findings(refusing(words), {"x": "transposed", "scale": "strided"}, {"strides"}) == []


@pytest.mark.parametrize("words", ["size mismatch", ""])
def test_a_layout_that_a_spec_does_not_promise_may_be_refused_in_any_way(words):
    assert findings(refusing(words), {"scale": "strided"}) == []


def test_other_exceptions_are_findings_where_the_spec_promises_strides():
    (finding,) = findings(refusing("size mismatch"), {"scale": "strided"}, {"strides"})
    assert "raised ValueError: size mismatch" in finding.title
