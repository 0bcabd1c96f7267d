"""A hint names the poisoned row that made a result wrong, and what the kernel does with it."""

import re
from dataclasses import replace

import pytest
import torch
from packed_attention import run

from tlmatrix.backend import backend_named
from tlmatrix.matrix import explain
from tlmatrix.problem.model import Dim, Problem, TensorInfo, UnusedRows
from tlmatrix.problem.relations import repeated
from tlmatrix.run.runner import run_case
from tlmatrix.spec import parse_spec

LENGTH = 3
ZERO = "is NaN, and is multiplied by 0: finite values there change nothing"


def summed(poison, *, columns=4):
    """The sum of the first `LENGTH` rows of x [8, columns]; the other rows hold `poison`."""
    x = torch.randn(8, columns, generator=torch.Generator().manual_seed(0))
    x[LENGTH:] = poison
    exact = x[:LENGTH].double().sum(0)
    info = TensorInfo(
        "y", (Dim("dim", columns),), torch.float32, 2.0**-24, magnitude=lambda: exact.abs() + 8
    )
    mask = torch.arange(8) >= LENGTH
    return Problem(
        values={},
        names={"x": x},
        inputs={"x": x},
        outputs={"y": info},
        returns=("y",),
        reference=lambda: {"y": exact},
        lowp=lambda: {"y": exact.float()},
        unused=lambda: {"x": UnusedRows(mask, lambda at: f"row {at[0]} of x, past the length")},
    )


def weighted(weights):
    def entry(problem):
        return {"y": torch.tensor(weights) @ problem.inputs["x"]}

    return entry


def hint(problem, entry):
    (finding,) = run(problem, entry, "numeric")
    return finding.hint


def test_nan_that_is_multiplied_by_zero():
    weights = [1.0, 1, 1, 0, 0, 0, 0, 0]
    assert hint(summed(torch.nan), weighted(weights)) == f"row 3 of x, past the length, {ZERO}"


def test_infinity_that_is_multiplied_by_zero():
    weights = [1.0, 1, 1, 0, 0, 0, 0, 0]
    assert "is infinite, and finite values there change nothing" in hint(
        summed(torch.inf), weighted(weights)
    )


@pytest.mark.parametrize("poison", [torch.nan, 2.0**20])
def test_a_row_that_changes_the_result(poison):
    def entry(problem):
        return {"y": problem.inputs["x"][: LENGTH + 1].sum(0)}

    found = hint(summed(poison), entry)
    size = "up to 1.05e+06" if poison < torch.inf else "NaN"
    assert found == f"row 3 of x, past the length, is {size}, and changes the result"


def test_the_row_is_the_one_that_is_read_not_the_first():
    def entry(problem):
        rows = problem.inputs["x"]
        return {"y": rows[:LENGTH].sum(0) + 0 * rows[6]}

    assert hint(summed(torch.nan), entry) == f"row 6 of x, past the length, {ZERO}"


def test_rows_that_are_wrong_only_together():
    def entry(problem):
        rows = problem.inputs["x"]
        both = rows[4] * rows[7]
        return {"y": rows[:LENGTH].sum(0) + torch.where(both > 2.0**30, both, 0.0)}

    found = hint(summed(2.0**20), entry)
    assert found.startswith("row 3 of x, past the length, together with 4 more rows, is up to")


def test_another_nan_gets_no_row():
    def entry(problem):
        return {"y": problem.inputs["x"][:LENGTH].sum(0) * torch.nan}

    assert "row" not in (hint(summed(torch.nan), entry) or "")


def test_rows_of_a_problem_that_names_none():
    problem = replace(summed(torch.nan), unused=dict)
    assert hint(problem, weighted([1.0, 1, 1, 0, 0, 0, 0, 0])) == f"x[3] {ZERO}"


def test_infinity_on_which_the_result_may_depend_is_no_cause():
    problem = replace(summed(torch.inf), unused=dict)
    assert hint(problem, lambda problem: {"y": problem.inputs["x"][: LENGTH + 1].sum(0)}) is None


def test_a_row_that_makes_a_later_call_wrong():
    problem = replace(summed(0.0), relations=lambda kind: repeats if kind == "repeat" else [])
    repeats = [repeated(replace(summed(torch.nan), relations=lambda _: []), problem, "")]
    (finding,) = run(problem, weighted([1.0, 1, 1, 0, 0, 0, 0, 0]), "numeric", "repeat")
    assert finding.check == "repeat"
    assert finding.hint == f"row 3 of x, past the length, {ZERO}"


# Families ----------------------------------------------------------------------------------------

CODE = """\
import torch


def attend(q, k, v, seen):
    scores = (q.float() @ k.float().mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1).nan_to_num(0) @ v.float()).to(q.dtype)  # 0 * NaN


def cache(q, k_cache, v_cache, seqlens_k):
    seen = torch.arange(k_cache.shape[1]) < seqlens_k[:, None, None]
    k, v = (each[:, :, 0] for each in (k_cache, v_cache))
    return attend(q, k.nan_to_num(0), v, seen)


def paged(q, k_pages, v_pages, block_table, seqlens_k):
    table = block_table.clamp(0, len(k_pages) - 1).long()
    table = torch.where(block_table == table, table, table[:, :1])
    k, v = (each[table][..., 0, :].flatten(1, 2) for each in (k_pages, v_pages))
    seen = torch.arange(k.shape[1]) < seqlens_k[:, None, None]
    return attend(q, k.nan_to_num(0), v, seen)


def padded(q, k, v, mask_q, mask_k):
    out = attend(q[:, :, 0], k[:, :, 0].nan_to_num(0), v[:, :, 0], mask_k[:, None])
    return torch.where(mask_q[..., None], out, 0)[:, :, None]


def pool(x, table, lengths):
    rows = x[table.clamp(0, len(x) - 1).long()].flatten(1, 2)
    weights = (torch.arange(rows.shape[1]) < lengths[:, None]).float()
    return (weights[:, None] @ rows)[:, 0]


def pool_reference(x, table, lengths):
    rows = [x[each.clamp(0, len(x) - 1).long()].flatten(0, 1) for each in table]
    return torch.stack([r[: int(n)].sum(0) for r, n in zip(rows, lengths)])
"""
ATTENTION = """\
name: {entry}
problem: attention
entry: dependence_code:{entry}
checks: [numeric]
axes: {{layout: [{layout}], dtype: [float32], kv_heads: [1], groups: [1], head_dim: [16], {more}}}
"""
CACHE = "seqlens: [{q: 1, k: [5, 9]}], max_seqlen_k: [16]"
PAGED = "seqlens: [{q: 1, k: [5, 9]}], page_size: [4], max_seqlen_k: [16]"
PADDED = "causal: [false], seqlens: [{q: [3, 4], k: [5, 9]}], padding: [right]"
POOL = """\
name: pool
problem:
  inputs:
    x: {shape: ["pages(sizes, 4)", 4, 8], dtype: float32}
    table: {pages_of: sizes, page_size: 4}
    lengths: {lengths_of: sizes}
  outputs: [y]
  reference: dependence_code:pool_reference
entry: dependence_code:pool
checks: [numeric]
axes: {sizes: [[5, 9]]}
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ATTENTION.format(entry="cache", layout="cache", more=CACHE), r"row \d+ of v_cache, past"),
        (
            ATTENTION.format(entry="paged", layout="paged", more=PAGED),
            r"slot \d of page \d of v_pages, past the length of sequence \d",
        ),
        (
            ATTENTION.format(entry="padded", layout="padded", more=PADDED),
            r"row \d+ of v, in the padding of sequence \d",
        ),
        (POOL, r"slot \d of page \d of x, past the length of sequence \d"),
    ],
    ids=["cache", "paged", "padded", "pool"],
)
def test_families_name_their_rows(text, words, code_folder):
    spec = parse_spec(text, code_folder / "spec.yaml")
    case = explain(spec, {}).case
    backend = backend_named("interpreter")
    found = [
        finding
        for seed in range(4)  # odd seeds of a case give NaN
        for finding in run_case(spec, case, backend, seed=seed).findings
    ]
    assert found
    for finding in found:
        assert re.match(words, finding.hint or finding.title)
        assert finding.hint.endswith(ZERO)
