"""Example tensors for an eager kernel, from the annotations in its body.

An eager `@tilelang.jit` function takes tensors as arguments, and declares their shapes in its
body: `X: T.Tensor[[rows, cols], dtype]`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from tlmatrix.commands.new.source import syntax_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.commands.new.targets import Target

_SIZES = (13, 200, 24, 40, 72, 56)


def example_tensors(target: Target) -> Mapping[str, Any] | None:
    """Tensors for the annotated parameters; None if there are none."""
    parameters = {each.name: each.default for each in target.parameters}
    declared = {
        node.target.id: node.annotation
        for node in ast.walk(syntax_tree(target.written))
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id in parameters
    }
    if not declared:
        return None
    free = iter(_SIZES)
    sizes = {name: value for name, value in parameters.items() if isinstance(value, int)}
    found = {}
    for name, annotation in declared.items():
        made = _example_tensor(annotation, sizes, parameters, free)
        if made is None:
            return None
        found[name] = made
    return found


def _example_tensor(
    annotation: ast.expr, sizes: dict[str, int], parameters: Mapping[str, Any], free: Iterator[int]
) -> Any:  # noqa: ANN401 - a tensor
    import torch

    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.slice, ast.Tuple):
        return None
    shape, dtype = annotation.slice.elts[:2]
    if not isinstance(shape, ast.List | ast.Tuple):
        return None
    found = []
    for size in shape.elts:
        for node in ast.walk(size):
            if isinstance(node, ast.Name) and node.id not in sizes:
                sizes[node.id] = next(free, 16)
        code = compile(ast.Expression(size), "<shape>", "eval")
        found.append(int(eval(code, {"__builtins__": {}}, dict(sizes))))  # noqa: S307 - sizes only
    name = parameters.get(dtype.id) if isinstance(dtype, ast.Name) else ast.literal_eval(dtype)
    kind = getattr(torch, str(name), None)
    if not isinstance(kind, torch.dtype):
        return None
    if kind.is_floating_point:
        return torch.randn(found, generator=torch.Generator().manual_seed(0)).to(kind)
    return torch.zeros(found, dtype=kind)
