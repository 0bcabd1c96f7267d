"""Builds the problem of a declaration; its reference runs in float64 and in low precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import torch

from tlmatrix.dtypes import DTYPES, is_float8, torch_dtype
from tlmatrix.problem.declared.carried import (
    Carried,
    ComputedOperands,
    DetachedMaximum,
    RoundedOperands,
    as_products,
    delta_errors,
    product_errors,
)
from tlmatrix.problem.declared.inputs import (
    dtype_declared,
    ends_of_ranges,
    generate_inputs,
    packed_dim,
    packing_of,
    paging_of,
    sizes_of,
    summed_dim,
)
from tlmatrix.problem.declared.operators import (
    UNITS,
    NarrowCasts,
    SerialSums,
    TermSizes,
    WideCasts,
    doubled,
    extremes_of,
    kind_of_logits,
    shift_of_products,
    term_sizes,
)
from tlmatrix.problem.declared.reference import reference_of
from tlmatrix.problem.distributions import (
    OF_PARTS,
    SAFE,
    choose_distribution,
    draw,
    generator,
    seeded_random,
)
from tlmatrix.problem.family import tile_sizes
from tlmatrix.problem.lint import declared
from tlmatrix.problem.model import Cost, Dim, Problem, ReferenceFailedError, TensorInfo
from tlmatrix.problem.storage import expandable, with_storage
from tlmatrix.spec.importing import refuse
from tlmatrix.spec.issues import SpecError
from tlmatrix.spec.model.spec import OutputDecl

if TYPE_CHECKING:
    from tlmatrix.problem.declared.reference import ReferenceCall
    from tlmatrix.problem.family import CaseSetup
    from tlmatrix.problem.model import UnusedRows
    from tlmatrix.spec.expr.expression import Expression
    from tlmatrix.spec.model.spec import DeclaredProblem, InputDecl

_PARTS = 0.2
"""The share of the cases of a sum whose halves cancel."""
_TERMS = 16
"""The fewest terms of such a sum."""
_ROUNDED_TERMS = 0.3
"""What the rounding of each term of such a sum costs, as a part of the usual allowance."""
_ROUNDED = 2.0**-12
"""The largest difference by which results are float32's and float64's of the same values, relative
to the element or to the tensor."""
_SHIFTED = 0.2
"""The share of the cases of a softmax with `shifted` values."""
_ZERO_ROWS = 0.25
"""The share of cases with `normal` values that have `zero_rows` instead, if results are finite."""


@dataclass(frozen=True)
class _Run:
    """The results of one call of the reference, and the inputs to differentiate by (leaves)."""

    outputs: dict[str, torch.Tensor]
    leaves: dict[str, torch.Tensor]


@dataclass(frozen=True)
class _Result:
    """Shape and dtype of an output; `dtype` is that of the reference, None without one."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    requires_grad: bool


@dataclass(frozen=True)
class Declared:
    """A declared case with its tensors; `reference` is None if the spec declares none."""

    setup: CaseSetup
    declaration: DeclaredProblem
    reference: ReferenceCall | None
    inputs: dict[str, torch.Tensor]
    distribution: str
    seed: int
    given_cotangents: Mapping[str, torch.Tensor] | None = None
    """Cotangents of a relation, in place of those generated from the seed."""
    given_parts: frozenset[str] = frozenset()
    """Results that are sums of terms of one size, whose parts cancel in this case."""

    @property
    def differentiable(self) -> dict[str, str]:
        """Gradient name to input name, for the gradients that are checked.

        There are none where inputs have no elements and the reference returns constants.
        """
        wanted = self._wanted_gradients
        if not wanted or any(self.inputs[name].numel() for name in wanted.values()):
            return wanted
        return wanted if any(each.requires_grad for each in self._results.values()) else {}

    @property
    def _wanted_gradients(self) -> dict[str, str]:
        spec = self.setup.spec
        found = {f"d{name}": name for name, decl in self.declaration.inputs.items() if decl.grad}
        if not self._by_autograd:
            return {name: of for name, of in found.items() if name in spec.results}
        return found if "gradients" in spec.checks else {}

    @property
    def _by_autograd(self) -> bool:
        """Whether gradients come from autograd, not from the results of the call."""
        spec = self.setup.spec
        return spec.factory is None and not any(
            f"d{name}" in spec.results for name in self.declaration.inputs
        )

    @cached_property
    def _exact_run(self) -> _Run:
        return self._exact_run_and_width[0]

    @cached_property
    def _exact_run_and_width(self) -> tuple[_Run, bool]:
        """The exact run, and whether casts to float32 stay in float64 in it.

        `x.float()` makes the reference of a 16-bit kernel more precise, and one in float64 as
        imprecise as a float32 kernel. A reference whose results need its casts (it views bits, or
        rounds to a few values) keeps them.
        """
        assert self.reference is not None
        dtype = self.reference.exact_dtype
        if dtype != torch.float64:
            return self._run_once(dtype), False
        with WideCasts() as mode:
            try:
                wide = self._run_once(dtype)
            except (ReferenceFailedError, SpecError):
                wide = None
        if wide is not None and not mode.used:
            return wide, False
        plain = self._run_once(dtype)
        if wide is None:
            return plain, False
        alike = all(_differ_by_rounding(wide.outputs[n], t) for n, t in plain.outputs.items())
        return (wide, True) if alike else (plain, False)

    @cached_property
    def exact(self) -> dict[str, torch.Tensor]:
        """Outputs and gradients of the exact reference, as float64."""
        return doubled(self._values(self._exact_run))

    @cached_property
    def low(self) -> dict[str, torch.Tensor]:
        """Outputs and gradients of the reference in the dtypes of the inputs.

        In float32 if PyTorch lacks an operation for a dtype (float8, or float16 on a CPU); then
        only inputs and results are rounded, which does not widen the tolerance. What a reference
        casts to float64 (`x.double()`) is in float32, as in a kernel, unless its results need it.
        """
        dtypes = {tensor.dtype for tensor in self.inputs.values()}
        if torch.float64 in dtypes.union(info.dtype for info in self.infos.values()):
            return self._low_values()
        with NarrowCasts() as mode:
            try:
                narrow = self._low_values()
            except RuntimeError:
                narrow = {}
        if narrow and not mode.used:
            return narrow
        plain = self._low_values()
        alike = narrow and all(_differ_by_rounding(narrow[n], t, 1) for n, t in plain.items())
        return narrow if alike else plain

    @property
    def is_finite(self) -> bool:
        """Whether the reference takes the inputs and all that it computes of them is finite."""
        if self.reference is None or self.reference.exact_dtype != torch.float64:
            return False
        try:
            results = [*self.exact.values(), *self.low.values()]
        except ReferenceFailedError:
            return False
        return all(bool(each.double().isfinite().all()) for each in results)

    def _low_values(self) -> dict[str, torch.Tensor]:
        operands = self._operands
        rounded = nullcontext() if operands is None else RoundedOperands(operands)
        with as_products(), SerialSums(), rounded:
            try:
                values = self._values(self._run(None))
            except RuntimeError:
                values = self._values(self._run(torch.float32))
        return {name: tensor.to(self.infos[name].dtype) for name, tensor in values.items()}

    @property
    def _operands(self) -> torch.dtype | None:
        """What the kernel rounds the operands of products to; None if that is not known.

        Tensor cores take the 16-bit dtype of the inputs, unless the reference names another dtype.
        """
        if self.reference is None or self.reference.operands is not None:
            return None if self.reference is None else self.reference.operands
        return next(iter(self._narrow)) if len(self._narrow) == 1 else None

    @cached_property
    def logits(self) -> Literal["shifted", "capped"] | None:
        """Whether the reference is a softmax of the first input, or the like; see there."""
        if self.reference is None:
            return None
        return kind_of_logits(self.reference, self.inputs, self.reference_axes)

    def shift_of_products(self, factors: Sequence[str]) -> tuple[str, float] | None:
        """A factor of logits, and what to add to it for low logits; see there."""
        if self.reference is None or self.reference.exact_dtype != torch.float64:
            return None
        return shift_of_products(self.reference, self.inputs, self.reference_axes, factors)

    @property
    def extremes(self) -> int:
        """The sign of the elements that the reference takes of rows; 0 if it takes none."""
        if self.reference is None or self.reference.exact_dtype != torch.float64:
            return 0
        return extremes_of(self.reference, doubled(self.inputs), self.reference_axes)

    @cached_property
    def _results(self) -> dict[str, _Result]:
        """Shapes and dtypes of the outputs: of the reference, or declared without one."""
        if self.reference is not None:
            return {
                name: _Result(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
                for name, tensor in self._exact_run.outputs.items()
            }
        found = {}
        for name in self.declaration.output_names:
            path = ("problem", "outputs", name, "shape")
            shape = sizes_of(self.setup, self._declared_output(name).shape or (), path)
            dtype = self._dtype(name, None)
            grad = bool(self._wanted_gradients) and dtype.is_floating_point
            found[name] = _Result(shape, None, grad)
        return found

    def _declared_output(self, name: str) -> OutputDecl:
        outputs = self.declaration.outputs
        decl = outputs.get(name) if isinstance(outputs, Mapping) else None
        return decl if isinstance(decl, OutputDecl) else OutputDecl()

    def _run(self, dtype: torch.dtype | None) -> _Run:
        """Call the reference with floating-point inputs in `dtype`; None for their own."""
        wide = dtype == torch.float64 and self._exact_run_and_width[1]
        with WideCasts() if wide else nullcontext():
            return self._run_once(dtype)

    def _run_once(self, dtype: torch.dtype | None) -> _Run:
        assert self.reference is not None
        grads = set(self._wanted_gradients.values())
        given, leaves = {}, {}
        for name, tensor in self.inputs.items():
            floating = dtype is not None and tensor.is_floating_point()
            # A copy, as the reference may change its arguments in place.
            used = tensor.detach().to(dtype if floating else tensor.dtype, copy=True)
            if name in grads:
                leaves[name] = used = used.requires_grad_()
            given[name] = used
        with torch.enable_grad():
            return _Run(self.reference(given, self.reference_axes), leaves)

    @cached_property
    def reference_axes(self) -> dict[str, Any]:
        """The axes as arguments of the reference: dtypes as torch.dtype."""
        return {
            name: torch_dtype(value) if name in self._dtype_axes else value
            for name, value in self.setup.values.items()
        }

    @cached_property
    def _dtype_axes(self) -> frozenset[str]:
        """The axes of dtypes: those declared as `dtype: $axis`."""
        outputs = self.declaration.outputs
        decls: list[InputDecl | OutputDecl] = list(self.declaration.inputs.values())
        if isinstance(outputs, Mapping):
            decls += outputs.values()
        return frozenset(decl.dtype[1:] for decl in decls if decl.dtype and decl.dtype[0] == "$")

    def _values(self, run: _Run) -> dict[str, torch.Tensor]:
        values = {name: tensor.detach() for name, tensor in run.outputs.items()}
        return values | self._gradients(run)

    def _gradients(self, run: _Run) -> dict[str, torch.Tensor]:
        if not (run.leaves and self.differentiable):
            return {}
        outputs = [name for name in run.outputs if run.outputs[name].requires_grad]
        grads = torch.autograd.grad(
            [run.outputs[name] for name in outputs],
            list(run.leaves.values()),
            [self.cotangents[name].to(run.outputs[name].dtype) for name in outputs],
            retain_graph=True,
            allow_unused=True,
        )
        return {
            f"d{name}": torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(run.leaves.items(), grads, strict=True)
        }

    @cached_property
    def cotangents(self) -> dict[str, torch.Tensor]:
        """The cotangent of each output, in its dtype; constant if storage is `expanded`.

        N(0, 1), or all positive if the signs of the inputs make parts of sums cancel.
        """
        if self.given_cotangents is not None:
            return dict(self.given_cotangents)
        source, storage = generator(self.seed ^ 0xC07A), self.setup.values.get("storage")
        values = self.distribution if self.distribution in OF_PARTS.values() else "normal"
        generated = {
            name: draw(values, source, result.shape, self._dtype_of(name), cotangent=True).to(
                self.setup.device
            )
            for name, result in self._results.items()
            if result.requires_grad
        }
        return {name: expandable(storage, tensor) for name, tensor in generated.items()}

    def _dtype_of(self, name: str) -> torch.dtype:
        return self._dtype(name, self._results[name].dtype)

    def _dtype(self, name: str, result: torch.dtype | None) -> torch.dtype:
        """The declared dtype; else the reference's, if not floating; else that of the inputs."""
        declared_dtype = self._declared_output(name).dtype
        if declared_dtype is not None:
            return dtype_declared(self.setup, declared_dtype)
        floating = [each.dtype for each in self.inputs.values() if each.is_floating_point()]
        if result is None:
            return (floating or [each.dtype for each in self.inputs.values()])[0]
        return floating[0] if result.is_floating_point and floating else result

    @cached_property
    def infos(self) -> dict[str, TensorInfo]:
        """The outputs and gradients by name."""
        infos = {}
        for name, result in self._results.items():
            infos[name] = self._info(name, result.shape, self._dtype_of(name))
        for gradient, name in self.differentiable.items():
            tensor = self.inputs[name]
            infos[gradient] = self._info(gradient, tuple(tensor.shape), tensor.dtype)
        return infos

    def _info(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> TensorInfo:
        known = self.reference is not None
        none = torch.zeros((), device=self.setup.device)
        return TensorInfo(
            name,
            self._dims(name, shape),
            dtype,
            DTYPES[str(dtype)[6:]].roundoff + (self.reference.roundoff if self.reference else 0),
            magnitude=(lambda: self._term_sizes.largest[name]) if known else None,
            spread=(lambda: self._spread(name)) if known else None,
            carried=lambda: self._carried.bound.get(name, none),
            carried_spread=lambda: self._carried.spread.get(name, none),
            undeclared=name in self._results and self._declared_output(name).dtype is None,
        )

    def _spread(self, name: str) -> torch.Tensor:
        """The spread of the terms of each element, less if it would hide parts kept in 16 bits.

        If halves of a sum over a dimension that the result lacks cancel by construction, terms are
        of one size, and parts of eight of them larger by the root of 8 than their spread. What
        remains of it covers the rounding of each term. Results to which products of computed
        operands contribute keep it, as kernels may round both operands.
        """
        spread = self._term_sizes.spread[name]
        if name not in self._parts or self._has_computed_operands:
            return spread
        return spread * _ROUNDED_TERMS

    @cached_property
    def _has_computed_operands(self) -> bool:
        """Whether the reference has products of what the kernel rounds to 16 bits."""
        dtype, operands = (
            None if self.reference is None else self.reference.exact_dtype,
            self._operands,
        )
        if dtype is None or operands is None:
            carried = self._carried.bound.values()
            return any(bool(each.any()) for each in carried)
        with as_products(), ComputedOperands(operands) as mode:
            self._values(self._run(dtype))
        found: bool = mode.found
        return found

    @cached_property
    def _parts(self) -> frozenset[str]:
        summed = summed_dim(self.declaration)
        if summed is None or self.distribution != OF_PARTS[summed.axis]:
            return self.given_parts
        return self.given_parts.union(summed.results)

    def _dims(self, name: str, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        """The dimensions of a tensor, for findings."""
        tiles, values = tile_sizes(self.setup.spec, self.setup.values), self.setup.values
        decl = self._declared_output(name)
        if decl.shape is not None:
            self._check_shape(name, decl, shape)
        words = decl.dims if decl.dims is not None and len(decl.dims) == len(shape) else None
        sizes = self.sizes(name)
        found = []
        for axis, count in enumerate(shape):
            size = 0 if sizes is None else sizes[axis]
            word, packing = None if words is None else words[axis], packing_of(size, values)
            if packing is not None:
                found.append(packed_dim(packing, count, tiles, word))
            else:
                word = word or (f"dim{axis}" if isinstance(size, int) else str(size))
                found.append(Dim(word, count, tile=tiles.get(word)))
        return tuple(found)

    def sizes(self, name: str) -> tuple[Expression | int, ...] | None:
        """The declared sizes of a tensor; of an output without any, those of an equal-shaped input.

        None if no input has the shape, if inputs with the shape are packed differently, or if the
        rows of all sequences are as many as something else, which the output may have.
        """
        decl = self.declaration.inputs.get(self.differentiable.get(name, name))
        if decl is not None:
            return decl.sizes
        declared_shape = self._declared_output(name).shape
        if declared_shape is not None:
            return declared_shape
        shape, values = self._results[name].shape, self.setup.values
        alike = [
            self.declaration.inputs[other].sizes
            for other, tensor in self.inputs.items()
            if tuple(tensor.shape) == shape
        ]
        packings = {tuple(packing_of(size, values) for size in sizes) for sizes in alike}
        if len(packings) != 1:
            return None
        packed = [each for each in next(iter(packings)) if each is not None and each.kind == "sum"]
        others = {size for size in values.values() if type(size) is int}
        others.update(len(each.lengths) for each in packed)
        return None if any(sum(each.lengths) in others for each in packed) else alike[0]

    def possible_sizes(self, name: str) -> tuple[Expression | int, ...]:
        """The sizes of a tensor; where they are not known, all those of inputs that it may have."""
        if (known := self.sizes(name)) is not None:
            return known
        of_inputs = {
            str(size): (size, count)
            for other, decl in self.declaration.inputs.items()
            for size, count in zip(decl.sizes, self.inputs[other].shape, strict=True)
        }
        shape = self._results[name].shape
        return tuple(size for size, count in of_inputs.values() if count in shape)

    @cached_property
    def _term_sizes(self) -> TermSizes:
        """The sizes of the terms of each element, by output and gradient; see `term_sizes`."""
        assert self.reference is not None
        exact = self.reference.exact_dtype == torch.float64
        dtype = torch.float64 if exact else torch.float32
        seed = self.seed ^ 0x7E125

        def evaluate() -> dict[str, torch.Tensor]:
            try:
                return self._values(self._run(dtype))
            except ReferenceFailedError:  # an index that it computes may leave its range
                return self.exact

        # Float32 rounds what it adds up; in 16 bits, sums that cancel show parts kept in them.
        floating = [each.dtype for each in self.infos.values() if each.dtype.is_floating_point]
        sums = all(each.itemsize >= torch.float32.itemsize for each in floating)
        with as_products():
            sizes = term_sizes(evaluate, self.exact, seed, dtype=dtype, sums=sums)
            with DetachedMaximum() as mode:
                plain = evaluate()
            if not mode.used:
                return sizes
            with DetachedMaximum():
                return sizes.joined(term_sizes(evaluate, plain, seed, dtype=dtype, sums=sums))

    def _with_operands(self) -> dict[str, Callable[[], Problem]]:
        """The problem with a 16-bit dtype of operands, by the texts of dtypes of inputs."""
        reference = self.reference
        if reference is None or self._operands is not None:
            return {}

        def made(text: str) -> Problem:
            decl = reference.decl.model_copy(update={"operands": text})
            return replace(self, reference=replace(reference, decl=decl)).problem()

        inputs = self.declaration.inputs
        texts = {inputs[name].dtype_text for name in self._narrow.values()}
        return {text: partial(made, text) for text in texts or ("float16", "bfloat16")}

    @property
    def _narrow(self) -> dict[torch.dtype, str]:
        """The dtypes of inputs that tensor cores take, with an input of each."""
        found = {tensor.dtype: name for name, tensor in reversed(self.inputs.items())}
        return {k: name for k, name in found.items() if k in (torch.float16, torch.bfloat16)}

    @cached_property
    def _carried(self) -> Carried:
        """The errors that values rounded inside the kernel carry into results."""
        dtype = None if self.reference is None else self.reference.exact_dtype
        if self.reference is None or dtype is None:  # such a reference rounds every value
            return Carried({}, {})
        unit, seed, found = UNITS[dtype], self.seed ^ 0xCA441ED, Carried({}, {})
        float8 = sum(is_float8(each.dtype) for each in self.inputs.values()) > 1
        if self._operands is not None or self._narrow or float8:
            # The floors of other results are those of their own, coarser roundoff.
            finer = set(filter(self._is_finer_than_operands, self.infos))
            for operands, names in ((self._operands, finer), (None, self.infos.keys() - finer)):
                exact = {name: self.exact[name] for name in names}
                if exact:
                    errors = product_errors(
                        lambda: self._values(self._run(dtype)),
                        exact,
                        operands,
                        unit,
                        seed,
                        float8=float8,
                    )
                    found = found.plus(errors)
        if not self._exact_run.leaves:
            return found
        with as_products(), DetachedMaximum():
            run = self._run(dtype)
        return found.plus(
            delta_errors(
                lambda: self._gradients(run),
                max(self.infos[name].roundoff for name in run.outputs),
                unit,
                seed,
            )
        )

    def _is_finer_than_operands(self, name: str) -> bool:
        dtype, operands = self.infos[name].dtype, self._operands
        if operands is None or not dtype.is_floating_point:
            return False
        return torch.finfo(dtype).eps < torch.finfo(operands).eps

    def _check_shape(self, name: str, decl: OutputDecl, shape: tuple[int, ...]) -> None:
        path = ("problem", "outputs", name, "shape")
        declared_shape = sizes_of(self.setup, decl.shape or (), path)
        if declared_shape != shape:
            raise refuse(
                self.setup.spec,
                path,
                f"{name} is declared {list(declared_shape)}; the reference returned {list(shape)}",
            )

    def problem(self) -> Problem:
        """The problem, without relations; runs the reference once, for the shapes of outputs."""
        setup, differentiable = self.setup, self.differentiable
        storage = setup.values.get("storage")
        cotangents = self.cotangents if differentiable else {}
        cotangents = with_storage(storage, cotangents, cotangents)
        inputs = with_storage(storage, self.inputs)
        names: dict[str, Any] = {
            name: setup.dtype(str(value)) if name in self._dtype_axes else value
            for name, value in setup.values.items()
        }
        names |= {"device": setup.device, "values": self.distribution}
        names |= {f"d{name}": tensor for name, tensor in cotangents.items()} | inputs
        by_autograd, operands = self._by_autograd, self._operands
        return Problem(
            values=setup.values,
            names=names,
            inputs=inputs,
            outputs=self.infos,
            returns=self.declaration.output_names,
            distribution=self.distribution,
            dims={name: self._dims(name, tuple(tensor.shape)) for name, tensor in inputs.items()},
            cotangents=cotangents if by_autograd else {},
            gradient_of=differentiable if by_autograd else {},
            has_reference=self.reference is not None,
            reference=dict if self.reference is None else lambda: self.exact,
            lowp=dict if self.reference is None else lambda: self.low,
            cost=self._cost,
            with_inputs=lambda changed: replace(self, inputs={**self.inputs, **changed}).problem(),
            unused=self._unused,
            with_operands=self._with_operands(),
            narrow={} if self.reference is None else self._narrow,
            free_integers=self._free_integers,
            operands=operands if operands is not None and operands.itemsize == 2 else None,
        )

    @property
    def _free_integers(self) -> frozenset[str]:
        return frozenset(
            name
            for name, decl in self.declaration.inputs.items()
            if not self.inputs[name].is_floating_point()
            and (decl.between is not None or self.inputs[name].dtype == torch.bool)
            and not decl.distinct
        )

    def _unused(self) -> Mapping[str, UnusedRows]:
        """The slots of pools that hold no row."""
        setup, found = self.setup, {}
        for name, decl in self.declaration.inputs.items():
            paging = paging_of(self.declaration, decl.sizes, setup.values, setup.seed)
            if paging is not None and self.inputs[name].is_floating_point():
                found[name] = paging.unused(name)
        return found

    def _cost(self) -> Cost:
        """Each tensor is read or written once; the backward reads inputs and cotangents."""

        def moved(*names: str) -> int:
            infos = (self.infos[name] for name in names)
            return sum(prod(info.shape) * info.dtype.itemsize for info in infos)

        read = sum(tensor.nbytes for tensor in self.inputs.values())
        backward = None
        if self.differentiable:
            gradients = moved(*self.differentiable)
            cotangents = sum(tensor.nbytes for tensor in self.cotangents.values())
            backward = Cost(0, read + cotangents + gradients)
        return Cost(0, read + moved(*self.declaration.output_names), backward)


def _differ_by_rounding(wide: torch.Tensor, plain: torch.Tensor, unit: int = 0) -> bool:
    """Whether results of float64 and of float32 differ by the roundings of float32 alone.

    Results of 16 bits may differ by a unit in the last place, where one is rounded up, and
    integers by `unit`.
    """
    if wide.shape != plain.shape or wide.is_floating_point() != plain.is_floating_point():
        return False
    if not plain.is_floating_point():
        return torch.equal(wide, plain) or bool((wide.long() - plain.long()).abs().max() <= unit)
    one, other = wide.detach().double(), plain.detach().double()
    finite = other[other.isfinite()]
    size = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    rounded = max(_ROUNDED, 2 * torch.finfo(plain.dtype).eps)
    return torch.allclose(one, other, rounded, rounded * size, equal_nan=True)


def declared_case(setup: CaseSetup) -> Declared:
    """The case with tensors generated from its seed.

    Numbers with a range have its ends, too, if all that the reference computes is finite then.
    """
    case = _declared_case(setup)
    changed = ends_of_ranges(setup, case.declaration, case.inputs)
    extreme = replace(case, inputs={**case.inputs, **changed})
    return extreme if changed and extreme.is_finite else case


def _declared_case(setup: CaseSetup) -> Declared:
    declaration = declared(setup.spec)
    reference = reference_of(setup, declaration)
    values = setup.values.get("values")
    parts = _sums_in_parts(setup, declaration)
    usual = choose_distribution(values, setup.seed, SAFE, parts)
    distribution = choose_distribution(values, setup.seed, SAFE, {**parts, "shifted": _SHIFTED})
    inputs = generate_inputs(setup, declaration, usual, setup.seed)
    case = Declared(setup, declaration, reference, inputs, usual, setup.seed)

    def drawn(distribution: str) -> Declared:
        inputs = generate_inputs(setup, declaration, distribution, setup.seed)
        return replace(case, inputs=inputs, distribution=distribution)

    if distribution != usual and case.logits == "shifted":
        return drawn(distribution)
    pick = seeded_random(setup.seed + 6).random()
    if values is None and usual == "normal" and pick < _ZERO_ROWS:
        zeros = drawn("zero_rows")
        return zeros if zeros.is_finite else case
    return case


def _sums_in_parts(setup: CaseSetup, declaration: DeclaredProblem) -> dict[str, float]:
    """The distribution whose halves cancel in a sum that results are, with its share of cases."""
    summed = summed_dim(declaration)
    if summed is None:
        return {}
    path = ("problem", "inputs", summed.input, "shape")
    (terms,) = sizes_of(setup, summed.sizes, path)
    return {OF_PARTS[summed.axis]: _PARTS} if terms >= _TERMS else {}
