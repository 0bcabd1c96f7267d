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
import mutant_hunt
import mutant_reach
import mutant_score
import pytest

from tlmatrix.backend.assembly import find_toolkit

pytestmark = pytest.mark.usefixtures("preloaded")

MUTANTS = mutant_catalog.load_mutants()
SCORE = mutant_catalog.FOLDER / "score.json"
# Of different kinds, and each found within a few cases.
SOME = (
    "causal_key_beside_the_query_hidden",
    "atomic_sum_not_zeroed",
    "accumulator_never_given_back",  # needs a block that takes a third tile
)
COMPILED = "flags_loaded_relaxed"
"""One that only compiling finds."""


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
    assert {"varlen_attention", "_Attention", "Mask", "restore_block"} <= packed
    assert not {"dense_attention", "decode_attention", "gemm"} & packed
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


def run(*command):
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        capture_output=True,
        text=True,
        cwd=mutant_catalog.FOLDER,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """What a run of some mutants records of each, by name; that of machine code needs nvcc."""
    results = tmp_path_factory.mktemp("mutants") / "mutants.jsonl"
    words = (*SOME, COMPILED, "--plain", "1", "--limit", "500", "-j", "1", "--results", results)
    run("run_mutants.py", *words)
    found = map(json.loads, results.read_text().splitlines())
    return {record["mutant"].partition("/")[2]: record for record in found}


@pytest.mark.timeout(600)  # minutes where the compilers share the cores with much else
def test_some_mutants_are_found(records):
    assert records.keys() - {COMPILED} == set(SOME)
    assert all(record["found"] and record["seen_by"] for record in records.values())


def test_mutants_of_machine_code_are_compiled():
    compiled = [mutant for mutant in MUTANTS if mutant.compile]
    assert {mutant.kind for mutant in compiled} == {"codegen"}
    assert {mutant.compile for mutant in compiled} == {"sm_90a", "sm_100a"}


def test_when_needs_compile(tmp_path):
    entry = "{name: a, file: b.py, before: c, after: d, stands_for: e, when: world > 1}"
    text = f"kind: codegen\nsummary: s\nmutants: [{entry}]\n"
    (tmp_path / "codegen.yaml").write_text(text)
    with pytest.raises(mutant_catalog.MutantError, match=r"when selects.*needs compile"):
        mutant_catalog.load_mutants(tmp_path, ["codegen"])


def test_only_the_selected_cases_are_compiled():
    plans = mutant_hunt.Plans(mutant_catalog.ROOT / "specs/all_gather_gemm.yaml")
    (mutant,) = (each for each in MUTANTS if each.name == COMPILED)
    specs = plans.affected(mutant)
    every = [case for _, case in plans.tier(specs)]
    chosen = [case for _, case in plans.tier(specs, mutant)]
    assert [spec.name for spec in specs] == ["all_gather_gemm"]
    assert 0 < len(chosen) < len(every)
    assert {(case.values["overlap"], case.values["world"]) for case in chosen} == {(True, 2)}
    assert plans.plain_tests(mutant) == []
    assert plans.plain_tests(replace(mutant, compile=None))


@pytest.mark.skipif(find_toolkit() is None, reason="no nvcc here")
@pytest.mark.timeout(600)  # minutes where the compilers share the cores with much else
def test_a_mutant_of_machine_code_is_found_by_compiling(records):
    record = records[COMPILED]
    assert record["title"] == "gemm_arrival on sm_90a has no ld.acquire.sys"
    assert record["seen_by"] == ["codegen"]
    assert (record["cases"], record["plain_tests"], record["plain"]) == (1, 0, "")


def test_mutants_of_machine_code_are_skipped_without_nvcc(tmp_path):
    program = (
        "import sys, run_mutants; run_mutants.find_toolkit = lambda: None; "
        "sys.exit(run_mutants.main(sys.argv[1:]))"
    )
    told = run("-c", program, COMPILED, "--results", tmp_path / "mutants.jsonl")
    assert told.startswith("skipped codegen/flags_loaded_relaxed, which is found by compiling: ")
    assert "there is no nvcc\n" in told
    assert "0 of 0 found" in told


def test_summary_names_redundant_checks_and_surviving_mutants():
    def record(mutant, seen, **more):
        return {
            "mutant": mutant.id, "kind": mutant.kind, "check": seen[0] if seen else "",
            "found": bool(seen), "seen_by": seen, "seconds": 1.0, "plain": "", "silent": True,
            "cases": 7, "specs": ["gqa_varlen"], "trouble": "", "plain_tests": 1, **more,
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


def test_a_mutant_is_only_said_to_be_heard_where_plain_tests_ran():
    silent = next(mutant for mutant in MUTANTS if mutant.silent)
    record = {"mutant": silent.id, "found": True, "silent": False, "trouble": "", "plain_tests": 0}
    assert mutant_score.faults([silent], [record]) == []
    (fault,) = mutant_score.faults([silent], [record | {"plain_tests": 2}])
    assert "declared silent, and is not" in fault
