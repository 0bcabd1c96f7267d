"""`tlmatrix doctor`, `cache`, `completion`: what this machine has and keeps, and its shell."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tlmatrix.cache_files import cache_folder, configured_folder, folder_problem, tilelang_folder
from tlmatrix.commands.arguments import command_line
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.options.table import BACKEND, SPECS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tlmatrix.config import Config

Mark = Literal["ok", "--", "!!"]
_TESTED = {"tilelang": ("0.1.15",), "torch": ("2.11", "2.12", "2.13")}
_OPTIONAL = (
    ("triton", "baselines of `tlmatrix bench` in Triton", "pip install triton"),
    ("cuda.bindings", "kernels on several GPUs", "pip install 'tlmatrix[distributed]'"),
    ("pynvml", "clocks and NVLink of GPUs", "pip install 'tlmatrix[distributed]'"),
    ("ray", "runs on several machines", "pip install 'tlmatrix[ray]'"),
)
_LEAST_DISK = 1 << 30
"""Bytes below which a disk for caches is nearly full."""


@dataclass(frozen=True)
class Line:
    """A fact: `ok`; `--` for something optional that is missing; `!!` for a problem."""

    mark: Mark
    name: str
    text: str
    remedy: str = ""


def doctor(_arguments: argparse.Namespace, config: Config) -> ExitCode:
    """Print what was found; exit code 1 if there is a problem."""
    problems = 0
    for title, lines in (
        ("software", _software()),
        ("GPUs", _gpus()),
        ("CUDA toolkit", _toolkit()),
        ("machine", _machine(config)),
        ("project", _project(config)),
        ("what runs where", _backends(config)),
    ):
        print(f"{title}:")
        for line in lines:
            problems += line.mark == "!!"
            print(f"  {line.mark}  {line.name:<14} {line.text}")
            if line.remedy:
                print(f"      {'':<14} {line.remedy}")
    print(f"\n{problems or 'no'} problem{'' if problems == 1 else 's'}")
    return ExitCode.FINDINGS if problems else ExitCode.OK


def _software() -> Iterator[Line]:
    yield Line("ok", "tlmatrix", f"{version('tlmatrix')}, {Path(__file__).parents[1]}")
    yield Line("ok", "python", f"{platform.python_version()}, {sys.executable}")
    for name, tested in _TESTED.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            yield Line("!!", name, "not installed", f"pip install {name}")
            continue
        known = any(found.startswith(each) for each in tested)
        note = "" if known else f"; tlmatrix was tested with {', '.join(tested)}"
        try:
            __import__(name)
        except Exception as error:  # noqa: BLE001 - whatever a broken installation raises
            words = (str(error).splitlines() or [""])[0]
            remedy = f"pip install --force-reinstall {name}"
            yield Line("!!", name, f"{found}, but importing it raises: {words}", remedy)
            continue
        yield Line("ok" if known else "--", name, f"{found}{note}")
    for module, purpose, remedy in _OPTIONAL:
        if _installed(module):
            yield Line("ok", module, purpose)
        else:
            yield Line("--", module, f"not installed; for {purpose}", remedy)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _gpus() -> Iterator[Line]:
    from tlmatrix.backend.gpus import all_visible_gpus, count_gpus

    present = count_gpus()
    if not present:
        remedy = "kernels run on the interpreter, which needs no GPU"
        yield Line("--", "GPUs", "none (NVML finds no driver or no GPU)", remedy)
        return
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        if not all_visible_gpus():
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            yield Line("--", "GPUs", f"{present}, hidden by CUDA_VISIBLE_DEVICES={hidden!r}")
            return
        build = torch.version.cuda or "no CUDA"
        remedy = "install a CUDA build of PyTorch that the driver supports: https://pytorch.org"
        words = f"{present} by NVML, but PyTorch ({build}) sees none"
        yield Line("!!", "GPUs", words, remedy)
        return
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        arch = f"sm_{facts.major}{facts.minor}"
        memory = facts.total_memory / 2**30
        words = f"{facts.name}, {arch}, {memory:.0f} GiB, {facts.multi_processor_count} SMs"
        built = arch in torch.cuda.get_arch_list()
        remedy = "" if built else f"this PyTorch was not built for {arch}; install one that is"
        yield Line("ok" if built else "!!", f"GPU {index}", words, remedy)
    yield Line("ok", "driver", f"{_driver()}, PyTorch for CUDA {torch.version.cuda}")


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "of unknown version"
    words = text.splitlines()[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), text)


def _toolkit() -> Iterator[Line]:
    remedy = "pip install nvidia-cuda-nvcc, or set CUDA_HOME; for `--backend compile` and GPUs"
    try:
        from tlmatrix.backend.assembly.toolkit import find_toolkit

        toolkit = find_toolkit()
    except Exception as error:  # noqa: BLE001 - tilelang may be broken, which is reported above
        yield Line("!!", "nvcc", f"not found: {error}", remedy)
        return
    if toolkit is None:
        yield Line("--", "nvcc", "not found", remedy)
        return
    known = sorted(toolkit.architectures, key=lambda name: int("0" + name.removeprefix("sm_")))
    yield Line("ok", "nvcc", f"{toolkit.version}, {toolkit.nvcc}")
    yield Line("ok", "assembles for", f"{known[0]} to {known[-1]}" if known else "no architecture")


def _machine(config: Config) -> Iterator[Line]:
    cores = len(os.sched_getaffinity(0))
    yield Line("ok", "cores", f"{cores}; `-n auto` starts up to {cores} workers")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield Line("ok", "memory", f"{pages / 2**30:.0f} GiB")
    yield _folder("cache", configured_folder(), "TLMATRIX_CACHE")
    yield _folder("TileLang cache", tilelang_folder(), "TILELANG_CACHE_DIR")
    yield _folder("results", config.results, "results in [tool.tlmatrix]")


def _folder(name: str, folder: Path, setting: str) -> Line:
    if problem := folder_problem(folder, private=name == "cache"):
        remedy = f"make it a folder that only you can write, or set {setting}"
        return Line("!!", name, f"{folder}: {problem}", remedy)
    free = shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free
    used = sum(path.stat().st_size for path in _files(folder))
    text = f"{folder}, {used / 2**20:.0f} MiB, {free / 2**30:.0f} GiB free"
    if free < _LEAST_DISK:
        return Line("!!", name, text, "free some of the disk")
    return Line("ok", name, text)


def _files(folder: Path) -> Iterable[Path]:
    """The files below a folder, up to 100,000."""
    number = 0
    for base, _folders, names in os.walk(folder):
        for name in names:
            number += 1
            path = Path(base) / name
            if number > 100_000:
                return
            if path.is_file():
                yield path


def _project(config: Config) -> Iterator[Line]:
    from tlmatrix.spec.issues import SpecError
    from tlmatrix.spec.loader import find_specs, load_spec

    file = config.root / "pyproject.toml"
    where = f"{file}" if file.is_file() else f"no pyproject.toml in {config.root} or above it"
    yield Line("ok" if file.is_file() else "--", "configuration", where)
    try:
        paths = find_specs([os.path.relpath(config.root / path) for path in config[SPECS]])
    except FileNotFoundError:
        paths = []
    if not paths:
        remedy = "`tlmatrix new` writes a first one; `tlmatrix copy-spec` lists built-in ones"
        yield Line("--", "specs", f"none in {', '.join(config[SPECS])}", remedy)
        return
    wrong = []
    for path in paths:
        try:
            load_spec(path)
        except SpecError:
            wrong.append(str(path))
    if wrong:
        words = f"{len(wrong)} of {len(paths)} have errors: {', '.join(wrong[:3])}"
        yield Line("!!", "specs", words, "`tlmatrix check` prints the errors")
    else:
        yield Line("ok", "specs", f"{len(paths)} in {', '.join(config[SPECS])}")


def _backends(config: Config) -> Iterator[Line]:
    from tlmatrix.backend import backend_class
    from tlmatrix.backend.gpus import all_visible_gpus

    gpus = len(all_visible_gpus())
    toolkit = not any(line.mark != "ok" for line in _toolkit())
    auto = backend_class(config[BACKEND]).name
    yield Line("ok", config[BACKEND], f"`tlmatrix run` uses the backend {auto}")
    yield Line("ok", "interpreter", "every kernel it models, with sanitizers and coverage")
    yield Line("ok", "processes", "kernels on several ranks, a CPU process each")
    if gpus:
        words = f"kernels of the architectures above; specs with up to {gpus} ranks"
        yield Line("ok", "cuda", words)
        yield Line("ok", "bench", "`tlmatrix bench` times kernels")
    else:
        yield Line("--", "cuda", "needs a GPU")
        yield Line("--", "bench", "needs a GPU")
    if toolkit:
        yield Line("ok", "compile", "registers, spills and instructions of kernels, without a GPU")
    else:
        yield Line("--", "compile", "needs nvcc")
    if config[BACKEND] == "cuda" and not gpus:
        remedy = 'set backend = "auto" in [tool.tlmatrix], or unset TLMATRIX_BACKEND'
        yield Line("!!", "backend", "cuda is configured, and there is no GPU", remedy)


# Caches -----------------------------------------------------------------------------------------

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Entry:
    """A file or folder of a cache: its bytes, and when it was last written or read."""

    path: Path
    bytes: int
    used: float


def cache(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Print the caches; with `--prune SIZE`, remove the entries used longest ago beyond that size.

    Raises:
        UsageError: the size is invalid.
    """
    folders = _folders()
    found = {name: list(entries_of(path)) for name, path in folders.items()}
    width = max(map(len, found))
    for name, entries in found.items():
        size = _shown(sum(entry.bytes for entry in entries))
        print(f"{name:<{width}}  {len(entries):>7,} entries  {size:>9}  {folders[name]}")
    total = [entry for entries in found.values() for entry in entries]
    print(f"{'total':<{width}}  {len(total):>7,} entries  {_shown(sum(e.bytes for e in total)):>9}")
    if arguments.prune is not None:
        removed = prune(total, _bytes(arguments.prune))
        freed = _shown(sum(entry.bytes for entry in removed))
        print(f"removed {len(removed):,} entries, {freed}")
    return ExitCode.OK


def entries_of(folder: Path) -> Iterator[Entry]:
    """The entries of a cache; temporary files and locks of other processes are none."""
    try:
        children = sorted(folder.iterdir())
    except OSError:
        return
    for child in children:
        if child.suffix in {".lock", ".tmp"} or child.name.startswith("."):
            continue
        files = [each for each in child.rglob("*") if each.is_file()] if child.is_dir() else [child]
        try:
            facts = [each.stat() for each in files]
        except OSError:
            continue  # removed meanwhile
        used = max((max(fact.st_mtime, fact.st_atime) for fact in facts), default=0.0)
        yield Entry(child, sum(fact.st_size for fact in facts), used)


def prune(entries: list[Entry], most: int) -> list[Entry]:
    """Remove the entries used longest ago until at most `most` bytes are left; the removed ones.

    A kernel of a running process stays loaded; a later one compiles it again.
    """
    left = sum(entry.bytes for entry in entries)
    removed = []
    for entry in sorted(entries, key=lambda each: each.used):
        if left <= most:
            break
        if entry.path.is_dir():
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            entry.path.unlink(missing_ok=True)
        left -= entry.bytes
        removed.append(entry)
    return removed


def _folders(environment: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """The caches: those of tlmatrix, and TileLang's compiled kernels of each of its versions."""
    own = cache_folder(environment)
    found = {
        "covering arrays": own / "covering",
        "interpreted programs": own / "programs",
        "assembled kernels": own / "assembly",
        "TileLang releases": own / "environments",
    }
    tilelang = tilelang_folder(environment)
    for path in sorted((*tilelang.glob("*/*/kernels"), *tilelang.glob("*/cuda-binaries"))):
        parts = path.relative_to(tilelang).parts
        found[f"TileLang {parts[0]} {parts[-1]}"] = path
    return found


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"--prune {text}: must be a size such as 500M or 10G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _shown(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1 << 10 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1 << 10
    raise AssertionError


# Completion -------------------------------------------------------------------------------------

_FILES = ("PATH", "FILE", "RESULTS", "SPEC", "PROGRAM", "BEFORE", "AFTER", "SCRIPT")
"""The first words of metavars that stand for files."""


def completion(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Print the script."""
    import shtab

    parser = command_line()
    _complete_files(parser)
    print(shtab.complete(parser, shell=arguments.shell))
    return ExitCode.OK


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Let arguments whose metavar names a file complete to files."""
    import shtab

    for action in parser._actions:  # noqa: SLF001 - argparse has no public list
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - likewise
            for command in action.choices.values():
                _complete_files(command)
        elif str(action.metavar or "").startswith(_FILES):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
