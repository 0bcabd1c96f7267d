import sys

import pytest

from tlmatrix.draft.sources import drafts_for


@pytest.fixture(autouse=True)
def no_other_options(monkeypatch):
    """Drafts fork once less for each spec that is tried: `run/test_other_options.py` is of that."""
    monkeypatch.setattr("tlmatrix.run.execution.check_other_options", lambda *_: [])


@pytest.fixture
def drafts(request, tmp_path, monkeypatch):
    """Drafts of the function `total` of a module `totals`: `OPERATOR` of the test's module."""
    (tmp_path / "totals.py").write_text(request.module.OPERATOR)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield drafts_for("totals:total", call="f(torch.randn(31, 21, 9, 11))")
    sys.modules.pop("totals", None)
