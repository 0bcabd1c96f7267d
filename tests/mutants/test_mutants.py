"""The mutants apply to the current kernels, and some of them are found.

`make mutants` runs all of them, which takes minutes.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import mutant_catalog
import mutant_reach
import mutant_score
import pytest

pytestmark = pytest.mark.usefixtures("preloaded")

MUTANTS = mutant_catalog.load_mutants()
SCORE = mutant_catalog.FOLDER / "score.json"
# Of different kinds, and each found within a few cases.
SOME = (
    "causal_key_beside_the_query_hidden",
    "atomic_sum_not_zeroed",
    "partial_step_of_k_dropped",
    "accumulator_never_given_back",  # needs a block that takes a third tile
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_mutant_applies_once_and_is_valid_python(mutant):
    text = (mutant_catalog.KERNELS / mutant.file).read_text()
    changed = mutant.applied(text)
    assert changed != text
    compile(changed, mutant.file, "exec")


def test_stale_edit_raises_an_error_with_its_id():
    stale = replace(MUTANTS[0], before="no such text", below=None)
    with pytest.raises(mutant_catalog.MutantError, match=f"{stale.id}.*occurs 0 times"):
        stale.applied("some other text")


def test_ambiguous_edit_needs_below():
    twice = replace(MUTANTS[0], before="x = 1", after="x = 2", below=None)
    text = "def f():\n    x = 1\n\n\ndef g():\n    x = 1\n"
    with pytest.raises(mutant_catalog.MutantError, match="2 times"):
        twice.applied(text)
    assert replace(twice, below="def g").applied(text).endswith("def g():\n    x = 2\n")


def test_every_mutant_cites_a_real_bug():
    assert [mutant.id for mutant in MUTANTS if mutant.seen is None] == []


def test_call_graph_of_an_entry_is_exact():
    sources = mutant_reach.Sources()
    attention = "tlmatrix_kernels.attention"
    packed = {name for _, name in sources.reached(f"{attention}:varlen_attention")}
    assert {"varlen_attention", "_PackedAttention", "Mask", "restore_block"} <= packed
    assert not {"_DenseAttention", "decode_attention", "gemm"} & packed
    norm = sources.reached("tlmatrix_kernels.norm:rms_norm")
    assert {module.split(".")[1] for module, _ in norm} == {"norm", "dtypes"}


def test_readme_and_docs_show_the_recorded_score():
    score = json.loads(SCORE.read_text())
    readme = (mutant_catalog.ROOT / "README.md").read_text()
    assert mutant_score.readme_with(score, readme) == readme
    page = (mutant_catalog.ROOT / "docs/results/mutants.md").read_text()
    assert mutant_score.page_with(score, page) == page


def test_recorded_score_counts_the_declared_mutants():
    score = json.loads(SCORE.read_text())
    kinds = Counter(mutant.kind for mutant in MUTANTS)
    assert {kind: row["mutants"] for kind, row in score["kinds"].items()} == kinds
    assert score["found"] == score["mutants"] == len(MUTANTS)
    assert score["silent"] == sum(mutant.silent for mutant in MUTANTS)


def test_two_in_ten_mutants_are_silent_at_aligned_shapes():
    assert sum(mutant.silent for mutant in MUTANTS) * 10 >= len(MUTANTS) * 2


def test_some_mutants_are_found(tmp_path):
    results = tmp_path / "mutants.jsonl"
    command = [sys.executable, mutant_catalog.FOLDER / "run_mutants.py", *SOME, "-j", "1"]
    command += ["--plain", "2"]
    done = subprocess.run(
        [*command, "--results", results],
        check=False,
        capture_output=True,
        text=True,
        cwd=mutant_catalog.ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in results.read_text().splitlines()]
    assert {record["mutant"].partition("/")[2] for record in records} == set(SOME)
    assert all(record["found"] and record["seen_by"] for record in records)


def test_summary_names_redundant_checks_and_surviving_mutants():
    def record(mutant, seen, **more):
        return {
            "mutant": mutant.id, "kind": mutant.kind, "check": seen[0] if seen else "",
            "found": bool(seen), "seen_by": seen, "seconds": 1.0, "plain": "", "silent": True,
            "cases": 7, "specs": ["gqa_varlen"], "trouble": "", **more,
        }  # fmt: skip

    first, second, third = MUTANTS[:3]
    records = [
        record(first, ["guards"]),
        record(second, ["poison", "sanitizers"]),
        record(third, []),
    ]
    told = "\n".join(mutant_score.describe([first, second, third], records))
    (idle,) = [line for line in told.splitlines() if line.startswith("finds nothing")]
    assert "poison" in idle
    assert "sanitizers" in idle
    assert "guards" not in idle
    assert f"{third.id} survives (7 cases of gqa_varlen)" in told
    assert "2 of 3 found, in 1.0 s (median)" in told
