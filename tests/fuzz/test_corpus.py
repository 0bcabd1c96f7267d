"""Saving regressions in a spec's file."""

import math
import stat
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import pytest

from tlmatrix.fuzz.corpus import save
from tlmatrix.matrix import Case, expand, find_case
from tlmatrix.matrix.listed_cases import listed_cases
from tlmatrix.run.harness import case_seed
from tlmatrix.spec import SpecError, load_spec

HEAD = """\
name: tried
problem: attention
entry: a_package.a_module:an_entry
axes: {a: [1, 2, 3, 4, 5], b: [x, y]}
"""
BENCH = "bench: {cases: [{a: 1}]}   # kept\n"
FIRST, SECOND = Case("tried", {"a": 1, "b": "x"}), Case("tried", {"a": 2, "b": "y"})


@pytest.fixture
def file(tmp_path):
    """Writes a spec with some text at its end; gives its path."""

    def write(rest, head=HEAD):
        path = tmp_path / "tried.yaml"
        path.write_bytes((head + rest).encode())
        return path

    return write


def regressions(path):
    return [case for case in listed_cases(load_spec(path)) if case.origin == "regression"]


def text(path):
    return path.read_bytes().decode()


# Each text, and what two saved cases make of it.
TEXTS = {
    "an empty list": ("regressions: []\n", "regressions:\n  - {A}\n  - {B}\n"),
    "an empty list and a comment": (
        "regressions: []    # by fuzz\n" + BENCH,
        "regressions:    # by fuzz\n  - {A}\n  - {B}\n" + BENCH,
    ),
    "an anchored empty list": (
        "regressions: &r []  # c\nsummary: s\n",
        "regressions: &r  # c\n  - {A}\n  - {B}\nsummary: s\n",
    ),
    "no key": ("# the end\n", "# the end\n\nregressions:\n  - {A}\n  - {B}\n"),
    "no key and no final newline": (
        "summary: last",
        "summary: last\n\nregressions:\n  - {A}\n  - {B}\n",
    ),
    "an end of the document": ("...\n", "\nregressions:\n  - {A}\n  - {B}\n...\n"),
    "a block list with comments between": (
        "regressions:\n  # first\n  - {a: 5}   # five\n\n  - a: 4\n    b: y  # y\n\n# of bench\n",
        (
            "regressions:\n  # first\n  - {a: 5}   # five\n\n  - a: 4\n    b: y  # y\n"
            "  - {A}\n  - {B}\n\n# of bench\n"
        ),
    ),
    "more keys behind": (
        "regressions:\n  - a: 4\n" + BENCH,
        "regressions:\n  - a: 4\n  - {A}\n  - {B}\n" + BENCH,
    ),
    "a block list at the margin": (
        "regressions:\n- {a: 5}",
        "regressions:\n- {a: 5}\n- {A}\n- {B}",
    ),
    "a list in one line": (
        "regressions: [{a: 5}, {a: 4}]  # c\n",
        "regressions: [{a: 5}, {a: 4}, {A}, {B}]  # c\n",
    ),
    "a list in brackets over lines": (
        "regressions: [\n    {a: 5},  # one, two\n    {a: 4}   # last\n]\n",
        "regressions: [\n    {a: 5},  # one, two\n    {a: 4},   # last\n    {A},\n    {B}\n]\n",
    ),
    "a list in brackets with a last comma": (
        "regressions: [\n    {a: 5},\n    {a: 4},   # last\n]\n",
        "regressions: [\n    {a: 5},\n    {a: 4},   # last\n    {A},\n    {B},\n]\n",
    ),
    "empty brackets over lines": (
        "regressions: [   # none yet\n]\n",
        "regressions: [{A}, {B}   # none yet\n]\n",
    ),
    "an anchored block list": (
        "regressions: &r   # a - b\n  - # c - d\n    {a: 5}\nextra_cases: []\n",
        "regressions: &r   # a - b\n  - # c - d\n    {a: 5}\n  - {A}\n  - {B}\nextra_cases: []\n",
    ),
    "brackets and a comment with a comma": (
        "regressions: [{a: 5}   # a, b\n]\n",
        "regressions: [{a: 5}, {A}, {B}   # a, b\n]\n",
    ),
    "an alias": (
        "extra_cases: &all [{a: 5}]\nregressions: *all\n",
        "extra_cases: &all [{a: 5}]\nregressions: [{a: 5}, {A}, {B}]\n",
    ),
    "aliased entries": (
        "extra_cases: [&five {a: 5}]\nregressions:\n  - *five   # the same\n",
        "extra_cases: [&five {a: 5}]\nregressions:\n  - *five   # the same\n  - {A}\n  - {B}\n",
    ),
    "text that is kept to its last line": (
        "regressions: []\nsummary: |+\n  all of it\n\n",
        "regressions:\n  - {A}\n  - {B}\nsummary: |+\n  all of it\n\n",
    ),
    "unicode": (
        "summary: größte Länge 😀 — №   # ключ\nregressions: []   # ещё нет\n",
        "summary: größte Länge 😀 — №   # ключ\nregressions:   # ещё нет\n  - {A}\n  - {B}\n",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_save_preserves_every_other_byte(file, name, ending):
    before, after = TEXTS[name]
    after = after.replace("{A}", "{a: 1, b: x}").replace("{B}", "{a: 2, b: y}")
    path = file(before.replace("\n", ending), HEAD.replace("\n", ending))
    kept = regressions(path)
    assert save(path, [FIRST, SECOND]) == (FIRST, SECOND)
    assert text(path) == (HEAD + after).replace("\n", ending)
    assert regressions(path) == [*kept, FIRST, SECOND]


def test_save_to_flow_style_and_byte_order_mark(file):
    head = "{name: tried, problem: attention, entry: 'm:f', axes: {a: [1, 2], b: [x, 'y']}"
    for before, after in (
        ("}", ", regressions: [{a: 1, b: x}]}"),
        (",}\n", ",regressions: [{a: 1, b: x}]}\n"),
    ):
        path = file(before, head)
        save(path, [FIRST])
        assert text(path) == head + after
    path = file("regressions: []\n", "\ufeff" + HEAD)
    save(path, [FIRST])
    assert text(path) == "\ufeff" + HEAD + "regressions:\n  - {a: 1, b: x}\n"


def test_save_to_indented_spec_and_final_block_text(file):
    indented = "".join(f"  {line}\n" for line in HEAD.splitlines())
    path = file("", indented)
    save(path, [FIRST])
    assert text(path) == indented + "\n  regressions:\n    - {a: 1, b: x}\n"
    # Whatever comes behind the last line, it would get the newline that it does not have.
    path = file("summary: |\n  no newline")
    save(path, [FIRST])
    assert text(path) == "regressions:\n  - {a: 1, b: x}\n" + HEAD + "summary: |\n  no newline"
    assert load_spec(path).summary == "no newline"
    path = file("summary: |\n  no newline", "\ufeff" + HEAD)
    save(path, [FIRST])
    assert text(path).startswith("\ufeffregressions:\n  - {a: 1, b: x}\nname: tried")


HARD = [
    *(None, True, 0, -3, 1.0, 0.1 + 0.2, 1e-300, 1e22, math.inf, -math.inf, "", "none", "True"),
    *("y", "no", "1", "1.0", "1e3", "0x1F", "010", "1:30", "2027-01-01", "a: b", "a #b", "- a"),
    *("&a", "*a", "!a", "'", '"', "a'b\"c\\", "{", "]", ",", "%", "@", "`", "a\nb\n", "\t", " a "),
    *("\x00\x1b\x7f\x85", "\u2028\ufeff", "ü😀", "\U000e0001", "x" * 3000, [], {}, [[], {}]),
    *({"a b": {"": [1, "1"]}}, {"no": "off", "q": [0, 5], "k": "same"}),
]


def test_every_value_round_trips(file):
    values = [*HARD, {"all": [each for each in HARD if each is not None]}]
    cases = [Case("tried", {"a": number, "b": value}) for number, value in enumerate(values, 9)]
    path = file("regressions: []\n")
    assert save(path, cases) == tuple(cases)
    found = regressions(path)
    assert [repr(case.values["b"]) for case in found] == [repr(case.values["b"]) for case in cases]


def test_save_keeps_optional_axes(file):
    drawn = Case("tried", {**FIRST.values, "storage": "sliced", "values": "ramp"}, "fuzz")
    path = file("regressions: []\n")
    assert save(path, [drawn]) == (drawn,)
    assert text(path).endswith("  - {a: 1, b: x, storage: sliced, values: ramp}\n")
    assert regressions(path) == [drawn]
    assert save(path, [drawn]) == ()


def test_save_writes_notes_of_a_failure(file):
    path = file("regressions: []\n")
    save(
        path,
        [FIRST],
        failed={FIRST: "out: rows 64-69 of sequence 1"},
        found=date(2027, 1, 2),
        seed=7,
    )
    told = "failed: 'out: rows 64-69 of sequence 1', found: 2027-01-02, seed: 7"
    assert text(path).endswith(f"  - {{case: {{a: 1, b: x}}, {told}}}\n")
    entry = load_spec(path).regressions[0]
    assert (entry.case, entry.issue, entry.seed) == ({"a": 1, "b": "x"}, "", 7)
    case = regressions(path)[0]
    assert (case, case.run_seed) == (FIRST, 7)
    assert find_case(load_spec(path), FIRST.id).run_seed == 7


def test_save_skips_known_cases(file):
    path = file("regressions: [{a: 2, b: y}]\n")
    before = text(path)
    assert save(path, [SECOND]) == ()
    assert text(path) == before
    assert save(path, [FIRST, SECOND, FIRST]) == (FIRST,)
    assert regressions(path) == [SECOND, FIRST]
    # An axis left out has its first value.
    path = file("regressions: [{a: 2}]\n")
    assert save(path, [Case("tried", {"a": 2, "b": "x"})]) == ()


@pytest.mark.parametrize(
    ("rest", "case", "words"),
    [
        ("", Case("tried", {"a": 1, "c": 2}), "unknown axis 'c'"),
        ("constraints: [{require: a > 1, because: one is none}]\n", FIRST, "excludes this case"),
        ("extra_cases: [{a: '7'}]\n", Case("tried", {"a": 7, "b": "x"}), "two cases have the id"),
        ("", Case("tried", {"a": "1", "b": "x"}), "are both '1' in a case id"),
        ("regressions: &r []\nextra_cases: *r\n", FIRST, "without changing other values"),
        ("nonsense: 1\n", FIRST, "unknown key 'nonsense'"),
    ],
    ids=["axis", "where", "id", "label", "anchor", "spec"],
)
def test_an_invalid_case_leaves_the_file_unchanged(file, rest, case, words):
    path = file(rest)
    before = path.read_bytes()
    with pytest.raises(SpecError, match=words) as caught:
        save(path, [case])
    assert caught.value.issues[0].path == path
    assert caught.value.issues[0].line > 0
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_save_keeps_file_mode_and_symbolic_link(file, tmp_path):
    path = file("regressions: []\n")
    path.chmod(0o640)
    link = tmp_path / "linked.yaml"
    link.symlink_to(path)
    save(link, [FIRST])
    assert link.is_symlink()
    assert regressions(path) == [FIRST]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def _save_numbers(path, numbers):
    for number in numbers:
        save(path, [Case("tried", {"a": number, "b": "x"})])


def test_concurrent_saves_lose_nothing(file):
    path = file("regressions: []\n")
    context = get_context("fork")
    parts = [range(start, start + 8) for start in (10, 20, 30)]
    processes = [context.Process(target=_save_numbers, args=(path, part)) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(case["a"] for case in regressions(path)) == [n for part in parts for n in part]


def test_regressions_run_first_in_every_tier(file):
    path = file("extra_cases: [{a: 3}]\ntiers: {some: {strategy: sample, size: 2}}\n")
    save(path, [SECOND, FIRST])
    spec = load_spec(path)
    for tier in spec.tiers:
        assert list(expand(spec, tier))[:2] == [SECOND, FIRST]


def test_save_with_tabs_before_comments(file):
    path = file("regressions:\t# found\n  - {a: 5}\t# five\n")
    save(path, [FIRST])
    assert text(path) == HEAD + "regressions:\t# found\n  - {a: 5}\t# five\n  - {a: 1, b: x}\n"


def test_regression_with_a_seed_has_its_inputs():
    found = Case("tried", FIRST.values, "regression", run_seed=7)
    assert case_seed(found) == case_seed(FIRST, 7) != case_seed(FIRST)
    assert case_seed(found, 8) == case_seed(FIRST, 8)  # A run with a seed of its own uses that.


@pytest.mark.parametrize("name", ["gqa_varlen", "sink_dense", "gemm_mixed", "rms_norm"])
def test_save_in_project_specs(tmp_path, name):
    before = (Path(__file__).parents[2] / "specs" / f"{name}.yaml").read_text()
    path = tmp_path / "ours.yaml"
    path.write_text(before)
    spec, had = load_spec(path), regressions(path)
    tier, new = expand(spec, "quick"), []
    for case in tier:
        if case.origin == "tier":
            new.append(Case(spec.name, {**case.values, "values": "ramp"}))
        if len(new) == 2:
            break
    save(path, new)
    assert regressions(path) == [*had, *new]

    def others(written):
        """Lines but for the list of regressions, and what stands between parts."""
        return [
            line
            for line in written.splitlines()
            if line and "values: ramp" not in line and not line.startswith("regr")
        ]

    assert others(text(path)) == others(before)
