import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """No test reads or leaves rows in the user's cache."""
    monkeypatch.setenv("TLMATRIX_CACHE", str(tmp_path_factory.mktemp("cache")))
