"""Nothing is proven of random programs that a small launch violates.

`brute_force.py` compares hundreds of programs; these few show that the comparison still runs.
"""

from collections import Counter

import pytest
from brute_force import judged, program_of


@pytest.mark.parametrize("first", [0, 100])
def test_what_is_proven_of_random_programs_holds_in_all_small_launches(first, tmp_path):
    counts = Counter()
    for number in range(first, first + 7):
        verdict = judged(program_of(0, number), tmp_path, number)
        assert not verdict.wrong, "\n".join([*verdict.wrong, program_of(0, number).source])
        counts += verdict.answers
    assert counts["proven"] > 20
    assert counts["violated"] > 5, "the launches show faults of these programs"
