"""Kernels with roles are right and silent; without any one of their waits and arrives they are not.

A deletion must be reported under some schedule, or change nothing under fifty.
"""

import pytest
import torch
from deletions import fates, schedules
from role_kernels import EXAMPLES

from tlmatrix.interpreter import interpret, interpreted, scheduled

# Deletions that change nothing, by kernel: what they waited for has always happened.
HARMLESS = {"tma one iteration": 2}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_right_kernel_is_right_and_silent_under_every_schedule(name):
    example = EXAMPLES[name]
    torch.manual_seed(0)
    inputs = example.inputs()
    with interpret(arch=example.arch, sanitize=True) as run:
        kernel = interpreted(example.traced(), out_idx=[-1])
        for schedule, seed in schedules():
            with scheduled(schedule, seed=seed):
                got = kernel(*inputs)
            torch.testing.assert_close(got, example.expected(inputs), rtol=1e-4, atol=1e-4)
    assert run.reports == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_deleting_any_one_wait_or_arrive_is_reported_or_without_effect(name):
    example = EXAMPLES[name]
    torch.manual_seed(0)
    found = [d.fate for d in fates(example.traced(), example.inputs(), arch=example.arch)]
    assert set(found) <= {"reported", "no effect"}
    assert found.count("no effect") == HARMLESS.get(name, 0)
