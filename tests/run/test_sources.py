"""The sources of a spec: its modules with all that they import, and no others."""

import os

import pytest

from tlmatrix.run.sources import SourceWatch, differences, read_sources

_FILES = {
    "k.yaml": "entry: k:run\nproblem: {reference: 'pkg.ref:f'}\n",
    "k.py": "import os, helper\nfrom pkg import (  # the parts\n    part,\n)\nimport torch\n",
    "helper.py": "def later():\n    import lazy; import numpy\n",
    "lazy.py": "",
    "other.py": "",
    "pkg/__init__.py": "",
    "pkg/ref.py": "from .sub.deep import \\\n    value\n",
    "pkg/part.py": "from . import sibling\nfrom .. import outside\n",
    "pkg/sibling.py": "",
    "pkg/unused.py": "",
    "pkg/sub/deep.py": "import k",
}
_REACHED = {
    "k.yaml", "k.py", "helper.py", "lazy.py", "pkg/__init__.py", "pkg/ref.py", "pkg/part.py",
    "pkg/sibling.py", "pkg/sub/deep.py",
}  # fmt: skip


def _written(folder):
    for name, text in _FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "k.yaml"


def test_the_modules_of_a_spec_and_all_they_import_are_its_sources(tmp_path):
    found = read_sources(_written(tmp_path / "a"))
    files = {name for name in found.parts if "." in name}
    assert files == _REACHED
    assert {"tlmatrix", "tilelang", "torch"} <= found.parts.keys()
    # The same files elsewhere, as on another machine.
    assert read_sources(_written(tmp_path / "b")).digest == found.digest


@pytest.mark.parametrize("name", sorted(_FILES))
def test_an_edit_of_a_source_is_a_change_and_no_other_is(tmp_path, name):
    spec = _written(tmp_path)
    watch = SourceWatch()
    watch.of(spec)
    (tmp_path / name).write_text(_FILES[name])
    os.utime(tmp_path / name, (1, 1))
    assert not watch.changes(spec)  # only touched
    (tmp_path / name).write_text(_FILES[name] + "\n# edited\n")
    noticed = name in _REACHED and name != "k.yaml"  # which this process has loaded
    assert watch.changes(spec) == (f"{name} changed" if noticed else "")
    assert (read_sources(spec).digest == watch.of(spec).digest) == (name not in _REACHED)


def test_a_process_that_starts_after_an_edit_compares_with_the_start_of_the_run(tmp_path):
    spec = _written(tmp_path)
    began = {str(spec.resolve()): read_sources(spec).parts}
    (tmp_path / "lazy.py").write_text("edited = True")
    assert SourceWatch((), began).changes(spec) == "lazy.py changed"
    spec.write_text(spec.read_text() + "# edited")
    assert SourceWatch((), began).changes(spec) == "k.yaml changed, lazy.py changed"
    (tmp_path / "lazy.py").unlink()
    assert "lazy.py was removed" in SourceWatch((), began).changes(spec)


def test_versions_and_files_that_come_and_go_are_differences():
    before = {"a.py": "1", "torch": "2.8", "old.py": "3"}
    after = {"a.py": "1", "torch": "2.9", "new.py": "3"}
    words = "new.py was added, old.py was removed, torch 2.8 became 2.9"
    assert differences(before, after) == words
    assert not differences(before, before)


def test_tilelang_in_the_search_path_is_no_source(tmp_path, monkeypatch):
    spec = _written(tmp_path / "a")
    (tmp_path / "a" / "k.py").write_text("import tilelang\n")
    checkout = tmp_path / "checkout" / "tilelang"
    checkout.mkdir(parents=True)
    (checkout / "__init__.py").write_text("import vendored\n")
    (tmp_path / "checkout" / "vendored.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "checkout")
    found = read_sources(spec).parts
    assert not {"tilelang/__init__.py", "vendored.py"} & found.keys()
