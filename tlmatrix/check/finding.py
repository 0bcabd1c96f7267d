"""Findings: failed checks with the facts needed to act on them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from tlmatrix.json_fields import fields_of
from tlmatrix.words import bounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from tlmatrix.problem import Dim, Problem, TensorInfo

NOT_RUN = "not run: "
"""Begins the note of a finding that stopped other checks."""

MASKED = "found in a second pass, with the findings above masked"
"""Ends the detail of a finding of the second pass."""

_LINE, _TEXT = 4_000, 64_000
_MOST = {
    "title": _LINE,
    "hint": _LINE,
    "pattern": _LINE,
    "where": _LINE,
    "call": _LINE,
    "against": _LINE,
    "detail": _TEXT,
    "message": _TEXT,
}
"""The most characters of each text."""


KEEPS_STATE = "the entry keeps state"
"""In the detail of a finding about a later call: an earlier call changed its results."""


@dataclass(frozen=True)
class Element:
    """An element of the results of one of several calls: `call` is the number of the call."""

    call: int
    name: str
    index: tuple[int, ...]


@dataclass(frozen=True)
class Compared:
    """The two tensors that a finding compared, and where the worst element came from.

    Attributes:
        expected: what the tensor should hold.
        got: the tensor, of the same shape.
        index: the worst element of both.
        calls: the problems of the calls after the first one, in order; empty if the finding is
            about the first call.
        element: the same element in the results of one of `calls`; None if it is one of the first
            call, or was computed from the results of several.
    """

    expected: torch.Tensor
    got: torch.Tensor
    index: tuple[int, ...]
    calls: tuple[Problem, ...] = ()
    element: Element | None = None


@dataclass(frozen=True)
class Finding:
    """A failed check.

    Attributes:
        check: the name of the check.
        title: one line.
        tensor: the output or gradient that is wrong.
        index: the worst element by named dimension ({"sequence": 1, "position": 17, "dim": 3}).
        expected: its value in the reference.
        got: its value in the results.
        call: the arguments of the call, if the finding is not about the first call of the case.
        ratio: the worst error as a multiple of the error bound.
        wrong: how many elements are wrong, of `total`.
        total: the number of elements.
        pattern: the shape of the wrong elements ("a row", "a tile", "everything").
        where: their indices ("rows 3-17 of sequence 1").
        hint: a likely cause.
        detail: more lines.
        source: file and line of the access that a sanitizer reports.
        kernel: its kernel.
        block: its block.
        against: the other access of a race.
        pictures: grids of the wrong elements (`tlmatrix.check.patterns`).
        message: the whole text of an exception, if the title has a part of it; only for records.
        compared: the tensors that were compared, if `judge` keeps them; never in records.

    Control characters and lone surrogates in texts are escaped, so that each text can be printed
    and sent to other processes. Long texts, which come from the code under test, lose their middle:
    beyond 64,000 characters of `detail` and `message`, and 4,000 of others.
    """

    check: str
    title: str
    tensor: str | None = None
    index: Mapping[str, int] = field(default_factory=dict)
    expected: float | None = None
    got: float | None = None
    call: str | None = None
    ratio: float | None = None
    wrong: int | None = None
    total: int | None = None
    pattern: str | None = None
    where: str | None = None
    hint: str | None = None
    detail: str | None = None
    source: str | None = None
    kernel: str | None = None
    block: tuple[int, ...] | None = None
    against: str | None = None
    pictures: tuple[Mapping[str, Any], ...] = field(default=(), repr=False, compare=False)
    message: str | None = None
    compared: Compared | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            text = getattr(self, name)
            if text and (kept := bounded(text, most)) is not text:
                object.__setattr__(self, name, kept)

    @property
    def cause(self) -> tuple[str, str | None, str | None]:
        """Equal for two findings of the same fault."""
        return (self.check, self.tensor, self.pattern)

    @property
    def summary(self) -> str:
        """The check and the title, in one line."""
        return f"{self.check}: {self.title}"

    @property
    def line(self) -> tuple[str, int] | None:
        """The file and the line of `source`."""
        file, _, line = (self.source or "").rpartition(":")
        return (file, int(line)) if file and line.isdigit() else None

    def with_notes(self, *notes: str) -> Finding:
        """The finding with further lines of detail."""
        return replace(self, detail="\n".join(filter(None, (self.detail, *notes))) or None)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the results file, without absent fields."""
        return {
            key: value
            for key, value in asdict(replace(self, compared=None)).items()
            if value not in (None, {}, "", ())
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """The finding that `to_json` wrote; ignores fields of later versions.

        Raises:
            TypeError: a value does not have the type of its field.
        """
        known = fields_of(cls, data)
        known.pop("compared", None)
        if "block" in known:
            known["block"] = tuple(known["block"])
        known["pictures"] = tuple(known.get("pictures", ()))
        return cls(**known)


class FindingsError(RuntimeError):
    """A run ended with findings and without results."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(self.findings[0].title)

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[Finding, ...]]]:
        """Pickle the findings; the default would pass the title to `__init__`."""
        return type(self), (self.findings,)


def tensor_index(info: TensorInfo, finding: Finding) -> tuple[int, ...] | None:
    """The element of a finding as an index into the tensor; None if the finding has none."""
    index = []
    for dim in info.dims:
        if dim.name not in finding.index:
            return None
        index.append(_start(dim, finding) + finding.index[dim.name])
    return tuple(index)


def _start(dim: Dim, finding: Finding) -> int:
    if dim.starts is None or dim.region_name not in finding.index:
        return 0
    return int(dim.starts[finding.index[str(dim.region_name)]])
