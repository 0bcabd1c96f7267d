"""Records what the cases of a spec's smoke tier launch, as TileLang lowers it for an architecture.

Cases of the smoke tier are small, and many loops of theirs run once. So their kernels are also run
with other sizes, and of the launches of a kernel the largest is kept.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.backend import backend_named
from tlmatrix.backend.binding import execute
from tlmatrix.check.guards import guarded
from tlmatrix.interpreter.frontend.lowered import DeviceCode
from tlmatrix.interpreter.frontend.programs import lowered
from tlmatrix.interpreter.ir.read import saved
from tlmatrix.interpreter.lowered.emit import Emitter
from tlmatrix.interpreter.lowered.lowering import HANDLERS, LoweredKernel, parsed
from tlmatrix.prove.launches import asked_cases, variants
from tlmatrix.run.harness import Harness
from tlmatrix.run.plan import plan
from tlmatrix.spec.loader import load_spec
from tlmatrix.spec.model.spec import has_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tlmatrix.interpreter.ir import nodes as ir
    from tlmatrix.matrix import Case
    from tlmatrix.spec.model.spec import Spec

sys.setrecursionlimit(20_000)
_RANK_SECONDS = 60.0
_MOST = 1 << 17
"""Elements of the inputs of a case of other sizes, and of a launch that is kept for another."""
_VARIANTS = 4
"""Cases of other sizes."""


@dataclass(frozen=True)
class Recorded:
    """A launch of a lowered kernel.

    Attributes:
        case: the first case that launched the kernel.
        kernel: its traced PrimFunc.
        steps: what its host code does.
        functions: its device functions.
        values: an argument for each parameter, as they were before the launch.
    """

    case: str
    arch: str
    kernel: ir.Kernel
    steps: tuple[Any, ...]
    functions: list[ir.Kernel]
    values: tuple[Any, ...]


def copied(values: Sequence[Any]) -> list[Any]:
    """Arguments in memory of their own: tensors that share memory still do."""
    storages: dict[int, Any] = {}
    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            own = value.detach().untyped_storage()
            storage = storages.setdefault(own.data_ptr(), own.clone())
            place = (value.storage_offset(), value.shape, value.stride())
            found.append(torch.empty(0, dtype=value.dtype).set_(storage, *place))
        else:
            found.append(value)
    return found


def size(values: Iterable[Any]) -> int:
    """How many elements tensors have together."""
    return sum(value.numel() for value in values if isinstance(value, torch.Tensor))


def cases(path: Path, arch: str) -> list[Case]:
    """The cases of a spec's smoke tier whose kernels are recorded; none of ranks, or elsewhere."""
    spec = load_spec(path)
    if has_ranks(spec) or arch not in (spec.architectures or (arch,)):
        return []
    return asked_cases(plan(spec, "smoke").cases())


def recorded(path: Path, arch: str, cache: Path, number: int) -> dict[str, Recorded]:
    """A launch of each kernel of an asked case, by kernel; kept in the folder `cache`."""
    file = cache / f"{path.stem}-{arch}-{number}.pt"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        torch.save(_launches(load_spec(path), arch, cases(path, arch)[number]), file)
    found: dict[str, Recorded] = torch.load(file, weights_only=False)
    return found


def _launches(spec: Spec, arch: str, asked_case: Case) -> dict[str, Recorded]:
    """Run a case, and others with its kernels; keep the largest launch of each kernel."""
    found: dict[str, Recorded] = {}
    case, smoke = "", True
    original = DeviceCode.run

    def run(self: Any, values: Sequence[Any], session: Any) -> Any:
        key = hashlib.sha256(saved(self._func).encode()).hexdigest()
        if key not in found and smoke:
            parts = parsed(lowered(self._func, arch, self._configs))
            found[key] = Recorded(case, arch, *parts, tuple(copied(values)))
            programs = {f.name: Emitter(f, HANDLERS).program() for f in parts[2]}
            self.__dict__["code"] = LoweredKernel(*parts[:2], programs)
        elif key in found and _MOST >= size(values) > size(found[key].values):
            found[key] = replace(found[key], case=case, values=tuple(copied(values)))
        return original(self, values, session)

    backend = backend_named("lowered", (arch,))
    harness = Harness(backend, (), _RANK_SECONDS, None)
    DeviceCode.run = run
    try:
        for each in (asked_case, *variants(spec, asked_case, _VARIANTS)):
            case, smoke = each.id, each is asked_case
            bound = harness.bind(spec, backend)
            try:
                problem = harness.problem(bound, spec, each, 0)
                if not smoke and size(problem.inputs.values()) > _MOST:
                    continue
                with guarded(problem) as (own, _):
                    execute(bound.binding, own)
            except Exception as error:  # noqa: BLE001 - sizes that the entry or its family refuses
                reason = (str(error).splitlines() or [""])[0]
                print(f"{case}: {type(error).__name__}: {reason}", flush=True)
    finally:
        DeviceCode.run = original
    return found
