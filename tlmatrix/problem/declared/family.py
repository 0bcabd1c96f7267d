"""The family of problems declared in a spec; torch is imported when a problem is built."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tlmatrix.dtypes import DTYPES
from tlmatrix.problem.case_setup import CaseSetup, compile_key, listed_axis_values
from tlmatrix.problem.declared.names import ROWS
from tlmatrix.problem.declared.sizes import declared, lint_sizes
from tlmatrix.problem.distributions import SAFE, explain_distribution
from tlmatrix.problem.name_lint import lint_arguments
from tlmatrix.problem.name_table import names_of
from tlmatrix.problem.storage import explain_storage
from tlmatrix.spec.model.packed import packed_axes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import torch

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.issues import Issue
    from tlmatrix.spec.model.spec import Spec
    from tlmatrix.spec.values import Value


class DeclaredFamily:
    """Declared problems: inputs by shape and dtype, outputs by name, a reference in PyTorch."""

    optional_axes = names_of(ROWS, "axis")
    special_values = SAFE

    def lint(self, spec: Spec) -> Iterable[Issue]:
        """See `Family.lint`; the spec loader checks names and dtypes."""
        return list(_lint(spec))

    def compile_key(self, spec: Spec, values: Mapping[str, Value]) -> str:
        """See `Family.compile_key`; for an entry, only packed and optional axes are data."""
        kept = tuple(sorted({decl.dtype_text[1:] for decl in declared(spec).inputs.values()}))
        return compile_key(
            spec, values, values, data=self.optional_axes.union(packed_axes(spec)), kept=kept
        )

    def problem(
        self, spec: Spec, values: Mapping[str, Value], *, seed: int, device: torch.device
    ) -> Problem:
        """The problem of a case.

        Raises:
            SpecError: the reference cannot be imported, has a parameter that is neither input nor
                axis, or does not return the declared outputs.
            ReferenceFailedError: the reference raised.
        """
        from tlmatrix.problem.declared.build import declared_case
        from tlmatrix.problem.relations.declared import declared_relations

        case = declared_case(CaseSetup(spec, values, seed, device))
        return replace(case.problem(), relations=partial(declared_relations, case))


_EXPLAIN = {"values": explain_distribution, "storage": explain_storage}


def _lint(spec: Spec) -> Iterator[Issue]:
    for path, axis, value in listed_axis_values(spec):
        explain = _EXPLAIN.get(axis)
        if explain is not None and (reason := explain(value)):
            yield spec.issue(path, f"{axis}: {reason}")
    problem = declared(spec)
    yield from lint_sizes(spec, problem)
    cotangents = {f"d{name}" for name in problem.output_names}
    tensors = {*problem.inputs, *problem.tensors, *cotangents}
    yield from lint_arguments(spec, names_of(ROWS, "name"), tensors)
    for name, decl in problem.inputs.items():
        path = ("problem", "inputs", name)
        if decl.fill is not None and (reason := explain_distribution(decl.fill)):
            yield spec.issue((*path, "fill"), f"fill: {reason}")
        dtype = decl.dtype_text
        named = spec.axes.get(dtype[1:], ()) if dtype[:1] == "$" else (dtype,)
        for each in named:
            if decl.grad and each in DTYPES and not DTYPES[str(each)].floating:
                yield spec.issue(
                    (*path, "grad"),
                    f"grad: {name} has dtype {each}; only floating-point inputs have gradients",
                )
                break
