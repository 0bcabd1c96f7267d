import json

import pytest
from small_matrices import forbid

from tlmatrix.cache_files import cache_folder
from tlmatrix.matrix import cache
from tlmatrix.matrix.cache import cached_covering_rows
from tlmatrix.matrix.covering import covering_rows
from tlmatrix.matrix.space import Space


def made(constraints=(), values=3):
    return Space({name: tuple(range(values)) for name in "abcd"}, constraints)


@pytest.fixture
def computed(monkeypatch):
    """The spaces that were computed rather than read."""
    calls = []

    def counting(*arguments):
        calls.append(arguments)
        return covering_rows(*arguments)

    monkeypatch.setattr(cache, "covering_rows", counting)
    return calls


def test_rows_are_computed_once(tmp_path, computed):
    first = cached_covering_rows(made(), 2, folder=tmp_path)
    again = cached_covering_rows(made(), 2, folder=tmp_path)
    assert first[0] == again[0] == covering_rows(made(), 2)[0]
    assert first[1].holds
    assert again[1].holds
    assert len(computed) == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda folder: cached_covering_rows(made(), 3, folder=folder),
        lambda folder: cached_covering_rows(made(), 2, 7, folder=folder),
        lambda folder: cached_covering_rows(made(values=2), 2, folder=folder),
        lambda folder: cached_covering_rows(made([forbid("ab", [(0, 0)])]), 2, folder=folder),
    ],
    ids=["strength", "seed", "values", "constraints"],
)
def test_whatever_the_rows_depend_on_is_in_the_key(tmp_path, computed, other):
    cached_covering_rows(made(), 2, folder=tmp_path)
    other(tmp_path)
    assert len(computed) == 2


def test_another_version_of_the_library_has_its_own_rows(tmp_path, computed, monkeypatch):
    cached_covering_rows(made(), 2, folder=tmp_path)
    monkeypatch.setattr(cache, "_library_version", lambda: "99")
    cached_covering_rows(made(), 2, folder=tmp_path)
    assert len(computed) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "",
        lambda text: text[: len(text) // 2],
        lambda _: "\x00\x01",
        lambda _: "null",
        lambda _: "[1, 2]",
        lambda _: "[[0, 0, 0]]",
        lambda _: "[[0, 0, 0, 9]]",
        lambda _: "[[0, 0, 0, true]]",
        lambda text: json.dumps(json.loads(text)[1:]),
        lambda text: json.dumps([[0, 0, 0, 0], *json.loads(text)]),
        lambda _: "[" * 100_000,
    ],
    ids=[
        "empty", "cut", "binary", "null", "flat", "short row", "no such value", "not a number",
        "a row lost", "a row that breaks a constraint", "deep",
    ],
)  # fmt: skip
def test_a_damaged_file_is_ignored_and_written_again(tmp_path, computed, damage):
    space = made([forbid("ab", [(0, 0)])])
    rows, _ = cached_covering_rows(space, 2, folder=tmp_path)
    (path,) = tmp_path.rglob("*.json")
    whole = path.read_text()
    path.write_text(damage(whole))
    assert cached_covering_rows(space, 2, folder=tmp_path)[0] == rows
    assert path.read_text() == whole
    assert len(computed) == 2
    assert len(list(path.parent.iterdir())) == 1  # nothing temporary stays


def test_an_unwritable_cache_folder_is_no_error(tmp_path, computed):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert cached_covering_rows(made(), 2, folder=blocked)[1].holds
    assert cached_covering_rows(made(), 2, folder=blocked)[1].holds
    assert len(computed) == 2


def test_the_folder_is_the_users_choice(tmp_path):
    assert cache_folder({"TLMATRIX_CACHE": str(tmp_path)}) == tmp_path
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "tlmatrix"
    assert cache_folder({}).parts[-2:] == (".cache", "tlmatrix")
