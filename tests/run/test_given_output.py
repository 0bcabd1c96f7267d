"""An entry with an argument `out=None` writes its result to the tensor that it is given."""

import sys

import pytest

from tlmatrix.matrix import Case
from tlmatrix.run import Status
from tlmatrix.run.runner import Runner
from tlmatrix.spec import parse_spec

SPEC = """
name: added
problem:
  inputs:
    x: {{shape: [rows, 8], dtype: float32, grad: true}}
    y: {{shape: [rows, 8], dtype: float32}}
  outputs: {outputs}
  reference: given_output_code:{reference}
entry: given_output_code:{entry}
returns: {outputs}
axes: {{rows: [4]}}
"""
CODE = """
import torch

# Entries that were given a tensor.
GIVEN = []


def reference(x, y):
    return x + y


def two_reference(x, y):
    return x + y, x * y


def right(x, y, *, out=None):
    GIVEN.extend(["right"] * (out is not None))
    return torch.add(x, y, out=out)


def returns_none(x, y, *, out=None):
    if out is None:
        return x + y
    GIVEN.append("returns_none")
    out.copy_(x + y)


def without(x, y):
    return x + y


def ignores(x, y, *, out=None):
    return x + y


def last_row_missing(x, y, *, out=None):
    if out is None:
        return x + y
    out[:-1] = (x + y)[:-1]
    return out


def adds_to_it(x, y, *, out=None):
    out = torch.zeros_like(x) if out is None else out
    return out.add_(x).add_(y)


def refuses(x, y, *, out=None):
    if out is not None:
        raise ValueError("out is not supported")
    return x + y


def two(x, y, out=None):
    # `out` names no output, and there are two: it may stand for anything.
    assert out is None
    return x + y, x * y


def named(x, y, out=None):
    GIVEN.extend(["named"] * (out is not None))
    product = x * y
    return torch.add(x, y, out=out), product
"""


@pytest.fixture
def run(code_folder):
    def run(entry, outputs="[z]", reference="reference"):
        text = SPEC.format(entry=entry, outputs=outputs, reference=reference)
        spec = parse_spec(text, code_folder / "added.yaml")
        return Runner("interpreter").run(spec, Case("added", {"rows": 4}))

    return run


@pytest.mark.parametrize("entry", ["right", "returns_none", "without"])
def test_no_finding_for_a_correct_entry(run, entry):
    result = run(entry)
    assert result.status is Status.PASSED, result.findings
    assert (entry in sys.modules["given_output_code"].GIVEN) == (entry != "without")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("ignores", "32 of 32 elements were never written"),
        ("last_row_missing", "8 of 32 elements were never written"),
        ("adds_to_it", "32 of 32 elements were never written"),
        ("refuses", "raised EntryError: ValueError: out is not supported"),
    ],
)
def test_a_result_that_is_not_in_the_given_tensor(run, entry, words):
    result = run(entry)
    assert result.status is Status.FAILED
    (finding,) = result.findings
    assert finding.check == "relations"
    assert finding.title.startswith("given_output: ")
    assert words in finding.title


def test_out_stands_for_the_output_of_that_name(run):
    result = run("named", "[out, p]", "two_reference")
    assert result.status is Status.PASSED, result.findings
    assert "named" in sys.modules["given_output_code"].GIVEN


def test_out_is_not_given_if_it_may_stand_for_several_outputs(run):
    result = run("two", "[z, p]", "two_reference")
    assert result.status is Status.PASSED, result.findings
