"""The scripts and tests of a checkout of TileLang, and how the table of overrides runs them."""

import ast
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import yaml

__all__ = ["OVERRIDES", "Program", "load_programs", "read_overrides", "working_copy"]

OVERRIDES = Path(__file__).with_name("overrides.yaml")
FOLDERS = ("examples", "testing")
KEYS = {"arguments", "arch", "replace", "skip", "seconds", "lower", "theirs"}


@dataclass(frozen=True)
class Program:
    """A script or a test file, by its path in the checkout.

    Attributes:
        is_test: whether pytest runs it.
        arguments: its command line, or more of pytest's.
        arch: the architecture it is run for.
        replace: text of the file, and what takes its place in the working copy.
        skip: the reason why it does not run.
        seconds: its time limit, if not that of all.
        lower: whether TileLang lowers each kernel as well.
        theirs: by pattern of names of tests, why a failure is not the interpreter's.
    """

    path: str
    is_test: bool = False
    arguments: tuple[str, ...] = ()
    arch: str = "sm_90a"
    replace: dict[str, str] = field(default_factory=dict)
    skip: str = ""
    seconds: float | None = None
    lower: bool = False
    theirs: dict[str, str] = field(default_factory=dict)


def read_overrides(path: Path = OVERRIDES) -> dict[str, dict]:
    """The table of overrides by pattern.

    Raises:
        ValueError: for a key that does not exist.
    """
    table = yaml.safe_load(path.read_text()) or {}
    for pattern, entry in table.items():
        unknown = set(entry) - KEYS
        if unknown:
            raise ValueError(f"{path.name}: {pattern}: unknown keys {sorted(unknown)}")
    return table


def load_programs(checkout: Path, overrides: dict[str, dict]) -> list[Program]:
    """Scripts of `examples/` and test files of `testing/python`, in order of path."""
    scripts = [p for p in (checkout / "examples").rglob("*.py") if _is_script(p)]
    tests = [
        p for p in (checkout / "testing" / "python").rglob("test_*.py") if "def test_" in _text(p)
    ]
    paths = (str(path.relative_to(checkout)) for path in sorted(scripts) + sorted(tests))
    return [_program(path, overrides, checkout) for path in paths]


def _is_script(path: Path) -> bool:
    """Whether a file does something when it is run, beyond definitions and imports."""
    if path.name in ("conftest.py", "__init__.py"):
        return False
    body = ast.parse(_text(path)).body
    return any(
        isinstance(node, (ast.For, ast.Assert))
        or (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
        or (isinstance(node, ast.Expr) and _calls(node.value))
        or (isinstance(node, ast.Assign) and _calls(node.value) and "kernel" in ast.unparse(node))
        for node in body
    )


def _calls(node: ast.expr) -> bool:
    """Whether an expression calls more than settings."""
    settings = ("disable", "set_", "enable", "append", "insert", "manual_seed", "basicConfig")
    return isinstance(node, ast.Call) and not any(
        word in ast.unparse(node.func) for word in settings
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _program(path: str, overrides: dict[str, dict], checkout: Path) -> Program:
    """The program with all entries that match it, later ones on top of earlier ones."""
    entry: dict = {}
    for pattern, more in overrides.items():
        if path.startswith(pattern) or Path(path).match(pattern):
            entry = {**entry, **more}
    text = _text(checkout / path)
    entry["is_test"] = Path(path).name.startswith("test_") and "def test_" in text
    entry["arguments"] = tuple(shlex.split(str(entry.get("arguments", ""))))
    if entry["is_test"] and "raises(" in text:
        entry.setdefault("lower", True)
    return Program(path, **entry)


def working_copy(
    checkout: Path, folder: Path, programs: list[Program], overrides: dict[str, dict] | None = None
) -> dict[str, str]:
    """Copy the checkout's programs to `folder` with the replacements of the table.

    Args:
        checkout: TileLang's repository.
        folder: the working copy.
        programs: with their replacements.
        overrides: the table, for modules that programs import and that are none.

    Returns:
        By path, what is wrong with the replacements of a program.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in FOLDERS:
        if (checkout / name).is_dir():
            shutil.copytree(checkout / name, folder / name)
    if (checkout / "pyproject.toml").exists():
        shutil.copy(checkout / "pyproject.toml", folder)
    faults = {}
    replacements = {path: entry.get("replace", {}) for path, entry in (overrides or {}).items()}
    replacements |= {program.path: program.replace for program in programs}
    for path, replaced in replacements.items():
        file = folder / path
        if not replaced or not file.is_file():
            continue
        text = _text(file)
        for old, new in replaced.items():
            if old not in text:
                faults[path] = f"overrides.yaml: the file does not contain {old!r}"
            text = text.replace(old, new)
        file.write_text(text)
    return faults
