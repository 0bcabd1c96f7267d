import pytest


@pytest.fixture(autouse=True)
def no_other_options(monkeypatch):
    """Drafts fork once less for each spec that is tried: `run/test_other_options.py` is of that."""
    monkeypatch.setattr("tlmatrix.run.execution.check_other_options", lambda *_: [])
