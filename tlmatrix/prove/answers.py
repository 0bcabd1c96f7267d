"""Answers of proofs: plain data, kept on disk and read without Z3 or PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tlmatrix.cache_files import FileCache, cache_folder
from tlmatrix.run.sources import digest_of, read_sources

if TYPE_CHECKING:
    from tlmatrix.spec.model.spec import Spec

Answer = Literal["proven", "refuted", "unknown"]
PROPERTIES = (
    "races", "own sequence", "coverage", "bounds", "overflow", "assumptions", "equal bits",
    "phases", "grid", "budget",
)  # fmt: skip
"""The names of properties, in the order of reports."""
PROVEN_TIER = "smoke"
"""The tier whose kernels are proven: those of the first cases, as a proof holds for all sizes."""


@dataclass(frozen=True)
class Values:
    """Values with which a property would not hold.

    Attributes:
        symbols: of symbolic dims and integer scalars, by name.
        tables: of elements of integer tensors, by name: pairs of index and value, ascending.
        like_launch: whether they are those of an observed launch but for lengths, with the same
            number of rows and no longer sequence.
        of_floats: whether values that come with them are not known, as they depend on floats.
    """

    symbols: dict[str, int]
    tables: dict[str, tuple[tuple[tuple[int, ...], int], ...]]
    like_launch: bool = False
    of_floats: bool = False


@dataclass(frozen=True)
class Proof:
    """The answer to one property of a kernel; plain data, kept on disk.

    Attributes:
        name: the property, such as "races".
        subject: the buffer, or what else it is about.
        answer: "unknown" until a case confirms what refutes it.
        facts: those that a proof uses, in words, with where they come from.
        reason: why it is not proven.
        place: the line of the access that no proof was found for.
        values: those with which it would not hold.
        case: of a refuted property, the case that confirms it.
        arch: the architecture that its kernels are traced for.
        finding: the finding of that case.
        because: why the spec lets the property be unknown.
    """

    name: str
    subject: str
    answer: Answer
    facts: tuple[str, ...] = ()
    reason: str = ""
    place: str = ""
    values: Values | None = None
    case: str = ""
    arch: str = ""
    finding: str = ""
    because: str = ""

    def __str__(self) -> str:
        return f"{self.name} of {self.subject}"


@dataclass(frozen=True)
class KernelProofs:
    """The answers about one kernel.

    Attributes:
        name: the kernel's name.
        case: the first case that launched it.
        architectures: those for which tracing gives this kernel.
        proofs: by property, in the order of the kernel's parameters.
        unsupported: why nothing could be asked; "" if it could.
        seconds: what it took.
    """

    name: str
    case: str
    architectures: tuple[str, ...]
    proofs: tuple[Proof, ...] = ()
    unsupported: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class SpecProofs:
    """The answers about the kernels of a spec, kept on disk.

    Attributes:
        kernels: of each distinct kernel.
        failed: the cases whose host code raised.
        contradicted: conditions that the spec gives and a launch contradicts.
    """

    kernels: tuple[KernelProofs, ...]
    failed: tuple[str, ...] = ()
    contradicted: tuple[str, ...] = ()

    @property
    def counts(self) -> Counter[str]:
        """How many properties have each answer."""
        return Counter(proof.answer for each in self.kernels for proof in each.proofs)


# Kept on disk, for `run` and reports --------------------------------------------------------------


def keep(spec: Spec, tier: str, proofs: SpecProofs, roots: Sequence[Path]) -> None:
    """Keep the answers until the sources of the spec change."""
    _store().add(_key(spec, tier, roots), proofs)


def summary(spec: Spec, roots: Sequence[Path]) -> str:
    """A line about the answers that are kept; "" if there are none."""
    proofs = _store().find(_key(spec, PROVEN_TIER, roots), SpecProofs)
    if proofs is None:
        return ""
    counts = proofs.counts
    words = f"{counts['proven']} of {counts.total()} properties of its kernels are proven"
    refuted = f", {counts['refuted']} refuted" if counts["refuted"] else ""
    return f"{spec.name}: {words} for all sizes{refuted} (tlmatrix prove)"


def _store() -> FileCache:
    return FileCache(cache_folder() / "proofs")


def _key(spec: Spec, tier: str, roots: Sequence[Path]) -> str:
    parts = read_sources(spec.path, tuple(roots)).parts
    return sha256(f"proofs:{tier}:{digest_of(parts)}".encode()).hexdigest()
