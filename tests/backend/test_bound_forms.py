"""Every form of entry and reference: the right operator passes, and a mistake is found."""

import sys
from pathlib import Path

import pytest

from tlmatrix.matrix import expand
from tlmatrix.problem import family_for
from tlmatrix.run.runner import run_case
from tlmatrix.spec import load_spec

HERE = str(Path(__file__).parent)

NORM = """
problem:
  inputs:
    x: {shape: [rows, cols], dtype: $dtype, grad: true}
    w: {shape: [cols], dtype: $dtype, grad: true}
  outputs: [y]
  reference: REFERENCE
axes: {dtype: [float32, bfloat16], rows: [3], cols: [40]}
"""
DOUBLED = """
problem:
  inputs: {x: {shape: [rows, cols], dtype: float32}}
  outputs: {y: {shape: [rows, cols]}}
  reference: bound_forms:doubled
axes: {rows: [5], cols: [40]}
"""
SCRATCH = """
problem:
  inputs:
    x: {shape: [rows, cols], dtype: float32}
    work: {shape: [rows, cols], dtype: float32}
  outputs: [y]
  reference: {function: bound_forms:doubled, call: [x]}
axes: {rows: [5], cols: [40]}
"""
ADDED = """
problem:
  inputs: {x: {shape: [rows, cols], dtype: float32}, w: {shape: [cols], dtype: float32}}
  outputs: [y]
  reference: REFERENCE
axes: {rows: [5], cols: [40], storage: [transposed, sliced, expanded]}
"""
BLOCK = """
problem:
  inputs:
    x: {shape: [rows, cols], dtype: $dtype, grad: true}
    proj_weight: {shape: [out, cols], dtype: $dtype, grad: true}
    proj_bias: {shape: [out], dtype: $dtype, grad: true}
    norm_weight: {shape: [out], dtype: $dtype, grad: true}
    norm_bias: {shape: [out], dtype: $dtype, grad: true}
  outputs: [y]
  reference: bound_forms:block
axes: {dtype: [float32, bfloat16], rows: [3], cols: [16], out: [8]}
"""
BIASED = BLOCK.replace("    proj_bias: {shape: [out], dtype: $dtype, grad: true}\n", "").replace(
    "bound_forms:block", "bound_forms:biased"
)
SHIFTED = """
problem:
  inputs: {x: {shape: [rows, cols], dtype: float32}}
  outputs: [y]
  reference: {function: "bound_forms:shifted_reference", call: [x, rows, 3.5]}
axes: {rows: [5], cols: [40]}
"""
NESTED = """
problem:
  inputs: {x: {shape: [rows, cols], dtype: float32}}
  outputs: [y, largest]
  reference: bound_forms:doubled_and_largest
axes: {rows: [5], cols: [40]}
"""
SORTED = """
problem:
  inputs: {x: {shape: [rows, cols], dtype: float32}}
  outputs: {y: {}, order: {dtype: int64}}
  reference:
    function: torch:sort
    call: {input: x, dim: 0, stable: true}
    returns: {y: values, order: indices}
axes: {rows: [5], cols: [40], values: [normal]}
"""
LIBRARY = "{function: 'torch.nn.functional:rms_norm', call: [x, [cols], w, 1.0e-5]}"

FORMS = {
    "Function.apply": (NORM.replace("REFERENCE", LIBRARY), "entry: bound_forms:Norm.apply"),
    "Function.apply, a list": (
        NORM.replace("REFERENCE", LIBRARY),
        "entry: bound_forms:Norm.apply\ncall: [x, w, 1.0e-5]",
    ),
    "Function.apply, a mapping": (
        NORM.replace("REFERENCE", LIBRARY),
        "entry: bound_forms:Norm.apply\ncall: {w: w, x: x}",
    ),
    "Function.apply with setup_context": (
        NORM.replace("REFERENCE", "bound_forms:product"),
        "entry: bound_forms:WithoutContext.apply",
    ),
    "a gradient that the reference does not have": (
        NORM.replace("REFERENCE", "bound_forms:product_of_x"),
        "entry: bound_forms:of_x",
    ),
    "a reference in float32": (
        NORM.replace("REFERENCE", "{function: bound_forms:norm, dtype: float32}"),
        "entry: bound_forms:Norm.apply",
    ),
    "a reference in the inputs' own dtypes": (
        NORM.replace("REFERENCE", "{function: bound_forms:norm, dtype: same}"),
        "entry: bound_forms:Norm.apply",
    ),
    "a module": (BLOCK, "entry: bound_forms:Block"),
    "a module, constructed": (
        BIASED,
        "entry: bound_forms:Block\nconstructor_args: {cols: cols, out: out, bias: false}",
    ),
    "an operator": (
        SHIFTED,
        "entry: bound_forms:torch.ops.tlmatrix_bound.shifted\ncall: [x, rows, 3.5]",
    ),
    "a custom op": (
        SHIFTED,
        "entry: bound_forms:shifted\ncall: {x: x, rows: 'rows * 2 - rows', shift: 3.5}",
    ),
    "in place": (
        ADDED.replace("REFERENCE", "bound_forms:added"),
        "entry: bound_forms:add_\ncall: [{inout: x, output: y}, w]",
    ),
    "a reference in place": (
        ADDED.replace(
            "REFERENCE", "{function: bound_forms:add_, call: [{inout: x, output: y}, w]}"
        ),
        "entry: bound_forms:added",
    ),
    "scratch memory": (
        SCRATCH,
        "entry: bound_forms:doubled_with_scratch\ncall: [x, {inout: work, output: _}]",
    ),
    "a buffer": (DOUBLED, "entry: bound_forms:fills\ncall: {x: x, out: y}"),
    "a buffer of zeros": (
        DOUBLED,
        "entry: bound_forms:adds_to\ncall: [x, {output: y, fill: zeros}]",
    ),
    "results by path": (NESTED, "entry: bound_forms:nested\nreturns: {y: out, largest: aux.1}"),
    "a result left out": (NESTED, "entry: bound_forms:doubled_and_largest\nreturns: [_, largest]"),
    "a builtin": (
        SORTED,
        "entry: torch:sort\ncall: {input: x, dim: 0, stable: true}\nreturns: [y, order]",
    ),
    "a lazy kernel as entry": (DOUBLED, "entry: bound_forms:lazy"),
    "a lazy kernel as entry, a mapping": (
        DOUBLED,
        "entry: bound_forms:lazy_with_buffer\ncall: {rows: rows, cols: cols, threads: 64}",
    ),
    "an eager kernel as entry": (DOUBLED, "entry: bound_forms:eager\ncall: {x: x, threads: 64}"),
    "a factory, arguments by keyword": (
        DOUBLED,
        (
            "factory: bound_forms:lazy_with_buffer\nfactory_args: {rows: rows, cols: cols}\n"
            "call: {y: y, x: x}"
        ),
    ),
    "tuples, as a function declares them": (
        DOUBLED,
        'entry: bound_forms:scaled_by\ncall: [x, "[1.5, 0.5]", "[1, 2]", "[3, 4]"]',
    ),
    "tuples by keyword": (
        DOUBLED,
        (
            'entry: bound_forms:scaled_by\ncall: {x: x, factors: "[1.5, 0.5]", more: "[1, 2]", '
            'least: "[3]"}'
        ),
    ),
    "a factory that takes a list": (
        DOUBLED,
        'factory: bound_forms:eager_with_factors\nfactory_args: {factors: "[1.5, 0.5]"}\ncall: [x]',
    ),
    "questions to torch.cuda": (DOUBLED, "entry: bound_forms:asks_the_gpu"),
}

MISTAKES = {
    "a gradient of None": (
        NORM.replace("REFERENCE", LIBRARY),
        "entry: bound_forms:Forgetful.apply",
        "gradients: no gradient dw: the backward pass gives None for the input w",
    ),
    "an input that no gradient reaches": (
        NORM.replace("REFERENCE", LIBRARY),
        "entry: bound_forms:without_w\nchecks: [gradients]",
        "gradients: no gradient dw: the backward pass gives None for the input w",
    ),
    "an output without a gradient": (
        NORM.replace("REFERENCE", LIBRARY),
        "entry: bound_forms:detached_norm",
        "gradients: no gradient dx: the output y does not require grad",
    ),
    "a row that was not written": (
        DOUBLED,
        "entry: bound_forms:forgets_a_row\ncall: {x: x, out: {output: y, fill: empty}}",
        "poison: ",
    ),
    "an input changed": (
        ADDED.replace("REFERENCE", "bound_forms:added").replace(", expanded", ""),
        "entry: bound_forms:adds_to_input",
        "guards: the entry changed its input x",
    ),
    "an input returned": (
        DOUBLED.replace("bound_forms:doubled", "bound_forms:same"),
        "entry: bound_forms:returns_its_input",
        "guards: the result y is in the memory of the input x",
    ),
    "a view of an input returned": (
        DOUBLED.replace("bound_forms:doubled", "bound_forms:same"),
        "entry: bound_forms:returns_a_view",
        "guards: the result y is in the memory of the input x",
    ),
    "a write beyond the copy": (
        ADDED.replace("REFERENCE", "bound_forms:added").replace(
            "transposed, sliced, expanded", "ones"
        ),
        "entry: bound_forms:add_beyond_\ncall: [{inout: x, output: y}, w]",
        "guards: out-of-bounds write: ",
    ),
    "a sum that starts from what was there": (
        DOUBLED,
        "entry: bound_forms:adds_to\ncall: [x, y]",
        "poison: ",
    ),
}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(HERE)

    def run(problem, binding):
        path = tmp_path / "bound.yaml"
        path.write_text(f"name: bound\n{problem.strip()}\n{binding}\n")
        spec = load_spec(path)
        return [run_case(spec, case, "interpreter") for case in expand(spec, "full").cases]

    yield run
    sys.modules.pop("bound_forms", None)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_entry_passes(results, form):
    found = results(*FORMS[form])
    assert found
    assert [(each.case, each.status.value, each.message) for each in found] == [
        (each.case, "passed", "") for each in found
    ], [finding.title for each in found for finding in each.findings]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_bug_is_a_finding_in_every_form(results, mistake):
    problem, binding, words = MISTAKES[mistake]
    for each in results(problem, binding):
        assert each.status.value == "failed", each.message
        titles = [f"{finding.check}: {finding.title}" for finding in each.findings]
        assert any(title.startswith(words) for title in titles), titles


MISFITS = {
    "a class of autograd": (
        "entry: bound_forms:Norm",
        "it is a class of autograd.Function; write bound_forms:Norm.apply",
    ),
    "an argument that is none": (
        "entry: bound_forms:norm\ncall: {x: x, v: w}",
        "call: 'bound_forms:norm' has no parameter 'v'. It takes: x, w",
    ),
    "no value for a parameter": (
        "entry: bound_forms:Norm.apply\ncall: {x: x}",
        "entry: 'bound_forms:Norm.apply': `call` has no value for its parameter 'w'",
    ),
    "a path that leads nowhere": (
        "entry: bound_forms:nested\ncall: [x]\nreturns: {y: aux.ot}",
        "returns: the result.aux has no 'ot': it is of type tuple. It has: 0, 1",
    ),
    "a dict without a path": (
        "entry: bound_forms:nested\ncall: [x]",
        (
            "its result 'y' is not a tensor but of type dict; pick a part of it under `returns`: "
            "{y: out} (out, aux)"
        ),
    ),
    "a parameter that is no input": (
        "entry: bound_forms:Block\nconstructor_args: {cols: cols, out: cols}",
        (
            "its parameters proj_weight, proj_bias, norm_weight and norm_bias are not inputs of "
            "the problem; declare 'proj_weight' under `inputs`"
        ),
    ),
    "an argument that the constructor lacks": (
        "entry: bound_forms:Block\nconstructor_args: {cols: cols, outs: cols}",
        "constructor_args: the constructor has no parameter 'outs'; did you mean 'out'?",
    ),
    "a constructor without axes": (
        "entry: bound_forms:Block",
        (
            "no axis for 'out' of its constructor. Axes: dtype, rows, cols; or give its value "
            "under `constructor_args`: {out: …}"
        ),
    ),
    "constructor_args of a function": (
        "entry: bound_forms:norm\nconstructor_args: {cols: cols}",
        "constructor_args: the entry is not a class whose objects are called; remove the key",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_mismatch_is_an_error_at_its_location(results, misfit):
    binding, words = MISFITS[misfit]
    for each in results(NORM.replace("REFERENCE", LIBRARY), binding):
        assert each.status.value == "error"
        assert any(words in finding.title for finding in each.findings), each.findings


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("call: [x, ww]", "10:11: call: the problem has no 'ww'; did you mean 'w'?"),
        ("call: {x: x, w: 'rows + wide'}", "10:17: call: the problem has no 'wide'"),
        ("call: [{inout: xx, output: y}]", "10:8: call: the problem has no 'xx'"),
    ],
)
def test_names_in_call_are_checked_without_the_code(tmp_path, binding, words):
    path = tmp_path / "bound.yaml"
    problem = NORM.replace("REFERENCE", LIBRARY).strip()
    path.write_text(f"name: bound\n{problem}\nentry: bound_forms:Norm.apply\n{binding}\n")
    spec = load_spec(path)
    (issue,) = family_for(spec).lint(spec)
    assert words in str(issue)
