"""Reports of compute-sanitizer become findings of the case; an incomplete one is a finding too."""

import stat
import sys

import pytest

from tlmatrix.run import CaseResult, Status
from tlmatrix.run.compute_sanitizer import ComputeSanitizer, ComputeSanitizerError, parse_report

_MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at scale_kernel(float *, const float *)+0x70 in scale.cu:12
=========     by thread (33,0,0) in block (2,0,0)
=========     Address 0x7f2b7fe00084 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2b7fe00000 of size 132 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame: [0x2e3f1f] in /usr/lib/x86_64-linux-gnu/libcuda.so.1
=========
========= Invalid __global__ write of size 4 bytes
=========     at scale_kernel(float *, const float *)+0x70 in scale.cu:12
=========     by thread (34,0,0) in block (2,0,0)
=========     Address 0x7f2b7fe00088 is out of bounds
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on \
CUDA API call to cudaDeviceSynchronize.
=========     Saved host backtrace up to driver entry point at error
=========
========= Target application returned an error
========= ERROR SUMMARY: 3 errors
"""
_RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at main_kernel+0x6c0 and Read access at \
main_kernel+0x9a0 [4096 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
_INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 2 bytes
=========     at void reduce_kernel<float>(T1 *)+0x1a0
=========     by thread (0,0,0) in block (1,2,0)
=========     Address 0x7f2b7fe00000
=========
========= ERROR SUMMARY: 1 error
"""
_SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block.
=========     at main_kernel+0x2d0
=========     by thread (64,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
_CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def test_an_invalid_write_of_two_threads_is_one_finding():
    (finding,) = parse_report(_MEMCHECK, "memcheck")
    assert finding.title == ("memcheck: Invalid __global__ write of size 4 bytes in scale_kernel")
    assert finding.source == "scale.cu:12"
    assert finding.kernel == "scale_kernel"
    assert finding.block == (2, 0, 0)
    assert finding.where == "thread (33,0,0) of block (2,0,0)"
    assert finding.wrong == 2
    assert "1 bytes after the nearest allocation" in finding.detail
    assert "libcuda" not in finding.detail


@pytest.mark.parametrize(
    ("tool", "text", "title", "kernel"),
    [
        (
            "racecheck",
            _RACECHECK,
            (
                "racecheck: Race reported between Write access at main_kernel and Read access at "
                "main_kernel"
            ),
            "main_kernel",
        ),
        (
            "initcheck",
            _INITCHECK,
            "initcheck: Uninitialized __global__ memory read of size 2 bytes in reduce_kernel",
            "reduce_kernel",
        ),
        (
            "synccheck",
            _SYNCCHECK,
            "synccheck: Barrier error detected. Divergent thread(s) in block in main_kernel",
            "main_kernel",
        ),
    ],
)
def test_reports_of_other_tools(tool, text, title, kernel):
    (finding,) = parse_report(text, tool)
    assert (finding.title, finding.kernel) == (title, kernel)


def test_a_clean_report_has_no_finding():
    assert parse_report(_CLEAN, "memcheck") == []


def _sanitizer(folder, report):
    """A program in place of compute-sanitizer that writes a recorded report."""
    program = folder / "compute-sanitizer"
    program.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"open(sys.argv[sys.argv.index('--log-file') + 1], 'w').write({report!r})\n"
        "print(sys.argv[1:])\nsys.exit(1)\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return ComputeSanitizer.named("memcheck")


_PASSED = CaseResult("scale", "scale.yaml", "rows=5", Status.PASSED, key="k", backend="cuda")


def test_a_case_gets_the_findings_of_its_report(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    judged = _sanitizer(tmp_path, _MEMCHECK).judge(_PASSED)
    assert judged.status is Status.FAILED
    assert judged.findings[0].title.startswith("memcheck: Invalid __global__ write")
    assert _sanitizer(tmp_path, _CLEAN).judge(_PASSED) is _PASSED
    cut = _sanitizer(tmp_path, _MEMCHECK.rpartition("========= ERROR SUMMARY")[0]).judge(_PASSED)
    assert [finding.pattern for finding in cut.findings][-1] == "no report"
    assert "repro', 'scale.yaml::rows=5'" in cut.findings[-1].detail


def test_a_missing_program_and_an_unknown_tool_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ComputeSanitizerError, match="not on PATH"):
        ComputeSanitizer.named("all")
    with pytest.raises(ComputeSanitizerError, match="no tool 'memchek'"):
        ComputeSanitizer.named("memchek")
