from datetime import date

import pytest
from spec_text import spec_of

from tlmatrix.matrix import Case, expired, known_bug
from tlmatrix.spec import SpecError

SPEC = spec_of(
    """
    axes: {head_dim: [64, 256], window: [none, 3]}
    known_bugs:
      - {when: head_dim == 256 and arch == 'sm_80', issue: "#12", expires: 2027-03-01}
      - {when: backend == 'interpreter', issue: "#13", expires: 2027-04-01, mode: quarantine}
      - {when: head_dim == 256, issue: "#14", expires: 2027-05-01}
    """
)


def case(head_dim, window=None):
    return Case("tried", {"head_dim": head_dim, "window": window})


@pytest.mark.parametrize(
    ("head_dim", "arch", "backend", "issue", "mode"),
    [
        (256, "sm_80", "interpreter", "#12", "tolerate"),
        (256, "sm_90", "interpreter", "#13", "quarantine"),
        (64, "sm_80", "interpreter", "#13", "quarantine"),
        (256, "sm_90", "cuda", "#14", "tolerate"),
    ],
)
def test_the_first_entry_that_applies_is_the_known_bug(head_dim, arch, backend, issue, mode):
    bug = known_bug(SPEC, case(head_dim), {"arch": arch, "backend": backend})
    assert (bug.issue, bug.mode) == (issue, mode)


def test_a_case_no_entry_is_about_has_no_known_bug():
    assert known_bug(SPEC, case(64), {"arch": "sm_80", "backend": "cuda"}) is None


def test_an_entry_lasts_to_its_day_and_is_an_error_at_its_date_after_it():
    assert expired(SPEC, date(2027, 3, 1)) == ()
    (issue,) = expired(SPEC, date(2027, 3, 2))
    assert str(issue).startswith("tried.yaml:7:72: the known bug #12 ")
    assert "expired on 2027-03-01" in issue.message
    assert len(expired(SPEC, date(2030, 1, 1))) == 3


def test_today_is_the_default():
    spec = spec_of(
        """
        axes: {a: [1]}
        known_bugs: [{when: a == 1, issue: "#1", expires: 2020-01-01}]
        """
    )
    assert len(expired(spec)) == 1


def test_a_predicate_without_an_answer_is_an_error_at_its_place():
    spec = spec_of(
        """
        axes: {window: [none, 3]}
        known_bugs:
          - {when: window > 2, issue: "#1", expires: 2027-01-01}
        """
    )
    bad = Case("tried", {"window": None})
    with pytest.raises(SpecError, match=r"tried.yaml:7:\d+: 'window > 2' has no .*window=none"):
        known_bug(spec, bad, {"arch": "sm_90", "backend": "cuda"})
    with pytest.raises(SpecError, match="unknown name 'arch'"):
        known_bug(SPEC, case(256), {"backend": "cuda"})


def test_an_entry_without_an_answer_for_bad_values_is_not_about_an_invalid_input():
    spec = spec_of(
        """
        axes: {window: [none, 3]}
        known_bugs:
          - {when: window is not none and window > 2, issue: "#1", expires: 2027-01-01}
        """
    )
    environment = {"arch": "sm_90", "backend": "cuda"}
    assert known_bug(spec, Case("tried", {"window": "wide"}, "invalid"), environment) is None
    assert known_bug(spec, Case("tried", {"window": 3}, "invalid"), environment) is not None
    with pytest.raises(SpecError):
        known_bug(spec, Case("tried", {"window": "wide"}), environment)
