"""Thresholds of host code: which constants they are, and calls with lower ones."""

import sys

import pytest

from spec_results import results_of
from tlmatrix.backend.thresholds import lower_thresholds, thresholds_of
from tlmatrix.run import Status
from tlmatrix.run import harness as harness_module

CODE = """
import torch
from thresholds_limits import IMPORTED, SHIFTED

MIN_WORK = 10**8
TABLE = {"product": {2: 6e10, 4: 8e10}, "sum": {2: 1e11}}
CHUNK = 2**22
SLICE = 1 << 22
FLOOR = 2**16
LIMIT = 2**31 - 1
ASSERTED = 2**30
SEED = 0x5EED1234
SIZE = 2**20
EQUAL = 2**20
DEFAULT = 2**20
IN_KERNEL = 2**20
SMALL = 128
UNUSED = 2**20


def T_prim_func(function):
    return function


def work(x, rows, world, count=DEFAULT):
    table = TABLE["product"]
    line = max((ranks for ranks in table if ranks <= world), default=min(table))
    if x.numel() > LIMIT or rows == EQUAL:
        raise ValueError(f"at most {LIMIT} elements")
    assert x.numel() <= ASSERTED
    torch.empty(SIZE)
    seed = SEED * 2 + rows
    least = max(-(-rows // 4), -(-SLICE // 8), 1)
    grown = max(FLOOR, rows)
    large = x.numel() >= MIN_WORK or 2.0 * rows >= table[line] or rows < IMPORTED
    return large, rows // CHUNK, rows > SMALL


@T_prim_func
def kernel(x):
    return x if x.numel() > IN_KERNEL else 0
"""
LIMITS = """
IMPORTED = 10**7
SHIFTED = 10**7
"""
OTHER = """
from thresholds_limits import SHIFTED as shifted

def other(x):
    return x > shifted, x + shifted
"""
ENTRIES = """
import torch

MIN_WORK = 2**24


def right(x):
    return torch.cat([each * 3 for each in x]) if x.numel() >= MIN_WORK else (x * 3).flatten()


def wrong(x):
    return torch.cat([each * 2 for each in x]) if x.numel() >= MIN_WORK else (x * 3).flatten()


def fails(x):
    return x[len(x)] if x.numel() >= MIN_WORK else (x * 3).flatten()


def refuses(x):
    if x.numel() >= MIN_WORK:
        assert len(x) >= 2**20
        return x
    return (x * 3).flatten()


def reference(x):
    return (x * 3).flatten()
"""
SPEC = """
name: tripled
problem:
  inputs: {{x: {{shape: [rows, 64], dtype: float32}}}}
  outputs: [y]
  reference: thresholds_entries:reference
entry: thresholds_entries:{entry}
axes: {{rows: [40, 64, 300]}}
checks: [numeric, relations]
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    texts = {"code": CODE, "limits": LIMITS, "other": OTHER, "entries": ENTRIES}
    for name, text in texts.items():
        (tmp_path / f"thresholds_{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, f"thresholds_{name}", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in texts:
        sys.modules.pop(f"thresholds_{name}", None)


def test_constants_that_host_code_compares_with_sizes_are_thresholds(modules):
    import thresholds_code
    import thresholds_other

    found = {each.name: each for each in thresholds_of("thresholds_code:work")}
    assert found.keys() == {"MIN_WORK", "TABLE", "CHUNK", "SLICE", "FLOOR", "IMPORTED"}
    assert found["IMPORTED"].module == "thresholds_limits"
    assert found["IMPORTED"].imported == (("thresholds_code", "IMPORTED"),)
    assert thresholds_other.shifted == thresholds_code.SHIFTED


def test_thresholds_are_lowered_everywhere_and_restored(modules):
    import thresholds_code
    import thresholds_limits

    before = {**vars(thresholds_code)}
    with lower_thresholds("thresholds_code:work", 1024) as names:
        assert "TABLE" in names
        assert 1024 <= thresholds_code.MIN_WORK < 2048
        assert thresholds_code.CHUNK == 1024
        assert all(1024 <= each < 2048 for each in thresholds_code.TABLE["product"].values())
        assert thresholds_code.IMPORTED == thresholds_limits.IMPORTED < 2048
        assert before["LIMIT"] == thresholds_code.LIMIT
    assert thresholds_code.TABLE is before["TABLE"]
    assert vars(thresholds_code) == before
    assert thresholds_limits.IMPORTED == 10**7


def test_libraries_are_not_read():
    assert thresholds_of("torch.nn.functional:softmax") == ()
    assert thresholds_of("no_such_module:entry") == ()


@pytest.mark.parametrize(
    ("entry", "title"),
    [
        ("right", None),
        ("refuses", None),
        ("wrong", "thresholds: y: largest error"),
        ("fails", "thresholds: raised EntryError: IndexError"),
    ],
)
def test_the_path_for_large_sizes_is_taken(entry, title, modules, monkeypatch):
    monkeypatch.setattr(harness_module, "_LOWERED", 1)
    results = results_of(SPEC.format(entry=entry), modules / "tripled.yaml")
    titles = [finding.title for each in results for finding in each.findings]
    if title is None:
        assert {each.status for each in results} == {Status.PASSED}
    else:
        assert titles
        assert all(each.startswith(title) for each in titles)
        details = [finding.detail for each in results for finding in each.findings]
        assert "lower thresholds of host code: MIN_WORK divided by a power of two" in details[0]
