"""Where kernels run: one small interface, and the places there are.

`cuda` compiles and runs on a GPU; it is the truth. `interpreter` runs the traced tile IR on the
CPU and needs nothing; several ranks are simulated there, and processes on `processes`. `auto` is
`cuda` where there is a GPU, else `interpreter`. `compile` runs nothing: kernels are traced, and
assembled for each architecture.
"""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from tlmatrix.backend.errors import ArchitectureError, BackendUnavailableError
from tlmatrix.config import BACKENDS
from tlmatrix.words import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import torch

    from tlmatrix.interpreter import TracedKernel

__all__ = [
    "ARCHITECTURES",
    "Backend",
    "CompileBackend",
    "CudaBackend",
    "InterpreterBackend",
    "ProcessesBackend",
    "backend_named",
]

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
"""What kernels are assembled for whose spec names no architecture."""


class Backend(Protocol):
    """A place where kernels run."""

    @property
    def name(self) -> str:
        """`cuda`, `interpreter` or `compile`; a name in the expressions of a spec."""

    @property
    def arch(self) -> str:
        """`sm_90` and the like, or `interpreter`; a name in the expressions of a spec."""

    @property
    def executes(self) -> bool:
        """Whether kernels run; if not, a case is judged by compiling its kernels."""

    @property
    def unsupported_checks(self) -> frozenset[str]:
        """Checks of a spec that this backend leaves out."""

    @property
    def measures_coverage(self) -> bool:
        """Whether kernel coverage can be measured."""

    @property
    def captures_graphs(self) -> bool:
        """Whether a call can be captured to a CUDA graph and replayed."""

    @property
    def device(self) -> torch.device:
        """The device of a problem's tensors."""

    def targeting(self, architectures: Sequence[str]) -> Backend:
        """This backend, for kernels written for these architectures; none stands for any.

        Raises:
            ArchitectureError: such kernels cannot run here.
        """

    def active(self, turn: int = 0) -> AbstractContextManager[object]:
        """Inside, calls of TileLang kernels run on this backend.

        `turn` counts the runs of a case: where there is a choice of orders, each has another.
        """

    def importing(self) -> AbstractContextManager[object]:
        """Inside, code under test is imported, which may ask `torch.cuda` where it runs."""

    def synchronize(self) -> None:
        """Wait until everything asked for has run, so that an error is raised where it belongs."""

    def broken(self) -> bool:
        """Whether nothing can run in this process any more (a CUDA context after a fault)."""

    def release(self) -> None:
        """Give back memory that nothing uses, after a case that found too little."""


@dataclass(frozen=True)
class InterpreterBackend:
    """TileLang's IR on the CPU; `target` is the architecture it is traced for."""

    name: str = "interpreter"
    arch: str = "interpreter"
    target: str = "sm_90a"

    executes: ClassVar[bool] = True
    unsupported_checks: ClassVar[frozenset[str]] = frozenset()
    measures_coverage: ClassVar[bool] = True
    captures_graphs: ClassVar[bool] = True

    @property
    def device(self) -> torch.device:
        """The CPU."""
        import torch

        return torch.device("cpu")

    def targeting(self, architectures: Sequence[str]) -> InterpreterBackend:
        """Kernels are traced for the first architecture."""
        return replace(self, target=architectures[0]) if architectures else self

    @contextmanager
    def active(self, turn: int = 0) -> Iterator[object]:
        """Calls of kernels inside are interpreted; warp roles take the turn's schedule.

        What roles do to memory unordered is an error, unless sanitizers in force collect it.
        Questions to `torch.cuda` are answered for the target.
        """
        from tlmatrix.interpreter import SCHEDULES, interpret, scheduled

        with interpret(arch=self.target) as session, _stand_in(self):
            races = None if session.sanitizers else True
            with scheduled(SCHEDULES[turn % len(SCHEDULES)], seed=turn, races=races):
                yield session

    def importing(self) -> AbstractContextManager[object]:
        """The CPU answers for a GPU where the process has none."""
        return _stand_in_without_gpu(self)

    def synchronize(self) -> None:
        """Nothing runs behind our back."""

    def broken(self) -> bool:
        """An interpreted kernel cannot break its process."""
        return False

    def release(self) -> None:
        """What an exception kept alive goes; the system takes the rest by itself."""
        gc.collect()


def _stand_in(backend: InterpreterBackend | CompileBackend) -> AbstractContextManager[None]:
    """Inside, the CPU answers for a GPU, as it does for `tlmatrix exec`.

    Ranks have answers of their own, and processes of ranks are CPU processes.
    """
    from tlmatrix.interpreter.device import stand_in
    from tlmatrix.interpreter.distributed import here

    if backend.name == "processes" or here.rank() is not None:
        return nullcontext()
    return stand_in(arch=backend.target)


def _stand_in_without_gpu(
    backend: InterpreterBackend | CompileBackend,
) -> AbstractContextManager[None]:
    """As `_stand_in`, where no other backend of this process can be a GPU."""
    import torch

    return nullcontext() if torch.cuda.is_available() else _stand_in(backend)


@dataclass(frozen=True)
class ProcessesBackend(InterpreterBackend):
    """As the interpreter, but several ranks are a CPU process each, and a gloo group."""

    name: str = "processes"

    executes: ClassVar[bool] = True
    unsupported_checks: ClassVar[frozenset[str]] = frozenset({"sanitizers"})
    measures_coverage: ClassVar[bool] = False
    captures_graphs: ClassVar[bool] = False

    def targeting(self, architectures: Sequence[str]) -> ProcessesBackend:
        """Kernels are traced for the first architecture."""
        return replace(self, target=architectures[0]) if architectures else self


@dataclass(frozen=True)
class CudaBackend:
    """Compiled kernels on one GPU."""

    device: torch.device
    arch: str
    name: str = "cuda"

    executes: ClassVar[bool] = True
    unsupported_checks: ClassVar[frozenset[str]] = frozenset({"sanitizers"})
    measures_coverage: ClassVar[bool] = False
    captures_graphs: ClassVar[bool] = True

    def targeting(self, architectures: Sequence[str]) -> CudaBackend:
        """A GPU runs what is written for its own architecture (`sm_90a` on `sm_90`)."""
        if architectures and self.arch not in {name.rstrip("af") for name in architectures}:
            raise ArchitectureError(
                f"its kernels are for {' and '.join(architectures)}, and this GPU is {self.arch}"
            )
        return self

    def active(self, turn: int = 0) -> AbstractContextManager[object]:  # noqa: ARG002 - one order
        """The GPU is the current one; kernels compile and run as they always do."""
        import torch

        return torch.cuda.device(self.device)

    def importing(self) -> AbstractContextManager[object]:
        """The GPU answers."""
        return nullcontext()

    def synchronize(self) -> None:
        """Wait for the GPU; a fault of a kernel is raised here."""
        import torch

        torch.cuda.synchronize(self.device)

    def broken(self) -> bool:
        """An illegal access leaves a context in which every later call fails."""
        import torch

        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return False
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def release(self) -> None:
        """PyTorch keeps what was freed; fragments of it may be why a case did not fit."""
        import torch

        gc.collect()
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class CompileBackend:
    """Kernels traced for one architecture after the other, and not run.

    `asked` are the architectures that the user named; without any, each spec's own count.
    `target` is the one that is traced for, `launched` what was launched inside `active`.
    """

    asked: tuple[str, ...] = ()
    target: str = "sm_90a"
    launched: list[TracedKernel] = field(default_factory=list, compare=False)
    name: str = "compile"
    arch: str = "compile"

    executes: ClassVar[bool] = False
    unsupported_checks: ClassVar[frozenset[str]] = frozenset({"sanitizers"})
    measures_coverage: ClassVar[bool] = False
    captures_graphs: ClassVar[bool] = False

    @property
    def device(self) -> torch.device:
        """The CPU."""
        import torch

        return torch.device("cpu")

    def architectures(self, named: Sequence[str]) -> tuple[str, ...]:
        """What kernels of a spec are assembled for that names these architectures (none: any).

        Raises:
            ArchitectureError: none of them was asked for.
        """
        if not self.asked:
            return tuple(named) or ARCHITECTURES
        found = tuple(arch for arch in self.asked if not named or arch in named)
        if not found:
            raise ArchitectureError(
                f"its kernels are for {' and '.join(named)}, and {' and '.join(self.asked)} "
                "was asked for"
            )
        return found

    def targeting(self, architectures: Sequence[str]) -> CompileBackend:
        """Kernels are traced for the first architecture."""
        return replace(self, target=self.architectures(architectures)[0], launched=[])

    @contextmanager
    def active(self, turn: int = 0) -> Iterator[None]:  # noqa: ARG002 - nothing runs
        """Calls of kernels inside are noted."""
        from tlmatrix.interpreter import traced

        with traced(arch=self.target) as launched, _stand_in(self):
            try:
                yield
            finally:
                self.launched.extend(launched)

    def importing(self) -> AbstractContextManager[object]:
        """The CPU answers for a GPU where the process has none."""
        return _stand_in_without_gpu(self)

    def synchronize(self) -> None:
        """Nothing runs."""

    def broken(self) -> bool:
        """A compiler that crashes takes only its own process with it."""
        return False

    def release(self) -> None:
        """What an exception kept alive goes."""
        gc.collect()


def backend_named(name: str = "auto", architectures: Sequence[str] = ()) -> Backend:
    """The backend of that name; `architectures` are those to `compile` for.

    The workers of pytest-xdist are spread over the GPUs of the machine by their number.

    Raises:
        ValueError: there is no such name.
        BackendUnavailableError: `cuda` was asked for and there is no GPU.
    """
    if name not in BACKENDS:
        raise ValueError(f"no backend {name!r}{suggestion(name, BACKENDS, 'There are')}")
    if name == "compile":
        return CompileBackend(asked=tuple(architectures))
    if name == "processes":
        return ProcessesBackend()
    import torch

    if name == "interpreter" or (name == "auto" and not torch.cuda.is_available()):
        return InterpreterBackend()
    if not torch.cuda.is_available():
        raise BackendUnavailableError(
            "backend 'cuda': PyTorch sees no GPU here (torch.cuda.is_available() is False). "
            "Use --backend interpreter, or install a CUDA build of PyTorch"
        )
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    index = int(worker) % torch.cuda.device_count() if worker.isdecimal() else 0
    major, minor = torch.cuda.get_device_capability(index)
    return CudaBackend(device=torch.device("cuda", index), arch=f"sm_{major}{minor}")
