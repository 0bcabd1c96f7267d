"""A finding about a later call has the arguments, the tensors and the element of that call."""

from dataclasses import replace

import pytest
import torch
from packed_attention import run

from tlmatrix.check.compared import describe_call, element_of
from tlmatrix.problem.model import Dim, Problem, Relation, TensorInfo
from tlmatrix.problem.relations import repeated


def doubled(lengths, seed=0, **more):
    """The problem of 2 * x, whose rows belong to sequences of these lengths."""
    rows = torch.randn(sum(lengths), 4, generator=torch.Generator().manual_seed(seed))
    inputs = {"x": rows, "sizes": torch.tensor(lengths)}
    info = TensorInfo("y", (Dim("row", len(rows)), Dim("dim", 4)), torch.float32, 2.0**-24)
    return Problem(
        values={"lengths": list(lengths)},
        names={**inputs, "values": "normal"},
        inputs=inputs,
        outputs={"y": info},
        returns=("y",),
        reference=lambda: {"y": rows.double() * 2},
        lowp=lambda: {"y": rows * 2},
        **more,
    )


def wrong_unless(size):
    """An entry that is wrong in one element unless the first sequence has `size` rows."""

    def entry(problem):
        y = problem.inputs["x"] * 2
        if int(problem.inputs["sizes"][0]) != size:
            y[3, 1] = torch.nan
        return {"y": y}

    return entry


def only(findings):
    assert len(findings) == 1, findings
    return findings[0]


def with_relations(first, *relations):
    return replace(first, relations=lambda kind: [r for r in relations if r.kind == kind])


def test_a_repeated_call_names_its_lengths_and_keeps_its_tensors():
    first, later = doubled([2, 4]), doubled([3, 3], seed=1)
    problem = with_relations(first, repeated(later, first, ""))
    finding = only(run(problem, wrong_unless(2), "numeric", "repeat", keep_compared=True))
    assert finding.call == "lengths [3, 3] instead of [2, 4]; other values in x"
    compared = finding.compared
    assert compared.index == (3, 1)
    assert torch.equal(compared.expected, later.inputs["x"].double() * 2)
    assert compared.got[3, 1].isnan()
    assert (compared.element.call, compared.element.index) == (0, (3, 1))
    assert [call.values for call in compared.calls] == [later.values, first.values]


def test_a_call_after_another_one_names_that():
    """What keeps a result by the identity of a tensor is wrong when its caller refills it."""
    first, later = doubled([2, 4]), doubled([3, 3], seed=1)
    kept = {}

    def entry(problem):
        sizes = problem.inputs["sizes"]
        known = kept.setdefault(id(sizes), (sizes, sizes.tolist()))[1]
        return {"y": problem.inputs["x"] * (2 if known == sizes.tolist() else 3)}

    problem = with_relations(first, repeated(later, first, ""))
    finding = only(run(problem, entry, "numeric", "repeat"))
    assert finding.call == (
        "the same arguments, after a call with lengths [3, 3] instead of [2, 4]; other values in x,"
        " in the same tensors"
    )


def test_the_element_of_a_selected_part_is_found_in_the_call_that_computed_it():
    first, one, other = doubled([2, 4]), doubled([2]), doubled([4])
    parts = {"one": first.inputs["x"][:2], "other": first.inputs["x"][2:]}
    one.inputs["x"].copy_(parts["one"])
    other.inputs["x"].copy_(parts["other"])
    split = Relation(
        "split",
        "relations",
        (one, other),
        right=lambda results: {"y": torch.cat([each["y"] for each in results])},
    )

    def entry(problem):
        y = problem.inputs["x"] * 2
        if len(y) == 4:
            y[3, 1] = torch.nan
        return {"y": y}

    problem = with_relations(first, split)
    finding = only(run(problem, entry, "numeric", "relations", keep_compared=True))
    assert finding.index == {"row": 5, "dim": 1}
    assert finding.call.startswith("lengths [4] instead of [2, 4]; x of shape [4, 4]")
    assert (finding.compared.element.call, finding.compared.element.index) == (1, (3, 1))


def test_an_element_computed_from_several_calls_is_the_element_of_none():
    results = [{"y": torch.tensor([1.5, 2.25])}, {"y": torch.tensor([4.0, 8.0])}]
    added = Relation("sum", "relations", right=lambda each: {"y": each[0]["y"] + each[1]["y"]})
    assert element_of(added, results, "y", 1) is None


def test_a_call_that_raises_names_its_arguments():
    first = doubled([2, 4])

    def entry(problem):
        if int(problem.inputs["sizes"][0]) != 2:
            raise ValueError("no")
        return {"y": problem.inputs["x"] * 2}

    problem = with_relations(first, repeated(doubled([3, 3]), first, ""))
    finding = only(run(problem, entry, "numeric", "repeat"))
    assert finding.call.startswith("lengths [3, 3] instead of [2, 4]")


def test_an_equal_call_has_the_same_arguments():
    calls = iter(range(9))

    def entry(problem):
        return {"y": problem.inputs["x"] * 2 + next(calls)}

    problem = replace(doubled([2, 4]), has_reference=False)
    finding = only(run(problem, entry, "numeric", "determinism"))
    assert finding.call == "the same arguments"
    assert finding.compared is None  # kept only for commands that print it


@pytest.mark.parametrize(
    ("change", "words"),
    [({"side_stream": True}, "on another CUDA stream"), ({"given_output": "y"}, "a tensor for y")],
)
def test_another_way_to_call(change, words):
    first = doubled([2, 4])
    assert describe_call(replace(first, **change), first) == words


def test_lengths_that_no_axis_names():
    first = doubled([2, 4])
    sizes = torch.tensor([3, 3])
    assert (
        describe_call(replace(first, inputs={**first.inputs, "sizes": sizes}), first)
        == "sizes [3, 3] instead of [2, 4]"
    )
