"""The tables of names match the problems, and the generated documents are up to date."""

from __future__ import annotations

import pytest
import torch
from problem_cases import CPU, make_spec

from tlmatrix.problem import family_for
from tlmatrix.problem.attention.names import LAYOUTS
from tlmatrix.problem.collective.axes import OPERATIONS
from tlmatrix.problem.name_table import names_of
from tlmatrix.problem.names import DOCUMENTS, FOLDER

ATTENTION, GEMM, COLLECTIVE, DECLARED = DOCUMENTS
BASE = {"dtype": "float16", "kv_heads": 2, "groups": 2, "head_dim": 8, "head_dim_v": 16}
PRODUCT = {"dtype": "float16", "m": 3, "n": 4, "k": 5}


def attention(layout, **more):
    lengths = {"seqlens": {"q": [3, 4] if layout in ("thd", "padded") else 1, "k": [5, 6]}}
    if layout in ("bshd", "bhsd"):
        lengths = {"seqlen_q": 3, "seqlen_k": 5, "batch": 2}
    pages = {"page_size": 4} if layout == "paged" else {}
    return {**BASE, "layout": layout, **lengths, **pages, **more}


def collective(operation):
    return {"operation": operation, "dtype": "float32", "world": 2, "rows": 4, "cols": 5}


EQUAL = {
    "bshd": {"seqlen_k": "same", "causal": True, "alignment": "top_left"},
    "thd": {"seqlens": [3, 4]},
    "padded": {"seqlens": {"q": [3, 4], "k": "same"}, "shared_mask": True},
}
"""Lengths with which q and k share names."""

CASES = [
    *((ATTENTION, attention(layout), layout) for layout in LAYOUTS),
    *((ATTENTION, attention(layout, sink=True), layout) for layout in LAYOUTS),
    *((ATTENTION, attention(each, sink=True, sink_dtype="same"), each) for each in LAYOUTS),
    *((ATTENTION, attention(each, **EQUAL[each]), each) for each in EQUAL),
    (GEMM, PRODUCT, ""),
    (GEMM, {**PRODUCT, "accumulate": True, "scaled": True, "out_dtype": "float32"}, ""),
    *((COLLECTIVE, collective(operation), operation) for operation in OPERATIONS),
]


def exists_in(row, layout):
    """Whether cases of the layout have the name."""
    if "name" in row.roles or row.layouts:
        return not row.layouts or layout in row.layouts
    return not row.shapes or is_tensor_in(row, layout)


def is_tensor_in(row, layout):
    """Whether the name is a tensor in cases of the layout."""
    return "" in row.shapes or layout in row.shapes


def built(document, values):
    axes = {axis: [value] for axis, value in values.items()}
    spec = make_spec(document.file, axes=axes)
    assert list(family_for(spec).lint(spec)) == []
    return family_for(spec).problem(spec, values, seed=1, device=CPU)


@pytest.mark.parametrize(("document", "values", "layout"), CASES)
def test_name_table_matches_the_problem(document, values, layout):
    problem = built(document, values)
    rows = {row.name: row for row in document.rows}
    here = [row for row in document.rows if exists_in(row, layout)]
    assert problem.names.keys() <= names_of(here, "name", "input") | values.keys()
    always = {row.name for row in here if "name" in row.roles and not row.optional}
    always -= {"world", "sink"}
    assert always <= problem.names.keys()
    for role, tensors in (("input", problem.inputs), ("output", problem.outputs)):
        roles = (role, "gradient") if role == "output" else (role,)
        assert tensors.keys() <= names_of(here, *roles)
        assert {
            row.name
            for row in here
            if set(roles) & set(row.roles) and is_tensor_in(row, layout) and not row.optional
        } <= tensors.keys()
        for name, tensor in tensors.items():
            row = rows[name]
            assert is_tensor_in(row, layout), name
            assert_shape(
                row.shapes.get(layout, row.shapes.get("", "")), tensor.shape, problem.names
            )
            wanted = {"sink_dtype": "float32", **values}.get(row.dtype, row.dtype)
            if wanted == "same" or row.dtype in ("a_dtype", "b_dtype", "out_dtype"):
                wanted = values.get(row.dtype, values["dtype"])
                wanted = values["dtype"] if wanted == "same" else wanted
            assert tensor.dtype is getattr(torch, wanted), name


def assert_shape(letters, shape, names):
    sizes = letters.strip("[]").split(", ")
    assert len(sizes) == len(shape), letters
    for size, got in zip(sizes, shape, strict=True):
        if size != "pages":  # Some more than the sequences own.
            name, _, more = size.partition(" + ")
            assert names[name] + int(more or 0) == got, (letters, tuple(shape))


@pytest.mark.parametrize(("document", "values", "layout"), CASES)
def test_axes_without_default_are_required(document, values, layout):
    required = {
        row.name
        for row in document.rows
        if "axis" in row.roles and not row.default and exists_in(row, layout)
    }
    # Rows of padded tensors follow from `seqlens`; heads may be given in place of kv_heads.
    assert required - {"seqlen_q", "dtype"} <= values.keys() | {"seqlens"}


def test_declared_problem_has_the_tensors_of_its_spec():
    spec = make_spec(
        {
            "inputs": {"x": {"shape": ["rows"], "dtype": "float32", "grad": True}},
            "outputs": ["y"],
            "reference": "torch:sin",
        },
        axes={"rows": [3]},
    )
    family = family_for(spec)
    assert family.optional_axes == names_of(DECLARED.rows, "axis")
    assert names_of(DECLARED.rows, "name") == {"values", "device"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.file)
def test_documents_are_up_to_date(document):
    written = (FOLDER / f"{document.file}.md").read_text(encoding="utf-8")
    assert written == document.text(), "run: python -m tlmatrix.problem.names"
    names = [row.name for row in document.rows]
    assert len(names) == len(set(names))
