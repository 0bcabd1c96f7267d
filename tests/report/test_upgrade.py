"""`tlmatrix upgrade`: what changes between two releases."""

import io

import pytest
from rich.console import Console

from report.synthetic import case, recorded
from tlmatrix.check.finding import Finding
from tlmatrix.report.compare import Side, Upgrade, kernel_table, summary_table, upgrade_lines
from tlmatrix.run import Status


def fact(kernel="forward", arch="sm_90a", **figures):
    base = {"kernel": kernel, "arch": arch, "registers": 64, "shared_memory": 1024, "ptx": 100}
    return base | {"key": f"{kernel}{arch}{figures}"} | figures


def upgrade(tmp_path, old, new, backend="compile"):
    runs = [recorded(tmp_path / f"{i}.jsonl", each) for i, each in enumerate((old, new))]
    return Upgrade(Side("0.1", runs={backend: runs[0]}), Side("0.2", runs={backend: runs[1]}))


def printed(table):
    out = io.StringIO()
    Console(file=out, width=80).print(table)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    return [" ".join(line.split()) for line in lines]


def test_the_table_has_the_kernels_that_change_and_the_largest_change(tmp_path):
    same = fact("backward", registers=255, spills=8)
    wgmma = {"instructions": {"wgmma.mma_async": 4}}
    before = [fact(**wgmma), fact(registers=70, key="b"), same]
    after = [fact(registers=72), fact(registers=71, key="b2"), same | {"key": "other"}]
    found = upgrade(tmp_path, [case(1, kernels=before)], [case(1, kernels=after)])
    assert printed(kernel_table(found)) == [
        "kernel arch changed registers spills shared PTX",
        "forward sm_90a 2/2 64→72 0 1024 100",
    ]
    lines = list(upgrade_lines(found))
    assert lines[0] == "3 kernels compared, 1 unchanged"
    assert lines[1] == "  wgmma.mma_async: forward sm_90a 4→0"
    assert not found.worse
    changed = [pair["changed"] for pair in found.to_json()["kernels"]]
    assert changed == [["registers", "instructions"], ["registers"], []]


def test_no_table_without_a_change(tmp_path):
    kernels = [fact(), fact(arch="sm_80")]
    cases = [case(1, kernels=kernels), case(2, kernels=kernels)]
    found = upgrade(tmp_path, cases, cases)
    assert kernel_table(found) is None
    # Kernels that cases share count once.
    assert len(found.pairs) == 2
    assert "kernels traced 2 2" in printed(summary_table(found))


def test_device_functions_of_one_kernel_are_compared_one_by_one(tmp_path):
    old = [fact(key="k"), fact(key="k", registers=32)]
    new = [fact(key="k"), fact(key="k", registers=40)]
    found = upgrade(tmp_path, [case(1, kernels=old)], [case(1, kernels=new)])
    assert printed(kernel_table(found))[1] == "forward sm_90a 1/2 32→40 0 1024 100"


def test_a_kernel_that_is_not_traced_or_compiled_is_named_with_the_reason(tmp_path):
    entry = Finding(
        check="entry",
        title="traced for sm_90a, raises AttributeError: module tvm has no attribute tirx",
    )
    failed = case(1, Status.FAILED, findings=(entry,), kernels=[fact(arch="sm_80")])
    error = fact(arch="sm_80", error="lower", registers=0)
    passed = case(1, kernels=[fact(), error])
    found = upgrade(tmp_path, [failed], [passed])
    lines = "\n".join(upgrade_lines(found))
    reason = "0.1: not traced: AttributeError: module tvm has no attribute tirx"
    assert f"forward sm_90a, 1 kernel: {reason}" in lines
    rows = printed(summary_table(found))
    assert "kernels traced 1 2" in rows
    assert "kernels compiled 1 1" in rows
    assert "cases passed, compile 0 of 1 1 of 1" in rows
    assert not found.worse  # fixed by the new release
    assert upgrade(tmp_path / "back", [passed], [failed]).worse


def test_other_values_and_failures_of_a_backend(tmp_path):
    old = [case(1), case(2), case(3, error_ratio=0.25)]
    new = [case(1), case(2, Status.FAILED), case(3, error_ratio=0.26)]
    found = upgrade(tmp_path, old, new, "interpreter")
    assert found.worse
    assert [node.endswith("n=3") for node in found.other_values("interpreter")] == [False, True]
    lines = "\n".join(upgrade_lines(found))
    assert "newly failing: 1" in lines
    assert "2 cases with another error ratio" in lines
    data = found.to_json()
    assert data["backends"]["interpreter"]["newly failing"] == [new[1].node]


@pytest.mark.parametrize("backend", ["cuda", "interpreter"])
def test_times_of_cases_are_not_compared(backend, tmp_path):
    """They are those of compilers and checks: a release is timed by `bench`."""
    old, new = [case(1, seconds=3.0)], [case(1, seconds=9.0)]
    lines = "\n".join(upgrade_lines(upgrade(tmp_path, old, new, backend)))
    assert "slower" not in lines


def test_a_release_that_cannot_be_imported(tmp_path):
    new = Side("0.2", runs={"compile": recorded(tmp_path / "a.jsonl", [case(1)])})
    found = Upgrade(Side("0.1", "OSError: libcuda.so.1"), new)
    assert found.worse  # nothing was compared
    assert "imports no yes" in printed(summary_table(found))
    assert "cases passed, compile did not run 1 of 1" in printed(summary_table(found))
    assert list(upgrade_lines(found)) == ["0.1 cannot be imported: OSError: libcuda.so.1"]
