"""Every command in the documents prints what the document shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import blocks, play

import preloaded_python

ROOT = Path(__file__).parents[2]


@pytest.fixture
def env():
    """A reader's shell: the environment's scripts on the path, one thread, at 80 columns."""
    scripts = os.pathsep.join([preloaded_python.scripts(), str(Path(sys.executable).parent)])
    return {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
        # What `-n auto` is: the tests beside this one have the other cores.
        "PYTEST_XDIST_AUTO_NUM_WORKERS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Else workers warn that they cannot rewrite plugins, which preloaded processes have.
        "PYTEST_ADDOPTS": "--assert=plain",
    }


COMMANDS = {
    "README.md": 3,
    "docs/start/first-spec.md": 9,
    "docs/start/your-repository.md": 4,
    "docs/guides/own-kernel.md": 4,
    "docs/guides/packed-kernel.md": 2,
    "docs/guides/attention-layouts.md": 4,
    "docs/guides/kernel-you-did-not-write.md": 6,
    "docs/guides/own-problems.md": 4,
    "docs/guides/regressions.md": 1,
    "docs/guides/bench.md": 3,
    "docs/guides/several-gpus.md": 2,
    "docs/guides/simulated-ranks.md": 3,
}
"""Documents, and how many commands each has; they run in an empty folder."""

COMMANDS_IN_A_CLONE = {
    "docs/start/break-a-kernel.md": 4,
    "docs/guides/explain.md": 1,
    "docs/guides/fuzzing.md": 1,
    "docs/guides/distributed-kernels.md": 3,
    "docs/explanation/proofs.md": 2,
}
"""The same, of documents whose reader is in a clone of the project, and may change its kernels."""

SKIPPED = ("make", "pip", "git clone")
"""Commands of set-up, which are not run."""


@pytest.mark.timeout(600)  # each command starts processes
@pytest.mark.parametrize("document", COMMANDS)
def test_commands_print_what_the_document_shows(document, tmp_path, env):
    assert play(ROOT / document, tmp_path, env, skip=SKIPPED) == COMMANDS[document]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", COMMANDS_IN_A_CLONE)
def test_commands_in_a_clone_print_what_the_document_shows(document, tmp_path, env):
    for folder in ("kernels", "specs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    # The reader's clone is installed in place: its kernels are what the specs name.
    link = tmp_path / ".installed"
    link.mkdir()
    (link / "tlmatrix_kernels").symlink_to(tmp_path / "kernels")
    env["PYTHONPATH"] = str(link)
    count = play(ROOT / document, tmp_path, env, skip=SKIPPED)
    assert count == COMMANDS_IN_A_CLONE[document]


def test_every_page_with_commands_is_executed():
    """Pages of results show commands of benchmarks, and are not executed."""
    pages = [*ROOT.glob("docs/start/*.md"), *ROOT.glob("docs/guides/*.md")]
    executed = {*COMMANDS, *COMMANDS_IN_A_CLONE}
    with_commands = {
        str(page.relative_to(ROOT))
        for page in pages
        if any(block.language == "console" or "title" in block.options for block in blocks(page))
    }
    assert with_commands <= executed


def test_make_targets_that_the_readme_names_exist():
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^\$ make ([a-z]+)", text, re.MULTILINE))
    assert "setup" in targets
    for target in targets:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "document", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda path: path.name
)
def test_relative_links_have_targets(document):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_a_document_that_differs_from_the_output_fails(tmp_path, env):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one; echo two\ntwo\none\n```\n")
    with pytest.raises(AssertionError, match="no line like 'one'"):
        play(page, tmp_path, env)
    page.write_text('```console exit="3"\n$ true\n```\n')
    with pytest.raises(AssertionError, match="exit 0, not 3"):
        play(page, tmp_path, env)
    page.write_text('```console numbers="any"\n$ echo 3 rows of 1.5e-06\n4 rows of 2\n```\n')
    assert play(page, tmp_path, env) == 1
    page.write_text('```console numbers="any"\n$ echo 3 rows\n4 columns\n```\n')
    with pytest.raises(AssertionError, match="no line like '4 columns'"):
        play(page, tmp_path, env)
    assert len(blocks(page)) == 1
