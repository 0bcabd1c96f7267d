"""Each kind of bug is found by the right check and described correctly."""

import re
from dataclasses import replace

import packed_attention as world
import pytest
import torch
from packed_attention import DTYPES, attention, flash, run

from tlmatrix.check.numeric import describe_mismatch
from tlmatrix.check.sanitizers import _hint
from tlmatrix.interpreter import Report
from tlmatrix.problem.model import Dim, Problem, Relation, TensorInfo

LENGTHS = (17, 1, 40, 70)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])


def broken(edit):
    """A correct kernel whose results are then edited."""

    def kernel(problem):
        results = flash(problem)
        edit(results)
        return results

    return kernel


def only(findings):
    assert len(findings) == 1, [finding.title for finding in findings]
    return findings[0]


def masked_by(monkeypatch, rule, problem):
    """The findings of a kernel with another mask; the reference keeps the right one."""
    problem.reference()  # made once, and with the right mask
    problem.lowp()

    def kernel(inside):
        with monkeypatch.context() as patch:
            patch.setattr(world, "visible", rule)
            return flash(inside)

    return run(problem, kernel)


@EVERY_DTYPE
def test_no_finding_for_a_correct_kernel(dtype):
    problem = attention(LENGTHS, (17, 30, 2, 70), dtype=dtype)
    assert run(problem, flash, "numeric", "gradients", "poison", "guards", "determinism") == []


# Values ------------------------------------------------------------------------------------------


@EVERY_DTYPE
@pytest.mark.parametrize("name", ["out", "dv"])
@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_a_uniform_error_of_two_percent(dtype, name, factor):
    def edit(results):
        results[name] = (results[name].double() * factor).to(dtype)

    finding = only(run(attention(LENGTHS, dtype=dtype), broken(edit)))
    assert finding.check == ("numeric" if name == "out" else "gradients")
    assert finding.tensor == name
    assert finding.pattern == "everything"
    measured = re.search(r"got is (\S+) times expected", finding.hint)
    assert float(measured[1]) == pytest.approx(factor, abs=1e-3)


@EVERY_DTYPE
def test_two_percent_when_every_sequence_has_one_row(dtype):
    def edit(results):
        results["out"] = (results["out"].double() * 1.02).to(dtype)

    problem = attention((1,) * 16, (200,) * 16, dtype=dtype, causal=False)
    assert only(run(problem, broken(edit))).tensor == "out"


def scaled(tensor, factor):
    tensor.copy_((tensor.double() * factor).to(tensor.dtype))


def swapped(tensor):
    tensor.copy_(tensor[:, [0, 2, 1]].clone())


WRONG = {
    "two percent in a head of a sequence": (
        lambda r: scaled(r["out"][58:, 1], 1.02),
        {"tensor": "out", "where": "all rows of sequence 3, head 1"},
    ),
    "zeros": (
        lambda r: r["out"].zero_(),
        {"check": "numeric", "tensor": "out", "pattern": "everything", "got": 0,
         "hint": "every wrong element is 0"},
    ),
    "one NaN": (
        lambda r: r["dq"][20, 2, 5].fill_(torch.nan),
        {"check": "gradients", "tensor": "dq", "pattern": "one element", "wrong": 1,
         "index": {"sequence": 2, "position": 2, "position_tile": 0, "head": 2, "dim": 5},
         "total": 128 * 3 * 16, "where": "row 2 of sequence 2, head 2, dim 5, in tile 0"},
    ),
    "an lse in the wrong base": (
        lambda r: r["lse"].mul_(world.LOG2E),
        {"tensor": "lse", "pattern": "everything",
         "hint": "a uniform factor: got is 1.443 times expected: log2 instead of ln?"},
    ),
    "a transposed pair of heads": (
        lambda r: swapped(r["out"]),
        {"pattern": "heads", "where": "head 1-2", "hint": None},
    ),
}  # fmt: skip


@EVERY_DTYPE
@pytest.mark.parametrize("name", WRONG)
def test_what_a_finding_says(name, dtype):
    edit, said = WRONG[name]
    finding = only(run(attention(LENGTHS, dtype=dtype), broken(edit)))
    assert {field: getattr(finding, field) for field in said} == said


@EVERY_DTYPE
@pytest.mark.parametrize("value", [torch.inf, -torch.inf])
def test_infinite_where_finite_is_expected(dtype, value):
    def edit(results):
        results["out"][3, 0, 0] = value

    assert only(run(attention(LENGTHS, dtype=dtype), broken(edit))).pattern == "one element"


def sums(dtype, *, size=1000, k=64):
    """A problem with a million sums of `k` terms, as a GEMM has."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, k, generator=generator).to(dtype) for _ in range(2))
    dims = (Dim("m", size, tile=64), Dim("n", size, tile=64))
    exact, bound = a.double() @ b.double().T, a.double().abs() @ b.double().abs().T
    info = TensorInfo(
        "c", dims, dtype, world.ROUNDOFF[dtype],
        bound.clone,
        (a.double().square() @ b.double().square().T).sqrt,
    )  # fmt: skip
    return Problem(
        values={}, names={"a": a, "b": b}, inputs={"a": a, "b": b}, outputs={"c": info},
        returns=("c",), reference=lambda: {"c": exact},
        lowp=lambda: {"c": (a.float() @ b.float().T).to(dtype)},
    )  # fmt: skip


def product(problem):
    a, b = problem.inputs["a"], problem.inputs["b"]
    return {"c": (a.float() @ b.float().T).to(a.dtype)}


@EVERY_DTYPE
def test_one_wrong_element_in_a_million(dtype):
    def kernel(problem):
        result = product(problem)
        result["c"][321, 654] += 0.5
        return result

    assert run(sums(dtype), product) == []
    finding = only(run(sums(dtype), kernel))
    assert dict(finding.index) == {"m": 321, "m_tile": 5, "n": 654, "n_tile": 10}
    assert (finding.wrong, finding.total) == (1, 10**6)
    assert finding.got == pytest.approx(finding.expected + 0.5, abs=0.1)
    assert finding.ratio > 1


@EVERY_DTYPE
def test_a_tile_of_a_matrix(dtype):
    def kernel(problem):
        result = product(problem)
        result["c"][64:128, 128:192] = 40
        return result

    finding = only(run(sums(dtype, size=300), kernel))
    assert finding.pattern == "a tile"
    assert finding.where == "rows 64-127, n 128-191, in tile 1 and n tile 2"


@EVERY_DTYPE
def test_rows_with_no_visible_key(dtype):
    problem = attention((17, 30), (17, 20), dtype=dtype)

    def edit(results):
        results["out"][17:27] = torch.nan
        results["lse"][:, 17:27] = -1e30

    rows, statistic = run(problem, broken(edit))
    assert (rows.tensor, rows.pattern, rows.where) == (
        "out", "NaN rows", "rows 0-9 of sequence 1, in tile 0",
    )  # fmt: skip
    assert "no visible key must be 0" in rows.hint
    assert (statistic.tensor, statistic.expected) == ("lse", -torch.inf)
    assert "must be -inf" in statistic.hint


def test_nan_is_required_where_the_reference_has_nan():
    problem = sums(torch.float32, size=8)
    expected = problem.reference()["c"].clone()
    expected[2, 3] = torch.nan
    problem = replace(problem, reference=lambda: {"c": expected})

    def faithful(inside):
        result = product(inside)
        result["c"][2, 3] = torch.nan
        return result

    assert run(problem, faithful) == []
    finding = only(run(problem, product))
    assert (finding.check, finding.pattern) == ("reference", "one element")
    assert finding.title.startswith("reference error: c: the reference gives NaN in 1 of 64 elem")


def test_overflow_of_the_dtype_must_be_infinity():
    problem = sums(torch.float16, size=8)
    expected = problem.reference()["c"].clone()
    expected[2, 3] = -1e6
    problem = replace(problem, reference=lambda: {"c": expected}, lowp=dict)

    def overflowing(value):
        def kernel(inside):
            result = product(inside)
            result["c"][2, 3] = value
            return result

        return kernel

    assert run(problem, overflowing(-torch.inf)) == []
    assert only(run(problem, overflowing(torch.inf))).pattern == "one element"


def test_wrong_shape_dtype_and_missing_tensor_are_findings():
    problem = attention(LENGTHS)
    finding = only(run(problem, broken(lambda r: r.update(out=r["out"].float()))))
    assert finding.title == "out is float32, expected float16"
    out = replace(problem.outputs["out"], undeclared=True)
    words = "expected float16, as inputs are; to declare it: outputs: {out: {dtype: float32}}"
    assert words in describe_mismatch("out", out, torch.zeros(out.shape))
    finding = only(run(problem, broken(lambda r: r.update(lse=r["lse"].T))))
    assert finding.title == "lse has shape [128, 3], expected [3, 128] (head 3, position 128)"
    finding = only(run(problem, broken(lambda r: r.pop("dk"))))
    assert finding.title == "dk is missing from what the entry returned"
    assert finding.check == "gradients"


# Patterns ----------------------------------------------------------------------------------------

STARTS = {0: 0, 1: 17, 2: 18, 3: 58}


@pytest.mark.parametrize(
    ("place", "pattern", "where"),
    [
        ((21,), "a row", "row 3 of sequence 2, in tile 0"),
        ((slice(34, 50), slice(1, 3)), "a tile", "rows 16-31 of sequence 2, head 1-2, in tile 1"),
        ((slice(18, 58),), "a sequence", "all rows of sequence 2, in tile 0-2"),
        ((slice(0, 18),), "sequences", "all rows of sequences 0-1, in tile 0-1"),
        ((slice(None), 1), "a head", "head 1"),
        ((slice(None), slice(0, 2)), "heads", "head 0-1"),
        ((..., 7), "a column", "dim 7"),
        ((slice(None, None, 8),), "every 8th row", None),
        ((slice(122, 128),), "last tile of a sequence", "rows 64-69 of sequence 3, in tile 4"),
        ((slice(54, 58),), "last rows", "rows 36-39 of sequence 2, in tile 2"),
        (([*range(18, 23), *range(58, 63)],), "first rows", "rows 0-4 of sequences 2-3, in tile 0"),
        (([20, 25, 60],), "rows", "rows 2, 7 of sequence 2; row 2 of sequence 3, in tile 0"),
    ],
)
def test_pattern_names(place, pattern, where):
    def edit(results):
        results["out"][place] = 30

    finding = only(run(attention(LENGTHS), broken(edit)))
    assert finding.pattern == pattern
    assert where is None or finding.where == where


def test_the_last_tile_of_every_sequence():
    def edit(results):
        for start, length in ((0, 17), (17, 40), (57, 70)):
            results["out"][start + (length - 1) // 16 * 16 : start + length] = 0

    finding = only(run(attention((17, 40, 70)), broken(edit)))
    assert finding.pattern == "last tile of every sequence"
    assert finding.hint == "every wrong element is 0"


def test_wrong_last_tiles_are_no_evidence_of_a_bound():
    def edit(results):
        for start, length in ((0, 17), (17, 40), (57, 70)):
            results["out"][start + (length - 1) // 16 * 16 : start + length] *= -3

    finding = only(run(attention((17, 40, 70)), broken(edit)))
    assert finding.pattern == "last tile of every sequence"
    assert finding.hint is None or "length" not in finding.hint


def test_smaller_tiles_are_suggested_for_shared_memory_only():
    def report(message):
        return Report("budget", "kernel", "k.py", 3, "", (), (), message)

    hints = [
        _hint(report("the kernel needs about 300000 bytes of shared memory at once, sm_80 has 1")),
        _hint(report("the layout annotated on X of shape (3,) places an element at 9")),
        _hint(report("the kernel needs 600 columns of tensor memory, there are 512: C")),
    ]
    assert hints == ["use smaller tiles or fewer stages", None, None]


@pytest.mark.parametrize("value", [0.01, torch.inf])
def test_a_head_nearer_to_a_small_one_than_to_its_own_is_no_permutation(value):
    values = torch.randn(3, 16, generator=torch.Generator().manual_seed(0)).double()
    values[0] *= 100
    dims = Dim("head", 3, region=range(3)), Dim("dim", 16)
    info = TensorInfo("y", dims, torch.float32, 2.0**-24)
    problem = Problem(
        {}, {}, {}, {"y": info}, ("y",), reference=lambda: {"y": values},
        lowp=lambda: {"y": values.float()},
    )  # fmt: skip
    got = values.float()
    got[0] = value
    assert only(run(problem, lambda _: {"y": got})).hint is None


def test_a_factor_near_one_is_printed_as_another_number():
    problem = attention(LENGTHS, dtype=torch.float32)

    def edit(results):
        results["lse"] *= 1.00002

    hint = only(run(problem, broken(edit))).hint
    assert hint == "a uniform factor: got is 1.00002 times expected"


def test_a_factor_that_two_numbers_explain_names_neither():
    problem = attention(LENGTHS)
    problem = replace(problem, names={**problem.names, "groups": 2})
    hint = only(run(problem, broken(lambda r: r["out"].mul_(2)))).hint
    assert hint == "a uniform factor: got is 2 times expected"


def test_nan_everywhere_is_no_wrong_mask():
    finding = only(run(attention(LENGTHS), broken(lambda r: r["out"].fill_(torch.nan))))
    assert finding.hint == "NaN although no input has any"


def test_scattered_elements():
    def edit(results):
        for at in range(16):
            results["out"][at * 8, at % 3, (at * 5) % 16] = 30

    assert only(run(attention(LENGTHS), broken(edit))).pattern == "scattered"


def test_findings_are_merged_by_cause():
    def same(results):
        results["out"][:, 1] = 0
        results["lse"][1] = 0

    finding = only(run(attention(LENGTHS), broken(same)))
    assert "same cause: lse: " in finding.detail or "same cause: out: " in finding.detail

    def different(results):
        results["out"] *= -1
        results["lse"] *= world.LOG2E

    assert len(run(attention(LENGTHS), broken(different))) == 2


def test_gradients_of_wrong_outputs_are_one_finding():
    def edit(results):
        results["out"][3] = 9
        results["dq"][:, 1] = 9
        results["dk"][:, 2] = 9

    forward, backward = run(attention(LENGTHS), broken(edit))
    assert (forward.check, backward.check) == ("numeric", "gradients")
    assert "also wrong: " in backward.detail


# Masks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        lambda lq, lk, *_: torch.arange(lk)[None] <= torch.arange(lq)[:, None] + lk - lq + 1,
        lambda lq, lk, *_: torch.arange(lk)[None] < torch.arange(lq)[:, None] + lk - lq,
        lambda lq, lk, *_: torch.ones(lq, lk, dtype=torch.bool),
    ],
    ids=["a key too many", "a key too few", "no mask"],
)
def test_wrong_rows_alone_are_no_evidence_of_a_mask(monkeypatch, rule):
    forward, *_ = masked_by(monkeypatch, rule, attention(LENGTHS))
    assert forward.check == "numeric"
    assert forward.hint is None


# Determinism and relations -----------------------------------------------------------------------


@EVERY_DTYPE
def test_a_result_that_changes_from_call_to_call(dtype):
    calls = []

    def kernel(problem):
        results = flash(problem)
        calls.append(1)
        if len(calls) == 3:
            row = results["out"][5, 0]
            row[0] = torch.nextafter(row[0], row.new_tensor(9))
        return results

    finding = only(run(attention(LENGTHS, dtype=dtype), kernel, "numeric", "determinism"))
    assert (finding.check, finding.tensor, finding.wrong) == ("determinism", "out", 1)
    calls.clear()
    bounded = run(attention(LENGTHS), kernel, "numeric", "determinism", deterministic=False)
    assert bounded == []


@EVERY_DTYPE
def test_bounded_determinism_has_a_bound(dtype):
    calls = []

    def kernel(problem):
        results = flash(problem)
        calls.append(1)
        if len(calls) == 2:
            results["out"][5, 0, 0] += 1
        return results

    finding = only(run(attention(dtype=dtype), kernel, "determinism", deterministic=False))
    assert finding.check == "determinism"


def with_relation(problem, relation):
    def relations(kind):
        return (relation,) if relation.kind == kind else ()

    return replace(problem, relations=relations)


def neighbours(dtype, kind, factor):
    """A relation: other values in sequence 1 change nothing in sequence 0."""
    problem = attention((17, 40), dtype=dtype)
    inputs = {name: tensor.clone() for name, tensor in problem.inputs.items()}
    for tensor in inputs.values():
        tensor[17:] *= factor
    changed = replace(problem, inputs=inputs, names={**problem.names, **inputs})
    part = lambda tensors: {"out": tensors["out"][:17], "lse": tensors["lse"][:, :17]}  # noqa: E731
    relation = Relation(
        "neighbours", kind, (changed,), part, lambda results: part(results[0]), exact=True,
        because="other values in sequence 1",
    )  # fmt: skip
    return with_relation(problem, relation)


@EVERY_DTYPE
@pytest.mark.parametrize(("kind", "factor"), [("isolation", -1), ("poison", 1024)])
def test_a_leak_from_the_neighbour_sequence(dtype, kind, factor):
    problem = neighbours(dtype, kind, factor)
    assert run(problem, flash, "numeric", kind) == []

    def leaky(inside):
        results = flash(inside)
        leak = 2**-9 * world.ROUNDOFF[dtype] / 2**-24 * inside.inputs["v"][17].float()
        results["out"][16] = (results["out"][16].float() + leak).to(dtype)
        return results

    findings = run(problem, leaky, kind)
    assert only(findings).check == kind
    assert findings[0].title.startswith("neighbours: out: ")
    assert "differ and must be bit for bit equal" in findings[0].title
    # The part that is compared is named in the terms of the tensor that it is part of.
    assert {key: findings[0].index[key] for key in ("sequence", "position")} == {
        "sequence": 0, "position": 16,
    }  # fmt: skip
    assert findings[0].where.startswith("row 16 of sequence 0")
    assert "other values in sequence 1" in findings[0].detail
    # After wrong numbers it is still run, for it names the cause.
    assert kind in {finding.check for finding in run(problem, leaky, "numeric", kind)}


def test_part_with_other_elements_has_numbered_axes():
    problem = attention((17, 40), dtype=torch.float16)
    relation = Relation(
        "sums", "relations", (problem,), lambda tensors: {"out": tensors["out"].sum(2)},
        lambda results: {"out": results[0]["out"].sum(2) + 100}, exact=True,
    )  # fmt: skip
    finding = only(run(with_relation(problem, relation), flash, "relations"))
    assert list(finding.index) == ["axis0", "axis1"]


@EVERY_DTYPE
def test_a_scale_kept_from_the_first_call(dtype):
    problem = attention(dtype=dtype)
    other = attention(dtype=dtype, seed=1, scale=0.5)
    relation = Relation(
        "again", "repeat", (other, problem), lambda mine: mine, lambda results: results[1],
        exact=True, judge=(0,),
    )  # fmt: skip
    problem = with_relation(problem, relation)
    assert run(problem, flash, "numeric", "repeat") == []
    kept = []

    def kernel(inside):
        kept.append(inside.names["scale"])
        return flash(replace(inside, names={**inside.names, "scale": kept[0]}))

    findings = run(problem, kernel, "numeric", "repeat")
    assert {finding.check for finding in findings} == {"repeat"}
    assert all(finding.title.startswith("again: ") for finding in findings)


def called_again(problem, other, name="repeat"):
    """The problem with a repeat relation: `other` and then the problem once more."""
    relation = Relation(
        name, "repeat", (other, problem), lambda mine: mine, lambda results: results[1],
        exact=True, judge=(0,), because="must not remember",
    )  # fmt: skip
    return with_relation(problem, relation)


def test_wrong_only_for_the_data_of_the_second_call():
    problem, other = attention(), attention(seed=1)

    def kernel(inside):
        results = flash(inside)
        if torch.equal(inside.inputs["q"], other.inputs["q"]):
            results["dq"][20:] *= 2
        return results

    finding = only(run(called_again(problem, other), kernel, "numeric", "gradients", "repeat"))
    assert finding.title.startswith("dq: largest error ")
    assert finding.title.endswith("against its own reference")
    assert "either the entry is wrong for these values, or it keeps" in finding.detail
    assert "--seed" in finding.detail
    assert "must not remember" not in finding.detail


def test_state_cached_by_tensor_identity():
    problem, other = attention(), attention(seed=1)
    kept = []

    def kernel(inside):
        q = inside.inputs["q"]
        if not any(tensor is q for tensor, _ in kept):
            kept.append((q, q.clone()))
        q = next(copy for tensor, copy in kept if tensor is q)
        names, inputs = ({**held, "q": q} for held in (inside.names, inside.inputs))
        return flash(replace(inside, names=names, inputs=inputs))

    findings = run(called_again(problem, other), kernel, "numeric", "repeat")
    assert {finding.check for finding in findings} == {"repeat"}
    assert torch.equal(kept[0][0], kept[0][1]), "the problem's own tensors are not touched"


def test_results_of_the_first_call_returned_again():
    problem, other = attention(), attention(seed=1)
    memory = {}

    def kernel(inside):
        results = flash(inside)
        results["dv"] = memory.setdefault("dv", results["dv"])
        return results

    finding = only(run(called_again(problem, other), kernel, "repeat"))
    assert finding.title.startswith("dv: ")
    assert finding.detail.startswith("dv of the first call returned again: the entry keeps state")


def test_state_that_the_second_call_leaves_behind():
    problem, other = attention(), attention(seed=1)
    calls = []

    def kernel(inside):
        calls.append(inside)
        results = flash(inside)
        results["dv"] *= len(calls)
        return results

    findings = run(called_again(problem, other), kernel, "repeat")
    assert any("run again, gives other results too" in each.detail for each in findings)
    assert any("must not remember" in each.detail for each in findings)


def test_exception_in_a_repeated_call_is_one_finding():
    problem, other = attention(), attention(seed=1)

    def kernel(inside):
        if torch.equal(inside.inputs["q"], other.inputs["q"]):
            raise ValueError("no second call")
        return flash(inside)

    finding = only(run(called_again(problem, other), kernel, "repeat"))
    assert finding.title == "raised ValueError: no second call"
    assert finding.detail == "must not remember"


def test_checks_that_end_with_one_exception_are_one_finding():
    calls = []

    def kernel(inside):
        calls.append(inside)
        if len(calls) > 1:
            raise ValueError(f"call {len(calls)} is one too many")
        return flash(inside)

    problem, other = attention(), attention(seed=1)
    finding = only(run(called_again(problem, other), kernel, "determinism", "repeat"))
    assert finding.check == "determinism"
    assert finding.title.endswith("raised ValueError: call 2 is one too many")
    assert finding.detail == "repeat ends in the same way"


def test_a_report_of_a_later_run_is_the_finding_of_the_first_one():
    from tlmatrix.interpreter.errors import RaceError
    from tlmatrix.interpreter.reports import Party, Report

    before = Party((0,), "k.py", 12, "read", "threads 0..127")
    report = Report("races", "main", "k.py", 14, "c", (0,), (0,), "a race", before, hint="wait")
    calls = []

    def kernel(inside):
        calls.append(inside)
        if len(calls) > 1:
            error = RaceError("race on c: a race")
            error.reports = (report,)
            raise error
        return flash(inside)

    problem, other = attention(), attention(seed=1)
    finding = only(run(called_again(problem, other), kernel, "determinism", "repeat"))
    assert finding.title == "call 2 of the same problem: races: a race"
    assert (finding.source, finding.hint) == ("k.py:14", "wait")
    assert finding.against == "a read by threads 0..127, block (0,) at k.py:12"
    assert finding.detail == "repeat ends in the same way"


def whole_and_halves(right):
    problem = attention((17, 40))
    first = attention((17,))
    relation = Relation(
        "split", "relations", (first,), lambda mine: {"out": mine["out"][:17]}, right,
        because="a batch is the sum of its parts",
    )  # fmt: skip
    return with_relation(problem, relation)


def test_relation_holds_within_the_sum_of_both_bounds():
    mine = flash(attention((17, 40)))["out"][:17].float()
    close = whole_and_halves(lambda _: {"out": (mine * (1 + 2**-11)).half()})
    assert run(close, flash, "relations") == []
    far = whole_and_halves(lambda _: {"out": (mine * 1.05).half()})
    finding = only(run(far, flash, "relations"))
    assert (finding.check, finding.tensor) == ("relations", "out")
    assert finding.title.startswith("split: out: ")


def test_exact_relation_of_a_bounded_case_uses_error_bounds():
    mine = flash(attention((17, 40)))["out"][:17].float()
    near = whole_and_halves(lambda _: {"out": (mine * (1 + 2**-11)).half()})
    exact = replace(next(iter(near.relations("relations"))), exact=True)
    problem = with_relation(near, exact)
    assert only(run(problem, flash, "relations")).check == "relations"
    assert run(problem, flash, "relations", deterministic=False) == []


def test_an_exception_in_a_relation_names_it():
    def kernel(problem):
        if problem.names["seqlens_q"] == [17]:
            raise ValueError("one sequence is not enough")
        return flash(problem)

    problem = whole_and_halves(lambda results: results[0])
    finding = only(run(problem, kernel, "numeric", "relations"))
    assert finding.title == "split: raised ValueError: one sequence is not enough"
    assert finding.check == "relations"


def test_an_exception_in_the_first_run_is_raised():
    def kernel(_):
        raise ValueError("no such kernel")

    with pytest.raises(ValueError, match="no such kernel"):
        run(attention(), kernel, "numeric", "guards")


def test_checks_after_wrong_values_are_left_out():
    ran = []

    def right(results):
        ran.append(results)
        return results[0]

    kernel = broken(lambda results: results["out"].zero_())
    finding = only(run(whole_and_halves(right), kernel, "numeric", "relations"))
    assert ran == []
    assert "not run: relations" in finding.detail
    assert "`--keep-going`" in finding.detail


def vector(*sizes, edit):
    """The finding for a reference of ones whose result `edit` changes."""
    dims = tuple(Dim(f"axis{number}", size) for number, size in enumerate(sizes))
    info = TensorInfo("y", dims, torch.float32, 2.0**-24)
    values = torch.linspace(1, 2, max(1, torch.Size(sizes).numel())).reshape(sizes).double()
    problem = Problem(
        {}, {}, {}, {"y": info}, ("y",), reference=lambda: {"y": values},
        lowp=lambda: {"y": values.float()},
    )  # fmt: skip
    got = values.float().clone()
    edit(got)
    return only(run(problem, lambda _: {"y": got}))


@pytest.mark.parametrize("sizes", [(1,), (1, 1), (8,), (8, 8)])
def test_pattern_of_a_tensor_wrong_throughout(sizes):
    assert vector(*sizes, edit=lambda y: y.mul_(3)).pattern == "everything"


def noisy_with_few_large_elements(y):
    noise = torch.randn(60, generator=torch.Generator().manual_seed(0))
    y[:4] *= 100
    y[4:] += 0.1 * noise


@pytest.mark.parametrize(
    ("size", "edit", "hint"),
    [
        (64, lambda y: y.mul_(0.99), "a uniform factor: got is 0.99 times expected"),
        (64, lambda y: y.mul_(0.99)[3].fill_(-torch.inf), None),
        (64, noisy_with_few_large_elements, None),
        (64, lambda y: y.fill_(1.25), None),  # an offset fits as well
        (64, lambda y: y.zero_(), "every wrong element is 0"),
        (3, lambda y: y.neg_(), "a uniform factor: got is -1 times expected: wrong sign?"),
        (3, lambda y: y.mul_(3), None),
    ],
)
def test_a_factor_is_named_only_if_it_explains_the_elements(size, edit, hint):
    assert vector(size, edit=edit).hint == hint


FACTOR = "a uniform factor: got is 0.3 times expected"


@pytest.mark.parametrize(
    ("shape", "names", "hint"),
    [
        ((8, 8), {"values": "normal"}, FACTOR),
        ((1, 64), {"values": "normal"}, None),  # the weight of one row
        ((8, 8), {"values": "halves"}, None),  # sums of equal values are multiples of each other
        ((8, 8), {"values": "one_hot"}, None),
        ((8, 8), {"values": "halves", "scale": 0.3}, f"{FACTOR}: that is the scale"),
        (
            (8, 8), {"scale": 0.5 / 0.3, "head_dim": 4},
            f"{FACTOR}: that is the default scale / scale",
        ),
    ],
)  # fmt: skip
def test_a_factor_without_a_cause_needs_many_rows_of_usual_values(shape, names, hint):
    expected = torch.linspace(1, 2, 64).view(shape).double()
    dims = (Dim("row", shape[0]), Dim("dim", shape[1]))
    problem = Problem(
        {}, names, {}, {"y": TensorInfo("y", dims, torch.float32, 2.0**-24)}, ("y",),
        reference=lambda: {"y": expected}, lowp=lambda: {"y": expected.float()},
        distribution=names.get("values", ""),
    )  # fmt: skip
    assert only(run(problem, lambda _: {"y": 0.3 * expected.float()})).hint == hint


def test_the_gradient_of_a_row_with_one_key_is_no_row_without_keys():
    problem = attention((17, 1), (10, 1))  # the first seven rows of the first sequence see no key
    assert float(problem.reference()["dq"][17].abs().max()) < 1e-12
    exact = {name: tensor.clone() for name, tensor in problem.reference().items()}
    exact["dq"][17] = 0
    problem = replace(problem, reference=lambda: exact)
    of_one = only(run(problem, broken(lambda r: r["dq"][17].fill_(torch.nan))))
    of_none = only(run(problem, broken(lambda r: r["dq"][0].fill_(torch.nan))))
    assert "no visible key" not in (of_one.hint or "")
    assert "no visible key must be 0" in of_none.hint
