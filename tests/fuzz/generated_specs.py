"""Generated specs: some valid, some with errors in the tree or in the text."""

from __future__ import annotations

import json
import random
import string
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "specs"
_JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**63, 10**30, 0.5, float("nan"), float("inf"), "", " ", "none", "1..3",
    "9..1", "0..999999999999", "a b", "é", "a" * 300, [], {}, [[]], [None], {"": 1}, {"a": {}},
    "x == y", "1 +", "((((", "9 ** 9 ** 9", "f(1)", "len(m) < 3", "same", [1, [2]],
    {"q": [1], "k": [1, 2]}, {"range": "0..3"}, "float16", "pairwise", "9-wise", "99-wise", [0] * 9,
)  # fmt: skip
_SCRATCHES = (
    "\t", "\n", "- ", ": ", "{", "]", "&a ", "*a ", "<<: *a\n", "!!python/object ", "'", '"', "#",
    "\x00", "\ufeff", "---\n",
)  # fmt: skip
_CONSTRAINTS = (
    "window is none or causal", "groups < 4", "m * n < 5000", "(m + n) % 8 == k % 8", "m > n > k",
    "dtype == 'float16' or not causal", "m ** 2 + n ** 2 == k ** 2", "rows % cols != 3",
    "len(seqlens) < 3", "seqlen_q >= seqlen_k", "false", "true", "min(m, n) != max(n, k)",
    "m in [1, 2, 3] or n // (k + 1) == 2", "window < 3", "head_dim_v == 'same'",
)  # fmt: skip


def made_text(number: int) -> str:
    """The text of spec `number`: one in three as it should be, the others with something wrong."""
    pick = random.Random(number)
    tree = pick.choice((_attention, _attention, _gemm, _declared, _shipped))(pick)
    for _ in range(pick.choice((0, 0, 0, 1, 1, 3))):
        tree = _changed(pick, tree)
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=pick.choice((40, 1000)))
    if pick.random() < 0.15:
        text = _scratched(pick, text)
    return text


def scratched_text(number: int) -> str:
    """The text of one of the project's specs, with some characters gone, doubled, or others."""
    pick = random.Random(number)
    return _scratched(pick, pick.choice(_shipped_texts()))


# Specs as they should be ----------------------------------------------------------------------


def _some(pick: random.Random, values: tuple[Any, ...]) -> list[Any]:
    """Some of the values, at least one, in their order or not."""
    return pick.sample(values, pick.randint(1, min(len(values), 5)))


def _range(pick: random.Random) -> Any:
    low = pick.randint(0, 70)
    high = low + pick.choice((0, 1, 8, 64, 300, 3000))
    return pick.choice(
        (f"{low}..{high}", {"range": f"{low}..{high}", "around": [pick.randint(0, 200)]})
    )


def _common(pick: random.Random, axes: dict[str, list[Any]]) -> dict[str, Any]:
    """Keys that every spec may have."""
    made: dict[str, Any] = {}
    names = [constraint for constraint in _CONSTRAINTS if _names(constraint) <= axes.keys()]
    if names and pick.random() < 0.7:
        chosen = pick.sample(names, min(len(names), pick.randint(1, 2)))
        made["constraints"] = [
            {"require": constraint, "because": "of something"} for constraint in chosen
        ]
    if pick.random() < 0.5:
        name, values = pick.choice(list(axes.items()))
        made["extra_cases"] = [{name: pick.choice(values)}]
    if pick.random() < 0.5:
        made["tiers"] = {
            "quick": pick.choice(("pairwise", "3-wise", "product", "first")),
            "nightly": {"strategy": "sample", "size": pick.randint(1, 40)},
        }
    if pick.random() < 0.3:
        made["tile"] = {name: pick.choice((1, 64, "head_dim")) for name in ("q", "k", "m")}
    if pick.random() < 0.7:
        numbers = [
            name for name, values in axes.items() if any(type(value) is int for value in values)
        ]
        ranged = pick.sample(numbers, min(len(numbers), pick.randint(0, 3)))
        made["fuzz"] = {"axes": {name: _range(pick) for name in ranged}, "examples": {"quick": 3}}
        if "seqlens" in axes:
            made["fuzz"]["seqlens"] = {
                "sequences": pick.choice(("1..8", 3)), "length": pick.choice(("0..300", "5..6")),
                "around": _some(pick, (64, 128)), "kv": pick.choice(("equal", "longer", "shorter")),
            }  # fmt: skip
    if pick.random() < 0.3:
        made["known_bugs"] = [
            {
                "when": "backend == 'cuda'",
                "issue": "#1",
                "expires": "2999-01-01",
                "mode": "tolerate",
            }
        ]
    return made


def _names(constraint: str) -> set[str]:
    words = "".join(
        c if c.isalnum() or c == "_" else " " for c in constraint.replace("'", " '")
    ).split()
    known = {"is", "or", "not", "in", "and", "none", "true", "false", "len", "min", "max"}
    quoted = {"float16", "same"}
    return {word for word in words if not word[0].isdigit()} - known - quoted


def _attention(pick: random.Random) -> dict[str, Any]:
    axes: dict[str, list[Any]] = {
        "dtype": _some(pick, ("float16", "bfloat16", "float32")),
        "kv_heads": _some(pick, (1, 2, 3)),
        "groups": _some(pick, (1, 2, 3, 5, 8)),
        "head_dim": _some(pick, (8, 40, 64, 128)),
        "head_dim_v": _some(pick, ("same", 32, 64)),
        "causal": [True, False],
        "window": _some(pick, (None, 1, 64, 300)),
    }
    if pick.random() < 0.5:
        axes["seqlens"] = _some(
            pick,
            ([17, 64], {"q": [0, 5], "k": [7, 0]}, {"q": [1], "k": "same"}, {"q": 1, "k": [9]}),
        )
    else:
        axes["seqlen_q"] = _some(pick, (0, 1, 64, 65, 200))
        axes["seqlen_k"] = _some(pick, ("same", 0, 1, 64, 129))
    for name, values in (
        ("scale", (None, 0.3)),
        ("max_seqlen_k", (None, 500)),
        ("sink", (None, True)),
    ):
        if pick.random() < 0.3:
            axes[name] = list(values)
    spec = {"name": "made", "problem": "attention", "entry": "some.module:entry", "axes": axes}
    return {**spec, **_common(pick, axes)}


def _gemm(pick: random.Random) -> dict[str, Any]:
    axes: dict[str, list[Any]] = {
        "dtype": _some(pick, ("float16", "bfloat16", "int8", "float8_e4m3fn")),
        "transpose_a": [False, True],
        **{size: _some(pick, (0, 1, 7, 64, 65, 200)) for size in "mnk"},
    }
    spec = {
        "name": "made", "problem": "gemm", "factory": "some.module:kernel",
        "factory_args": {"M": "m", "block": pick.choice((64, "ceildiv(n, 2)"))},
        "call": ["a", "b", "c"], "returns": ["c"], "axes": axes,
    }  # fmt: skip
    return {**spec, **_common(pick, axes)}


def _declared(pick: random.Random) -> dict[str, Any]:
    axes: dict[str, list[Any]] = {
        "dtype": _some(pick, ("float16", "float32")),
        **{f"a{number}": _some(pick, tuple(range(20))) for number in range(pick.randint(0, 25))},
        "rows": _some(pick, (0, 1, 8, 33)),
        "cols": _some(pick, (1, 40, 256)),
    }
    problem = {
        "inputs": {"x": {"shape": ["rows", "2 * cols"], "dtype": "$dtype", "grad": True}},
        "outputs": {"y": {"shape": ["rows"], "dims": ["row"]}},
        "reference": "some.module:reference",
    }
    spec = {"name": "made", "problem": problem, "entry": "some.module:entry", "axes": axes}
    return {**spec, **_common(pick, axes)}


@cache
def _shipped_texts() -> tuple[str, ...]:
    return tuple(path.read_text() for path in sorted(FOLDER.glob("*.yaml")))


def _shipped(pick: random.Random) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(pick.choice(_shipped_texts()))
    return tree


# Specs made wrong -----------------------------------------------------------------------------


def _changed(pick: random.Random, tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with one thing somewhere in it put in, taken away, or made another."""
    tree = deepcopy(tree)
    places = list(_places(tree))
    if not places:
        return tree
    holder, key = pick.choice(places)
    junk = deepcopy(pick.choice(_JUNK))
    match pick.randrange(6):
        case 0:
            del holder[key]
        case 1 | 2:
            holder[key] = junk
        case 3 if isinstance(holder, dict):
            holder[_misspelt(pick, str(key))] = holder.pop(key)
        case 3:
            holder.insert(key, deepcopy(holder[key]))
        case 4:
            other, place = pick.choice(places)
            holder[key] = deepcopy(other[place])
        case 5 if isinstance(holder, dict):
            holder[pick.choice((*holder, "fuzz", "axes", "range", "seqlens", "storage"))] = junk
        case _:
            holder.append(junk)
    return tree


def _places(node: Any) -> Any:
    entries = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(entries):
        yield node, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _misspelt(pick: random.Random, word: str) -> str:
    at = pick.randrange(len(word) + 1)
    return pick.choice((word[:at] + word[at + 1 :], word[:at] + "e" + word[at:], word.upper(), ""))


def _scratched(pick: random.Random, text: str) -> str:
    """The text with some characters gone, doubled, or others."""
    for _ in range(pick.randint(1, 3)):
        at, size = pick.randrange(len(text) + 1), pick.choice((0, 1, 1, 5, 80))
        junk = json.dumps(pick.choice(_JUNK[:20]))
        other = pick.choice((text[at : at + 40], pick.choice(string.printable), junk))
        put = pick.choice(("", "", other, other, *_SCRATCHES))
        text = text[:at] + put + text[at + size :]
    return text
