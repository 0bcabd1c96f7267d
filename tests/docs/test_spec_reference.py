"""The page of keys and the schema are as the models are now."""

import re

import pytest

from tlmatrix.spec import parse_spec
from tlmatrix.spec.expr.expression import FUNCTIONS
from tlmatrix.spec.schema import PAGE, SCHEMA_PATH, SECTIONS, json_schema_text, page


def test_the_reference_is_up_to_date():
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(), "run: python -m tlmatrix.spec.schema"


def test_the_shipped_schema_is_up_to_date():
    written = SCHEMA_PATH.read_text(encoding="utf-8")
    assert written == json_schema_text(), "run: python -m tlmatrix.spec.schema"


def test_every_key_is_described_with_an_example():
    text = page()
    for title, model in SECTIONS:
        section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
        for name, field in model.model_fields.items():
            key = field.alias or name
            (row,) = re.findall(rf"^\| `{key}` \|.*$", section, flags=re.MULTILINE)
            _, _, meaning, examples = row.strip("| ").split(" | ")
            assert meaning.endswith("."), key
            assert examples.startswith(f"`{key}: "), key


def test_links_lead_to_sections():
    text = page()
    anchors = {title.lower().replace(" ", "-") for title, _ in SECTIONS}
    links = set(re.findall(r"\(#([^)]*)\)", text))
    assert links
    assert links <= anchors


def test_the_page_of_the_language_has_all_functions_and_an_example_that_loads():
    language = (PAGE.parent / "spec.md").read_text(encoding="utf-8")
    assert ", ".join(f"`{name}`" for name in FUNCTIONS) in language
    (example,) = re.findall(
        r"^```yaml[^\n]*\n(name: rms_norm\n.*?)^```", language, re.DOTALL | re.MULTILINE
    )
    assert parse_spec(example).axes["rows"] == (1, 63, 64, 65)


def test_the_examples_of_the_keys_of_a_spec_load():
    """Each alone, in a spec that has what it refers to."""
    names = ("dtype", "head_dim", "window", "causal", "backward", "groups", "seqlens")
    base = {
        "name": "name: trial\n",
        "problem": "problem: attention\n",
        "entry": "entry: a:b\n",
        "axes": f"axes: {{{', '.join(f'{name}: [none]' for name in names)}}}\n",
    }
    text = page().split(f"\n## {SECTIONS[0][0]}\n")[1].split("\n## ")[0]
    examples = [
        example.replace("&#124;", "|")
        for row in re.findall(r"^\| `.*$", text, flags=re.MULTILINE)
        for example in re.findall(r"`([^`]+)`", row.split(" | ")[-1])
    ]
    assert len(examples) > 20
    for example in examples:
        key = example.split(":")[0]
        rest = {name: line for name, line in base.items() if name != key}
        if key in ("factory", "factory_args", "call"):
            del rest["entry"]
            rest |= {"factory": "factory: a:b\n", "call": "call: [q]\n"}
            rest.pop(key, None)
        if key in ("shards", "context", "cuda_graph"):
            rest["axes"] = rest["axes"].replace("}", ", world: [2]}")
        parse_spec("".join(rest.values()) + example)


@pytest.mark.parametrize("word", ["TODO", "object at 0x", "PydanticUndefined", "!!"])
def test_the_reference_has_no_leftovers(word):
    assert word not in page()
