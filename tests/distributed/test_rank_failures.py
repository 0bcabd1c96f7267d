"""What a rank raises arrives as it left, or as a plain error that tells its type and message."""

import pickle
from pathlib import Path

import pytest

from tlmatrix.backend.errors import BindingError, EntryError
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.distributed.failures import Failure, raise_failures
from tlmatrix.spec.issues import Issue

ISSUES = [Issue(Path("a.yaml"), 5, 8, "entry: no gradient"), Issue(Path("a.yaml"), 7, 1, "axes")]


class MeasuredError(ValueError):
    """Makes its message of what it is given, as `pickle` does not expect."""

    def __init__(self, size):
        super().__init__(f"{size} rows are too many")


class HoldingError(ValueError):
    """Holds what cannot be pickled."""

    def __init__(self, message):
        super().__init__(message)
        self.callback = lambda: None


def sent(error):
    return pickle.loads(pickle.dumps(Failure.of(error).picklable()))


def test_what_is_wrong_with_a_spec_keeps_its_places():
    with pytest.raises(BindingError) as raised:
        raise_failures({0: sent(BindingError(ISSUES))}, 2)
    assert list(raised.value.issues) == ISSUES


def test_findings_stay_findings():
    finding = Finding("numeric", "out is wrong")
    with pytest.raises(FindingsError) as raised:
        raise_failures({1: sent(FindingsError([finding]))}, 2)
    assert raised.value.findings == (finding,)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("no such shard"), "ValueError: no such shard"),
        (MeasuredError(7), "RuntimeError: MeasuredError: 7 rows are too many"),
        (HoldingError("at 3"), "RuntimeError: HoldingError: at 3"),
    ],
)
def test_an_error_of_any_class_keeps_its_type_and_message(error, shown):
    with pytest.raises(EntryError, match=f"^rank 1 of 2: {shown}$"):
        raise_failures({1: sent(EntryError(error))}, 2)
