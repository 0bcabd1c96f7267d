import os

import pytest

from tlmatrix.cli import main


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """Entries of 1000 bytes, the first used longest ago."""
    monkeypatch.setenv("TLMATRIX_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path / "tilelang"))
    kernels = tmp_path / "tilelang" / "0.1.15" / "linux-x86_64" / "kernels"
    paths = [
        tmp_path / "own" / "covering" / "a.json",
        kernels / "b" / "executable.so",
        tmp_path / "own" / "assembly" / "c.json",
        kernels / "d" / "executable.so",
    ]
    for age, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (1e9 + age, 1e9 + age))
    (kernels.parent / ".staging").mkdir()
    (tmp_path / "own" / "assembly" / "e.lock").touch()
    return paths


def test_caches_are_shown(caches, capsys):
    assert main(["cache"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "1 entries" in next(line for line in lines if line.startswith("assembled kernels"))
    assert "2 entries" in next(line for line in lines if line.startswith("TileLang 0.1.15 kernels"))
    assert lines[-1].split() == ["total", "4", "entries", "3.9", "KB"]
    assert all(path.exists() for path in caches)


def test_what_was_used_longest_ago_is_removed_first(caches, capsys):
    assert main(["cache", "--prune", "2.5K"]) == 0
    assert "removed 2 entries, 2.0 KB" in capsys.readouterr().out
    assert [path.exists() for path in caches] == [False, False, True, True]
    assert not caches[1].parent.exists()


def test_a_size_is_checked(caches, capsys):
    assert main(["cache", "--prune", "much"]) == 2
    assert "must be a size such as 500M" in capsys.readouterr().err
    assert all(path.exists() for path in caches)
