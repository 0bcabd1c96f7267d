"""Packed axes of declared problems: derived inputs, dims, pools and relations."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from problem_cases import CPU, make_spec

from tlmatrix.problem import family_for
from tlmatrix.problem.declared.inputs import derived_input
from tlmatrix.spec import SpecError

VALUES = {"seqlens": [3, 0, 5], "dim": 2, "dtype": "float32", "values": "normal"}
X = {"shape": ["sum(seqlens)", "dim"], "dtype": "$dtype", "grad": True}
CU = {"offsets_of": "seqlens"}


@pytest.fixture(autouse=True)
def _references_beside(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def problem_of(reference, inputs, outputs=("y",)):
    return {"inputs": inputs, "outputs": outputs, "reference": f"packed_references:{reference}"}


SOFTMAX = problem_of("softmax", {"x": X, "cu_seqlens": CU})


def make(problem=SOFTMAX, values=VALUES, *, seed=1, **fields):
    fields.setdefault("axes", {axis: [value] for axis, value in values.items()})
    spec = make_spec(problem, **fields)
    return family_for(spec).problem(spec, values, seed=seed, device=CPU)


def relation(problem, name, **more):
    """The relation with a name, from the first seed that gives it; None if none does."""
    for seed in range(1, 7):
        made = make(problem, seed=seed, **more)
        for kind in ("isolation", "poison", "relations"):
            for each in made.relations(kind):
                if each.name == name:
                    return made, each
    return None


@pytest.mark.parametrize("lengths", [[0, 0, 3], [1, 1, 1], [2]])
def test_a_row_for_each_sequence_is_not_taken_for_a_row_of_one(lengths):
    """Also where there are as many rows as sequences, or as columns."""
    problem = problem_of("sums", {"x": X, "cu_seqlens": CU})
    (rows, _) = make(problem, VALUES | {"seqlens": lengths}).outputs["y"].dims
    assert rows.region is None


def test_derived_inputs_follow_from_a_packed_axis():
    inputs = {
        "x": X,
        "offsets": {"offsets_of": "seqlens"},
        "starts": {"starts_of": "seqlens", "dtype": "int64"},
        "lens": {"lengths_of": "seqlens"},
        "ids": {"sequence_ids_of": "seqlens"},
        "places": {"positions_of": "seqlens"},
        "padded": {"offsets_of": "ceildiv(seqlens, 4) * 4"},
    }
    reference = {"inputs": inputs, "outputs": {"y": {"shape": [1]}}}
    found = make(reference, relations=["finite"]).inputs
    assert found["offsets"].tolist() == [0, 3, 3, 8]
    assert found["starts"].tolist() == [0, 3, 3]
    assert found["lens"].tolist() == [3, 0, 5]
    assert found["ids"].tolist() == [0, 0, 0, 2, 2, 2, 2, 2]
    assert found["places"].tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert found["padded"].tolist() == [0, 4, 4, 12]
    assert {name: found[name].dtype for name in inputs if name != "x"} == dict.fromkeys(
        ("offsets", "lens", "ids", "places", "padded"), torch.int32
    ) | {"starts": torch.int64}


def test_query_and_key_lengths_are_packed_separately():
    inputs = {
        "q": {"shape": ["sum(seqlens.q)", "dim"], "dtype": "$dtype"},
        "k": {"shape": ["sum(seqlens.k)", "dim"], "dtype": "$dtype"},
        "cu_q": {"offsets_of": "seqlens.q"},
        "cu_k": {"offsets_of": "seqlens.k"},
    }
    values = VALUES | {"seqlens": {"q": [2, 0, 3], "k": [1, 4, 2]}}
    problem = make(problem_of("scores", inputs), values)
    assert problem.inputs["cu_q"].tolist() == [0, 2, 2, 5]
    assert problem.inputs["cu_k"].tolist() == [0, 1, 5, 7]
    assert problem.outputs["y"].dims[0].describe(3) == {"sequence": 2, "position": 1}
    assert problem.dims["k"][0].describe(3) == {"sequence": 1, "position": 2}
    for name in ("isolation_sequence", "poison_neighbours", "batch_permuted", "batch_split",
                 "batch_extended"):  # fmt: skip
        assert relation(problem_of("scores", inputs), name, values=values), name


def test_dims_assign_elements_to_sequences():
    outputs = {"y": {"shape": ["len(seqlens)", "dim"]}}
    problem = make(problem_of("sums", {"x": X, "cu_seqlens": CU}, outputs), tile={"seqlens": 4})
    rows, _ = problem.outputs["dx"].dims
    assert rows.describe(7) == {"sequence": 2, "position": 4, "position_tile": 1}
    assert list(rows.region) == [0, 0, 0, 2, 2, 2, 2, 2]
    assert list(rows.starts) == [0, 3, 3, 8]
    assert problem.outputs["y"].dims[0].describe(2) == {"sequence": 2}
    named = {"y": {"shape": ["sum(seqlens)", "dim"], "dims": ["token", "channel"]}}
    made = make(problem_of("softmax", {"x": X, "cu_seqlens": CU}, named))
    assert made.outputs["y"].dims[0].describe(7) == {"sequence": 2, "token": 4}


def test_output_with_ambiguous_packing_is_not_packed():
    inputs = {
        "x": X,
        "other": {"shape": ["sum(counts)", "dim"], "dtype": "$dtype"},
        "cu_seqlens": CU,
    }
    spec = SOFTMAX | {"inputs": inputs, "reference": "packed_references:of_x"}
    values = VALUES | {"counts": [4, 4]}
    dims = make(spec, values).outputs["y"].dims
    assert [dim.name for dim in dims] == ["dim0", "dim1"]
    assert make(spec, values | {"counts": [4, 5]}).outputs["y"].dims[0].starts == [0, 3, 3, 8]


def test_compile_key_ignores_packed_axes():
    axes = {"seqlens": [[3], [4]], "tiles": [[64, 32], [32, 32]], "dim": [2], "dtype": ["float32"]}
    spec = make_spec(SOFTMAX, axes=axes)
    first = {axis: values[0] for axis, values in axes.items()}

    def key(**changed):
        return family_for(spec).compile_key(spec, first | changed)

    assert key() == key(seqlens=[4])
    assert key() != key(tiles=[32, 32])  # a list that packs nothing decides kernels


# Relations --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["isolation_sequence", "poison_neighbours", "batch_permuted", "batch_split", "batch_extended"],
)
def test_relations_hold_for_the_float64_reference(name):
    checks = ["numeric", "gradients", "isolation", "poison", "relations"]
    found = relation(SOFTMAX, name, checks=checks)
    assert found is not None
    problem, each = found
    left = each.left(problem.reference())
    right = each.right([other.reference() for other in each.problems])
    assert set(left) == {"y", "dx"}
    for tensor in left:
        torch.testing.assert_close(left[tensor], right[tensor], rtol=1e-12, atol=1e-12)


def test_isolation_changes_one_sequence_and_compares_the_others():
    problem, each = relation(SOFTMAX, "isolation_sequence")
    changed = each.problems[0].inputs["x"] != problem.inputs["x"]
    regions = torch.tensor(list(problem.dims["x"][0].region))
    victim = regions[changed[:, 0]].unique().tolist()
    assert len(victim) == 1
    assert changed[regions == victim[0]].all()
    assert each.exact
    assert len(each.left(problem.reference())["y"]) == int((regions != victim[0]).sum())


def test_poison_keeps_one_sequence_and_declared_ranges():
    inputs = {
        "x": X | {"grad": False},
        "cu_seqlens": CU,
        "decay": {"shape": ["sum(seqlens)"], "dtype": "float32", "between": [0, 1]},
    }
    spec = problem_of("softmax_with_decay", inputs)
    problem, each = relation(spec, "poison_neighbours")
    poisoned = each.problems[0].inputs
    sizes = poisoned["x"].abs().amax(1)
    assert int((sizes > 2**20).sum()) in (3, 5)
    assert poisoned["decay"].min() >= 0
    assert poisoned["decay"].max() <= 1
    assert not torch.equal(poisoned["decay"], problem.inputs["decay"])


def test_permutation_moves_rows_of_experts():
    inputs = {
        "x": {"shape": ["sum(counts)", "dim"], "dtype": "$dtype"},
        "w": {"shape": ["len(counts)", "dim", 3], "dtype": "$dtype"},
        "ids": {"sequence_ids_of": "counts"},
    }
    outputs = {"y": {"shape": ["sum(counts)", 3]}}
    values = {"counts": [3, 0, 5], "dim": 2, "dtype": "float32", "values": "normal"}
    problem, each = relation(problem_of("gemm", inputs, outputs), "batch_permuted", values=values)
    moved = each.problems[0]
    order = moved.values["counts"]
    assert order != values["counts"]
    assert sorted(order) == [0, 3, 5]
    at = order.index(5)
    assert torch.equal(moved.inputs["w"][at], problem.inputs["w"][2])
    assert moved.inputs["ids"].tolist().count(at) == 5


def test_batch_split_sums_gradients_of_shared_inputs():
    inputs = {"x": X, "w": {"shape": ["dim"], "dtype": "$dtype", "grad": True}, "cu_seqlens": CU}
    problem, each = relation(problem_of("weighted", inputs), "batch_split")
    right = each.right([other.reference() for other in each.problems])
    torch.testing.assert_close(right["dw"], problem.reference()["dw"])


def test_mixing_sequences_has_no_relation_and_no_false_positive():
    mixing = problem_of("centred", {"x": X, "cu_seqlens": CU})
    for name in ("isolation_sequence", "poison_neighbours", "batch_split", "batch_extended"):
        assert relation(mixing, name) is None, name
    assert relation(mixing, "batch_permuted") is not None  # a mean does not ask for an order


def test_relation_covers_results_whose_reference_satisfies_it():
    ranked = problem_of("ranked", {"x": X, "cu_seqlens": CU}, ["y", "order"])
    problem, each = relation(ranked, "isolation_sequence")
    assert set(each.left(problem.reference())) == {"y", "dx"}


def test_without_a_reference_only_listed_relations_apply():
    declared = {"inputs": {"x": X, "cu_seqlens": CU}, "outputs": {"y": X | {}}}
    declared["outputs"] = {"y": {"shape": X["shape"]}}
    assert relation(declared, "batch_permuted", relations=["finite"]) is None
    assert relation(declared, "isolation_sequence", relations=["finite"]) is None
    assert relation(declared, "batch_permuted", relations=["batch_permuted"]) is not None


def test_where_rules_apply_to_rearranged_batches():
    rules = [{"require": "len(seqlens) == 3", "because": "of three"}]
    for name, offered in (("batch_split", False), ("batch_extended", False),
                          ("batch_permuted", True)):  # fmt: skip
        found = relation(SOFTMAX, name, constraints=rules)
        assert (found is not None) is offered, name


def test_padded_tensors_can_shrink_but_not_grow():
    inputs = {
        "x": {"shape": ["len(seqlens)", "max(seqlens)", "dim"], "dtype": "$dtype"},
        "lens": {"lengths_of": "seqlens"},
    }
    spec = problem_of("padded_sums", inputs, {"y": {"shape": ["len(seqlens)", "dim"]}})
    values = VALUES | {"seqlens": [5, 1]}
    problem, each = relation(spec, "batch_split", values=values)
    assert [len(part.inputs["x"]) for part in each.problems] == [1, 1]
    assert [part.inputs["x"].shape[1] for part in each.problems] == [5, 1]
    right = each.right([part.reference() for part in each.problems])
    torch.testing.assert_close(right["y"], problem.reference()["y"])


# Pools of pages ---------------------------------------------------------------------------------

POOL = {
    "pool": {"shape": ["pages(seqlens, page)", "page", "dim"], "dtype": "$dtype"},
    "table": {"pages_of": "seqlens", "page_size": "page"},
    "cu_seqlens": CU,
}
PAGED = problem_of("gathered", POOL, {"y": {"shape": ["sum(seqlens)", "dim"]}})
PAGED_VALUES = VALUES | {"page": 2}


@pytest.mark.parametrize("seed", [1, 2])
def test_unused_slots_of_a_pool_are_poisoned(seed):
    problem = make(PAGED, PAGED_VALUES, seed=seed)
    table, pool = problem.inputs["table"], problem.inputs["pool"]
    assert pool.shape == (2 + 0 + 3 + 3, 2, 2)
    assert table.shape == (3, 3)
    owned = [page for row, count in zip(table.tolist(), [2, 0, 3], strict=True)
             for page in row[:count]]  # fmt: skip
    assert len({*owned}) == 5
    assert all(not 0 <= page < 8 for page in table[1].tolist())
    stale = pool.isnan() | (pool.abs() > 1000)
    assert int((~stale).all(-1).sum()) == 8
    assert problem.reference()["y"].isfinite().all()


@pytest.mark.parametrize(
    ("unseen", "outside"),
    [("seqlens - 1", [1, 0, 2]), ("seqlens - page - 9", [0, 0, 0]), ("page + 1", [1, 0, 1])],
)
def test_pages_that_no_query_sees_are_not_in_the_table(unseen, outside):
    found = [table_of({**POOL["table"], **more}) for more in ({"unseen": unseen}, {})]
    for row, before, count in zip(*found, outside, strict=True):
        assert not any(0 <= page < 8 for page in row[:count])
        assert row[count:] == before[count:]


def test_unseen_rows_are_a_number_for_each_sequence():
    message = r"unseen: 'lengths' is \[1\]; .* one for each of 3 sequences"
    with pytest.raises(ValueError, match=message):
        table_of(POOL["table"] | {"unseen": "lengths"}, lengths=[1])


def table_of(declared, **values):
    values = PAGED_VALUES | values
    problem = problem_of("gathered", POOL | {"table": declared}, {"y": {"shape": ["dim"]}})
    spec = make_spec(problem, axes={axis: [value] for axis, value in values.items()})
    table = derived_input(spec.problem.inputs["table"], values, torch.int32, seed=1)
    return table.tolist()


@pytest.mark.parametrize(
    "name",
    ["isolation_sequence", "poison_neighbours", "batch_permuted", "batch_split", "batch_extended"],
)
def test_relations_gather_and_scatter_rows_of_pages(name):
    found = relation(PAGED, name, values=PAGED_VALUES)
    assert found is not None
    problem, each = found
    left = each.left(problem.reference())
    right = each.right([other.reference() for other in each.problems])
    torch.testing.assert_close(left["y"], right["y"])


def test_returned_pool_is_compared_by_rows():
    inputs = {
        "pool": POOL["pool"],
        "table": POOL["table"],
        "lens": {"lengths_of": "seqlens"},
        "x": {"shape": ["len(seqlens)", "dim"], "dtype": "$dtype"},
    }
    outputs = {"after": {"shape": ["pages(seqlens, page)", "page", "dim"]}}
    spec = problem_of("appended", inputs, outputs)
    problem, each = relation(spec, "isolation_sequence", values=PAGED_VALUES)
    assert problem.outputs["after"].dims[0].name == "page"
    part = each.left(problem.reference())["after"]
    assert part.isfinite().all()
    assert len(part) in (3, 5)
    problem, each = relation(spec, "batch_permuted", values=PAGED_VALUES)
    left = each.left(problem.reference())["after"]
    torch.testing.assert_close(left, each.right([each.problems[0].reference()])["after"])


def test_invalid_page_size_is_a_located_error():
    with pytest.raises(SpecError, match="needs a page size of 1 or more"):
        make(PAGED, PAGED_VALUES | {"page": 0})


def test_offsets_are_the_bounds_of_sequences():
    problem = make(values=VALUES | {"seqlens": [0, 4, 0, 0, 2, 0]})
    bounds = problem.inputs["cu_seqlens"].tolist()
    assert [b - a for a, b in pairwise(bounds)] == [0, 4, 0, 0, 2, 0]
    assert problem.dims["x"][0].describe(5) == {"sequence": 4, "position": 1}


def test_repeat_changes_lengths_but_not_tensor_sizes():
    problem = make()
    (repeated,) = problem.relations("repeat")
    other = repeated.problems[0]
    assert other.values["seqlens"] == [3, 3, 2]
    assert other.inputs["cu_seqlens"].tolist() == [0, 3, 6, 8]
    assert other.inputs["x"].shape == problem.inputs["x"].shape
    rules = [{"require": "0 in seqlens", "because": "empty ones alone"}]
    (repeated,) = make(constraints=rules).relations("repeat")
    assert repeated.problems[0].values["seqlens"] == [3, 0, 5]
