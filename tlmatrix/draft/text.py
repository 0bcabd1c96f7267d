"""A draft of a spec: its parts, and their text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import yaml

from tlmatrix.spec.schema import EDITOR_COMMENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WIDTH = 100


@dataclass(frozen=True)
class Reference:
    """A reference with the name or expression for each of its parameters.

    `call` is None if the names are those of the problem. `missing` are parameters without a value.
    `method` and `module` are those of `Found`. `same_dtype` is of functions that refuse float64.
    `returns` are its results if some are no outputs.
    """

    target: str
    call: Mapping[str, Any] | None
    missing: tuple[str, ...] = ()
    method: str = ""
    module: str = ""
    same_dtype: bool = False
    returns: tuple[str, ...] = ()

    @property
    def difference(self) -> str:
        """How its names differ, as text; empty if they do not."""
        if self.missing:
            return f"{self.target} also takes {', '.join(self.missing)}: give each a value"
        if self.call is None:
            return ""
        renamed = [f"{name} gets {value}" for name, value in self.call.items() if name != value]
        called = ", ".join(renamed) or "it takes only " + ", ".join(self.call)
        return f"{self.target} is called by its own names: {called}"


@dataclass(frozen=True)
class Draft:
    """The parts of a spec; expressions are text, other values those of YAML.

    Attributes:
        target: the entry or factory, `package.module:name`.
        factory: whether the target is a factory.
        problem: `attention` or `gemm`; "" for a declared problem.
        stub: comment lines in place of a missing reference.
        call: a mapping (by keyword) or a list; None if the names match.
        remarks: comments of inputs and axes, by name.
        without: checks that do not apply.
        bounded: whether equal calls may differ within the bounds of errors.
        multiples: factors that all recorded sizes of an axis have.
        recorded: values of axes in a recorded call.
        ranges: the least and the largest value of inputs whose values had one sign in all calls,
            or were a part of the range of an integer input.
        guessed: whether the values of inputs are guesses, of which a kernel may read anything.
        notes: lines to print for the user.
    """

    name: str
    summary: str
    target: str
    factory: bool
    problem: str = ""
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reference: Reference | None = None
    stub: tuple[str, ...] = ()
    factory_args: Mapping[str, Any] = field(default_factory=dict)
    constructor_args: Mapping[str, Any] = field(default_factory=dict)
    call: Mapping[str, Any] | tuple[Any, ...] | None = None
    returns: Mapping[str, str] | tuple[str, ...] = ()
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[tuple[str, str], ...] = ()
    tolerance: Mapping[str, Any] = field(default_factory=dict)
    fuzz: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    bounded: bool = False
    multiples: Mapping[str, int] = field(default_factory=dict)
    recorded: Mapping[str, Any] = field(default_factory=dict)
    ranges: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    guessed: bool = False
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether there is a reference for its values."""
        return bool(self.problem) or (self.reference is not None and not self.reference.missing)

    @property
    def runs(self) -> bool:
        """Whether the results of a run tell something, if only of all but values."""
        return self.complete or not self.guessed

    def without_sanitizers(self) -> Draft:
        """The draft whose kernels no sanitizer watches."""
        return replace(self, without=(*self.without, "sanitizers"))

    def ranges_of(self, *, integer: bool) -> Mapping[str, Sequence[Any]]:
        """Those of integer inputs, or of others."""
        given = self.ranges.items()
        return {n: each for n, each in given if ("between" in self.inputs[n]) is integer}

    def in_ranges(self, *, integer: bool = False) -> Draft:
        """The draft whose inputs, integer or others, have values in these ranges alone."""
        found = self.ranges_of(integer=integer)
        given = {name: {**self.inputs[name], "between": each} for name, each in found.items()}
        left = {name: each for name, each in self.ranges.items() if name not in found}
        return replace(self, inputs={**self.inputs, **given}, ranges=left)


def constant(value: Any) -> Any:  # noqa: ANN401 - any default
    """A constant as a value of a spec; infinity is a number too large for a float."""
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return "none" if value is None else value


def written(value: Any) -> str:  # noqa: ANN401 - any value of a spec
    """A value as a part of an expression."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_spec(draft: Draft, path: Path) -> None:
    """Write the spec, and beside it the module that calls a method which is its reference."""
    path.write_text(spec_text(draft), encoding="utf-8")
    if draft.reference is not None and draft.reference.module:
        name = draft.reference.target.partition(":")[0]
        path.with_name(f"{name}.py").write_text(draft.reference.module, encoding="utf-8")


def spec_text(draft: Draft) -> str:
    """The spec as YAML that `tlmatrix check` accepts."""
    without = (*["numeric"] * (not draft.complete), *draft.without)
    first = {
        "name": draft.name,
        "summary": draft.summary,
        "problem": draft.problem or _declared(draft),
        "factory" if draft.factory else "entry": draft.target,
        "factory_args": draft.factory_args,
        "constructor_args": draft.constructor_args,
        "call": draft.call,
        "returns": draft.returns,
    }
    sections = {
        "axes": draft.axes,
        "constraints": [{"require": rule, "because": why} for rule, why in draft.constraints],
        "checks": {"without": without} if without else {},
        "determinism": "bounded" if draft.bounded else "",
        "tolerance": draft.tolerance,
        "fuzz": draft.fuzz,
    }
    comments = {"reference": [*_comments(draft)], "tolerance": ["Rounding may differ by one."]}
    if not draft.complete:
        comments["checks"] = ["No value is compared. Remove `numeric` when there is a reference."]
    lines = [EDITOR_COMMENT.rstrip()]
    for key, value in (first | sections).items():
        if value or (key == "call" and value is not None):
            lines += [""] * (key in sections)
            remarks = draft.remarks if key in ("problem", "axes") else {}
            lines += _lines(key, value, "", remarks, comments)
    return "\n".join(lines) + "\n"


def _declared(draft: Draft) -> dict[str, Any]:
    """The declared problem."""
    outputs = draft.outputs if any(draft.outputs.values()) else list(draft.outputs)
    reference = _reference(draft) if draft.complete else None
    return {"inputs": draft.inputs, "outputs": outputs, "reference": reference}


def _reference(draft: Draft) -> Any:  # noqa: ANN401 - a value of YAML
    """The reference, or the name of a function that is to be written."""
    found = draft.reference
    if found is None:
        return f"{draft.target.partition(':')[0]}:reference"
    own = {"call": found.call, "returns": found.returns, "dtype": "same" * found.same_dtype}
    if found.call is None and not any(own.values()):
        return found.target
    return {"function": found.target} | {key: each for key, each in own.items() if each}


def _comments(draft: Draft) -> Iterator[str]:
    """The comments above the reference, and where one is missing those in its place."""
    yield from draft.stub
    if draft.reference is not None and draft.reference.method:
        yield f"A function made from {draft.reference.method}."
    if draft.reference is not None and draft.reference.missing:
        yield f"It also takes {', '.join(draft.reference.missing)}: add values for them."
    if not draft.complete:
        yield f"reference: {_flow(_reference(draft))}"


# YAML -----------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Writes text that needs quotes in double ones, and equal values twice."""

    def choose_scalar_style(self) -> Any:  # noqa: ANN401 - PyYAML has no types
        style = super().choose_scalar_style()
        return '"' if style == "'" else style

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _lines(
    key: str,
    value: Any,  # noqa: ANN401 - any value of YAML
    indent: str,
    remarks: Mapping[str, str],
    comments: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    """A key with its value: on one line if that is short, and no mapping of mappings.

    Of None the comments alone.
    """
    remark = f"  # {remarks[key]}" if key in remarks else ""
    yield from (f"{indent}# {line}" for line in comments.get(key, ()))
    if value is None:
        return
    line = f"{indent}{key}: {_flow(value)}{remark}"
    if isinstance(value, Mapping):
        nested = any(isinstance(each, Mapping) for each in value.values())
        if nested or len(line) > _WIDTH or (key == "axes" and not indent):
            yield f"{indent}{key}:{remark}"
            for name, each in value.items():
                yield from _lines(name, each, f"{indent}  ", remarks, comments)
            return
    parts = value if isinstance(value, list | tuple) else ()
    if parts and all(isinstance(each, Mapping | list | tuple) for each in parts):
        yield f"{indent}{key}:{remark}"
        yield from (f"{indent}  - {_flow(each)}" for each in parts)
        return
    yield line


def _flow(value: Any) -> str:  # noqa: ANN401 - any value of YAML
    """A value on one line."""
    text = yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=True,
        width=float("inf"),
        sort_keys=False,
        allow_unicode=True,
    )
    return text.removesuffix("...\n").strip()
