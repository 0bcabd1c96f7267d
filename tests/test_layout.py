"""File names of the tests: unique, as pytest needs them, and those in `SLOW` exist."""

from collections import Counter

from slow_tests import SLOW, TESTS


def test_file_names_are_unique():
    names = Counter(path.name for path in TESTS.rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_slow_files_and_folders_exist():
    assert [name for name in SLOW if not (TESTS / name).exists()] == []
