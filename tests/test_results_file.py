"""Paths of results files, and how they are shown."""

import os
from pathlib import Path

from tlmatrix.config import Config
from tlmatrix.options.table import RunOptions
from tlmatrix.results_file import make_folder, new_results, shown_path


def test_a_given_file_is_used_and_a_folder_gets_a_new_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = Config(tmp_path, RunOptions({"results": "kept"}))
    assert new_results("mine.jsonl", config, "run") == tmp_path / "mine.jsonl"
    for given, folder in ((None, tmp_path / "kept"), ("elsewhere", tmp_path / "elsewhere")):
        path = new_results(given, config, "fuzz")
        assert path.parent == folder
        assert path.name.startswith("fuzz-")
        assert path.name.endswith(f"-{os.getpid()}.jsonl")


def test_git_ignores_only_the_results_folder_of_the_project(tmp_path):
    config = Config(tmp_path, RunOptions({"results": "kept"}))
    make_folder(tmp_path / "elsewhere" / "a.jsonl", config)
    assert not list(tmp_path.iterdir())
    make_folder(tmp_path / "kept" / "a.jsonl", config)
    assert (tmp_path / "kept" / ".gitignore").read_text() == "*\n"
    (tmp_path / "kept" / ".gitignore").write_text("!*.jsonl\n")
    make_folder(tmp_path / "kept" / "a.jsonl", config)
    assert (tmp_path / "kept" / ".gitignore").read_text() == "!*.jsonl\n"


def test_paths_in_the_working_directory_are_shown_relative_to_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown_path(tmp_path / "a" / "b.jsonl") == str(Path("a") / "b.jsonl")
    assert shown_path(Path("/elsewhere/b.jsonl")) == "/elsewhere/b.jsonl"
