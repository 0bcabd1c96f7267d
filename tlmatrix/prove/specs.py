"""Proves the kernels of a spec: observes, asks in processes side by side, refutes with cases."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from multiprocessing import get_context
from typing import TYPE_CHECKING

from tlmatrix.interpreter.frontend.programs import program_cache
from tlmatrix.run.sources import digest_of, read_sources

from .cases import variants
from .kernels import KernelProofs, prove_kernel
from .launches import observe
from .refuting import refuted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tlmatrix.matrix import Case
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

    from .launches import KernelUse
    from .properties import Proof

_VARIANTS = 4
"""Other cases whose launches are observed, for each case."""


@dataclass(frozen=True)
class SpecProofs:
    """The answers about the kernels of a spec, kept on disk.

    Attributes:
        kernels: of each distinct kernel.
        failed: the cases whose host code raised.
    """

    kernels: tuple[KernelProofs, ...]
    failed: tuple[str, ...] = ()

    @property
    def counts(self) -> Counter[str]:
        """How many properties have each answer."""
        return Counter(proof.answer for each in self.kernels for proof in each.proofs)


def prove_spec(
    spec: Spec,
    cases: Sequence[Case],
    runner: Runner,
    *,
    arch: str = "",
    workers: int = 1,
    roots: Sequence[Path] = (),
    on_kernel: Callable[[KernelProofs], None] = lambda _: None,
) -> SpecProofs:
    """Prove the kernels that cases of a spec launch.

    Args:
        spec: the spec.
        cases: some of its cases.
        runner: runs cases that may refute a property, on the interpreter.
        arch: the architecture that kernels are traced for, by default the first of the spec.
        workers: processes that ask side by side.
        roots: folders from which entries are imported.
        on_kernel: called with each kernel when all its properties have an answer.
    """
    arch = arch or next(iter(spec.architectures), "sm_90a")
    own = {case.id: case for case in cases}
    more = [each for case in cases for each in variants(spec, case, _VARIANTS)]
    uses, failed = observe(spec, [*cases, *more], arch, roots=roots)
    own |= {case.id: case for case in more}
    found = []
    tried: set[tuple[str, str, str, str]] = set()
    for use, proven in _asked(uses, spec, workers):
        proofs = []
        for proof in proven.proofs:
            # Variants of one kernel have the same fault.
            key = (use.name, proof.name, proof.subject, proof.place)
            if proof.answer == "unknown" and proof.values is not None and key not in tried:
                tried.add(key)
                proofs.append(refuted(runner, spec, use, own[use.case], proof))
            else:
                proofs.append(proof)
        each = replace(proven, proofs=tuple(_allowed(spec, proven, proof) for proof in proofs))
        found.append(each)
        on_kernel(each)
    return SpecProofs(tuple(found), tuple(failed))


def _asked(
    uses: Sequence[KernelUse], spec: Spec, workers: int
) -> Iterator[tuple[KernelUse, KernelProofs]]:
    given = dict(spec.prove.given)
    if workers <= 1 or len(uses) <= 1:
        for use in uses:
            yield use, prove_kernel(use, given)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("forkserver")) as pool:
        yield from zip(uses, pool.map(prove_kernel, uses, [given] * len(uses)), strict=True)


def _allowed(spec: Spec, kernel: KernelProofs, proof: Proof) -> Proof:
    """An unknown property with the reason that the spec gives for it."""
    because = spec.prove.unknown.get(f"{kernel.name}: {proof}", "")
    return replace(proof, because=because) if proof.answer == "unknown" and because else proof


# Kept on disk, for `run` and reports --------------------------------------------------------------


def keep(spec: Spec, tier: str, proofs: SpecProofs, roots: Sequence[Path]) -> None:
    """Keep the answers until the sources of the spec change."""
    store = program_cache()
    if store is not None:
        store.add(_key(spec, tier, roots), proofs)


def kept(spec: Spec, tier: str, roots: Sequence[Path]) -> SpecProofs | None:
    """The answers for the sources of a spec as they are, if it was proven."""
    store = program_cache()
    return None if store is None else store.find(_key(spec, tier, roots), SpecProofs)


def _key(spec: Spec, tier: str, roots: Sequence[Path]) -> str:
    parts: Mapping[str, str] = read_sources(spec.path, tuple(roots)).parts
    return sha256(f"proofs:{tier}:{digest_of(parts)}".encode()).hexdigest()
