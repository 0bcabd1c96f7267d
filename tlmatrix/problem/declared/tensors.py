"""The inputs of a declared problem, generated from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.dtypes import torch_dtype
from tlmatrix.problem.declared.packed import derived_input, paging_of, stale_pool
from tlmatrix.problem.distributions import draw, generator, uniform
from tlmatrix.spec.expr.expression import ExpressionError
from tlmatrix.spec.importing import refuse

if TYPE_CHECKING:
    import torch

    from tlmatrix.problem.case_setup import CaseSetup
    from tlmatrix.spec.expr.expression import Expression
    from tlmatrix.spec.model.spec import DeclaredProblem, InputDecl


def generate_inputs(
    setup: CaseSetup, declaration: DeclaredProblem, distribution: str, seed: int
) -> dict[str, torch.Tensor]:
    """The inputs by name; their values depend on the order of declaration.

    Inputs derived from a packed axis, and the assignment of pages, depend on the seed of `setup`,
    not on `seed`.
    """
    source = generator(seed)
    inputs = {}
    for index, (name, decl) in enumerate(declaration.inputs.items()):
        path = ("problem", "inputs", name)
        if decl.derived is not None:
            dtype = dtype_declared(setup, decl.dtype_text)
            try:
                made = derived_input(decl, setup.values, dtype, setup.seed)
            except ValueError as error:
                raise refuse(setup.spec, (*path, decl.derived[0]), str(error)) from error
        else:
            made = _drawn(setup, decl, path, distribution, source, index)
            paging = paging_of(declaration, decl.sizes, setup.values, setup.seed)
            made = made if paging is None else stale_pool(made, paging, setup.seed)
        inputs[name] = made.to(setup.device)
    return inputs


def _drawn(
    setup: CaseSetup,
    decl: InputDecl,
    path: tuple[str, ...],
    distribution: str,
    source: torch.Generator,
    index: int,
) -> torch.Tensor:
    shape = sizes_of(setup, decl.sizes, (*path, "shape"))
    dtype = dtype_declared(setup, decl.dtype_text)
    if decl.between is not None:
        low, high = _bounds(setup, decl.between, (*path, "between"))
        return uniform(low, high, source, shape, dtype)
    return draw(decl.fill or distribution, source, shape, dtype, index=index)


def _bounds(
    setup: CaseSetup, between: tuple[Expression | int, ...], path: tuple[str | int, ...]
) -> tuple[int, int]:
    found = []
    for index, bound in enumerate(between):
        value = _evaluated(setup, bound, (*path, index))
        if isinstance(value, bool) or not isinstance(value, int):
            message = f"{str(bound)!r} is {value!r}; it must be an integer"
            raise refuse(setup.spec, (*path, index), message)
        found.append(value)
    low, high = found
    if low > high:
        raise refuse(
            setup.spec,
            path,
            f"the lower bound {low} exceeds the upper bound {high}; write [lower, upper]",
        )
    return low, high


def _evaluated(setup: CaseSetup, number: Expression | int, path: tuple[str | int, ...]) -> object:
    try:
        return number if isinstance(number, int) else number.evaluate(setup.values)
    except ExpressionError as error:
        raise refuse(setup.spec, path, str(error)) from error


def dtype_declared(setup: CaseSetup, name: str) -> torch.dtype:
    """The dtype of a declaration: a name, or `$axis`."""
    return torch_dtype(setup.values[name[1:]] if name.startswith("$") else name)


def sizes_of(
    setup: CaseSetup, shape: tuple[Expression | int, ...], path: tuple[str | int, ...]
) -> tuple[int, ...]:
    """The sizes of a shape; raises SpecError at `path` if one is no integer >= 0."""
    sizes = []
    for axis, size in enumerate(shape):
        value = _evaluated(setup, size, (*path, axis))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise refuse(
                setup.spec, (*path, axis), f"{str(size)!r} is {value!r}; a size is an integer >= 0"
            )
        sizes.append(value)
    return tuple(sizes)
