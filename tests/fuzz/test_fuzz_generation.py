"""Generation: deterministic for a seed, without duplicates, guided by scores."""

import subprocess
import sys

from hypothesis import strategies as st

from tlmatrix.fuzz.generation import explore, generate_cases
from tlmatrix.matrix import Case

_CASES = st.lists(st.integers(0, 300), min_size=1, max_size=8).map(
    lambda lengths: Case("x", {"lengths": lengths}, "fuzz")
)


def test_guided_generation_mutates_best_scores():
    totals = []

    def score(case):
        totals.append(sum(case.values["lengths"]))
        return {"total": totals[-1]}

    explore(_CASES, score, count=200, first=1)
    assert sum(totals[100:]) > 2 * sum(totals[:100])


def test_larger_counts_extend_smaller_ones_without_duplicates():
    few = generate_cases(_CASES, count=10, first=3)
    many = generate_cases(_CASES, count=30, first=3)
    assert many[:10] == few
    assert len({case.key for case in many}) == 30


def test_known_cases_are_not_generated():
    known = frozenset(case.id for case in generate_cases(_CASES, count=10, first=3))
    others = generate_cases(_CASES, count=10, first=3, known=known)
    assert len(others) == 10
    assert not known & {case.id for case in others}


def test_generation_ends_when_exhausted():
    four = st.integers(1, 4).map(lambda rows: Case("x", {"rows": rows}, "fuzz"))
    assert len(generate_cases(four, count=100, first=0)) == 4


def test_generation_does_not_depend_on_imports(tmp_path):
    """Hypothesis likes numbers that it finds in the source of imported modules."""
    (tmp_path / "full_of_numbers.py").write_text(f"NUMBERS = {list(range(300))}\n")
    script = """
import sys
if sys.argv[1:]:
    import full_of_numbers
from hypothesis import strategies as st
from tlmatrix.fuzz.generation import generate_cases, explore
from tlmatrix.matrix import Case
cases = st.lists(st.integers(0, 10**6), min_size=8, max_size=8).map(
    lambda lengths: Case("x", {"lengths": lengths}, "fuzz")
)
print([case.id for case in generate_cases(cases, count=50, first=7)])
explore(cases, lambda case: print(case.id), count=400, first=7)
"""
    printed = [
        subprocess.run(
            [sys.executable, "-c", script, *more],
            check=True, capture_output=True, text=True, cwd=tmp_path,
        ).stdout
        for more in ([], ["numbers"])
    ]  # fmt: skip
    assert printed[0] == printed[1]
    assert printed[0]
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == [
        "full_of_numbers.py"
    ]


def test_no_garbage_collection_hook_remains():
    """Python prints a Ctrl-C that falls into one, and loses it."""
    program = """
import gc
from hypothesis import given, strategies as st
from tlmatrix.fuzz.generation import generate_cases
from tlmatrix.matrix import Case

def case(rows):
    hooks.extend(gc.callbacks)
    return Case("x", {"rows": rows}, "fuzz")

hooks = []
assert len(generate_cases(st.integers(1, 9).map(case), count=5, first=1)) == 5
assert not hooks and not gc.callbacks

@given(st.integers())
def own(_):
    pass

own()
assert len(gc.callbacks) == 1, "somebody's own tests still time it"
assert len(generate_cases(st.integers(1, 9).map(case), count=5, first=1)) == 5
assert len(gc.callbacks) == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
