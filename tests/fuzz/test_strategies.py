"""Strategies for the cases of a spec: values, critical lengths, and shrinking."""

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import Phase, find, given, settings

from tlmatrix.engine.searches import SearchJob, one_configuration
from tlmatrix.fuzz.generation import generate_cases
from tlmatrix.fuzz.search import tier_fuzz_cases
from tlmatrix.fuzz.strategies import case_domain, cases, sharing_cases
from tlmatrix.fuzz.strategies.case_strategy import case_strategy
from tlmatrix.fuzz.strategies.integers import Span, related_span, shared_span
from tlmatrix.fuzz.strategies.lengths import climbing_batches
from tlmatrix.matrix import Case, expand, find_case
from tlmatrix.matrix.listed_cases import broken_constraints
from tlmatrix.problem import family_for
from tlmatrix.problem.attention.axes import Setting
from tlmatrix.problem.distributions import OF_ATTENTION, SPECIAL, usual_distributions
from tlmatrix.problem.sharding import parts as split
from tlmatrix.spec import SpecError, load_spec, parse_spec
from tlmatrix.spec.values import canonical, sides_of

SPECS = sorted(Path(__file__).parents[2].joinpath("specs").glob("*.yaml"))
PACKED = """\
name: packed
problem: attention
entry: mypkg.ops:packed
axes:
  dtype: [float16, bfloat16]
  kv_heads: [2]
  groups: [1, 3]
  head_dim: [64]
  causal: [false, true]
  window: [none, 1, 64]
  scale: [none, 0.3]
  seqlens: [[17, 64], [1]]
constraints:
  - {require: window is none or causal, because: a window is causal}
tile: {q: 64, k: 128}
fuzz:
  seqlens: {sequences: 1..8, length: 0..300, around: [192], k: independent}
  axes: {window: {range: 1..300, around: [128]}}
"""
DENSE = """\
name: dense
problem: gemm
entry: mypkg.ops:gemm
axes: {dtype: [float16], transpose_a: [false, true], m: [64, 1], n: [8, 200], k: [8]}
constraints:
  - {require: transpose_a and m % 8 == 0 or not transpose_a and k % 8 == 0, because: of TMA}
  - {require: n != k, because: to have two rules that meet}
tile: {m: 64, n: 128}
fuzz:
  axes: {m: 0..300, n: {range: 1..300, around: [96]}, k: 0..300}
"""


def drawn(spec, count, tier="quick", at_most=None):
    return generate_cases(cases(spec, tier, at_most=at_most), count=count, first=2)


def shrunk(spec, wanted):
    """The simplest case that is wanted.

    The first one found is not random: it may be a climbing batch, of which Hypothesis can only
    choose another; `tlmatrix.fuzz.shrink` makes these shorter.
    """
    limits = settings(max_examples=2000, deadline=None, database=None)
    return find(cases(spec), wanted, settings=limits, random=Random(0))


def of(case):
    return sides_of(case["seqlens"])


def changed(spec, case):
    """What of a case is not the first value of its axis."""
    return {name: case[name] for name in spec.axes if case[name] != spec.axes[name][0]}


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_cases_of_project_specs_are_valid(path):
    spec = load_spec(path)
    found = []

    @settings(max_examples=60, deadline=None, database=None, phases=[Phase.generate])
    @given(cases(spec))  # no health check is suppressed, so any would fail this
    def collect(case):
        found.append(case)

    collect()
    for case in found:
        assert case.origin == "fuzz"
        assert set(case.values) >= set(spec.axes)
        assert not broken_constraints(spec, case)
        if spec.problem == "attention":
            Setting.of(case.values)
    for case in found[:8]:
        again = find_case(spec, case.id)
        # The key holds the exact values, on which the data depend.
        assert (again.key, again.seed) == (case.key, case.seed)


@pytest.mark.parametrize("text", [PACKED, DENSE], ids=["packed", "dense"])
def test_constraints_over_ranges_hold_by_construction(text):
    spec = parse_spec(text)
    found = drawn(spec, 300)
    assert not [case for case in found if broken_constraints(spec, case)]
    numbers = {case[name] for name in spec.fuzz.axes for case in found}
    listed = {value for name in spec.fuzz.axes for value in spec.axes[name]}
    assert len(numbers - listed) > 15


def test_200_cases_cover_critical_lengths():
    found = [of(case) for case in drawn(parse_spec(PACKED), 200)]
    queries, keys = (
        [length for batch in side for length in batch] for side in zip(*found, strict=True)
    )
    for sides, wanted in (
        (queries, [0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193]),
        (keys, [0, 1, 127, 128, 129, 191, 192, 193, 257]),
    ):
        assert not set(wanted) - set(sides)
        for modulus in (4, 8):
            assert {length % modulus for length in sides} == set(range(modulus))
        assert {0, 1, 8, 15} <= {length % 16 for length in sides}
    pairs = [pair for batch in found for pair in zip(*batch, strict=True)]
    assert {(k > q) - (k < q) for q, k in pairs} == {-1, 0, 1}
    batches = [q for q, _ in found]
    assert any(len(q) > 2 and max(q) > 200 and sorted(q)[-2] <= 3 for q in batches)
    assert any(len(q) > 2 and sum(q) + sum(k) == 0 for q, k in found)
    assert any(q[at : at + 3] == (0, 0, 0) and sum(q) for q in batches for at in range(len(q)))
    assert any(sum(q) == 0 < sum(k) for q, k in found)
    assert any(sum(k) == 0 < sum(q) for q, k in found)
    assert {len(q) for q in batches} == set(range(1, 9))


@pytest.mark.parametrize("tile", [64, 128])
@pytest.mark.parametrize("name", ["gqa_dense", "gqa_varlen", "decode_paged"])
def test_windows_begin_at_edges_of_tiles_although_no_length_is_at_one(name, tile):
    spec = load_spec(Path(__file__).parents[2] / f"specs/{name}.yaml")

    def begins(case, window):
        if type(window) is not int:
            return False
        seqlen = case.values.get("seqlen_k")
        keys = of(case)[1] if "seqlens" in case.values else [seqlen]
        keys = [case["seqlen_q"] if key == "same" else key for key in keys]
        return any(
            key > window
            and (key - window) % tile == 0
            and all(1 < length % tile < tile - 1 for length in (key, window))
            for key in keys
        )

    assert sum(begins(case, case["window"]) for case in drawn(spec, 600)) >= 2


def test_batches_climb_over_the_edge_of_a_tile():
    found = [of(case) for case in drawn(parse_spec(PACKED), 200)]
    climbs = [
        (q, k) for q, k in found if len(k) == 5 and k == tuple(range(k[0], k[0] + 5)) and k[0]
    ]
    assert len(climbs) > 10
    assert {(k[0] + 2) % 64 for _, k in climbs} == {0}
    assert any(q[1::2] == (1, 1) and q[0] > 60 for q, _ in climbs), "a prefill beside decode steps"
    assert any(q == tuple(reversed(k)) for q, k in climbs)


@pytest.mark.parametrize("relation", ["same", "independent", "longer"])
def test_climbing_batches_stay_in_their_ranges(relation):
    found = climbing_batches(Span(0, 70), Span(3, 140), [64], relation, None)
    assert bool(found) == (relation != "longer")
    for batch in found:
        assert all(3 <= keys <= 140 for _, keys in batch)
        if relation == "same":
            assert all(queries == keys for queries, keys in batch)
        else:
            assert all(0 <= queries <= 70 for queries, _ in batch)
    assert climbing_batches(Span(1, 1), Span(0, 40), [64], "independent", 1) == ()


def test_query_lengths_are_drawn_relative_to_keys():
    pairs = [
        pair for case in drawn(parse_spec(PACKED), 200) for pair in zip(*of(case), strict=True)
    ]
    apart = [(q, k) for q, k in pairs if q % 64 > 1 and k % 64 > 1 and q != k]
    assert sum((k - q) % 64 == 0 for q, k in apart) > len(apart) / 16


def test_related_span_is_at_an_edge_within_bounds():
    whole, others, tiles = Span(5, 300), [17, 290, -40], [16, 64]
    spans = {related_span(whole, others, tiles, index) for index in range(0, 4000, 7)}
    assert len(spans) > 100
    for span in spans:
        assert 5 <= span.low <= span.high <= 300
        assert any(
            (number + sign * other) % tile in (0, 1, tile - 1)
            for number in range(span.low, span.high + 1)
            for other in others
            for tile in tiles
            for sign in (-1, 1)
        )


def test_related_span_without_an_edge_is_everything():
    assert related_span(Span(3, 9), [1], [64], 4) == Span(3, 9)


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_shared_span_begins_a_part_beside_an_edge(parts):
    whole = Span(5, 700)
    fewer = Span(5, max(5, parts - 1))
    spans = {shared_span(whole, parts, [64, 48], index) for index in range(600)} - {whole}
    assert (fewer in spans) == (parts > 5)
    spans -= {fewer}
    assert len(spans) > 20
    for span in spans:
        assert 5 <= span.low <= span.high <= 700
        begins = [
            {rows.start for rows in split(length, parts, "balanced")[1:]}
            for length in range(span.low, span.high + 1)
        ]
        edges = {at + beside for at in (*range(64, 700, 64), *range(48, 700, 48))
                 for beside in (-1, 0, 1)}  # fmt: skip
        assert all(starts & edges for starts in begins)
    few = {Span(0, 60), Span(1, parts - 1)}
    assert {shared_span(Span(0, 60), parts, [64], index) for index in range(40)} == few
    assert {shared_span(Span(0, 60), parts, [], index) for index in range(40)} == few


def test_rows_of_a_rank_begin_beside_the_edge_of_a_tile():
    spec = load_spec(Path(__file__).parents[2] / "specs/all_gather_gemm.yaml")
    beside = Counter(
        rows.start % 64
        for case in drawn(spec, 300)
        for rows in split(case["m"], case["world"], "balanced")[1:]
        if len(rows)
    )
    assert min(beside[0], beside[1], beside[63]) > 20
    assert max(beside[5], beside[30]) < 20


def test_some_ranks_have_nothing_of_each_sharded_size():
    specs = Path(__file__).parents[2] / "specs"
    sizes = {
        "all_gather_gemm": "mn",
        "gemm_bias_reduce_scatter": ["k"],
        "all_gather": ["rows"],
        "sequence_attention": ["seqlen_q", "seqlen_k"],
    }
    for name, axes in sizes.items():
        found = drawn(load_spec(specs / f"{name}.yaml"), 100)
        for axis in axes:
            numbers = [(case[axis], case["world"]) for case in found if type(case[axis]) is int]
            assert sum(0 < size < world for size, world in numbers) > 2, (name, axis)


def test_some_cases_have_several_tiles_along_all_sizes():
    found = drawn(parse_spec(DENSE), 200)
    large = [case for case in found if min(case["m"], case["n"], case["k"]) > 256]
    assert len(large) > 10


@pytest.mark.parametrize(
    ("keys", "holds"),
    [
        ("same", lambda q, k: q == k),
        ("longer", lambda q, k: all(b >= a for a, b in zip(q, k, strict=True))),
        ("shorter", lambda q, k: all(b <= a for a, b in zip(q, k, strict=True))),
    ],
)
def test_key_lengths_follow_the_spec(keys, holds):
    spec = parse_spec(PACKED.replace("k: independent", f"k: {keys}"))
    found = [of(case) for case in drawn(spec, 100)]
    assert all(holds(q, k) for q, k in found)
    assert keys == "same" or any(q != k for q, k in found)


def test_constraint_on_lengths_holds():
    rule = "constraints:\n  - len(seqlens) < 3 and sum(seqlens.q) > 0"
    found = [of(case) for case in drawn(parse_spec(PACKED.replace("constraints:", rule)), 120)]
    assert all(len(q) < 3 and sum(q) > 0 for q, _ in found)
    assert len({q for q, _ in found}) > 10


def test_plain_packed_axis_and_own_range():
    spec = parse_spec(TWO_PACKINGS)
    found = [case.values for case in drawn(spec, 60)]
    assert all(isinstance(each["seqlens"], list) for each in found)
    assert {length <= 20 for each in found for length in each["counts"]} == {True}
    assert {len(each["counts"]) for each in found} == {2, 3, 4}
    assert max(length for each in found for length in each["seqlens"]) > 100
    assert len({str(each["counts"]) for each in found}) > 20


def test_lengths_stay_in_their_ranges():
    old = "sequences: 1..8, length: 0..300, around: [192], k: independent"
    few = parse_spec(PACKED.replace(old, "sequences: 2..3, q: 1, k: 5..9"))
    for case in drawn(few, 60):
        q, k = of(case)
        assert 2 <= len(q) <= 3
        assert set(q) == {1}
        assert all(5 <= length <= 9 for length in k)
        assert case["seqlens"]["q"] == 1
    some = parse_spec(PACKED.replace(old, "sequences: 4, q: 1..3, k: 0..40"))
    found = [of(case) for case in drawn(some, 60)]
    assert {length for q, _ in found for length in q} == {1, 2, 3}
    assert max(length for _, k in found for length in k) > 30


@pytest.mark.parametrize(
    ("wanted", "seqlens", "axes"),
    [
        (lambda case: max(of(case)[0]) > 64, {"q": [65], "k": "same"}, {}),
        (lambda case: of(case)[1][-1] > 128 + of(case)[0][-1], {"q": [0], "k": [129]}, {}),
        (
            lambda case: case["groups"] == 3 and case["causal"] and max(of(case)[0]) > 7,
            {"q": [8], "k": "same"},
            {"groups": 3, "causal": True},
        ),
        (
            lambda case: case["window"] not in (None, 1, 64) and len(of(case)[0]) > 1,
            {"q": [0, 0], "k": "same"},
            {"causal": True, "window": 2},
        ),
        (
            lambda case: any(a % 64 and b for a, b in pairwise(of(case)[0])),
            {"q": [1, 1], "k": "same"},
            {},
        ),
    ],
    ids=["long", "long keys", "axes", "a window of the range", "a neighbour"],
)
def test_cases_shrink_to_the_simplest(wanted, seqlens, axes):
    spec = parse_spec(PACKED)
    case = shrunk(spec, wanted)
    assert case["seqlens"] == seqlens
    found = changed(spec, case)
    del found["seqlens"]
    assert found == axes


def test_sizes_shrink_to_the_least_valid_ones():
    spec = parse_spec(DENSE)
    case = shrunk(spec, lambda case: case["n"] > 128 and case["k"] >= 48)
    assert (case["m"], case["n"], case["k"], case["transpose_a"]) == (0, 129, 48, False)


def test_most_cases_have_configurations_of_the_tier():
    spec = load_spec(next(path for path in SPECS if path.stem == "gqa_varlen"))
    own = set(case_domain(spec, "quick").configurations)
    deciding = case_domain(spec, "quick").fixed
    assert set(deciding) == {"dtype", "groups", "head_dim", "head_dim_v", "causal", "backward"}
    assert len(own) > 20
    found = [canonical({name: case[name] for name in deciding}) for case in drawn(spec, 300)]
    assert sum(each in own for each in found) > 0.85 * len(found)
    assert len(set(found) & own) > 0.6 * len(own)


def test_configurations_can_be_chosen():
    spec = load_spec(next(path for path in SPECS if path.stem == "gqa_varlen"))
    domain = case_domain(spec, "quick")
    one = next(each for each in domain.configurations.values() if each["causal"])
    strategy = case_strategy(replace(domain, configurations={"one": one}, only=True))
    found = generate_cases(strategy, count=100, first=2)
    assert all(case[name] == one[name] for name in one for case in found)
    assert len({str(of(case)) for case in found}) > 50
    assert len({case["window"] for case in found}) > 20


def test_jobs_on_gpus_use_one_configuration():
    spec = load_spec(next(path for path in SPECS if path.stem == "gqa_varlen"))
    key = partial(family_for(spec).compile_key, spec)
    tier = {key(case.values) for case in expand(spec, compile_key=key)}
    for number in (0, 1, len(tier) + 2):
        strategy = one_configuration(spec, SearchJob("", "quick", configuration=number), gpus=1)
        found = generate_cases(strategy, count=40, first=number)
        assert len(found) == 40
        kernels = {key(case.values) for case in found}
        assert len(kernels) == 1
        assert kernels <= tier


def test_domain_of_shared_kernels_has_no_value_that_needs_others():
    spec = load_spec(next(path for path in SPECS if path.stem == "gqa_varlen"))
    domain = case_domain(spec, "quick")
    values = next(case.values for case in expand(spec) if case["window"] is not None)
    windowed, plain = (domain.sharing([{**values, "window": each}]) for each in (63, None))
    assert windowed.free["window"].named == ()
    assert windowed.free["window"].spans == domain.free["window"].spans
    assert plain.free["window"].values == plain.space.axes["window"] == (None,)
    both = domain.sharing([values, {**values, "window": None}])
    assert both.free == domain.free


def test_fuzz_cases_of_a_tier_need_no_other_kernels_if_they_are_compiled():
    spec = load_spec(next(path for path in SPECS if path.stem == "gqa_varlen"))
    key = partial(family_for(spec).compile_key, spec)
    tier = {key(case.values) for case in expand(spec, compile_key=key)}
    found = tier_fuzz_cases(spec, "quick", (), compiled=True)
    assert len(found) == 20
    assert {key(case.values) for case in found} <= tier
    assert len({case["window"] for case in found}) > 5


def test_cases_of_shared_kernels_are_the_same_in_every_process():
    """Workers of pytest-xdist collect them, each with its own hashes of strings."""
    path = next(path for path in SPECS if path.stem == "gqa_dense")
    code = (
        "from tlmatrix import load; from tlmatrix.fuzz.generation import generate_cases;"
        "from tlmatrix.fuzz.strategies import sharing_cases;"
        f"spec = load({str(path)!r});"
        "print(*(c.id for c in generate_cases(sharing_cases(spec, 'smoke'), count=5, first=5)))"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") != "2" else "3"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    here = generate_cases(sharing_cases(load_spec(path), "smoke"), count=5, first=5)
    assert [case.id for case in here] == other.split()


def test_jobs_on_gpus_have_at_most_as_many_ranks_as_gpus():
    for name in ("reduce_scatter_two_level", "sequence_attention_varlen"):
        spec = load_spec(next(path for path in SPECS if path.stem == name))
        worlds = {case["world"] for case in drawn(spec, 100)}
        assert max(worlds) > 4
        for gpus in (1, 2, 4):
            few = set()
            for number in range(3):
                strategy = one_configuration(
                    spec, SearchJob("", "nightly", configuration=number), gpus=gpus
                )
                found = generate_cases(strategy, count=15, first=number)
                assert not [broken for case in found for broken in broken_constraints(spec, case)]
                few |= {case["world"] for case in found}
            assert few == {world for world in range(1, 7) if world <= gpus}


@pytest.mark.parametrize(
    ("world", "rule", "worlds"),
    [
        ("[1, 2, 3, 8]", "world > 0", {1, 2}),
        ("[3, 8]", "world > 0", {3, 8}),  # skipped, with the reason
        ("[1, 2, 3, 8]", "world > 2", {3, 8}),
        ("[2, 4]", "world == 2 or m > 1", {2}),
    ],
)
def test_at_most_excludes_larger_numbers_unless_none_remain(world, rule, worlds):
    text = DENSE.replace("axes: {dtype", f"axes: {{world: {world}, dtype", 1)
    text = text.replace("constraints:\n", f"constraints:\n  - {rule}\n")
    found = drawn(parse_spec(text), 60, at_most={"world": 2})
    assert {case["world"] for case in found} == worlds


def test_at_most_limits_a_range():
    ranged = DENSE.replace("m: 0..300,", "m: 10..300,")
    assert {case["m"] for case in drawn(parse_spec(ranged), 80, at_most={"m": 12})} >= {1, 10, 12}
    below = drawn(parse_spec(ranged), 20, at_most={"m": 5})
    assert {case["m"] for case in below} == {1}


def test_tier_restricts_the_values():
    spec = parse_spec(PACKED + "tiers: {quick: {strategy: first, axes: {groups: [3]}}}\n")
    assert {case["groups"] for case in drawn(spec, 30)} == {3}


def test_optional_axes_are_generated():
    spec = parse_spec(PACKED.replace("fuzz:", "fuzz:\n  storage: [offset, expanded]"))
    found = drawn(spec, 200)
    values = Counter(case["values"] for case in found)
    assert set(values) == set(usual_distributions((*SPECIAL, *OF_ATTENTION)))
    assert values["normal"] > 60
    storage = Counter(case.values.get("storage", "usual") for case in found)
    assert set(storage) == {"usual", "offset", "expanded"}
    assert storage["usual"] > 100
    for side in (0, 1):
        axis = ("max_seqlen_q", "max_seqlen_k")[side]
        told = [(case[axis], max(of(case)[side])) for case in found if axis in case.values]
        assert 20 < len(told) < 120
        assert all(longest > real for longest, real in told)
        assert any(longest == real + 1 for longest, real in told)
    case = shrunk(spec, lambda case: max(of(case)[0]) > 3)
    assert set(case.values) - set(spec.axes) == {"values"}
    assert case["values"] == "normal"
    case = shrunk(spec, lambda case: case.values.get("max_seqlen_k", 0) > max(of(case)[1]) + 2)
    assert (case["max_seqlen_k"], of(case)) == (3, ((0,), (0,)))


def test_listed_maximum_length_is_raised():
    listed = "max_seqlen_q: [none, 100]\n  seqlens: [[17, 64], [1]]"
    spec = parse_spec(PACKED.replace("seqlens: [[17, 64], [1]]", listed, 1))
    found = [(case["max_seqlen_q"], max(of(case)[0])) for case in drawn(spec, 100)]
    assert {told for told, real in found if real <= 100} == {None, 100}
    assert all(told in (None, real) for told, real in found if real > 100)


def test_listed_optional_axis_keeps_its_values():
    spec = parse_spec(PACKED.replace("  scale:", "  values: [ramp]\n  scale:"))
    assert {case["values"] for case in drawn(spec, 30)} == {"ramp"}


TWO_PACKINGS = """
name: grouped
problem:
  inputs:
    x: {shape: [sum(seqlens), dim], dtype: float32}
    cu_seqlens: {offsets_of: seqlens}
    w: {shape: [sum(counts), dim], dtype: float32}
    offsets: {offsets_of: counts}
  outputs: [y]
  reference: m:f
entry: m:g
axes:
  dim: [8]
  seqlens: [[17, 64, 1], [0, 5]]
  counts: [[3, 0]]
fuzz:
  axes: {counts: {sequences: 2..4, length: 0..20}}
"""

REFUSED = {
    "a rule about a length that would have to be raised": (
        PACKED.replace("  scale:", "  max_seqlen_q: [none, 100]\n  scale:").replace(
            "constraints:", "constraints:\n  - max_seqlen_q is none or causal"
        ),
        (
            "11:24: max_seqlen_q is 100, but 'fuzz' generates lengths up to 300; it cannot be "
            "raised because a constraint names it: list larger numbers, or generate shorter lengths"
        ),
    ),
    "more values than a rule can be held over": (
        DENSE.replace("m: 0..300", "m: 0..2000000"),
        (
            "10:13: a range of 2,000,001 numbers; a constraint names 'm', and such an axis has at "
            "most 1,048,576 values: narrow the range"
        ),
    ),
    "a constraint without a value for a number of the range": (
        DENSE.replace("n != k", "n % m != 3"),
        (
            "7:15: 'n % m != 3' has no value for m=0, n=1: 1 % 0 divides by zero; a "
            "constraint needs one for all values of the axes it names"
        ),
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_fuzz_sections_are_located_errors(text, message):
    with pytest.raises(SpecError) as caught:
        cases(parse_spec(text))
    assert [str(issue) for issue in caught.value.issues] == [f"<spec>:{message}"]


LONG = """\
name: top
problem: gemm
entry: mypkg.ops:gemm
axes: {dtype: [float16], m: [64, 300], n: [1, 64], k: [2, 8]}
constraints: [RULES]
fuzz: {axes: {m: 64..9000, n: 1..9000, k: 2..9000}}
"""


@pytest.mark.parametrize(
    "rules",
    [
        "n <= m",
        "m * n <= 100000 and m * n * k <= 10000000",
        "m % n == 0, k * n == m or k < 9",
        "m + n + k == 8192 or m < 400 and n < 100",
    ],
)
def test_constraints_of_long_ranges_hold(rules):
    spec = parse_spec(LONG.replace("RULES", ", ".join(f'"{each}"' for each in rules.split(", "))))
    began = time.process_time()
    found = drawn(spec, 60)
    assert time.process_time() - began < 30
    assert all(each.expression.evaluate(case.values) for case in found for each in spec.constraints)
    assert max(case["m"] for case in found) > 4096
    assert len({(case["m"], case["n"], case["k"]) for case in found}) > 30


def test_a_search_that_takes_too_long_is_an_error_at_the_constraint(monkeypatch):
    monkeypatch.setattr("tlmatrix.matrix.constraints._SEARCHED", 1000)
    rule = "m == 64 or (m * m * n + n * k) % 99991 == 99990"
    spec = parse_spec(LONG.replace("RULES", f'"{rule}"'))
    with pytest.raises(SpecError, match=r"<spec>:5:15: .* is too hard to solve: .* narrow the"):
        drawn(spec, 60)


def test_unknown_tier_raises():
    with pytest.raises(ValueError, match="unknown tier 'quik'"):
        cases(parse_spec(PACKED), "quik")


SIDELESS = """
name: moe
problem:
  inputs:
    x: {shape: [sum(expert_counts), 4], dtype: float32}
    offsets: {offsets_of: expert_counts}
  outputs: [y]
  reference: m:f
entry: m:g
axes:
  expert_counts: [[3, 0], [17]]
"""


def test_packed_axes_without_a_fuzz_section():
    found = [case["expert_counts"] for case in drawn(parse_spec(SIDELESS), 100)]
    assert {len(each) for each in found} == set(range(1, 9))
    lengths = {length for each in found for length in each}
    assert {0, 1} <= lengths
    assert max(lengths) > 250


def test_seqlens_with_numbers_is_not_packed():
    text = SIDELESS.replace(
        "expert_counts: [[3, 0], [17]]", "expert_counts: [[3]]\n  seqlens: [64]"
    )
    assert {case["seqlens"] for case in drawn(parse_spec(text), 20)} == {64}


def test_listed_lengths_replace_those_a_constraint_cannot_evaluate():
    rule = "constraints:\n  - {require: 60 // max(expert_counts) > 2, because: of memory}\n"
    for case in drawn(parse_spec(SIDELESS + rule), 60):
        assert 0 < max(case["expert_counts"]) <= 20


def test_case_of_generated_lengths_is_found_by_id():
    spec = parse_spec(SIDELESS)
    case = Case("moe", {"expert_counts": [5, 0, 64], "values": "ramp"}, "fuzz")
    assert find_case(spec, case.id).values == case.values


ALONE = """\
name: alone
problem:
  inputs: {x: {shape: [rows, cols], dtype: float32}}
  outputs: [y]
  reference: mypkg.ops:sums
entry: mypkg.ops:sums
axes: {rows: [1, 4], cols: [8]}
constraints:
  - {require: rows % 3 != 0, because: of TMA}
fuzz:
  axes: {rows: {range: 1..9, alone: 300}, cols: 0..200}
"""


def test_one_size_goes_beyond_its_range_while_others_are_least():
    values = [case.values for case in drawn(parse_spec(ALONE), 300)]
    beyond = [each for each in values if each["rows"] > 9]
    assert 10 < len(beyond) < 50
    assert {each["cols"] for each in beyond} == {1}
    assert all(256 < each["rows"] <= 300 and each["rows"] % 3 for each in beyond)
    packed = PACKED.replace("sequences: 1..8,", "sequences: 1..8, alone: 150,")
    batches = [of(case)[0] for case in drawn(parse_spec(packed), 300)]
    many = [each for each in batches if len(each) > 8]
    assert 10 < len(many) < 50
    assert all(192 >= len(each) > 128 and set(each) == {1} for each in many)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("alone: 300", "alone: 9", "alone: 9 within its range, which ends at 9"),
        ("range: 1..9, alone", "alone", "no range that it could be above; add range"),
    ],
)
def test_a_size_alone_must_be_above_its_range(before, after, words):
    with pytest.raises(SpecError, match=words):
        parse_spec(ALONE.replace(before, after))
