"""`tlmatrix upgrade`, with the installed release on both sides."""

import json
from importlib.metadata import version

from tlmatrix.commands import upgrade
from tlmatrix.commands.upgrade import InstallError
from tlmatrix.exit_codes import ExitCode

INTERPRETED = ("--backend", "interpreter", "-n", "0")
RELEASE = version("tilelang")


def test_both_releases_run_and_the_same_command_continues(project):
    project.spec(how="[right, wrong]", rows="[5]")
    first = project.tlmatrix("upgrade", "..", ".", *INTERPRETED, code=ExitCode.OK)
    assert "cases passed, interpreter  2 of 4  2 of 4" in first.out
    assert "0 newly failing, 0 fixed, 2 still failing" in first.out
    folders = list(project.folder.glob(f".tlmatrix/upgrade-{RELEASE}-{RELEASE}-*"))
    assert len(folders) == 1
    # Cases that passed run again under the release whose results are lost, alone.
    (folders[0] / "new-interpreter.jsonl").unlink()
    again = project.tlmatrix("upgrade", "..", ".", *INTERPRETED, "--json", code=ExitCode.OK)
    logs = [(folders[0] / f"{place}-interpreter.log").read_text() for place in ("old", "new")]
    assert ["2 cases in " in log for log in logs] == [True, False]
    assert "4 cases in " in logs[1]
    data = json.loads(again.out[again.out.index("{\n") :])
    assert data["old"]["release"] == RELEASE
    assert data["backends"]["interpreter"]["still failing"] == 2
    selected = project.tlmatrix("upgrade", "..", ".", *INTERPRETED, "-k", "how=wrong")
    assert "2 cases in both runs" in selected.out
    assert len(list(project.folder.glob(".tlmatrix/upgrade-*"))) == 2


def test_arguments(project, monkeypatch):
    project.spec()
    outcome = project.tlmatrix("upgrade", "..", ".", "--arch", "hopper", code=ExitCode.USAGE)
    assert "--arch hopper: unknown architecture" in outcome.out
    for releases in ("0.1.15", "0.1.14...0.1.15", "old..new"):
        outcome = project.tlmatrix("upgrade", releases, ".", code=ExitCode.USAGE)
        assert f"upgrade {releases}: write OLD..NEW" in outcome.out

    def refused(_release, _starting):
        raise InstallError("no such release")

    monkeypatch.setattr(upgrade, "python_with", refused)
    outcome = project.tlmatrix("upgrade", "9.9..", ".", code=ExitCode.USAGE)
    assert "TileLang 9.9 cannot be installed: no such release" in outcome.out


def test_a_release_that_cannot_be_imported_or_run(project, monkeypatch):
    project.spec(how="[right]", rows="[5]")
    false = project.folder / "python"
    false.write_text("#!/bin/sh\necho 'ImportError: no libnvrtc' >&2\nexit 1\n")
    false.chmod(0o755)
    here = upgrade.python_with
    monkeypatch.setattr(upgrade, "python_with", lambda r, s: false if r == "0.1.7" else here(r, s))
    outcome = project.tlmatrix("upgrade", "0.1.7..", ".", *INTERPRETED, code=ExitCode.FINDINGS)
    assert "0.1.7 cannot be imported: ImportError: no libnvrtc" in outcome.out
    monkeypatch.setattr(upgrade, "import_error", lambda *_: "")
    outcome = project.tlmatrix("upgrade", "0.1.7..", ".", *INTERPRETED, code=ExitCode.FINDINGS)
    assert "0.1.7, interpreter: did not run: ImportError: no libnvrtc" in outcome.out


def test_times_are_taken_after_all_values_and_again_if_they_were_interrupted(project, monkeypatch):
    project.spec(how="[right]", rows="[5]")
    project.tlmatrix("run", ".", "-n", "0", "--results", str(project.folder / "values.jsonl"))
    stands_in = project.folder / "python"
    stands_in.write_text(
        f"""#!/bin/sh
cd {project.folder}
echo "$3" >> calls
for last; do :; done
case "$3" in
  run) cp values.jsonl "$last" ;;
  bench) echo begun > "$last"; test -e interrupted || {{ touch interrupted; exit 130; }} ;;
esac
"""
    )
    stands_in.chmod(0o755)
    monkeypatch.setattr(upgrade, "python_with", lambda _release, _starting: stands_in)
    monkeypatch.setattr(upgrade, "import_error", lambda _python, _release: "")
    command = ("upgrade", "0.1.13..0.1.14", ".", "--backend", "cuda", "-n", "0")
    interrupted = project.tlmatrix(*command, code=ExitCode.INTERRUPTED)
    assert "cases passed, cuda" in interrupted.out
    calls = project.folder / "calls"
    assert calls.read_text().split() == ["run", "run", "bench"]
    assert not list(project.folder.glob(".tlmatrix/upgrade-*/*-bench.json"))
    project.tlmatrix(*command)
    assert calls.read_text().split()[3:] == ["run", "run", "bench", "bench"]
    assert len(list(project.folder.glob(".tlmatrix/upgrade-*/*-bench.json"))) == 2
