"""How large the terms are that a reference sums, found by disturbing its arithmetic.

A result may be tiny because large terms cancel (`w * dy - x_hat * mean(w * dy * x_hat)` in a row
of one column). What rounding does to it goes with the size of the terms, which the result does
not show, and a function that is given as code does not tell. Monte Carlo arithmetic does (Parker,
"Monte Carlo Arithmetic", UCLA CSD-970002, 1997): when every operation's result is off by a random
relative error of at most `unit`, the final result moves by about `unit` times the size of the
terms that went into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Tensors = dict[str, torch.Tensor]

__all__ = ["Disturbed", "term_sizes"]

# Far above the dtype's own rounding, far below what would leave the first order.
_UNITS = {torch.float64: 2.0**-24, torch.float32: 2.0**-12}
# A single element's two terms could by chance be disturbed alike once; hardly twice.
_RUNS = 2


class Disturbed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every floating-point operation inside is off by a random relative error up to `unit`."""

    def __init__(self, unit: float, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unit = unit
        self._seed = seed
        self._sources: dict[torch.device, torch.Generator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: what keeps torch.compile out of a mode imports all of it first, for seconds."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator overload, which torch does not name
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call the operator, then disturb what it computed; views and copies compute nothing."""
        result = func(*args, **(kwargs or {}))
        if any(each.alias_info is not None for each in func._schema.returns):  # noqa: SLF001 - the only place that says so
            return result
        if func.overloadpacket.__name__ in {"clone", "_to_copy", "detach", "empty", "zeros"}:
            return result
        if isinstance(result, tuple | list):
            return type(result)(self._off(each) for each in result)
        return self._off(result)

    def _off(self, result: Any) -> Any:  # noqa: ANN401
        if not (isinstance(result, torch.Tensor) and result.is_floating_point()):
            return result
        source = self._sources.get(result.device)
        if source is None:
            source = torch.Generator(result.device).manual_seed(self._seed)
            self._sources[result.device] = source
        error = torch.empty_like(result).uniform_(-self._unit, self._unit, generator=source)
        return result.add_(error.mul_(result))


def term_sizes(
    evaluate: Callable[[], Tensors],
    exact: Tensors,
    seed: int,
    *,
    dtype: torch.dtype = torch.float64,
) -> Tensors:
    """The sizes of the terms in each of the tensors that `evaluate` computes in `dtype`.

    exact: what it gives undisturbed; no size is below a result's own. The same seed gives the
    same sizes. Elements that are not finite, or are not once disturbed, have size 0.
    """
    unit = _UNITS[dtype]
    sizes = {name: _finite(tensor).abs() for name, tensor in exact.items()}
    for run in range(_RUNS):
        with Disturbed(unit, seed + run):
            found = evaluate()
        for name, size in sizes.items():
            moved = _finite(found[name].double() - exact[name].double()).abs_() / unit
            torch.maximum(size, moved, out=size)
    return sizes


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(values.double(), nan=0.0, posinf=0.0, neginf=0.0)
