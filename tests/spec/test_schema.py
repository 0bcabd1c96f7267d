"""The JSON Schema of specs agrees with the loader."""

from pathlib import Path

import pytest
from design_examples import FACTORY, NORM, VARLEN
from json_schema import accepts

from tlmatrix.spec import SpecError, parse_spec
from tlmatrix.spec.schema import SECTIONS, json_schema
from tlmatrix.spec.yaml.text import flow
from tlmatrix.spec.yaml.tree import plain, read_document

SPECS = sorted(Path(__file__).parents[2].joinpath("specs").glob("*.yaml"))
SCHEMA = json_schema()
SHORT_FORMS = """
tiers: {quick: pairwise, nightly: 4-wise, full: {strategy: sample, size: 9}}
determinism: bounded
fuzz: {axes: {seqlen_q: 0..300}, examples: {}}
tolerance: {dq: {factor: 3, floor: 1e-6}, by_arch: {sm_90: {dq: {factor: 4}}, sm_80: {factor: 2}}}
constraints: [{require: true, because: x}]
tile: {q: 64, k: 2 * head_dim}
architectures: [sm_80, sm_90a, sm_100a]
codegen: [{when: arch == 'sm_90a', kernel: forward, instructions: [wgmma.mma_async], spills: 0}]
invalid_inputs: {raises: mypkg.errors:Bad, messages: {x: {q: {shape: [1]}}}}
bench: {cases: [{seqlen_q: 64}]}
"""


def data(text):
    return plain(read_document(text.encode(), Path("spec.yaml")).root)


SHORT_LENGTHS = VARLEN.replace(
    "seqlens: {sequences: 1..8, length: 0..300,", "seqlens: {sequences: 8, length: [0, 9],"
)


@pytest.mark.parametrize("text", [VARLEN, SHORT_LENGTHS, NORM, FACTORY, FACTORY + SHORT_FORMS])
def test_schema_accepts_examples_and_short_forms(text):
    parse_spec(text)
    assert accepts(SCHEMA, data(text), SCHEMA)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_schema_accepts_the_specs_of_this_project(path):
    assert accepts(SCHEMA, data(path.read_text()), SCHEMA)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("summary:", "sumary:"),
        ("name: gqa_varlen", "name: 12"),
        ("name: gqa_varlen", "other: 12"),
        ("problem: attention", "problem: atention"),
        ("entry: tlmatrix_kernels.attention:varlen", "entry: varlen"),
        ("entry: tlmatrix", "factory: tlmatrix"),
        ("checks:", "factory: a:b\ncall: [q]\nchecks:"),
        ("checks:", "factory_args: {m: 1}\nchecks:"),
        ("dtype:     [float16, bfloat16]", "dtype: float16"),
        ("dtype: ", "d-type: "),
        ("strategy: pairwise", "strategy: pairwize"),
        ("strategy: 3-wise", "strategy: 3-wise, sizes: 3"),
        ("quick:   {strategy: pairwise}", "quick: often"),
        ("because: a window", "becuase: a window"),
        ("factor: 2", "factor: 0"),
        ("factor: 3", "factr: 3"),
        ("sm_100: {factor: 4}", "hopper: {factor: 4}"),
        ("sm_100: {factor: 4}", "sm_100: 4"),
        ("floor: auto", "floor: automatic"),
        ("checks: [numeric", "checks: [numerics"),
        ("1..8", "1-8"),
        ("k: independent", "k: free"),
        ("quick: 20", "quick: many"),
        ("mode: tolerate", "mode: tolerant"),
        ("groups must be: {groups: 0}", "groups must be: 0"),
        ("cases: [{", "cases: [[{"),
    ],
)
def test_schema_rejects_errors_that_the_loader_rejects(old, new):
    assert VARLEN.count(old) == 1
    text = VARLEN.replace(old, new).replace("causal: true}]\n  base", "causal: true}]]\n  base")
    text = text if "[[{" in text else text.replace("]]\n  base", "]\n  base")
    with pytest.raises(SpecError):
        parse_spec(text)
    assert not accepts(SCHEMA, data(text), SCHEMA)


def keys(schema):
    parts = [schema, *schema.get("anyOf", ())]
    return next(part["properties"] for part in parts if "properties" in part)


@pytest.mark.parametrize(
    "model", [model for _, model in SECTIONS], ids=lambda model: model.__name__
)
def test_every_key_has_a_description_and_valid_examples(model):
    schema = SCHEMA if model.__name__ == "Spec" else SCHEMA["$defs"][model.__name__]
    for key, part in keys(schema).items():
        assert part["description"], key
        assert part["examples"], key
        for example in part["examples"]:
            assert accepts(part, example, SCHEMA), (key, example)


def test_every_model_of_the_schema_has_a_reference_section():
    assert {model.__name__ for _, model in SECTIONS} == {"Spec", "Range", *SCHEMA["$defs"]} - {
        "Range"
    }


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -7, 1.5, 1e-06, 1e300, float("inf"), "same", "none", "no", "010"),
        *(
            "1e3",
            "1:30",
            "2027-03-01",
            "",
            " x ",
            "a: b",
            "# x",
            "it's",
            '"',
            "a, b",
            "\n",
            "a\\b\x07",
        ),
        *("\u00e9", "- x", "&a", "*a", "!t", "[x", "~", ".inf", "0x10", "<<"),
        *([], {}, [[1], {"a": None}], {"q": [17, 64], "k": "same", "no": "yes", "1": 2}),
    ],
)
def test_flow_style_values_round_trip(value):
    text = flow({"axis": [value]})
    assert "\n" not in text
    assert repr(data(text)) == repr({"axis": [value]})
