"""The kernels of a run: found by tracing its cases, and compiled before cases need them.

A process of its own, without a GPU, traces one case after another and compiles each distinct
kernel once, in child processes. `python -m tlmatrix.run.kernel_plan` reads a `KernelJob` as JSON
from a line of stdin, and ends with its parent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.ahead import FOLDER, Scheduler, Tickets, Waiting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tlmatrix.backend.assembly import Assembler
    from tlmatrix.interpreter import TracedKernel
    from tlmatrix.matrix import Case
    from tlmatrix.run.harness import Harness
    from tlmatrix.spec.model.spec import Spec


@dataclass(frozen=True)
class KernelJob:
    """The cases whose kernels are compiled.

    Attributes:
        cases: by path of a spec, the axis values of its cases.
        roots: folders from which entries are imported.
        backend: `cuda` or `compile`, whose cache is filled.
        arch: of `cuda`, the architecture of the GPU as TileLang names it (`sm_90a`).
        architectures: of `compile`, those that the user requested.
        relations: whether the kernels of relations are compiled too, of which a case of a search
            checks one at most.
        processes: how many kernels are compiled at a time.
        folder: the folder of the tickets; "" to print the plan alone.
    """

    cases: dict[str, list[dict[str, Any]]]
    roots: list[str] = field(default_factory=list)
    backend: str = "cuda"
    arch: str = ""
    architectures: list[str] = field(default_factory=list)
    relations: bool = True
    processes: int = 1
    folder: str = ""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


def traced_kernels(
    harness: Harness, spec: Spec, case: Case, arch: str, *, relations: bool = True
) -> Iterator[TracedKernel]:
    """The kernels that a case, its relations and agreements launch, traced for `arch`.

    Nothing runs. A case that cannot be traced has none; running it reports why.
    """
    from dataclasses import replace

    from tlmatrix.backend import CompileBackend
    from tlmatrix.backend.binding import execute
    from tlmatrix.distributed.entry import trace
    from tlmatrix.matrix import Case
    from tlmatrix.run.agreement import other_cases
    from tlmatrix.spec.model.spec import has_ranks

    backend = harness.backend
    assert isinstance(backend, CompileBackend)
    try:
        bound = harness.bind(spec, replace(backend, requested=(arch,)))
        target = bound.binding.backend
        assert isinstance(target, CompileBackend)
        others = [
            Case(spec.name, values, "extra") for values in other_cases(spec, case, bound.family)
        ]
    except Exception:  # noqa: BLE001 - any error of the spec or its code
        return
    for each in (case, *others):
        target.launched.clear()
        try:
            problem = harness.problem(bound, spec, each, 0)
            if has_ranks(spec):
                trace(bound.binding, problem)
            else:
                execute(bound.binding, problem)
                if relations and each is case and "relations" in spec.checks:
                    for relation in problem.relations("relations"):
                        for related in relation.problems:
                            execute(bound.binding, related)
        except Exception:  # noqa: BLE001, S110 - as above
            pass
        yield from target.launched


def main() -> None:
    """Compile the kernels of the job on stdin, or print them."""
    job = KernelJob(**json.loads(sys.stdin.readline()))
    os.environ.pop(FOLDER, None)  # otherwise a child would wait for itself
    if not job.folder:
        answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        answers.write(json.dumps(_listed(job)) + "\n")
        answers.close()
        return
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # `_end_with_parent` kills the group, of which others may be members
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tickets = Tickets(Path(job.folder))
    alive = tickets.create()
    _compile_all(job, tickets)
    alive.close()


def _end_with_parent() -> None:
    """End this process and its children when the parent closes stdin."""
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


def _compile_all(job: KernelJob, tickets: Tickets) -> None:
    from tlmatrix.backend.kernel_cache import expected_seconds

    scheduler = Scheduler(job.processes, tickets)
    known: set[int] = set()
    for compiler, kernel in _kernels(job):
        if id(kernel) in known:
            continue  # traced kernels live as long as their factories
        known.add(id(kernel))
        key = compiler.key(kernel)
        if compiler.known(key):
            continue
        seconds = expected_seconds([kernel.name])[kernel.name]
        scheduler.add(Waiting(key, seconds, partial(compiler.compile, kernel)))
        scheduler.step()
    scheduler.finish()


def _listed(job: KernelJob) -> list[dict[str, Any]]:
    """The distinct kernels of a job: name, architecture, key, and whether they are cached."""
    from tlmatrix.backend.kernel_cache import expected_seconds

    found: dict[str, dict[str, Any]] = {}
    for compiler, kernel in _kernels(job):
        key = compiler.key(kernel)
        if key not in found:
            found[key] = {"kernel": kernel.name, "arch": compiler.arch, "key": key}
            found[key]["cached"] = compiler.known(key)
    seconds = expected_seconds({each["kernel"] for each in found.values()})
    return [{**each, "seconds": round(seconds[each["kernel"]], 2)} for each in found.values()]


def _kernels(job: KernelJob) -> Iterator[tuple[Compiler, TracedKernel]]:
    """The kernels of the cases of a job, in the order of the cases."""
    import torch

    from tlmatrix.backend import ArchitectureError, CompileBackend
    from tlmatrix.run.harness import Harness

    torch.set_num_threads(1)
    roots = tuple(Path(root) for root in job.roots)
    backend = CompileBackend(requested=tuple(job.architectures))
    harness = Harness(backend, roots)
    make = TileLangCompiler if job.backend == "cuda" else AssemblyCompiler
    compilers: dict[str, Compiler] = {}
    for path, values in job.cases.items():
        spec, cases = _cases(path, values, roots)
        try:
            architectures: Sequence[str] = backend.architectures(spec.architectures)
        except ArchitectureError:
            continue
        if job.backend == "cuda":
            if spec.architectures and job.arch not in spec.architectures:
                continue
            architectures = (job.arch,)
        for case in cases:
            for arch in architectures:
                compiler = compilers.setdefault(arch, make(arch))
                for kernel in traced_kernels(harness, spec, case, arch, relations=job.relations):
                    yield compiler, kernel


def _cases(
    path: str, values: Sequence[dict[str, Any]], roots: tuple[Path, ...]
) -> tuple[Spec, list[Case]]:
    from tlmatrix.matrix import Case
    from tlmatrix.spec.importing import make_importable
    from tlmatrix.spec.loader import load_spec

    make_importable(Path(path), roots)
    spec = load_spec(path)
    cases = [Case(spec.name, each) for each in values]
    return spec, cases


# Compilers of one kernel --------------------------------------------------------------------------


class TileLangCompiler:
    """Compiles with TileLang for its own cache, from which the backend `cuda` loads kernels.

    No GPU is needed: the target names the architecture, and nothing is launched.
    """

    def __init__(self, arch: str) -> None:
        from tlmatrix.backend.kernel_cache import share_kernels

        self.arch = arch
        share_kernels()

    def key(self, kernel: TracedKernel) -> str:
        """The key in the cache: that of `@tilelang.jit` on a GPU of the architecture."""
        cache, context, configs = self._resolved(kernel)
        found: str = cache._generate_key(  # noqa: SLF001 - no public way
            kernel.prim_func,
            kernel.given_out_idx,
            context.execution_backend.name,
            args=(),
            target=context.target,
            target_host=context.target_host,
            pass_configs=configs,
            compile_flags=kernel.given_flags,
        )
        return found

    def known(self, key: str) -> bool:
        """Whether the cache has the kernel of a key."""
        from tilelang.cache import _dispatch_map

        return any(
            each._is_complete_cache_dir(each._get_cache_path(key))  # noqa: SLF001
            for each in _dispatch_map.values()
        )

    def compile(self, kernel: TracedKernel) -> None:
        """Compile a kernel into the cache; raises what the compiler rejects it with."""
        from tilelang.cache import cached

        cached(
            kernel.prim_func,
            kernel.given_out_idx,
            target=self._target(),
            execution_backend=kernel.execution_backend,
            pass_configs=kernel.given_configs,
            compile_flags=kernel.given_flags,
        )

    def _target(self) -> dict[str, str]:
        return {"kind": "cuda", "arch": self.arch}

    def _resolved(self, kernel: TracedKernel) -> tuple[Any, Any, Any]:
        from tilelang.cache import _resolve_cache_dispatch
        from tilelang.transform.pass_config import normalize_pass_configs

        cache, context, _ = _resolve_cache_dispatch(
            self._target(), None, kernel.execution_backend, verbose=False
        )
        return cache, context, normalize_pass_configs(kernel.given_configs)


class AssemblyCompiler:
    """Assembles kernels for the cache of the backend `compile`."""

    def __init__(self, arch: str) -> None:
        from tlmatrix.backend.assembly import Assembler

        self.arch = arch
        self._assembler: Assembler = Assembler()

    def key(self, kernel: TracedKernel) -> str:
        """The key in the cache."""
        return self._assembler.key(kernel, self.arch)

    def known(self, key: str) -> bool:
        """Whether the cache has the kernel of a key."""
        return self._assembler.known(key)

    def compile(self, kernel: TracedKernel) -> None:
        """Compile a kernel into the cache; raises what the compiler rejects it with."""
        from tlmatrix.backend.kernel_cache import record_compilation

        begin = time.perf_counter()
        key = self.key(kernel)
        try:
            self._assembler.assemble(kernel, self.arch)
        finally:
            self._assembler.close()
        record_compilation(kernel.name, key, time.perf_counter() - begin)


Compiler = TileLangCompiler | AssemblyCompiler


if __name__ == "__main__":
    main()
