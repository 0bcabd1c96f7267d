"""A draft of a spec: its parts before they are text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tlmatrix.commands.new.references import Reference


@dataclass(frozen=True)
class Line:
    """A key with its value as YAML, and a comment for the user."""

    key: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Draft:
    """The parts of a spec.

    Attributes:
        target: the entry or factory, `package.module:name`.
        factory: whether the target is a factory.
        problem: `attention` or `gemm`; "" for a declared problem.
        stub: comment lines in place of a missing reference.
        call: a mapping (by keyword) or a list; None if the names match.
        notes: lines to print for the user.
    """

    name: str
    summary: str
    target: str
    factory: bool
    problem: str = ""
    inputs: tuple[Line, ...] = ()
    outputs: tuple[Line, ...] = ()
    reference: Reference | None = None
    stub: tuple[str, ...] = ()
    factory_args: tuple[Line, ...] = ()
    constructor_args: tuple[Line, ...] = ()
    call: tuple[str, ...] | tuple[Line, ...] | None = None
    returns: tuple[str, ...] | tuple[Line, ...] = ()
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[tuple[str, str], ...] = ()
    tolerance: tuple[Line, ...] = ()
    fuzz: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the spec can run without additions."""
        return bool(self.problem) or (self.reference is not None and not self.reference.missing)


def drop_values(draft: Draft, rejected: Mapping[str, Collection[str]]) -> Draft:
    """The draft without some values of axes."""
    axes = {
        name: tuple(value for value in values if value not in rejected.get(name, ()))
        for name, values in draft.axes.items()
    }
    return replace(draft, axes=axes)
