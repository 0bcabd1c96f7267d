"""A finding: a failed check, with what a person needs to act on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Finding", "FindingsError"]


@dataclass(frozen=True)
class Finding:
    """A failed check.

    `title` is one line; `tensor` the output or gradient it is about; `index` the worst element
    in the tensor's own terms ({"sequence": 1, "position": 17, "head": 0, "dim": 3});
    `ratio` the error as a multiple of the allowance; `wrong` of `total` elements are outside it;
    `pattern` names their shape (`"a row"`, `"a tile"`, `"a head"`, `"a sequence"`,
    `"everything"`); `where` lists the rows in words (`"rows 3-17 of sequence 1"`); `hint` is what
    such a pattern usually means. Two findings are the same to a person when `cause` is equal.

    What a sanitizer found has a place in the code: `source` is the file and line of the access,
    `kernel` and `block` who did it, and `against` the other party where there are two.
    """

    check: str
    title: str
    tensor: str | None = None
    index: Mapping[str, int] = field(default_factory=dict)
    expected: float | None = None
    got: float | None = None
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

    @property
    def cause(self) -> tuple[str, str | None, str | None]:
        """What two findings of the same fault share."""
        return (self.check, self.tensor, self.pattern)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the results file, absent fields left out."""
        return {key: value for key, value in asdict(self).items() if value not in (None, {}, "")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """The finding that `to_json` wrote; fields of a later version are left aside."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        if "block" in known:
            known["block"] = tuple(known["block"])
        return cls(**known)


class FindingsError(RuntimeError):
    """A run that ended in findings, and without results to judge."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(self.findings[0].title)

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[Finding, ...]]]:
        """How it is pickled: with its findings; the title alone would be taken for them."""
        return type(self), (self.findings,)
