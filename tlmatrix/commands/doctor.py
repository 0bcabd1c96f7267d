"""`tlmatrix doctor`: what this machine has, what will run where, and how to get what is missing."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tlmatrix.exit_codes import ExitCode
from tlmatrix.options.table import BACKEND, SPECS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

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
    from tlmatrix.cache_files import configured_folder, tilelang_folder

    cores = len(os.sched_getaffinity(0))
    yield Line("ok", "cores", f"{cores}; `-n auto` starts up to {cores} workers")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield Line("ok", "memory", f"{pages / 2**30:.0f} GiB")
    yield _folder("cache", configured_folder(), "TLMATRIX_CACHE")
    yield _folder("TileLang cache", tilelang_folder(), "TILELANG_CACHE_DIR")
    yield _folder("results", config.results, "results in [tool.tlmatrix]")


def _folder(name: str, folder: Path, setting: str) -> Line:
    from tlmatrix.cache_files import folder_problem

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
