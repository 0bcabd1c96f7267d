"""The axis `world`, `shards` and `context`: loading, and located errors."""
# ruff: noqa: E501 - a message stands on one line here, as it does where it is printed

import pytest

from tlmatrix.spec import SpecError, parse_spec

GEMM = """\
name: trial
problem: gemm
entry: mypkg.ops:all_gather_gemm
axes: {world: [1, 2], dtype: [float16], m: [64], n: [64], k: [64], sharding: [contiguous, zigzag]}
"""
DECLARED = """\
name: trial
problem: {inputs: {x: {shape: [rows, cols], dtype: float32, grad: true}}, outputs: [y], reference: a:b}
entry: mypkg.ops:gathered
axes: {world: [1, 2], rows: [4], cols: [3]}
"""


def issues(text):
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    return [f"{each.line}:{each.column}: {each.message}" for each in caught.value.issues]


def test_shards_and_context_load():
    spec = parse_spec(
        GEMM
        + "shards: {a: {dim: 0, order: $sharding, uneven: balanced}, b: {dim: n}, c: {sum: true}}\n"
        + "context: mypkg.ops:create_context\n"
    )
    assert spec.shards["a"].order_of({"sharding": "zigzag"}) == "zigzag"
    assert spec.shards["a"].uneven == "balanced"
    assert (spec.shards["b"].dim, spec.shards["b"].order_of({})) == ("n", "contiguous")
    assert spec.shards["c"].sum
    assert spec.context == "mypkg.ops:create_context"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            GEMM.replace("[1, 2]", "[0, true, 2]"),
            [
                "4:16: 'world' is a number of ranks, 1 or more; got 0",
                "4:19: 'world' is a number of ranks, 1 or more; got true",
            ],
        ),
        (
            GEMM + "tiers: {quick: {strategy: product, axes: {world: [-1]}}}\n",
            ["5:51: 'world' is a number of ranks, 1 or more; got -1"],
        ),
        (
            GEMM + "extra_cases: [{world: 1.5}]\n",
            ["5:23: 'world' is a number of ranks, 1 or more; got 1.5"],
        ),
        (
            GEMM + "fuzz: {axes: {world: 0..4}}\n",
            ["5:22: 'world' is a number of ranks, 1 or more; the range begins at 0"],
        ),
        (
            GEMM.replace("world: [1, 2], ", "") + "shards: {a: {dim: 0}}\ncontext: a:b\n",
            [
                "5:1: 'shards' needs several ranks; add the axis world: [1, 2, 4]",
                "6:1: 'context' needs several ranks; add the axis world: [1, 2, 4]",
            ],
        ),
        (
            GEMM.replace("entry: mypkg.ops:all_gather_gemm", "factory: a:b\ncall: [a, b]"),
            [
                "3:1: the kernel of a factory runs on one rank; with the axis 'world', give 'entry', a function that every rank calls"
            ],
        ),
        (
            GEMM + "shards: {a: {}, c: {dim: 0, sum: true}}\n",
            [
                "5:10: the key 'dim' is missing: give the dimension along which 'a' is split, or remove 'a' if every rank has the whole tensor",
                "5:29: 'c' has 'sum' beside 'dim' or 'own': results of ranks are either summed or concatenated; remove one",
            ],
        ),
        (
            GEMM + "shards: {a: {dim: -1}, b: {dim: 0, order: zigzga}, c: {dim: 0, uneven: even}}\n",
            [
                "5:19: 'shards.a.dim' must be a dimension: its number, from 0, or its name; got -1",
                "5:43: 'shards.b.order' must be contiguous, zigzag, or $axis for the value of that axis; got 'zigzga'; did you mean 'zigzag'?",
                "5:72: 'shards.c.uneven' must be one of balanced, ceil; got 'even'",
            ],
        ),
        (
            GEMM.replace("contiguous, zigzag", "contiguous, zag")
            + "shards: {a: {dim: 0, order: $sharding}, b: {dim: 0, order: $shardin}}\n",
            [
                "4:91: 'zag' is not an order; did you mean 'zigzag'? Orders: contiguous, zigzag; 'shards' uses the axis as an order",
                "5:60: unknown axis '$shardin'; did you mean '$sharding'? Axes: $world, $dtype, $m, $n, $k, $sharding",
            ],
        ),
        (
            DECLARED + "shards: {x: {dim: 2}, y: {dim: rows}, z: {dim: 0}}\n",
            [
                "5:19: 'x' has 2 dimensions: 'dim' must be 0 or 1",
                "5:42: unknown tensor 'z'. Tensors: x, y, dx, dy",
            ],
        ),
        (
            DECLARED + "shards: {x: {dim: row}, dy: {sum: true}, dx: {dim: 0, own: true, order: zigzag}}\n",
            [
                "5:19: 'x' has no dimension 'row'; did you mean 'rows'? Dimensions: rows, cols",
                "5:30: 'dy' is an argument of the entry; 'sum' is for results, so remove it",
                "5:66: 'order' needs a split dimension; remove it, or remove 'own' or 'sum'",
            ],
        ),
    ],
)  # fmt: skip
def test_an_error_in_the_rank_keys_has_its_location(text, found):
    assert issues(text) == found
