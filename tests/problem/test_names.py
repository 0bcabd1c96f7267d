"""The pages of built-in problems match the tables of their names, and the problems."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from problem_cases import CPU, make_spec

from tlmatrix.problem import family_for
from tlmatrix.problem.attention.axes import LAYOUTS
from tlmatrix.problem.attention.axes import NAMES as ATTENTION
from tlmatrix.problem.collective.axes import NAMES as COLLECTIVE
from tlmatrix.problem.collective.axes import OPERATIONS
from tlmatrix.problem.declared import NAMES as DECLARED
from tlmatrix.problem.gemm.axes import NAMES as GEMM

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "problems"
TABLES = (ATTENTION, GEMM, COLLECTIVE, DECLARED)
OPTIONAL = r"; (if |as a name|with the check|with `|with a sink|an input only|for a factory)"


@dataclass
class Row:
    """What a page says of a name."""

    name: str
    roles: set[str] = field(default_factory=set)
    values: str = ""
    default: str = ""
    shapes: dict[str, str] = field(default_factory=dict)
    dtype: str = ""
    layouts: tuple[str, ...] = ()
    optional: bool = False


def rows_of(table):
    """The rows of a page, by name."""
    rows = {}
    text = (PAGES / f"{table.problem}.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        for line in re.findall(r"^\| `.*$", section, re.MULTILINE):
            cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
            name = cells[0].strip("`")
            if section.startswith("Axes"):
                row = rows.setdefault(name, Row(name))
                row.roles |= {"axis"} | ({"name"} if name in table.axes else set())
                _, row.values, row.default, layouts, meaning = cells
            elif section.startswith("Other names"):
                row = rows.setdefault(name, Row(name))
                row.roles.add("name")
                _, layouts, meaning = cells
            elif section.startswith("Tensors"):
                row = rows.setdefault(name, Row(name))
                _, roles, shapes, row.dtype, meaning = cells
                row.roles |= set(roles.split(", "))
                row.dtype = row.dtype.strip("`")
                row.shapes, layouts = shapes_of(shapes), "all"
            else:
                continue
            if layouts != "all":
                row.layouts = tuple(re.findall(r"`(\w+)`", layouts))
            row.optional |= re.search(OPTIONAL, meaning) is not None
    return rows


def shapes_of(cell):
    """Shapes by layout: of `bshd, padded: [..]<br>thd: [..]`, `[..] (thd)`, or `[..]` for all."""
    shapes = {}
    for part in cell.split("<br>"):
        (shape,) = re.findall(r"`(.*)`", part)
        layouts = part.replace(f"`{shape}`", "").strip(" ():")
        shapes |= dict.fromkeys(layouts.split(", "), shape)
    return shapes


def named(rows, *roles):
    return {row.name for row in rows if set(roles) & row.roles}


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


def built(table, values):
    axes = {axis: [value] for axis, value in values.items()}
    spec = make_spec(table.problem, axes=axes)
    assert list(family_for(spec).lint(spec)) == []
    return family_for(spec).problem(spec, values, seed=1, device=CPU)


@pytest.mark.parametrize(("table", "values", "layout"), CASES)
def test_page_matches_the_problem(table, values, layout):
    problem = built(table, values)
    rows = rows_of(table)
    here = [row for row in rows.values() if exists_in(row, layout)]
    assert problem.names.keys() <= named(here, "name", "input") | values.keys()
    always = {row.name for row in here if "name" in row.roles and not row.optional}
    always -= {"world", "sink"}
    assert always <= problem.names.keys()
    for role, tensors in (("input", problem.inputs), ("output", problem.outputs)):
        roles = (role, "gradient") if role == "output" else (role,)
        assert tensors.keys() <= named(here, *roles)
        assert {
            row.name
            for row in here
            if set(roles) & row.roles and is_tensor_in(row, layout) and not row.optional
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


@pytest.mark.parametrize(("table", "values", "layout"), CASES)
def test_axes_without_default_are_required(table, values, layout):
    required = {
        row.name
        for row in rows_of(table).values()
        if "axis" in row.roles and row.default == "required" and exists_in(row, layout)
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
    assert family_for(spec).optional_axes == {"values", "storage"}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.problem)
def test_page_has_the_names_of_the_table(table):
    rows = rows_of(table)
    assert named(rows.values(), "axis") == table.axes.keys() | table.settings.keys()
    assert named(rows.values(), "name") == table.axes.keys() | table.others
    assert named(rows.values(), "input") == table.inputs
    assert named(rows.values(), "output", "gradient") == table.results
    text = (PAGES / f"{table.problem}.md").read_text(encoding="utf-8")
    relations = text.partition("\n## Relations\n")[2]
    assert tuple(re.findall(r"`(\w+)`", relations)) == table.relations


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.problem)
def test_values_on_the_page_are_valid(table):
    for row in rows_of(table).values():
        if least := re.match(r"(\d) or more", row.values):
            assert table.explain(row.name, int(least[1])) is None, row.name
            if row.name != "world":  # the loader refuses 0
                assert table.explain(row.name, int(least[1]) - 1), row.name
        if row.values == "booleans":
            assert table.explain(row.name, True) is None
            assert table.explain(row.name, "yes")
        for word in re.findall(r"`(\w+)`", row.values):
            value = {"true": True, "false": False}.get(word, word)
            assert table.explain(row.name, value) is None, (row.name, word)
