"""Lengths replayed from a serving log, and errors in one."""

import pytest
from hypothesis import find, settings

from tlmatrix.fuzz.generation import generate_cases
from tlmatrix.fuzz.strategies import cases
from tlmatrix.spec import SpecError, load_spec
from tlmatrix.spec.values import sides_of

SPEC = """\
name: replayed
problem: attention
entry: mypkg.ops:packed
axes:
  dtype: [float16]
  kv_heads: [1]
  head_dim: [64]
  seqlens: [[17, 64]]
fuzz:
  seqlens: {sequences: 2..4, OPTIONS}
"""
LOG = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
2023-11-16 18:15:51.3919170,91,16
2023-11-16 18:15:52.5752270,91,16
2023-11-16 18:15:53.2191560,381,84
2023-11-16 18:15:54.1027580,1313,142
"""
CONTEXTS = [374, 396, 879, 91, 91, 381, 1313]


def spec_with(folder, options, name="log.csv", log=LOG):
    (folder / name).write_text(log)
    path = folder / "spec.yaml"
    path.write_text(SPEC.replace("OPTIONS", options))
    return load_spec(path)


def batches(spec, count=60):
    return [sides_of(case["seqlens"]) for case in generate_cases(cases(spec), count=count, first=1)]


def replayed(found, log):
    """Of each batch, whether its lengths follow one another in the log, which begins again."""
    round_and_round = log * 3
    places = range(len(log))
    return [any(list(q) == round_and_round[at : at + len(q)] for at in places) for q, _ in found]


def test_half_of_the_batches_are_consecutive_requests(tmp_path):
    spec = spec_with(tmp_path, "trace: {file: log.csv, q: ContextTokens}")
    found = batches(spec)
    follow = replayed(found, CONTEXTS)
    assert 20 < sum(follow) < 50
    assert all(q == k for (q, k), told in zip(found, follow, strict=True) if told)
    assert max(max(q) for q, _ in found) == 1313
    starts = {q[0] for (q, _), told in zip(found, follow, strict=True) if told}
    assert starts == set(CONTEXTS)


@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("log.json", "[374, 396, 879, 91, 91, 381, 1313]"),
        ("log.json", '[{"q": 374}, {"q": 396}, {"q": 879}, 91, 91, {"q": 381}, {"q": 1313}]'),
        ("log.jsonl", "\n\n".join(f'{{"id": "x", "q": {each}}}' for each in CONTEXTS)),
        ("log.csv", "q\n" + "\n".join(map(str, CONTEXTS))),
    ],
)
def test_json_and_csv_are_equivalent(tmp_path, name, log):
    usual = batches(spec_with(tmp_path, "trace: {file: log.csv, q: ContextTokens}"))
    assert batches(spec_with(tmp_path, f"trace: {name}", name, log)) == usual


def test_key_lengths_have_their_own_column(tmp_path):
    spec = spec_with(
        tmp_path, "k: independent, trace: {file: log.csv, q: GeneratedTokens, k: ContextTokens}"
    )
    pairs = set(zip([44, 109, 55, 16, 16, 84, 142], CONTEXTS, strict=True))
    found = [set(zip(q, k, strict=True)) <= pairs for q, k in batches(spec)]
    assert 20 < sum(found) < 50


def test_trace_has_key_lengths_if_queries_have_a_range(tmp_path):
    spec = spec_with(tmp_path, "q: 1, trace: {file: log.csv, q: ContextTokens}")
    found = batches(spec)
    assert {length for q, _ in found for length in q} == {1}
    assert sum(replayed([(k, q) for q, k in found], CONTEXTS)) > 20


def test_requests_outside_length_are_skipped(tmp_path):
    spec = spec_with(tmp_path, "length: 0..400, trace: {file: log.csv, q: ContextTokens}")
    found = batches(spec)
    assert max(max(q) for q, _ in found) <= 400
    assert sum(replayed(found, [374, 396, 91, 91, 381])) > 20


def test_replayed_batch_shrinks_to_the_shortest_lengths(tmp_path):
    spec = spec_with(tmp_path, "trace: {file: log.csv, q: ContextTokens}")
    limits = settings(max_examples=2000, database=None, deadline=None)
    case = find(cases(spec), lambda case: max(sides_of(case["seqlens"])[0]) > 800, settings=limits)
    assert sorted(sides_of(case["seqlens"])[0]) == [0, 801]


OPTION = "trace: {file: log.csv, q: ContextTokens}"
BAD = {
    "no file": ("trace: other.csv", LOG, "spec.yaml:10:37: other.csv cannot be read: No such"),
    "no column": (
        "trace: {file: log.csv, q: ContextToken}", LOG,
        "spec.yaml:10:37: log.csv has no 'ContextToken'; did you mean 'ContextTokens'?",
    ),
    "no length": (
        OPTION, LOG.replace(",879,", ",-879,"),
        "log.csv:4:1: ContextTokens is '-879', not a length",
    ),
    "an empty cell": (
        OPTION, LOG.replace(",396,", ",,"), "log.csv:3:1: ContextTokens is '', not a length"
    ),
    "a short row": (
        OPTION, LOG.replace(",91,16", "", 1), "log.csv:5:1: the row ends before its ContextTokens"
    ),
    "no row": (
        OPTION, "TIMESTAMP,ContextTokens\n", "spec.yaml:10:37: log.csv has no request"
    ),
    "nothing": (OPTION, "", "spec.yaml:10:37: log.csv has no request"),
    "none within the length": (
        f"length: 2000..3000, {OPTION}", LOG,
        "spec.yaml:10:57: log.csv has no request of 2000 to 3000 tokens",
    ),
    "keys that must equal queries": (
        "trace: {file: log.csv, q: ContextTokens, k: GeneratedTokens}", LOG,
        "log.csv:2:1: 44 keys for 374 queries, but 'fuzz.seqlens' has k: same; k: indepe",
    ),
    "a quote that is never closed": (
        OPTION, LOG.replace("374", '"374'), "log.csv:8:1: not CSV: unexpected end of data"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "log", "message"), BAD.values(), ids=BAD)
def test_errors_in_a_trace_are_located(tmp_path, options, log, message):
    with pytest.raises(SpecError) as caught:
        cases(spec_with(tmp_path, options, log=log))
    (issue,) = caught.value.issues
    assert str(issue).startswith(f"{tmp_path}/{message}")


@pytest.mark.parametrize(
    ("name", "log", "message"),
    [
        ("log.json", "[1, 2,\n 3 4]", "log.json:2:4: not JSON: Expecting ',' delimiter"),
        ("log.json", '{"q": [1]}', "log.json:1:1: expected a list of lengths or of objects"),
        ("log.json", '[1, "a"]', "log.json:1:1: expected a length or an object, not 'a'"),
        ("log.json", "[1, true]", "log.json:1:1: expected a length or an object, not True"),
        ("log.json", "[1, 2.5]", "log.json:1:1: expected a length or an object, not 2.5"),
        ("log.json", "[" * 100_000, "log.json:1:1: not JSON: too deep or a number too long"),
        ("log.jsonl", '{"q": 1}\n\n{"q": 1', "log.jsonl:3:8: not JSON: Expecting ',' delimiter"),
        ("log.jsonl", '{"q": 1}\n3\n\n{"p": 2}', "log.jsonl:4:1: the row has no 'q'; known: p"),
        ("log.txt", "1 2", "spec.yaml:10:37: a trace is .csv, .json or .jsonl, not .txt"),
    ],
)
def test_errors_in_other_formats(tmp_path, name, log, message):
    with pytest.raises(SpecError) as caught:
        cases(spec_with(tmp_path, f"trace: {name}", name, log))
    (issue,) = caught.value.issues
    assert str(issue).startswith(f"{tmp_path}/{message}")


def test_trace_that_is_not_text(tmp_path):
    spec = spec_with(tmp_path, OPTION)
    (tmp_path / "log.csv").write_bytes(LOG.encode() + b"\xff\xfe")
    with pytest.raises(SpecError) as caught:
        cases(spec)
    assert str(caught.value.issues[0]) == f"{tmp_path}/log.csv:9:1: not UTF-8 text"
