"""A draft of a spec: its parts, and their text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tlmatrix.spec.schema import EDITOR_COMMENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


_WIDTH = 100


@dataclass(frozen=True)
class Reference:
    """A reference with the name or expression for each of its parameters.

    `call` is None if the names are those of the problem; its names are "" for positions. `missing`
    are parameters without a value. `method` and `module` are those of `Found`. `same_dtype` is of
    functions that refuse float64.
    """

    target: str
    call: tuple[tuple[str, str], ...] | None
    missing: tuple[str, ...]
    method: str = ""
    module: str = ""
    same_dtype: bool = False

    @property
    def difference(self) -> str:
        """How its names differ, as text; empty if they do not."""
        if self.missing:
            return f"{self.target} also takes {', '.join(self.missing)}: give each a value"
        if self.call is None:
            return ""
        renamed = [f"{name} gets {value}" for name, value in self.call if name not in ("", value)]
        if not any(name for name, _ in self.call):
            return ""
        called = ", ".join(renamed) or "it takes only " + ", ".join(name for name, _ in self.call)
        return f"{self.target} is called by its own names: {called}"


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
        without: checks that do not apply.
        bounded: whether equal calls may differ within the bounds of errors.
        multiples: factors that all recorded sizes of an axis have.
        recorded: values of axes in a recorded call.
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
    without: tuple[str, ...] = ()
    bounded: bool = False
    multiples: Mapping[str, int] = field(default_factory=dict)
    recorded: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the spec can run without additions."""
        return bool(self.problem) or (self.reference is not None and not self.reference.missing)


def spec_text(draft: Draft) -> str:
    """The spec as YAML that `tlmatrix check` accepts."""
    return EDITOR_COMMENT + "\n".join(_lines(draft)) + "\n"


def write_spec(draft: Draft, path: Path) -> None:
    """Write the spec, and beside it the module that calls a method which is its reference."""
    path.write_text(spec_text(draft), encoding="utf-8")
    if draft.reference is not None and draft.reference.module:
        name = draft.reference.target.partition(":")[0]
        path.with_name(f"{name}.py").write_text(draft.reference.module, encoding="utf-8")


def quoted(text: str) -> str:
    """A scalar in a flow sequence or mapping, quoted if YAML requires it."""
    if text.startswith("{inout: "):
        return text
    return f'"{text}"' if re.search(r"[,:\[\]{}#&*!|>'%@`]|^[-?]|^$", text) else text


def constant(value: Any) -> str:  # noqa: ANN401 - any default
    """A constant as an expression in YAML; infinity is a number too large for a float."""
    if isinstance(value, str):
        return f"\"'{value}'\""
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return str(value).lower()


def _lines(draft: Draft) -> Iterator[str]:
    yield f"name: {draft.name}"
    yield f"summary: {draft.summary}"
    if draft.problem:
        yield f"problem: {draft.problem}"
    else:
        yield from _declared(draft)
    yield f"{'factory' if draft.factory else 'entry'}: {draft.target}"
    if draft.factory_args:
        yield from _mapping("factory_args", draft.factory_args)
    if draft.constructor_args:
        yield from _mapping("constructor_args", draft.constructor_args)
    if draft.call is not None:
        yield from _either("call", draft.call)
    if draft.returns:
        yield from _either("returns", draft.returns)
    yield ""
    yield "axes:"
    for name, values in draft.axes.items():
        yield from _axis(name, values, draft.remarks.get(name, ""))
    if draft.constraints:
        yield ""
        yield "constraints:"
        for rule, because in draft.constraints:
            yield f"  - {{require: {quoted(rule)}, because: {quoted(because)}}}"
    if draft.without:
        yield from ("", f"checks: {{without: [{', '.join(draft.without)}]}}")
    if draft.bounded:
        yield from ("", "determinism: bounded")
    if draft.tolerance:
        yield from ("", *_mapping("tolerance", draft.tolerance))
    if draft.fuzz:
        yield ""
        yield "fuzz:"
        for line in draft.fuzz:
            yield f"  {line.key}: {line.value}"


def _declared(draft: Draft) -> Iterator[str]:
    yield "problem:"
    yield "  inputs:"
    for line in draft.inputs:
        yield f"    {line.key}: {line.value}{_remark(line.remark)}"
    if any(line.value for line in draft.outputs):
        yield "  outputs:"
        for line in draft.outputs:
            yield f"    {line.key}: {line.value or '{}'}{_remark(line.remark)}"
    else:
        yield f"  outputs: [{', '.join(line.key for line in draft.outputs)}]"
    if draft.stub:
        yield from (f"  # {line}" for line in draft.stub)
    reference = draft.reference
    if reference is not None and reference.method:
        yield f"  # A function that calls {reference.method}."
    if reference is None:
        yield f"  reference: {draft.target.partition(':')[0]}:reference"
    elif reference.call is None and not reference.same_dtype:
        yield f"  reference: {reference.target}"
    else:
        if reference.missing:
            yield f"  # It also takes {', '.join(reference.missing)}: add values for them."
        yield "  reference:"
        yield f"    function: {reference.target}"
        call = reference.call or ()
        pairs = [f"{name}: {quoted(value)}" for name, value in call if name]
        if pairs:
            yield from _flow("    call", pairs)
        elif call:
            yield f"    call: [{', '.join(value for _, value in call)}]"
        if reference.same_dtype:
            yield "    dtype: same"


def _mapping(key: str, lines: Sequence[Line]) -> Iterator[str]:
    if any(line.remark for line in lines):
        yield f"{key}:"
        for line in lines:
            yield f"  {line.key}: {line.value}{_remark(line.remark)}"
        return
    yield from _flow(key, [f"{line.key}: {line.value}" for line in lines])


def _either(key: str, items: tuple[str, ...] | tuple[Line, ...]) -> Iterator[str]:
    pairs = [item for item in items if isinstance(item, Line)]
    if pairs:
        yield from _mapping(key, pairs)
        return
    yield f"{key}: [{', '.join(str(item) for item in items)}]"


def _flow(key: str, pairs: Sequence[str]) -> Iterator[str]:
    line = f"{key}: {{{', '.join(pairs)}}}"
    if len(line) <= _WIDTH:
        yield line
        return
    indent = " " * (len(key) - len(key.lstrip()) + 2)
    yield f"{key}:"
    yield from (f"{indent}{pair}" for pair in pairs)


def _axis(name: str, values: Sequence[str], remark: str) -> Iterator[str]:
    if any(value[:1] in "[{" for value in values):
        yield f"  {name}:{_remark(remark)}"
        yield from (f"    - {value}" for value in values)
        return
    yield f"  {name}: [{', '.join(values)}]{_remark(remark)}"


def _remark(text: str) -> str:
    return f"  # {text}" if text else ""
