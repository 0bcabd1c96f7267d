"""Environments with another TileLang release: made once, and anew after an interruption."""

from importlib.metadata import version

import pytest

from tlmatrix.commands import upgrade as environments
from tlmatrix.commands.upgrade import InstallError, import_error, python_with


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TLMATRIX_CACHE", str(tmp_path / "cache"))


def installer(text):
    """An installer whose TileLang has this source."""

    def install(python, _release):
        calls.append(python)
        package = next(python.parents[1].glob("lib/python*/site-packages")) / "tilelang"
        package.mkdir()
        (package / "__init__.py").write_text(text)

    calls = []
    return install, calls


def test_an_environment_is_made_once_and_sees_the_packages_of_this_python():
    install, calls = installer("import numpy, rich; __version__ = '9.9.1'")
    python = python_with("9.9.1", install=install)
    assert python_with("9.9.1", install=install) == python
    assert calls == [python]
    assert import_error(python, "9.9.1") == ""


def test_an_environment_that_was_not_completed_is_made_anew():
    def interrupted(python, _release):
        (python.parents[1] / "left").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        python_with("9.9.1", install=interrupted)
    assert list(environments.environments_folder().glob("*/left"))
    install, calls = installer("__version__ = '9.9.1'")
    python = python_with("9.9.1", install=install)
    assert calls == [python]
    assert not (python.parents[1] / "left").exists()


def test_the_installed_release_needs_none():
    install, calls = installer("")
    python_with(version("tilelang"), install=install)
    assert calls == []
    assert not environments.environments_folder().exists()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("__version__ = '9.9.2'", "__init__.py is imported, which is 9.9.2"),
        ("import ctypes; ctypes.CDLL('libnone.so.1')", "OSError: libnone.so.1"),
        ("import os; os._exit(1)", "it crashed"),
    ],
)
def test_a_release_that_cannot_be_imported(source, reason):
    python = python_with("9.9.1", install=installer(source)[0])
    assert reason in import_error(python, "9.9.1")


def test_what_an_environment_has_of_its_own():
    lines = [
        "apache-tvm-ffi>=0.1.2,~=0.1.0",
        "z3-solver<4.15.5,>=4.13.0",
        "numpy>=1.23.5",
        "not-a-package-here>=2",
        "numpy<0.1",
        'setuptools; platform_system == "Nowhere"',
        'matplotlib; extra == "vis"',
    ]
    needed = list(environments._needed(lines))
    assert [str(each) for each in needed] == [*lines[:2], *lines[3:5]]
    assert str(environments._lowest(needed)) == "0.1.2"
    assert environments._lowest(needed[1:]) is None


def test_the_error_of_the_installer_is_the_message(monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(InstallError, match=r"tilelang==0\.0\.1: .*No matching distribution"):
        python_with("0.0.1")
