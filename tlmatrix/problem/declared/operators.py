"""The operators that a reference calls: the sizes of their terms, and whether it is a softmax.

A result may be tiny because large terms cancel (`w * dy - x_hat * mean(w * dy * x_hat)` in a row
of one column). Its rounding error is proportional to the size of the terms, which the result does
not show. Monte Carlo arithmetic (Parker, "Monte Carlo Arithmetic", UCLA CSD-970002, 1997) estimates
it: if every operation has a random relative error of at most `unit`, the result changes by about
`unit` times the size of its terms (`term_sizes`).

A shift of all logits changes no softmax, and shifts a log of sums of exponentials by as much
(`kind_of_logits`). A reference of which this holds for all results, and that calls an exponential,
may have its running maximum begin at any number but -inf in a wrong kernel. Not if it divides by a
norm: a variance of shifted values is a difference of large numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from tlmatrix.problem.distributions import SHIFT
from tlmatrix.tracebacks import unwinds

if TYPE_CHECKING:
    Tensors = dict[str, torch.Tensor]

    from tlmatrix.problem.declared.reference import ReferenceCall


@dataclass(frozen=True)
class Call:
    """A call of an operator: the overload, which torch does not name, and its arguments."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the operator, without the overload."""
        return str(self.func.overloadpacket.__name__)

    def result(self) -> Any:  # noqa: ANN401 - tensors, or what else it returns
        """Make the call."""
        return self.func(*self.args, **self.kwargs)


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls `run` in place of each operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: skipping dynamo would import all of torch.compile, which takes seconds."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call `run`."""
        return self.run(Call(func, args, kwargs or {}))

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator."""
        return call.result()


class WideCasts(OperatorMode):  # type: ignore[no-untyped-call]
    """Keeps float64 where a reference asks for float32, as `x.float()` does.

    `used` says whether it asked.
    """

    used = False

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator; a result in float32 of a float64 tensor stays in float64."""
        given = call.args[0] if call.args else None
        if (
            call.kwargs.get("dtype") != torch.float32
            or not isinstance(given, torch.Tensor)
            or given.dtype != torch.float64
        ):
            return call.result()
        self.used = True
        return call.func(*call.args, **{**call.kwargs, "dtype": torch.float64})


class NarrowCasts(OperatorMode):  # type: ignore[no-untyped-call]
    """Computes in float32 where a reference asks for float64, as `x.double()` does.

    `used` says whether it asked.
    """

    used = False

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator, with float32 as its dtype in place of float64."""
        if call.kwargs.get("dtype") != torch.float64:
            return call.result()
        self.used = True
        return call.func(*call.args, **{**call.kwargs, "dtype": torch.float32})


class SerialSums(OperatorMode):  # type: ignore[no-untyped-call]
    """Adds up in order and in float32, as a thread does that has a sum to itself.

    PyTorch adds pairwise, and running sums on a CPU in float64, as are the means of norms: it
    rounds less than a kernel may.
    """

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator; a sum, a mean and a running sum are added up here."""
        given = call.args[0] if call.args else None
        if (
            not (isinstance(given, torch.Tensor) and given.is_floating_point())
            or not given.numel()
            or "out" in call.kwargs
        ):
            return call.result()
        if call.name in _WITH_MEANS:
            return _with_serial_mean(call, given)
        if call.name not in ("sum", "mean", "cumsum"):
            return call.result()
        dtype = call.kwargs.get("dtype") or given.dtype
        if call.name == "cumsum":
            return _running_sums(_terms(given, dtype), call.args[1]).to(dtype)
        dims = call.args[1] if len(call.args) > 1 else None
        total = _serial_sum(_terms(given, dtype), dims, keep=bool(call.args[2:] and call.args[2]))
        if call.name == "mean":
            total = total / (given.numel() / total.numel())
        return total.to(dtype)


def _terms(given: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return given.detach().to(torch.promote_types(dtype, torch.float32))


def _serial_sum(
    terms: torch.Tensor, asked: Sequence[int] | None, *, keep: bool = False
) -> torch.Tensor:
    """The sum over dimensions, all of them without any, added up in order."""
    dims = [dim % terms.ndim for dim in asked or range(terms.ndim)]
    kept = [dim for dim in range(terms.ndim) if dim not in dims]
    rows = terms.permute(*kept, *dims).flatten(len(kept)) if dims else terms[..., None]
    total = _running_sums(rows, -1)[..., -1]
    if keep:
        total = total.reshape([1 if i in dims else n for i, n in enumerate(terms.shape)])
    return total


_WITH_MEANS = ("var_mean", "native_layer_norm", "native_batch_norm")
"""Operators that also compute means."""


def _mean_of(
    call: Call, result: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, list[int] | None, float]:
    """Where one of `_WITH_MEANS` has left a mean, its dimensions, and the factor it was given."""
    args, ndim = call.args, call.args[0].ndim
    if call.name == "var_mean":
        return result[1], args[1] if args[1:] and not isinstance(args[1], bool) else None, 1.0
    if call.name == "native_layer_norm":
        return result[1], [*range(ndim - len(args[1]), ndim)], 1.0
    running, training, momentum = args[3], args[5], args[6]
    kept = running if training and running is not None else result[1]
    return kept, [dim for dim in range(ndim) if dim != 1], momentum if kept is running else 1.0


def _with_serial_mean(call: Call, given: torch.Tensor) -> Any:  # noqa: ANN401
    """The results of one of `_WITH_MEANS` with the mean added up in order."""
    result, terms = call.result(), _terms(given, given.dtype)
    kept, dims, factor = _mean_of(call, result)
    if kept.numel():  # with running statistics there is none
        difference = _serial_sum(terms, dims) - terms.sum(dims)
        kept.add_(difference.reshape(kept.shape) * (factor * kept.numel() / given.numel()))
    return result


def _running_sums(terms: torch.Tensor, dim: int) -> torch.Tensor:
    """Sums of the terms up to each one, each rounded to their dtype."""
    if not terms.ndim:
        return terms
    with np.errstate(all="ignore"):  # infinities of both signs
        return torch.from_numpy(np.add.accumulate(terms.cpu().numpy(), axis=dim)).to(terms.device)


# Sizes of terms -----------------------------------------------------------------------------------


UNITS = {torch.float64: 2.0**-24, torch.float32: 2.0**-12}
"""Injected errors by dtype: far above its rounding, and small enough for a first-order estimate."""
_CANCELLING = {"gelu": 0, "gelu_backward": 0}
"""Operators whose own terms cancel, by the argument that is as large as they are: PyTorch computes
x / 2 + x / 2 * erf(...), too, of which little remains where x is far below 0."""
# One run may perturb the terms of an element alike by chance; hardly four runs.
_RUNS = 4


class PerturbedArithmetic(OperatorMode):  # type: ignore[no-untyped-call]
    """Adds a random relative error of up to `unit` to every floating-point operation.

    With `sums` an error of a sum, or of a mean, is as large as its terms make it.
    """

    def __init__(self, unit: float, seed: int, *, sums: bool = False) -> None:
        super().__init__()
        self._unit = unit
        self._seed = seed
        self._sums = sums
        self._sources: dict[torch.device, torch.Generator] = {}

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator and perturb its result, unless it is a view or a copy."""
        result = call.result()
        if any(each.alias_info is not None for each in call.func._schema.returns):  # noqa: SLF001 - not in the public API
            return result
        if call.name in {"clone", "_to_copy", "detach", "empty", "zeros"}:
            return result
        if self._sums and call.name in _WITH_MEANS:
            kept, dims, factor = _mean_of(call, result)
            if kept.numel():
                terms = call.args[0].abs().mean(dims).reshape(kept.shape) * factor
                self._perturbed(kept, terms)
        if isinstance(result, tuple | list):
            return type(result)(self._perturbed(each) for each in result)
        if self._sums and call.name in ("sum", "mean") and call.args[0].is_floating_point():
            return self._perturbed(
                result, call.func(call.args[0].abs(), *call.args[1:], **call.kwargs)
            )
        argument = _CANCELLING.get(call.name)
        return self._perturbed(result, None if argument is None else call.args[argument])

    def _perturbed(self, result: Any, terms: torch.Tensor | None = None) -> Any:  # noqa: ANN401
        if not (isinstance(result, torch.Tensor) and result.is_floating_point()):
            return result
        source = self._sources.get(result.device)
        if source is None:
            source = torch.Generator(result.device).manual_seed(self._seed)
            self._sources[result.device] = source
        error = torch.empty_like(result).uniform_(-self._unit, self._unit, generator=source)
        # An infinity, as of a mask, stays: an error of the other sign would make it NaN.
        size = result
        if terms is not None:
            size = torch.maximum(result.abs(), terms.abs().nan_to_num(0.0, 0.0))
        return result.add_(error.mul_(size).masked_fill_(~result.isfinite(), 0.0))


@dataclass(frozen=True)
class TermSizes:
    """The sizes of the terms of each element, by tensor; at least the element's own.

    `largest` is that of several runs. `spread` is their mean: errors of random sign were injected,
    which add up as roundings do, and the largest of several overstates them.
    """

    largest: Tensors
    spread: Tensors

    def joined(self, other: TermSizes) -> TermSizes:
        """The larger of both, for each element."""

        def larger(one: Tensors, more: Tensors) -> Tensors:
            return {name: torch.maximum(size, more[name]) for name, size in one.items()}

        return TermSizes(larger(self.largest, other.largest), larger(self.spread, other.spread))


def term_sizes(
    evaluate: Callable[[], Tensors],
    exact: Tensors,
    seed: int,
    *,
    dtype: torch.dtype = torch.float64,
    sums: bool = False,
) -> TermSizes:
    """The sizes of the terms of each element of the tensors that `evaluate` computes in `dtype`.

    Elements that are not finite have size 0, and so has the change of an element that is not finite
    when perturbed.

    Args:
        evaluate: computes the tensors.
        exact: its results without perturbation.
        seed: the same seed gives the same sizes.
        dtype: the dtype of the computation.
        sums: whether sums are as large as their terms, not as what remains if these cancel.
    """
    unit = UNITS[dtype]
    largest = {name: _finite(tensor).abs() for name, tensor in exact.items()}
    total = {name: torch.zeros_like(size) for name, size in largest.items()}
    spread = {name: size.clone() for name, size in largest.items()}
    for run in range(_RUNS):
        with PerturbedArithmetic(unit, seed + run, sums=sums):
            found = evaluate()
        for name, size in largest.items():
            moved = _finite(found[name].double() - exact[name].double()).abs_() / unit
            torch.maximum(size, moved, out=size)
            total[name] += moved
    for name, size in spread.items():
        torch.maximum(size, total[name] / _RUNS, out=size)
    return TermSizes(largest, spread)


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(values.double(), nan=0.0, posinf=0.0, neginf=0.0)


# Shifts -------------------------------------------------------------------------------------------


_SHIFT = -16.0
_FAR = -(2.0**20)
_CLOSE = 1e-9
_EXPONENTIALS = ("softmax", "logsumexp", "exp")
_OF_LOGITS = ("_softmax", "_safe_softmax", "_log_softmax", "logsumexp", "max", "amax")
_NORMS = ("norm", "var", "std", "sqrt", "rsqrt")
_LARGEST = ("max", "amax", "aminmax", "argmax", "cummax", "topk", "sort")
_LEAST = ("min", "amin", "argmin", "cummin")


def doubled(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, those of floating-point numbers in float64."""
    return {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def kind_of_logits(
    reference: ReferenceCall, inputs: Mapping[str, torch.Tensor], axes: Mapping[str, Any]
) -> Literal["shifted", "capped"] | None:
    """Whether the first input is logits of a softmax or the like, and what a shift of it does.

    It leaves all results as they are or shifts them, or, of logits that are capped by tanh, a large
    one leaves them as a larger one does. None for other problems.

    Args:
        reference: what computes the results, in float64.
        inputs: by name; the first one is shifted.
        axes: the other arguments of the reference.
    """
    first = next(iter(inputs))
    if reference.exact_dtype != torch.float64 or not inputs[first].is_floating_point():
        return None
    exact = doubled(inputs)

    def moved(by: float) -> dict[str, torch.Tensor]:
        return reference({**exact, first: exact[first] + by}, axes)

    with torch.no_grad():
        try:
            with _Names() as names:
                plain = moved(0.0)
            if not names.any_of(_EXPONENTIALS) or names.any_of(_NORMS):
                return None
            far = moved(_SHIFT)
            if all(
                _close(far[name], plain[name]) or _close(far[name], plain[name] + _SHIFT)
                for name in plain
            ):
                return "shifted"
            if not names.any_of(("tanh",)):
                return None
            far, further = moved(_FAR), moved(2 * _FAR)
        except Exception as error:
            if unwinds(error):
                raise
            return None
    return "capped" if all(_close(far[name], further[name]) for name in plain) else None


def shift_of_products(
    reference: ReferenceCall,
    inputs: Mapping[str, torch.Tensor],
    axes: Mapping[str, Any],
    factors: Sequence[str],
) -> tuple[str, float] | None:
    """A factor, and what to add to it, so that logits which are products with it are about -200.

    None if there are no such logits of a softmax, or if a result neither stays nor moves evenly
    with them.

    Args:
        reference: what computes the results, in float64.
        inputs: by name.
        axes: the other arguments of the reference.
        factors: the inputs that may be the factor; the others of them are taken to be positive.
    """
    exact = doubled(inputs)
    positive = {name: exact[name].abs() for name in factors}

    def moved(name: str, by: float) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        with sdpa_kernel(SDPBackend.MATH), _Logits() as logits:
            results = reference({**exact, **positive, name: exact[name] + by}, axes)
        return results, logits.first

    with torch.no_grad():
        try:
            for name in factors:
                near, first = moved(name, 0.0)
                if first is None:
                    return None
                far, second = moved(name, -1.0)
                if second is None or first.shape != second.shape:
                    continue
                slope = (second - first)[first.isfinite()]
                if not slope.numel() or not bool((slope < -_CLOSE).all()):
                    continue
                further, _ = moved(name, -2.0)
                if all(_close(further[of] - far[of], far[of] - near[of]) for of in near):
                    return name, SHIFT / float(slope.mean())
        except Exception as error:
            if unwinds(error):
                raise
    return None


def extremes_of(
    reference: ReferenceCall, inputs: Mapping[str, torch.Tensor], axes: Mapping[str, Any]
) -> int:
    """1 if results depend on which element of a row is the largest, -1 on which is the least; or 0.

    Args:
        reference: what computes the results.
        inputs: by name.
        axes: the other arguments of the reference.
    """
    with _Names() as names:  # with gradients, which it may compute itself
        reference({name: tensor.clone() for name, tensor in inputs.items()}, axes)
    return 1 if names.any_of(_LARGEST) else -1 if names.any_of(_LEAST) else 0


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one.double(), other.double(), rtol=_CLOSE, atol=_CLOSE, equal_nan=True)


class _Logits(OperatorMode):  # type: ignore[no-untyped-call]
    """Keeps what the first softmax or maximum is of."""

    first: torch.Tensor | None = None

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator."""
        given = call.args[0] if call.args else None
        if (
            self.first is None
            and call.name in _OF_LOGITS
            and isinstance(given, torch.Tensor)
            and given.is_floating_point()
        ):
            self.first = given.clone()
        return call.result()


class _Names(OperatorMode):  # type: ignore[no-untyped-call]
    """Collects the names of operators, without overloads."""

    def __init__(self) -> None:
        super().__init__()
        self._names: set[str] = set()

    def any_of(self, words: tuple[str, ...]) -> bool:
        """Whether an operator has one of the words in its name, between underscores."""
        return any(not set(words).isdisjoint(name.split("_")) for name in self._names)

    def run(self, call: Call) -> Any:  # noqa: ANN401
        """Call the operator, and keep its name."""
        self._names.add(call.name)
        return call.result()
