"""The YAML parser of specs: scalars, aliases, locations and limits."""

import math
import random
import time
from datetime import date
from pathlib import Path

import pytest

from tlmatrix.spec import Spec, SpecError, load_spec, parse_spec
from tlmatrix.spec.yaml.tree import MAX_BYTES, MAX_NODES

HEAD = "name: trial\nproblem: attention\nentry: mypkg.ops:attention\n"


def values(written):
    return parse_spec(f"{HEAD}axes: {{axis: [{written}]}}\n").axes["axis"]


def message(text):
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "trial.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("none", None),
        ("None", None),
        ("NULL", None),
        ("~", None),
        ("'none'", "none"),
        ("true", True),
        ("False", False),
        ("'true'", "true"),
        ("'no'", "no"),
        ("64", 64),
        ("-1", -1),
        ("+3", 3),
        ("0", 0),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0o17", 15),
        ("0b11", 3),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("1e3", 1000.0),
        ("1e-6", 1e-6),
        ("-1.5E+2", -150.0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("'1e3'", "1e3"),
        ("1..8", "1..8"),
        ("1.2.3", "1.2.3"),
        ("2x", "2x"),
        ("y", "y"),
        ("nothing", "nothing"),
        ("same", "same"),
        ("[1, [2]]", [1, [2]]),
        ("{q: [17, 64], k: same}", {"q": [17, 64], "k": "same"}),
        ("{no: 1, 2: none}", {"no": 1, "2": None}),
        ("'2027-03-01'", "2027-03-01"),
        ("2027-03-01T00:00:00", "2027-03-01T00:00:00"),
        ("'caf\u00e9'", "caf\u00e9"),
    ],
)
def test_an_unquoted_scalar_has_its_value(written, value):
    (found,) = values(written)
    assert found == value
    assert type(found) is type(value)


def test_anchors_aliases_and_merge_keys_work():
    spec = parse_spec(
        HEAD
        + """
axes:
  m: &sizes [1, 64]
  n: *sizes
  window: [none]
tiers:
  quick: &quick {strategy: sample, size: 3}
  nightly: {<<: *quick, size: 30}
  full: {<<: [{seed: 4}, *quick, {seed: 5}]}
"""
    )
    assert spec.axes["n"] == (1, 64)
    assert spec.tiers["nightly"].size == 30
    assert (spec.tiers["full"].size, spec.tiers["full"].seed) == (3, 4)


def test_an_aliased_value_has_the_location_of_its_anchor():
    spec = parse_spec(HEAD + "axes:\n  m: &sizes [1, 64]\n  n: *sizes\n")
    assert spec.location("axes", "n", 1) == spec.location("axes", "m", 1) == (5, 17)
    assert spec.key_location("axes", "n") == (6, 3)


def test_aliases_do_not_share_values():
    spec = parse_spec(HEAD + "axes: {m: [&one [1]], n: [*one]}\n")
    assert spec.axes["m"][0] is not spec.axes["n"][0]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_byte_order_marks_and_line_endings_change_nothing(ending, mark):
    text = (HEAD + "axes: {m: [1]}\nconstraints: []\n").replace("\n", ending)
    spec = parse_spec(mark + text.encode())
    assert spec.location("name") == (1, 7)
    assert spec.location("constraints") == (5, 14)
    assert spec.location("axes", "m", 0) == (4, 12)


def test_columns_count_characters_not_bytes():
    assert message(HEAD + "axes: {\u00e4\u00f6: [1], b: [1, 1]}\n").startswith("trial.yaml:4:24: ")


@pytest.mark.parametrize(
    "written", ["require: windw == 1", "require: 'windw == 1'", 'require: "windw == 1"']
)
def test_an_unknown_name_is_located_inside_quotes(written):
    text = f"{HEAD}axes: {{window: [1]}}\nconstraints: [{{because: x, {written}}}]\n"
    column = text.splitlines()[4].index("windw") + 1
    assert message(text).startswith(f"trial.yaml:5:{column}: unknown name 'windw'")


@pytest.mark.parametrize("style", [">", "|"])
def test_an_unknown_name_in_folded_text_has_the_location_of_the_text(style):
    rule = f"  - because: x\n    require: {style}\n      w == 1\n      or v\n"
    text = f"{HEAD}axes: {{w: [1]}}\nconstraints:\n{rule}"
    assert message(text).startswith("trial.yaml:7:14: unknown name 'v'")


def test_a_date_may_be_quoted():
    for written in ("2027-03-01", "'2027-03-01'"):
        bug = f"{{when: true, issue: '#1', expires: {written}}}"
        spec = parse_spec(f"{HEAD}axes: {{m: [1]}}\nknown_bugs: [{bug}]\n")
        assert spec.known_bugs[0].expires == date(2027, 3, 1)


def test_a_huge_file_is_an_error_before_it_is_parsed(tmp_path):
    path = tmp_path / "huge.yaml"
    path.write_bytes(HEAD.encode() + b"# " + b"x" * (2 * MAX_BYTES))
    with pytest.raises(SpecError, match=r"huge\.yaml:1:1: the file is too large for a spec; the"):
        load_spec(path)


@pytest.mark.parametrize(
    "text",
    [
        "axes: " + "[" * 100_000,
        "axes: " + "{a: " * 100_000,
        "axes:\n" + "".join(" " * depth + "a:\n" for depth in range(1000)),
        "a: " + "[" * 60 + "]" * 60,
        "? " * 10_000,
        "- " * 10_000,
    ],
)
def test_a_deeply_nested_file_is_an_error(text):
    assert "nested more than 50 levels deep" in message(text) or "plain name" in message(text)


def test_an_alias_bomb_is_an_error_at_once():
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 40)]
    began = time.perf_counter()
    found = message("\n".join(lines))
    assert found == "trial.yaml:5:45: more than 100000 values, with aliases expanded"
    assert time.perf_counter() - began < 1


def test_a_merge_bomb_is_an_error_at_once():
    lines = ["a0: &a0 {" + ", ".join(f"k{n}: 1" for n in range(1000)) + "}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join(['*a0'] * 50)}]}}" for n in range(1, 40)]
    began = time.perf_counter()
    assert "more than 100000 values, with aliases expanded" in message("\n".join(lines))
    assert time.perf_counter() - began < 1


def test_a_file_with_too_many_values_is_an_error():
    text = "axes: {m: [" + "1," * (MAX_NODES + 1) + "]}"
    assert "more than 100000 values" in message(text)


@pytest.mark.parametrize("digits", [500, 10_000])
def test_a_too_long_number_is_an_error(digits):
    text = f"{HEAD}axes: {{m: [{'9' * digits}]}}\n"
    assert message(text) == "trial.yaml:4:12: the number 99999999999999999... is too long"


def test_an_unreadable_file_is_a_spec_error(tmp_path):
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "absent.yaml")
    assert str(caught.value) == (
        f"{tmp_path}/absent.yaml:1:1: the file cannot be read: No such file or directory"
    )
    with pytest.raises(SpecError, match="1:1: the file cannot be read: Is a directory"):
        load_spec(tmp_path)


def test_text_that_is_not_unicode_is_an_error():
    assert message("name: \udcff").endswith("is not UTF-8 text; save the file as UTF-8")


def test_random_bytes_have_located_errors():
    draw = random.Random(3)
    for _ in range(300):
        with pytest.raises(SpecError) as caught:
            parse_spec(draw.randbytes(draw.randrange(60)))
        assert all(issue.line >= 1 and issue.column >= 1 for issue in caught.value.issues)


def test_a_loaded_spec_has_path_and_locations():
    spec = parse_spec(HEAD + "axes: {m: [1, 2]}\nextra_cases:\n  - {m: 3}\n", "folder/trial.yaml")
    assert spec.path == Path("folder/trial.yaml")
    assert spec.location("axes", "m", 1) == (4, 15)
    assert spec.location("extra_cases", 0, "m") == (6, 9)
    assert spec.key_location("extra_cases", 0, "m") == (6, 6)
    assert str(spec.issue(("axes", "m"), "is wrong")) == "folder/trial.yaml:4:11: is wrong"
    assert spec.location("tiers", "quick") == (1, 1)  # not in the file: where it would belong


def test_a_spec_made_in_python_has_default_locations():
    spec = Spec.model_validate(
        {"name": "made", "problem": "gemm", "entry": "a:b", "axes": {"m": [1, 2]}}
    )
    assert (spec.location("axes", "m"), spec.key_location("axes")) == ((1, 1), (1, 1))
    assert str(spec.issue(("axes",), "is wrong")) == "<spec>:1:1: is wrong"
