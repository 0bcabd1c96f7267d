"""A search without a reference: finds a bug at odd lengths, saves and replays it."""

import sys
from pathlib import Path

import pytest

from tlmatrix.fuzz.corpus import Verdict, save, verdict
from tlmatrix.fuzz.search import fuzz_spec
from tlmatrix.matrix import Case
from tlmatrix.run.plan import plan
from tlmatrix.run.result import Status
from tlmatrix.spec import load_spec

NORM = """
name: norm
problem:
  inputs:
    x: {shape: [rows, cols], dtype: float32}
    w: {shape: [cols], dtype: float32}
  outputs: {y: {shape: [rows, cols]}}
entry: unjudged:normalise
axes: {rows: [2, 8], cols: [8], values: [normal]}
ORACLE
fuzz: {axes: {rows: 1..20}}
regressions: []   # none yet
"""
ENTRIES = """
import torch


def plainly(x, w):
    wide = x.float()
    return (wide / wide.square().mean(-1, keepdim=True).sqrt() * w.float()).to(x.dtype)


def normalise(x, w):
    y = plainly(x, w)
    if len(x) % 2 and len(x) > 1 and MISTAKEN:  # the last row as if it were the one before
        y[-1] = plainly(x[-2:-1], w)[0] * 1.5
    return y
"""


@pytest.mark.parametrize(
    ("oracle", "check"),
    [
        ("relations: [{permute: rows}, finite]", "relations"),
        ("agree: [{entry: 'unjudged:plainly'}]", "agreement"),
    ],
)
def test_bug_at_odd_lengths_is_found_shrunk_saved_and_replayed(
    tmp_path, monkeypatch, runner, oracle, check
):
    module = tmp_path / f"unjudged_{check}.py"
    module.write_text(ENTRIES + "\n\nMISTAKEN = True\n")
    path = Path(tmp_path, "norm.yaml")
    path.write_text(NORM.replace("ORACLE", oracle).replace("unjudged", module.stem))
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = load_spec(path)
    for case in plan(spec).expansion:  # Lengths of the tier hide it.
        assert runner.run(spec, case).status is Status.PASSED
    (found,) = fuzz_spec(spec, runner, examples=40).found
    smallest = found.smallest
    assert smallest.findings[0].check == check
    assert smallest.values["rows"] == 3
    saved = Case(spec.name, smallest.values)
    assert save(path, [saved], failed={saved: smallest.findings[0].title}) == (saved,)
    assert "\nregressions:   # none yet\n  - {case: {rows: 3, " in path.read_text()
    kept = next(iter(plan(load_spec(path)).expansion))
    assert (kept, kept.origin) == (saved, "regression")
    assert verdict(runner.run(load_spec(path), kept)) is Verdict.FAILED
    sys.modules[module.stem].MISTAKEN = False
    assert verdict(runner.run(load_spec(path), kept)) is Verdict.FIXED
