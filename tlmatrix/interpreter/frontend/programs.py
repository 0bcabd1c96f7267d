"""The programs of a kernel: its variants, each generated when it is first needed.

Variants are found in memory, then in the cache on disk, else generated.
"""

from __future__ import annotations

import hashlib
import linecache
import marshal
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from tlmatrix import dtypes, interpreter
from tlmatrix.cache_files import FileCache, cache_folder
from tlmatrix.interpreter import ops, runtime
from tlmatrix.interpreter.errors import InterpreterError, Unsupported
from tlmatrix.interpreter.generate import depends_on_arch, generate
from tlmatrix.interpreter.ir.read import saved
from tlmatrix.interpreter.lowered import lowering
from tlmatrix.interpreter.patching import TRACING
from tlmatrix.interpreter.program import Options
from tlmatrix.interpreter.sync.externs import modelled
from tlmatrix.interpreter.watch.registry import functions

if TYPE_CHECKING:
    from tlmatrix.interpreter.lowered.lowering import Lowered
    from tlmatrix.interpreter.program import Program
    from tlmatrix.interpreter.sync.externs import BlockLaunch

_Made = TypeVar("_Made")


# Caches what is made of a kernel on disk, for all processes that run the same kernels -------------
#
# That is its generated programs, and what its lowered code needs of arguments. A key is a hash of
# the kernel's IR, the options, the sources of the interpreter, and the versions of Python and of
# the libraries.


def program_cache() -> FileCache | None:
    """The cache in use; None if `$TLMATRIX_PROGRAMS` is `off`."""
    if os.environ.get("TLMATRIX_PROGRAMS") == "off" or not _interpreter():
        return None
    return _cache_in(cache_folder() / "programs")


@cache
def _cache_in(folder: Path) -> FileCache:
    return FileCache(folder)


def kept(key: Callable[[], str], kind: type[_Made], make: Callable[[], _Made]) -> _Made:
    """What `make` returns, from the cache if it is there; without a cache no key is needed."""
    store = program_cache()
    if store is None:
        return make()
    name = key()
    found = store.find(name, kind)
    if found is None:
        found = make()
        store.add(name, found)
    return found


def program_key(ir: str, options: Options) -> str:
    """The name of the file of a program, by the JSON of its kernel and its options."""
    from tilelang import tvm

    return content_key(
        ir,
        sorted(options.sanitizers),
        sorted(options.observers),
        [options.guard, options.barriers, options.wide, options.unrounded],
        options.arch,
        [name for name in modelled() if name in ir] if "_extern" in ir else [],
        # TileLang infers layouts under it.
        _texts(tvm.transform.PassContext.current().config),
    )


def lowered_key(ir: str, arch: str, configs: Mapping[str, object]) -> str:
    """The name of the file of what the lowered code of a kernel needs."""
    return content_key(ir, "lowered", arch, _texts(configs))


def lowered(func: Any, arch: str, configs: Mapping[str, Any]) -> Lowered:
    """What TileLang's passes make of a kernel, which takes seconds; kept on disk.

    It depends on TileLang and on the module that calls it, not on the rest of the interpreter.

    Raises:
        Unsupported: TileLang cannot lower the kernel.
    """

    def key() -> str:
        import tilelang

        passes = (sources_key(Path(lowering.__file__)), tilelang.__version__)
        return _hash(saved(func), *passes, arch, _texts(configs))

    return lowering.restored(kept(key, str, lambda: lowering.lower(func, arch, configs).saved()))


def content_key(ir: str, *depends: object) -> str:
    """The name of the file of what follows from a kernel, the interpreter, and `depends`."""
    return _hash(ir, _interpreter(), *depends)


def _hash(ir: str, *depends: object) -> str:
    return hashlib.sha256(f"{depends}\n{ir}".encode()).hexdigest()


def _texts(configs: Mapping[str, object]) -> list[tuple[str, str]]:
    return sorted((str(k), str(v)) for k, v in configs.items())


@cache
def _interpreter() -> str:
    """A hash of the interpreter's sources and of the versions it runs with; "" without sources."""
    import tilelang

    folder = Path(interpreter.__file__).parent
    sources = sources_key(folder)
    versions = (np.__version__, torch.__version__, tilelang.__version__, platform.machine())
    depends = (sources, sources_key(Path(dtypes.__file__)), sys.version, sys.flags.optimize)
    return sources and hashlib.sha256(repr((*depends, *versions)).encode()).hexdigest()


@cache
def sources_key(path: Path) -> str:
    """A hash of the sources of a package, or of a module; "" without any."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(path.parent)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest() if files else ""


# The programs of a kernel: its variants, each generated when it is first needed -------------------
#
# Variants are found in memory, then in the cache on disk (`program_cache`), else generated.


@dataclass(frozen=True)
class LoadedProgram:
    """A compiled program.

    Attributes:
        program: what was generated.
        function: the function of its source.
        filename: what tracebacks call its source.
    """

    program: Program
    function: Callable[..., BlockLaunch | None]
    filename: str

    def located(self, error: Exception, prim_func: Any) -> Exception:
        """The error with the user's line, found through the generated line that was running."""
        program = self.program
        location, generated = None, ""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.filename:
                location = program.locations[trace.tb_lineno - 1]
                generated = program.source.splitlines()[trace.tb_lineno - 1].strip()
            trace = trace.tb_next
        place = location or written_at(prim_func) or "an unknown line"
        where = f"{place}, in kernel {program.name}"
        if isinstance(error, InterpreterError):
            located = type(error)(f"{error}\n  at {where}")
            located.reports = error.reports
            return located
        if isinstance(error, Unsupported):
            return Unsupported(f"{error}\n  at {where}")
        if isinstance(error, AssertionError):
            return InterpreterError(f"assertion failed: {error}\n  at {where}")
        return InterpreterError(
            f"the interpreter failed: {type(error).__name__}: {error}\n  at {where}\n"
            f"  in the generated line: {generated}"
        )


def written_at(prim_func: Any) -> str:
    """Where a PrimFunc was written, `file:line`; "" if unknown."""
    code = getattr(getattr(prim_func, "orig_func", None), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


class Programs:
    """The variants of the program of one PrimFunc.

    Attributes:
        prim_func: the traced PrimFunc.
        guard: whether global accesses are guarded.
        barriers: whether TileLang orders threads that share memory.
    """

    def __init__(self, prim_func: Any, *, guard: bool, barriers: bool) -> None:
        self.prim_func = prim_func
        self.guard = guard
        self.barriers = barriers
        self._loaded: dict[Options, LoadedProgram] = {}
        self._refused: dict[tuple[Options, tuple[str, ...]], str] = {}

    def variant(
        self,
        arch: str,
        sanitizers: frozenset[str] = frozenset(),
        observers: frozenset[str] = frozenset(),
        *,
        wide: bool = False,
        unrounded: str = "",
    ) -> LoadedProgram:
        """A variant with these `Options`.

        Raises:
            Unsupported: it cannot be generated.
        """
        arch = arch if self._depends_on_arch else ""
        key = Options(self.guard, self.barriers, sanitizers, observers, wide, arch, unrounded)
        found = self._loaded.get(key)
        if found is None:
            models = tuple(modelled())  # with one more it may not be refused
            if (key, models) in self._refused:
                raise Unsupported(self._refused[key, models])
            try:
                found = self._loaded[key] = _load(*self._generated(key))
            except Unsupported as error:
                self._refused[key, models] = str(error)
                raise
            _dump(found.program, key)
        return found

    @cached_property
    def _depends_on_arch(self) -> bool:
        return depends_on_arch(saved(self.prim_func))

    def _generated(self, options: Options) -> tuple[Program, CodeType]:
        text = saved(self.prim_func)  # slow: for the key and the program
        store = program_cache()
        key = program_key(text, options) if store is not None else ""
        found = store.find(key, _Generated) if store is not None else None
        if found is None:
            program = generate(self.prim_func, text, options)
            code = compile(program.source, _filename(program), "exec")
            if store is not None:
                store.add(key, _Generated(program, marshal.dumps(code)))
            return program, code
        return found.program, marshal.loads(found.code)  # noqa: S302 - as trusted as a .pyc


@dataclass(frozen=True)
class _Generated:
    """A generated program and its compiled code, as `marshal` writes it."""

    program: Program
    code: bytes


# By structural hash of the PrimFunc; equality is checked on a hit.
_known: dict[Any, list[Programs]] = {}


def programs_of(prim_func: Any, *, guard: bool, barriers: bool) -> Programs:
    """The programs of a PrimFunc, shared by all that are equal and written at the same line."""
    from tilelang import tvm

    line = written_at(prim_func)  # equal kernels of two files report their own lines
    with TRACING:
        key = (tvm.ir.structural_hash(prim_func), guard, barriers, line)
        known = _known.setdefault(key, [])
        for programs in known:
            if tvm.ir.structural_equal(programs.prim_func, prim_func):
                return programs
        known.append(Programs(prim_func, guard=guard, barriers=barriers))
        return known[-1]


def _filename(program: Program) -> str:
    """What tracebacks call the source of a program; programs of one source share it."""
    digest = hashlib.sha256(program.source.encode()).hexdigest()[:12]
    return f"<tlmatrix interpreter {program.name} {digest}>"


def _load(program: Program, code: CodeType) -> LoadedProgram:
    """Make the function of a program; tracebacks show its source."""
    filename = _filename(program)
    lines = program.source.splitlines(keepends=True)
    linecache.cache[filename] = (len(program.source), None, lines, filename)
    namespace = {
        **runtime.environment(),
        **ops.TABLES.functions,
        **functions(),
        "LOCATIONS": program.locations,
    }
    exec(code, namespace)  # noqa: S102 - our own source
    return LoadedProgram(program, namespace["kernel"], filename)


def _dump(program: Program, options: Options) -> None:
    """Write the source to the folder `$TLMATRIX_DUMP`, with the user's lines."""
    folder = os.environ.get("TLMATRIX_DUMP")
    if not folder:
        return
    lines = []
    last = None
    for text, location in zip(program.source.splitlines(), program.locations, strict=False):
        if location is not None and location != last:
            lines.append(" " * (len(text) - len(text.lstrip())) + f"# {location}")
            last = location
        lines.append(text)
    digest = _filename(program).rstrip(">").split()[-1]
    name = "_".join([program.name, *options.kinds, digest])
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / f"{name}.py").write_text("\n".join(lines) + "\n")
