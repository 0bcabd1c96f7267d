"""Backends: `cuda`, `interpreter`, `processes` and `compile`.

`cuda` compiles kernels and runs them on a GPU. `interpreter` runs the traced tile IR on the CPU
and simulates several ranks; `processes` is the same with one CPU process for each rank. `compile`
compiles kernels for each architecture and runs nothing. `auto` is `cuda` if there is a GPU, else
`interpreter`.
"""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from tlmatrix.backend.errors import ArchitectureError, BackendUnavailableError
from tlmatrix.backend.gpus import all_visible_gpus, memory_fraction
from tlmatrix.options.table import BACKENDS
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import torch

    from tlmatrix.interpreter import TracedKernel
    from tlmatrix.interpreter.frontend.session import OnLaunch

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
"""Architectures that the backend `compile` compiles for, if the spec names none."""


class Backend:
    """Runs kernels, or compiles them, for the cases of a process.

    Attributes:
        name: `cuda`, `interpreter` or `compile`; a name in the expressions of a spec.
        arch: `sm_90` and the like, or `interpreter`; a name in the expressions of a spec.
        device: the device of a problem's tensors.
        executes: whether kernels run; if not, a case is judged by compiling its kernels.
        unsupported_checks: checks of a spec that this backend leaves out.
        measures_coverage: whether kernel coverage can be measured.
        captures_graphs: whether a call can be captured to a CUDA graph and replayed.
        simulates_streams: whether calls on several streams can be simulated, with race detection.
        survives_fork: whether a forked process can go on to run cases; CUDA cannot.
        compiles: whether it takes seconds to make each kernel: it is compiled, or lowered.
        concurrent: whether blocks or ranks run concurrently, so that equal calls may differ.
    """

    name: str
    arch: str
    device: torch.device
    executes: ClassVar[bool] = True
    unsupported_checks: ClassVar[frozenset[str]] = frozenset({"sanitizers"})
    measures_coverage: ClassVar[bool] = False
    captures_graphs: ClassVar[bool] = False
    simulates_streams: ClassVar[bool] = False
    survives_fork: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    concurrent: ClassVar[bool] = False

    def targeting(self, architectures: Sequence[str]) -> Backend:
        """This backend for kernels of these architectures; an empty list means any.

        Raises:
            ArchitectureError: this backend does not support them.
        """
        raise NotImplementedError

    def active(self, run_index: int = 0) -> AbstractContextManager[object]:
        """Context manager: calls of TileLang kernels inside run on this backend.

        `run_index` is the number of the run of the case, which selects the schedule if the backend
        has several.
        """
        raise NotImplementedError

    def importing(self) -> AbstractContextManager[object]:
        """Context manager to import the code under test, which may query `torch.cuda`."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until all launches have ended, so that their errors are raised here."""

    def broken(self) -> bool:
        """Whether this process cannot run kernels any more, as after a fault on a GPU."""
        return False

    def release(self) -> None:
        """Free cached memory and tensors that exceptions keep alive, after a lack of memory."""
        gc.collect()

    def limit_memory(self, workers: int) -> None:
        """Limit this process to its share of a GPU that `workers` processes use."""


class _HostBackend(Backend):
    """A backend that launches nothing on a GPU: the tensors of its problems are on the CPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The CPU."""
        import torch

        return torch.device("cpu")


def _requested(requested: Sequence[str], named: Sequence[str]) -> tuple[str, ...]:
    """Those of the architectures that a spec names that the user requested, or all of them.

    Raises:
        ArchitectureError: the user requested none of them.
    """
    if not requested:
        return tuple(named)
    found = tuple(arch for arch in requested if not named or arch in named)
    if not found:
        raise ArchitectureError(
            f"its kernels are for {' and '.join(named)}, and {' and '.join(requested)} "
            "was requested"
        )
    return found


@dataclass(frozen=True)
class InterpreterBackend(_HostBackend):
    """Interprets TileLang's IR on the CPU; kernels are traced for the architecture `target`.

    `turn` selects among the architectures of a spec: the first for five of six numbers. `requested`
    are architectures that the user named; by default those of each spec.
    """

    name: str = "interpreter"
    arch: str = "interpreter"
    target: str = "sm_90a"
    turn: int = 0
    requested: tuple[str, ...] = ()

    unsupported_checks: ClassVar[frozenset[str]] = frozenset()
    measures_coverage: ClassVar[bool] = True
    captures_graphs: ClassVar[bool] = True
    simulates_streams: ClassVar[bool] = True
    survives_fork: ClassVar[bool] = True
    lowered: ClassVar[bool] = False

    def targeting(self, architectures: Sequence[str]) -> Self:
        """Trace kernels for one of the architectures, which `turn` selects."""
        first, *others = _requested(self.requested, architectures) or (self.target,)
        turn, other = divmod(self.turn, 6)
        target = others[turn % len(others)] if others and other == 5 else first
        return replace(self, target=target, turn=0)

    @contextmanager
    def active(self, run_index: int = 0) -> Iterator[object]:
        """Interpret kernels inside; `run_index` selects the schedule of warp roles.

        A data race of warp roles raises an error, unless active sanitizers record it. `torch.cuda`
        reports a GPU of the target architecture.
        """
        from tlmatrix.interpreter import SCHEDULES, interpret, scheduled

        with interpret(arch=self.target, lowered=self.lowered) as session, _stand_in(self):
            races = None if session.sanitizers else True
            with scheduled(SCHEDULES[run_index % len(SCHEDULES)], seed=run_index, races=races):
                yield session

    def importing(self) -> AbstractContextManager[object]:
        """`torch.cuda` reports a GPU of the target architecture, if the machine has none."""
        return _stand_in_without_gpu(self)


_MULTIPROCESSORS = 4
"""Few, so that blocks of persistent kernels compute several tiles of small shapes."""


def _stand_in(backend: InterpreterBackend | CompileBackend) -> AbstractContextManager[None]:
    """`torch.cuda` reports a GPU of the target architecture, as for `tlmatrix exec`.

    Simulated ranks have a stand-in of their own, and rank processes need none.
    """
    from tlmatrix.interpreter.frontend.device import stand_in
    from tlmatrix.interpreter.sync import context

    if backend.name == "processes" or context.rank() is not None:
        return nullcontext()
    return stand_in(arch=backend.target, sms=_MULTIPROCESSORS)


def _stand_in_without_gpu(
    backend: InterpreterBackend | CompileBackend,
) -> AbstractContextManager[None]:
    """Apply `_stand_in` if the machine has no GPU."""
    import torch

    return nullcontext() if torch.cuda.is_available() else _stand_in(backend)


@dataclass(frozen=True)
class ProcessesBackend(InterpreterBackend):
    """The interpreter, with one CPU process for each rank and a gloo process group."""

    name: str = "processes"

    unsupported_checks: ClassVar[frozenset[str]] = frozenset({"sanitizers"})
    measures_coverage: ClassVar[bool] = False
    captures_graphs: ClassVar[bool] = False
    simulates_streams: ClassVar[bool] = False
    survives_fork: ClassVar[bool] = False
    concurrent: ClassVar[bool] = True


_LOWERED = ("sm_80", "sm_90a")


@dataclass(frozen=True)
class LoweredBackend(InterpreterBackend):
    """Runs the code that TileLang lowers kernels to, thread by thread on the CPU."""

    name: str = "lowered"

    measures_coverage: ClassVar[bool] = False
    captures_graphs: ClassVar[bool] = False
    simulates_streams: ClassVar[bool] = False
    compiles: ClassVar[bool] = True
    lowered: ClassVar[bool] = True

    def targeting(self, architectures: Sequence[str]) -> Self:
        """Lower kernels for the first architecture of a spec of which the code can be run.

        Raises:
            ArchitectureError: there is none.
        """
        named = _requested(self.requested, architectures) or _LOWERED
        found = next((arch for arch in named if arch in _LOWERED), None)
        if found is None:
            raise ArchitectureError(
                f"lowered code runs for {' and '.join(_LOWERED)}, and {' and '.join(named)} "
                "was asked for: use --backend interpreter"
            )
        return replace(self, target=found, turn=0)


@dataclass(frozen=True)
class CudaBackend(Backend):
    """Compiles kernels and runs them on one GPU."""

    device: torch.device
    arch: str
    name: str = "cuda"

    captures_graphs: ClassVar[bool] = True
    compiles: ClassVar[bool] = True
    concurrent: ClassVar[bool] = True

    def targeting(self, architectures: Sequence[str]) -> CudaBackend:
        """Check that the kernels support this GPU (`sm_90a` and `sm_90f` run on `sm_90`)."""
        if architectures and self.arch not in {name.rstrip("af") for name in architectures}:
            raise ArchitectureError(
                f"its kernels are for {' and '.join(architectures)}, and this GPU is {self.arch}"
            )
        return self

    def active(self, run_index: int = 0) -> AbstractContextManager[object]:  # noqa: ARG002 - no choice of schedules
        """Make the GPU the current device, whose kernels read the seed of `--perturb`."""
        import torch

        from tlmatrix.backend import perturb
        from tlmatrix.backend.kernel_cache import share_kernels

        share_kernels()
        if perturb.requested() is not None:
            perturb.set_seed(self.device)
        return torch.cuda.device(self.device)

    def importing(self) -> AbstractContextManager[object]:
        """Do nothing: `torch.cuda` reports this GPU."""
        return nullcontext()

    def synchronize(self) -> None:
        """Wait for the GPU; a fault of a kernel raises here."""
        import torch

        torch.cuda.synchronize(self.device)

    def broken(self) -> bool:
        """Whether a fault, such as an illegal access, has made every later CUDA call fail."""
        import torch

        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return False
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def release(self) -> None:
        """Empty PyTorch's cache, whose fragmentation may have exhausted memory."""
        import torch

        super().release()
        torch.cuda.empty_cache()

    def limit_memory(self, workers: int) -> None:
        """Limit what PyTorch allocates; beyond it, it raises `OutOfMemoryError`."""
        import torch

        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(memory_fraction(total, workers), self.device)


@dataclass(frozen=True)
class CompileBackend(_HostBackend):
    """Traces kernels for each architecture; they are compiled and do not run.

    Attributes:
        requested: architectures that the user named; by default those of each spec.
        target: the architecture that kernels are traced for.
        launched: kernels launched inside `active`.
        on_launch: called with each launch: the kernel, its arguments and sizes by name.
    """

    requested: tuple[str, ...] = ()
    target: str = "sm_90a"
    launched: list[TracedKernel] = field(default_factory=list, compare=False)
    on_launch: OnLaunch | None = field(default=None, compare=False)
    name: str = "compile"
    arch: str = "compile"

    executes: ClassVar[bool] = False
    compiles: ClassVar[bool] = True

    def architectures(self, named: Sequence[str]) -> tuple[str, ...]:
        """The architectures to compile for, of a spec that supports `named`; empty means any.

        Raises:
            ArchitectureError: the user requested none of them.
        """
        return _requested(self.requested, named) or ARCHITECTURES

    def targeting(self, architectures: Sequence[str]) -> CompileBackend:
        """Trace kernels for the first architecture."""
        return replace(self, target=self.architectures(architectures)[0], launched=[])

    @contextmanager
    def active(self, run_index: int = 0) -> Iterator[None]:  # noqa: ARG002 - nothing runs
        """Record launches inside; nothing runs."""
        from tlmatrix.interpreter import traced

        with traced(arch=self.target, on_launch=self.on_launch) as launched, _stand_in(self):
            try:
                yield
            finally:
                self.launched.extend(launched)

    def importing(self) -> AbstractContextManager[object]:
        """`torch.cuda` reports a GPU of the target architecture, if the machine has none."""
        return _stand_in_without_gpu(self)


_CLASSES = (InterpreterBackend, LoweredBackend, ProcessesBackend, CudaBackend, CompileBackend)


def backend_class(name: str) -> type[InterpreterBackend | CudaBackend | CompileBackend]:
    """The class of a backend, which says what it can do, without importing PyTorch.

    `auto` is `cuda` if there is a GPU according to NVML.
    """
    if name == "auto":
        name = "cuda" if all_visible_gpus() else "interpreter"
    return next(each for each in _CLASSES if each.name == name)


def backend_named(
    name: str = "auto", architectures: Sequence[str] = (), perturb: int | None = None
) -> Backend:
    """Create the backend of that name; kernels are traced for `architectures`, if any are given.

    Workers of pytest-xdist use the GPUs of the machine in rotation. With `perturb`, all kernels of
    this process, and of those that it starts, have delays by this seed (`backend.perturb`).

    Raises:
        ValueError: there is no such backend.
        BackendUnavailableError: there is no GPU, and `cuda` or `perturb` needs one.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}{suggestion(name, BACKENDS, 'Backends')}")
    if perturb is not None:
        _perturb(perturb, name)
    if name == "compile":
        return CompileBackend(requested=tuple(architectures))
    if name == "processes":
        return ProcessesBackend()
    if name == "lowered":
        return LoweredBackend(requested=tuple(architectures))
    if name == "interpreter":
        return InterpreterBackend(requested=tuple(architectures))
    import torch

    if name == "auto" and not torch.cuda.is_available():
        return InterpreterBackend(requested=tuple(architectures))
    if not torch.cuda.is_available():
        raise BackendUnavailableError(
            "backend 'cuda': PyTorch sees no GPU here (torch.cuda.is_available() is False). "
            "Use --backend interpreter, or install a CUDA build of PyTorch"
        )
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    index = int(worker) % torch.cuda.device_count() if worker.isdecimal() else 0
    major, minor = torch.cuda.get_device_capability(index)
    return CudaBackend(device=torch.device("cuda", index), arch=f"sm_{major}{minor}")


def _perturb(seed: int, name: str) -> None:
    """Perturb the kernels that this process runs on its GPU.

    Raises:
        BackendUnavailableError: the backend runs no kernels on a GPU.
    """
    import torch

    from tlmatrix.backend.perturb import request

    if name not in ("auto", "cuda"):
        raise BackendUnavailableError(
            f"--perturb {seed}: needs the backend cuda, got {name}: it delays compiled kernels on "
            "a GPU. The interpreter finds races without it, under schedules of its own"
        )
    if not torch.cuda.is_available():
        raise BackendUnavailableError(
            f"--perturb {seed}: PyTorch sees no GPU here (torch.cuda.is_available() is False), and "
            "it delays compiled kernels on a GPU. Omit it: the interpreter finds races without it"
        )
    request(seed)
