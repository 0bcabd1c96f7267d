"""The project's own kernels give no report, whatever the shape.

`benchmarks/sanitized.py` runs thousands of such cases; these are the first of them.
"""

import pytest
from sanitized_cases import sanitized_case


@pytest.mark.parametrize("number", range(14))
def test_a_generated_call_gives_no_report(number):
    case = sanitized_case(number)
    assert case.reports() == [], case.name


def test_every_kind_is_among_the_first_cases():
    kinds = {sanitized_case(number).name.split()[0] for number in range(14)}
    assert kinds == {"packed", "dense", "gemm", "rms_norm"}
