"""A fault on several ranks is found, saved with its `world`, and replayed."""

from textwrap import dedent

import pytest

from tlmatrix.exit_codes import ExitCode
from tlmatrix.spec import load_spec

_ENTRY = """
import torch
import torch.distributed as dist


def gather(x, rows, group, world, rank):
    counts = [len(part) for part in torch.empty(rows).tensor_split(world)]
    parts = [x.new_empty(count, x.shape[1]) for count in counts]
    padded = x.new_zeros(max(counts), x.shape[1])
    padded[: len(x)] = x
    whole = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(whole, padded, group=group)
    FAULT
    return torch.cat([part[:count] for part, count in zip(whole, counts)])
"""
_FAULTS = {
    "right": "pass",
    "wrong": "whole = whole[::-1] if rank == 2 else whole",
    "raising": "assert world < 3, 'too many'",
}
_SPEC = """
name: gather
problem: collective
entry: ENTRY:gather
axes:
  world: [1, 2]
  operation: [all_gather]
  dtype: [float32]
  rows: [8]
  cols: [4]
  uneven: [balanced]
fuzz:
  axes: {world: 1..5, rows: 1..40}
  examples: {quick: 12}
"""


@pytest.fixture
def spec(project):
    for name, fault in _FAULTS.items():
        (project.folder / f"{name}_gather.py").write_text(dedent(_ENTRY.replace("FAULT", fault)))
    return project.folder / "gather.yaml"


def test_a_regression_of_three_ranks_is_failed_then_fixed_or_an_error(project, spec):
    spec.write_text(_SPEC.replace("ENTRY", "wrong_gather"))
    project.tlmatrix("fuzz", "gather.yaml", "-n", "1", "--save", code=ExitCode.FINDINGS)
    (saved,) = load_spec(spec).regressions
    assert saved.case["world"] == 3, "the fewest ranks that show it"

    replayed = project.tlmatrix("replay", "gather.yaml", "-n", "0", code=ExitCode.FINDINGS)
    failed = next(line for line in replayed.out.splitlines() if line.startswith("FAILED"))
    assert failed.endswith("world=3"), replayed.out

    text = spec.read_text()
    spec.write_text(text.replace("wrong_gather", "right_gather"))
    replayed = project.tlmatrix("replay", "gather.yaml", "-n", "0", code=ExitCode.OK)
    assert failed.replace("FAILED ", "FIXED  ") in replayed.out.splitlines()

    spec.write_text(text.replace("wrong_gather", "raising_gather"))
    replayed = project.tlmatrix("replay", "gather.yaml", "-n", "0", code=ExitCode.FINDINGS)
    lines = replayed.out.splitlines()
    at = lines.index(failed.replace("FAILED ", "ERROR  "))
    assert "raises AssertionError: too many" in "\n".join(lines[at:])
