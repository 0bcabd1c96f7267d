"""`tlmatrix doctor`, `history`, `copy-spec`, `completion`, and `run --builtin`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tlmatrix.backend import gpus
from tlmatrix.commands import machine
from tlmatrix.commands.specs import builtin_specs
from tlmatrix.exit_codes import ExitCode
from tlmatrix.run import read_records

SPECS = Path(__file__).parents[2] / "specs"


def test_every_spec_of_the_kernels_is_built_in():
    assert {name: path.resolve() for name, path in builtin_specs().items()} == {
        path.stem: path for path in SPECS.glob("*.yaml")
    }


def test_a_builtin_spec_runs_and_is_copied(project):
    words = ("-n", "0", "--no-fuzz", "--backend", "interpreter", "--tier", "smoke")
    outcome = project.tlmatrix("run", "--builtin", "atomics", *words, code=ExitCode.OK)
    assert "atomics" in outcome.out
    outcome = project.tlmatrix("copy-spec", "rms_norm", "-o", "mine/norm.yaml")
    assert outcome.out == "mine/norm.yaml: run it with `tlmatrix run mine/norm.yaml`\n"
    copied, text = Path("mine/norm.yaml").read_text(), (SPECS / "rms_norm.yaml").read_text()
    assert copied.endswith(text.partition("\n")[2])
    assert not copied.startswith("# yaml-language-server")  # a path of the checkout
    again = project.tlmatrix("copy-spec", "rms_norm", "-o", "mine/norm.yaml", code=ExitCode.USAGE)
    assert "mine/norm.yaml exists" in again.out
    outcome = project.tlmatrix("copy-spec", "rms_norm", "gemm")
    assert sorted(path.name for path in Path("specs").iterdir()) == ["gemm.yaml", "rms_norm.yaml"]
    listed = project.tlmatrix("copy-spec").out.splitlines()
    assert [line.split()[0] for line in listed] == sorted(builtin_specs())


def test_an_unknown_builtin_spec_has_a_suggestion(project):
    outcome = project.tlmatrix("run", "--builtin", "gqa_varlan", code=ExitCode.USAGE)
    assert "gqa_varlen" in outcome.out
    outcome = project.tlmatrix("copy-spec", "nothing_like_it", code=ExitCode.USAGE)


def test_history_of_a_project(project):
    project.spec(how="[right, wrong]", rows="[5]")
    assert project.tlmatrix("history", ".").code == ExitCode.USAGE
    for name in ("a", "b"):
        project.tlmatrix("run", "scale.yaml", "-n", "0", "--results", f"{name}.jsonl")
    outcome = project.tlmatrix("history", ".", code=ExitCode.OK)
    assert [line.split()[-1] for line in outcome.out.splitlines()[1:]] == ["a.jsonl", "b.jsonl"]
    first = next(r for r in read_records(Path("a.jsonl")).results if r.failed)
    outcome = project.tlmatrix("history", ".", "--case", first.node)
    assert outcome.out.count("  failed  ") == 2
    outcome = project.tlmatrix("history", ".", "--sql", "SELECT SUM(failed) AS bad FROM runs")
    assert outcome.out.split() == ["bad", "4"]
    outcome = project.tlmatrix("history", ".", "--sql", "DROP TABLE runs", code=ExitCode.USAGE)


def test_doctor_says_what_runs_where(project):
    project.spec()
    outcome = project.tlmatrix("doctor")
    assert "tilelang" in outcome.out
    assert "what runs where:" in outcome.out
    assert "interpreter" in outcome.out


def test_doctor_finds_problems(project, monkeypatch):
    (project.folder / "specs").mkdir()
    project.spec().rename(project.folder / "specs/one.yaml")
    text = project.spec("two").read_text()
    (project.folder / "two.yaml").unlink()
    (project.folder / "specs/two.yaml").write_text(text + "wrong_key: 1\n")
    monkeypatch.setenv("TLMATRIX_BACKEND", "cuda")
    monkeypatch.setattr(gpus, "count_gpus", lambda: 0)
    monkeypatch.setitem(machine._TESTED, "no-such-package", ("1",))
    outcome = project.tlmatrix("doctor", code=ExitCode.FINDINGS)
    assert "!!  no-such-package not installed" in outcome.out
    assert "1 of 2 have errors: specs/two.yaml" in outcome.out
    assert "cuda is configured, and there is no GPU" in outcome.out
    assert outcome.out.endswith("3 problems\n")


def test_doctor_reports_a_gpu_that_pytorch_does_not_see(monkeypatch):
    monkeypatch.setattr(gpus, "count_gpus", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (line,) = machine._gpus()
    assert (line.mark, line.text[:9]) == ("!!", "2 by NVML")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (line,) = machine._gpus()
    assert line.mark == "--"
    assert "hidden by CUDA_VISIBLE_DEVICES=''" in line.text


def test_bash_completes_commands_options_and_choices(project):
    pytest.importorskip("shtab", reason="needs shtab: pip install shtab")
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    script = project.tlmatrix("completion", "bash").out
    (project.folder / "tlmatrix.sh").write_text(script)

    def complete(*words):
        program = (
            'source tlmatrix.sh; COMP_WORDS=(tlmatrix "$@"); COMP_CWORD=$#; '
            "$(complete -p tlmatrix | sed 's/.*-F \\([^ ]*\\).*/\\1/') tlmatrix; "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", program, "bash", *words], cwd=project.folder,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.split()

    assert complete("rep") == ["repro", "replay", "report"]
    assert "--junitxml" in complete("run", "--ju")
    assert complete("run", "--backend", "inter") == ["interpreter"]
    project.spec("scale")
    assert "scale.yaml" in complete("check", "sca")
