"""`tlmatrix new`: a first spec from a signature, with comments that say what to fill in."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmatrix.backend.signature import is_tilelang_factory, parameters_of, written
from tlmatrix.commands.factories import factory_lines
from tlmatrix.exit_codes import ExitCode, UsageError
from tlmatrix.spec.schema import SCHEMA_PATH

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from tlmatrix.config import Config

__all__ = ["new", "spec_text"]

_ATTENTION_AXES = {
    "dtype": "[float16, bfloat16]",
    "kv_heads": "[1, 2]",
    "groups": "[1, 4]             # query heads per kv head",
    "head_dim": "[64, 128]",
    "causal": "[false, true]",
}
_LENGTHS = {
    "batch": "[1, 2]",
    "seqlen_q": "[1, 63, 64, 65, 200]",
    "seqlen_k": "[1, 64, 127]",
}
_PACKED = """\
  seqlens:                          # packed sequences; k: same means the lengths of q
    - {q: [17, 64, 1], k: same}
    - {q: [128, 129, 127], k: [256, 1, 64]}
    - {q: [0, 5], k: [7, 0]}
"""
_GEMM_AXES = {
    "m": "[1, 63, 64, 129]",
    "n": "[64, 96]",
    "k": "[64, 72]",
    "dtype": "[float16]",
}


def new(arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Print the spec, or write it where there is no file yet.

    Raises:
        UsageError: there is no such callable, or the file is there already.
    """
    text = spec_text(arguments.target)
    if arguments.output is None:
        print(text, end="")
        return ExitCode.OK
    path = Path(arguments.output)
    if path.exists():
        raise UsageError(f"{path} is there already; remove it, or write to another file")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}; next: tlmatrix check {path} && tlmatrix run {path}")
    return ExitCode.OK


def spec_text(target: str) -> str:
    """A spec for `package.module:name`, as YAML that `tlmatrix check` accepts.

    Raises:
        UsageError: there is no such thing, or it cannot be called.
    """
    found = _imported(target)
    parameters = _parameters(found, target)
    names = [parameter.name for parameter in parameters]
    head = [
        f"name: {_spec_name(target)}",
        f"summary: {_summary(found)}",
    ]
    if is_tilelang_factory(found):
        return _join(head, [*factory_lines(found, target, parameters), *_tail()])
    if {"q", "k", "v"} <= set(names):
        return _join(head, _attention(target, parameters))
    if {"a", "b"} <= set(names):
        return _join(head, _gemm(target, parameters))
    return _join(head, _declared(target, parameters))


def _imported(target: str) -> Callable[..., Any]:
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise UsageError(f'{target!r}: write "package.module:name"')
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
        for name in attribute.split("."):
            found = getattr(found, name)
    except Exception as error:
        raise UsageError(f"{target!r}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise UsageError(f"{target!r} is not callable but of type {type(found).__name__}")
    callee: Callable[..., Any] = found
    return callee


def _parameters(found: Callable[..., Any], target: str) -> Sequence[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = (parameters_of(found) or {}).values()
    named = [parameter for parameter in parameters if parameter.kind in kinds]
    if named:
        return named
    raise UsageError(f"{target!r}: its parameters cannot be read, or it has none")


def _attention(target: str, parameters: Sequence[inspect.Parameter]) -> list[str]:
    names = [parameter.name for parameter in parameters]
    packed = "cu_seqlens_q" in names
    axes = dict(_ATTENTION_AXES)
    if "window" in names:
        axes["window"] = "[none, 1, 64]"
    if not packed:
        axes |= _LENGTHS
        axes["layout"] = "[bshd]             # or bhsd"
    known = {*axes, "q", "k", "v", "scale", "layout", "sink", "window", "dtype"}
    lines = [
        "problem: attention                 # inputs, float64 reference and properties",
        f"entry: {target}",
        "",
        "axes:",
        *(f"  {name}: {values}" for name, values in axes.items()),
        *_own_axes(parameters, known),
    ]
    text = "\n".join(lines)
    if packed:
        text += "\n" + _PACKED.rstrip()
    tail = []
    if "window" in axes:
        tail = [
            "",
            "where:",
            "  - {expr: window is none or causal, because: a window is causal by definition}",
        ]
    return [text, *tail, *_tail()]


def _gemm(target: str, parameters: Sequence[inspect.Parameter]) -> list[str]:
    names = {parameter.name for parameter in parameters}
    axes = dict(_GEMM_AXES)
    for name in ("transpose_a", "transpose_b", "accumulate"):
        if name in names:
            axes[name] = "[false, true]"
    known = {*axes, "a", "b", "c", "out_dtype"}
    return [
        "problem: gemm                      # c = a @ b",
        f"entry: {target}",
        "",
        "axes:",
        *(f"  {name}: {values}" for name, values in axes.items()),
        *_own_axes(parameters, known),
        *_tail(),
    ]


def _declared(target: str, parameters: Sequence[inspect.Parameter]) -> list[str]:
    empty = inspect.Parameter.empty
    tensors = [parameter.name for parameter in parameters if parameter.default is empty]
    if not tensors:
        raise UsageError(f"{target!r} has no parameter without a default: what are its inputs?")
    module_name = target.partition(":")[0]
    return [
        "problem:",
        "  inputs:                          # correct the shapes; grad: true checks its gradient",
        *(f"    {name}: {{shape: [rows, cols], dtype: $dtype}}" for name in tensors),
        "  outputs: [out]                   # what it returns, in order",
        "  # The same in plain PyTorch; called in float64.",
        f"  reference: {module_name}:reference",
        f"entry: {target}",
        "",
        "axes:",
        "  dtype: [float16, float32]",
        "  rows: [1, 63, 64, 65]",
        "  cols: [64, 128]",
        *_own_axes(parameters, {"dtype", "rows", "cols"}),
        *_tail(),
    ]


def _own_axes(parameters: Sequence[inspect.Parameter], known: set[str]) -> list[str]:
    """Axes for parameters with a default: both truth values, or the default to start from."""
    lines = []
    for parameter in parameters:
        default = parameter.default
        if parameter.name in known or default is inspect.Parameter.empty:
            continue
        if isinstance(default, bool):
            lines.append(f"  {parameter.name}: [false, true]")
        elif isinstance(default, int) or (
            isinstance(default, str) and re.fullmatch(r"\w+", default)
        ):
            lines.append(f"  {parameter.name}: [{default}]")
    return lines


def _tail() -> list[str]:
    return [
        "",
        "# tiers:                           # quick is pairwise, nightly 3-wise, full the product",
        "#   quick: {strategy: pairwise}",
        "# rejects:                         # bad input that must raise, with these words",
        "#   - {set: {dtype: float32}, raises: ValueError, matching: dtype}",
        "# known_bugs:",
        "#   - {when: dtype == 'float16', issue: '#1', expires: 2099-12-31, mode: tolerate}",
    ]


def _join(head: list[str], body: list[str]) -> str:
    first = f"# yaml-language-server: $schema={SCHEMA_PATH}"
    return "\n".join([first, *head, *body]) + "\n"


def _spec_name(target: str) -> str:
    return re.sub(r"\W+", "_", target.partition(":")[2])


def _summary(found: Callable[..., Any]) -> str:
    document = inspect.getdoc(written(found)) or ""
    line = document.strip().splitlines()[0] if document.strip() else "What it does, in a sentence."
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"') + '"'
