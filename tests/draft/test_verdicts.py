"""What results of cases tell of a draft."""

from dataclasses import replace
from types import SimpleNamespace

from tlmatrix.check.finding import Finding
from tlmatrix.draft.text import write_spec
from tlmatrix.draft.verdicts import agrees, relax, why_refused, worst
from tlmatrix.spec.loader import load_spec

OPERATOR = """
def total(x):
    return x.sum((1, 2, 3))
"""


def test_of_sizes_that_are_left_out_the_wrong_ones_are_named(drafts):
    """Of others the caller learns by a message."""

    def result(rows, check, title, pattern=""):
        findings = (Finding(check, title, pattern=pattern),) if check else ()
        return SimpleNamespace(values={"rows": rows}, findings=findings, failed=bool(check))

    draft = replace(drafts(), multiples={"rows": 64})
    refused = result(1, "entry", "raises ValueError", "refuses")
    launch = result(1, "launch", "cannot be launched")
    wrong = result(65, "numeric", "y: 1 element is wrong")
    reasons = [why_refused(draft, each) for each in (refused, launch, wrong, result(64, "", ""))]
    named = "rows=65 is not refused, and is wrong: numeric: y: 1 element is wrong"
    assert reasons[2] == worst(reasons) == named
    assert (worst(reasons[:1]), worst([])) == ("raises ValueError", "")
    # A size that passes is not why another value of another axis is wrong.
    assert not why_refused(draft, wrong, result(65, "", ""))
    # Nor does a size tell of what the seed of a case selects.
    assert not why_refused(draft, result(65, "determinism", "with output gradients: raised …"))
    # The draft has the dtype of one call.
    words = "y is int32, expected float32, as inputs are; to declare it: …"
    assert why_refused(draft, result(64, "numeric", words)) == words
    # A GPU refuses the launch.
    large = result(64, "sanitizers", "budget: the kernel needs 300000 bytes")
    assert why_refused(draft, large) == "budget: the kernel needs 300000 bytes"


def test_right_code_need_not_keep_a_nan_from_what_a_mask_hides(drafts, tmp_path):
    finding = SimpleNamespace(check="propagation", title="out: 3 elements change")
    draft, lines = relax(drafts(), [SimpleNamespace(findings=[finding])])
    assert lines == ["  without propagation, as out: 3 elements change"]
    write_spec(draft, tmp_path / "s.yaml")
    assert "propagation" not in load_spec(tmp_path / "s.yaml").checks
    assert relax(draft, [SimpleNamespace(findings=[finding])]) == (draft, [])


def test_a_reference_agrees_whatever_else_is_found(drafts):
    def result(status, *checks):
        return SimpleNamespace(status=status, findings=[SimpleNamespace(check=c) for c in checks])

    assert agrees(result("passed"))
    assert agrees(result("failed", "sanitizers", "relations"))
    assert not agrees(result("failed", "sanitizers", "numeric"))
    assert not agrees(result("error", "entry"))
    assert not agrees(result("timeout"))
