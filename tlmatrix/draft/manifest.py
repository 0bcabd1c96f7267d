"""Calls of the operators that a repository's own manifest lists: YAML or JSON with shapes.

An entry has a `signature` with `inputs` (their dtypes, and perhaps shapes in named sizes) and
perhaps `params`, and `workloads` with the sizes: `x_shape`, or the names of the sizes.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import yaml

from tlmatrix.draft.targets import target_of
from tlmatrix.exit_codes import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NOT_ITS_OWN = {"site-packages", "build", "dist", "node_modules", "3rdparty"}
"""Folders with files of others, or with copies."""
_LARGEST = 256
"""Sizes of workloads above it are made smaller: cases run on the interpreter."""
_MOST = 4
"""Calls of an entry."""


@dataclass(frozen=True)
class Entry:
    """An operator of a manifest.

    Attributes:
        target: `package.module:name`.
        reference: the PyTorch function that it names; "" if it names none.
    """

    target: str
    signature: Mapping[str, Any]
    workloads: Sequence[Mapping[str, Any]]
    reference: str = ""


@dataclass(frozen=True)
class Example:
    """Arguments of a constructor and of a call."""

    construct: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)


def files_of(root: Path, *suffixes: str) -> list[Path]:
    """A repository's own files with some suffixes, in order."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name[0] != "." and name not in _NOT_ITS_OWN]
        found += [Path(folder, n) for n in names if n[0] != "." and n.endswith(suffixes)]
    return sorted(found)


def manifest_entries(root: Path, definitions: Mapping[str, str]) -> Iterator[Entry]:
    """The entries of all manifests of a repository.

    Args:
        root: the repository.
        definitions: `package.module:name` of its classes and functions, by name.
    """
    for path in files_of(root, ".yaml", ".yml", ".json"):
        try:
            text = path.read_text(encoding="utf-8") if path.stat().st_size <= 1 << 20 else ""
            if "workloads" not in text:
                continue
            data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        except (ValueError, yaml.YAMLError):
            continue
        for name, entry in data.items() if isinstance(data, dict) else ():
            known = isinstance(entry, dict) and {"signature", "workloads"} <= entry.keys()
            if known and name in definitions:
                reference = str(entry.get("ref_api", "")).split(" ")[0]
                reference = reference if re.fullmatch(r"torch(\.\w+)+", reference) else ""
                yield Entry(definitions[name], entry["signature"], entry["workloads"], reference)


def reference_of_entry(entry: Entry) -> str:
    """The reference as `package.module:name`; "" if PyTorch has no function of that name."""
    module, _, name = entry.reference.rpartition(".")
    module = "torch" if module == "torch.Tensor" else module
    return f"{module}:{name}" if entry.reference else ""


def examples(entry: Entry) -> Iterator[Example]:
    """Small calls of an entry: its workloads with smaller sizes, and one with odd sizes.

    Raises:
        UsageError: shapes or dtypes cannot be told from the entry.
    """
    target = target_of(entry.target)
    inputs: Mapping[str, Any] = entry.signature.get("inputs") or {}
    static: Mapping[str, str] = entry.signature.get("static_dims") or {}
    takes = inspect.signature(target.found).parameters if target.constructs else {}
    passed = [each.name for each in target.parameters]
    seen: set[str] = set()
    for workload, odd in product(entry.workloads, ("", "values", "places")):
        made = _small(workload, odd)
        shapes = _shapes(inputs, made, entry.signature.get("shape_rules") or ())
        key = str((shapes, made))
        if key in seen or len(seen) >= _MOST:
            continue
        seen.add(key)
        dtypes = _dtypes(inputs, workload)
        tensors = {
            name: _tensor(shape, dtypes[name], made).cuda()
            for name, shape in shapes.items()
            if shape is not None
        }
        found = {name: _evaluated(text, made, shapes) for name, text in static.items()}
        known = made | {name: size for name, size in found.items() if size is not None}
        if "dtype" in takes and "dtype" not in known:
            known["dtype"] = next(iter(tensors.values())).dtype
        yield Example(
            {name: _typed(known[name]) for name in takes if name in known},
            tensors | {n: _typed(known[n]) for n in passed if n in known and n not in tensors},
        )


def _small(workload: Mapping[str, Any], odd: str) -> dict[str, Any]:
    """A workload with small sizes for large ones, equal ones alike.

    With `odd`, none is a power of two: equal ones alike (`values`), or also others for each place
    in a shape (`places`), so that equal sizes are not taken for one.
    """
    numbers = sorted({n for value in workload.values() for n in _numbers(value)})
    large = [number for number in numbers if number > _LARGEST]
    small = {number: _LARGEST // 2 + 128 * k for k, number in enumerate(large)}
    if odd:
        small |= {n: n + 1 for n in numbers if 8 < n <= _LARGEST}
        small |= {number: 137 + 64 * k for k, number in enumerate(large)}

    def made(value: Any, place: int = 0) -> Any:  # noqa: ANN401 - YAML
        if isinstance(value, list):
            return [made(each, k) for k, each in enumerate(value)]
        more = place if odd == "places" and type(value) is int and value > 8 else 0
        return small.get(value, value) + more if type(value) is int else value

    return {name: made(value) for name, value in workload.items()}


def _numbers(value: object) -> Iterator[int]:
    if isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    elif type(value) is int:
        yield value


def _shapes(
    inputs: Mapping[str, Any], made: Mapping[str, Any], rules: Sequence[object]
) -> dict[str, Sequence[int] | None]:
    """The shapes of inputs: `x_shape`, in named sizes, or by rules such as `x.shape == …`.

    Raises:
        UsageError: nothing tells the shape of an input that is not optional.
    """
    sizes = {each.lower(): value for each, value in made.items() if type(value) is int}
    shapes: dict[str, Sequence[int] | None] = {}
    for name, each in inputs.items():
        of_keys = "kv_shape" if name in ("k", "v", "key", "value") else ""
        shape = made.get(f"{name}_shape") or made.get(of_keys)
        shapes[name] = shape or _evaluated(str(each.get("shape")).lower(), sizes, {})
    sides = [str(rule).split(" == ") for rule in rules]
    for given, value in (each for two in sides if len(two) == 2 for each in (two, two[::-1])):
        part = re.fullmatch(r"(?:tuple\()?(\w+)\.shape\)?", given)
        if part is not None and shapes.get(part[1], ()) is None:
            shapes[part[1]] = _evaluated(value, made, shapes)
    known = [each for each in shapes.values() if each is not None]
    if len(known) == 1 and (len(inputs) == 2 or "broadcast" in " ".join(map(str, rules))):
        shapes = {name: each or known[0] for name, each in shapes.items()}
    missing = (n for n, each in shapes.items() if each is None and not inputs[n].get("optional"))
    if name := next(missing, ""):
        raise UsageError(f"its manifest does not tell the shape of {name}")
    return shapes


def _evaluated(
    text: str, sizes: Mapping[str, Any], shapes: Mapping[str, Sequence[int] | None]
) -> Any:  # noqa: ANN401 - a size or a shape
    """An expression of sizes and shapes; None if it has other names."""
    known = {n: SimpleNamespace(shape=tuple(s)) for n, s in shapes.items() if s is not None}
    functions = {"__builtins__": {}, "tuple": tuple, "len": len}
    with suppress(Exception):
        return eval(text, functions, {**sizes, **known})  # noqa: S307 - of the repository
    return None


def _dtypes(inputs: Mapping[str, Any], workload: Mapping[str, Any]) -> dict[str, torch.dtype]:
    """The dtype of each input: that of the workload if it may have it, as the first floats do."""
    listed = workload.get("dtypes")
    wanted = str(listed[0]) if isinstance(listed, list) and listed else ""
    found: dict[str, torch.dtype] = {}
    for name, each in inputs.items():
        declared = [text.strip() for text in str(each.get("dtype", "float16")).split("|")]
        same = re.fullmatch(r"same_as\((\w+)\)", declared[0])
        if same is not None:
            found[name] = found.get(same[1], torch.float16)
            continue
        first = getattr(torch, declared[0], None)
        if not isinstance(first, torch.dtype):
            raise UsageError(f"its manifest has the dtype {declared[0]!r} for {name}")
        floats = first.is_floating_point and not any(e.is_floating_point for e in found.values())
        own = getattr(torch, wanted, None) if wanted in declared or floats else None
        found[name] = own if isinstance(own, torch.dtype) else first
    return found


def _tensor(shape: Sequence[int], dtype: torch.dtype, made: Mapping[str, Any]) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.rand(shape, generator=random) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=random).to(dtype)
    limits = [value for name, value in made.items() if "num_" in name and type(value) is int]
    return torch.randint(0, min(limits, default=2), shape, generator=random).to(dtype)


def _typed(value: Any) -> Any:  # noqa: ANN401 - YAML
    kind = getattr(torch, value, None) if isinstance(value, str) else None
    return kind if isinstance(kind, torch.dtype) else value
