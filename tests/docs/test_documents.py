"""Every command in the documents does what the document says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import blocks, play

ROOT = Path(__file__).parents[2]


@pytest.fixture
def env():
    """A reader's shell: the environment's scripts on the path, one thread, at 80 columns."""
    scripts = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
        # What `-n auto` is: the tests beside this one have the other cores, and each worker pays
        # seven seconds of a core for its imports.
        "PYTEST_XDIST_AUTO_NUM_WORKERS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def test_readme_finds_the_bug_of_its_example(tmp_path, env):
    assert play(ROOT / "README.md", tmp_path, env, skip=("make", "pip")) == 3


def test_first_spec_leads_from_nothing_to_a_tested_kernel(tmp_path, env):
    assert play(ROOT / "docs/start/first-spec.md", tmp_path, env, skip=("pip install",)) >= 8


def test_new_writes_specs_that_pass_and_find_what_is_broken_afterwards(tmp_path, env):
    assert play(ROOT / "docs/guides/kernel-you-did-not-write.md", tmp_path, env) == 6


def test_a_decode_kernel_and_a_padded_operator_are_bound_and_fixed(tmp_path, env):
    assert play(ROOT / "docs/guides/attention-layouts.md", tmp_path, env) == 4


def test_a_packed_kernel_is_bound_and_fixed(tmp_path, env):
    assert play(ROOT / "docs/guides/packed-kernel.md", tmp_path, env) == 2


def test_every_form_of_entry_is_bound(tmp_path, env):
    assert play(ROOT / "docs/guides/own-kernel.md", tmp_path, env) == 4


def test_stored_timings_read_as_the_document_shows(tmp_path, env):
    assert play(ROOT / "docs/guides/bench.md", tmp_path, env) == 3


def test_own_problems_judge_and_lint(tmp_path, env):
    assert play(ROOT / "docs/guides/own-problems.md", tmp_path, env) == 4


def test_an_operator_of_several_ranks_is_tested_and_a_fault_names_its_rank(tmp_path, env):
    assert play(ROOT / "docs/guides/several-gpus.md", tmp_path, env) == 2


def test_regressions_are_replayed_and_retired(tmp_path, env):
    assert play(ROOT / "docs/guides/regressions.md", tmp_path, env) == 3


def test_a_program_of_several_ranks_runs_and_its_bugs_are_told(tmp_path, env):
    assert play(ROOT / "docs/guides/simulated-ranks.md", tmp_path, env) == 3


@pytest.mark.timeout(600)  # several commands, each of which starts processes
@pytest.mark.parametrize(
    ("document", "commands"),
    [
        ("docs/start/break-a-kernel.md", 4),
        ("docs/guides/explain.md", 2),
        ("docs/guides/fuzzing.md", 1),
        ("docs/guides/distributed-kernels.md", 3),
    ],
)
def test_commands_in_a_clone_do_what_the_document_says(document, commands, tmp_path, env):
    for folder in ("kernels", "specs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    # The reader's clone is installed in place: its kernels are what the specs name.
    link = tmp_path / ".installed"
    link.mkdir()
    (link / "tlmatrix_kernels").symlink_to(tmp_path / "kernels")
    env["PYTHONPATH"] = str(link)
    assert play(ROOT / document, tmp_path, env, skip=("make", "pip", "git clone")) >= commands


def test_make_targets_that_the_readme_names_exist():
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^\$ make ([a-z]+)", text, re.MULTILINE))
    assert "setup" in targets
    for target in targets:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "document", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda path: path.name
)
def test_relative_links_lead_somewhere(document):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_a_document_that_lies_is_caught(tmp_path, env):
    lie = tmp_path / "lie.md"
    lie.write_text("```console\n$ echo one; echo two\ntwo\none\n```\n")
    with pytest.raises(AssertionError, match="no line like 'one'"):
        play(lie, tmp_path, env)
    lie.write_text('```console exit="3"\n$ true\n```\n')
    with pytest.raises(AssertionError, match="exit 0, not 3"):
        play(lie, tmp_path, env)
    lie.write_text('```console numbers="any"\n$ echo 3 rows of 1.5e-06\n4 rows of 2\n```\n')
    assert play(lie, tmp_path, env) == 1
    lie.write_text('```console numbers="any"\n$ echo 3 rows\n4 columns\n```\n')
    with pytest.raises(AssertionError, match="no line like '4 columns'"):
        play(lie, tmp_path, env)
    assert len(blocks(lie)) == 1
