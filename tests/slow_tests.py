"""The table of slow tests: whole kernels, commands with workers or many cases, and nvcc."""

from pathlib import Path

__all__ = ["SLOW", "TESTS", "slow_rank"]

TESTS = Path(__file__).parent
SLOW = (
    "backend/test_specs_assemble.py",
    "test_specs_interpreted.py",
    "docs/test_documents.py",
    "mutants",
    "draft",
    "test_wheel.py",
    "backend/test_compile_ahead.py",
    "strangers",
    "backend/test_compile.py",
    "test_plugin.py",
    "commands/test_run_command.py",
    "distributed/test_ranks_in_processes.py",
    "backend/test_gpus.py",
    "distributed/test_compile_ranks.py",
    "interpreter/watch/test_sanitized_kernels.py",
    "kernels",
    "interpreter/sync/test_role_mutants.py",
    "commands",
    "fuzz/test_fuzz_items.py",
    "fuzz/test_lost_cases.py",
    "run/test_faults.py",
    "upstream",
    "bench/test_bench_runs.py",
    "bench/test_bench_ranks.py",
    "benchmarks",
    "test_coverage_runs.py",
    "test_torchrun.py",
)
"""Files and folders of slow tests, the longest first: the order in which workers start them."""


def slow_rank(path: Path) -> int:
    """Return the position of a test file in `SLOW`; the length of `SLOW` for other files."""
    name = path.relative_to(TESTS).as_posix()
    matches = (rank for rank, slow in enumerate(SLOW) if f"{name}/".startswith(f"{slow}/"))
    return next(matches, len(SLOW))
