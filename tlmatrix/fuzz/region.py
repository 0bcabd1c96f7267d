"""The region of a tensor that a failure can affect, over several runs with other inputs.

In a single run, some affected elements are right by chance or within their error bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.spec.issues import SpecError
from tlmatrix.unwinding import unwinds

if TYPE_CHECKING:
    import torch

    from tlmatrix.check.patterns import Projection
    from tlmatrix.matrix import Case
    from tlmatrix.problem import TensorInfo
    from tlmatrix.run.runner import Runner
    from tlmatrix.spec.model.spec import Spec

_SEEDS = (0, 1, 2)
"""Seeds of the inputs; an affected element is rarely right in all three runs."""


def wrong_region(spec: Spec, runner: Runner, case: Case, tensor: str) -> str | None:
    """The elements of an output or gradient that are wrong with any of several inputs, as text.

    For example "row 64 of sequence 0, head 0, dims 0-63". None if nothing is wrong, or the case
    cannot run again.
    """
    from tlmatrix.check.numeric import deviations
    from tlmatrix.check.results import Results
    from tlmatrix.check.tolerance import ReferenceBounds

    wrong: torch.Tensor | None = None
    info: TensorInfo | None = None
    for seed in _SEEDS:
        try:
            problem, results = runner.outputs(spec, case, seed=seed or None)
            info = problem.outputs.get(tensor)
            if info is None or tensor not in results:
                return None
            parts = results.parts if isinstance(results, Results) else None
            bounds = ReferenceBounds(problem, spec.tolerance, runner.backend.arch, parts=parts)
            found = deviations({tensor: results[tensor]}, bounds).get(tensor)
        except SpecError:
            return None
        except BaseException as error:
            if unwinds(error):
                raise
            return None
        if found is not None:
            wrong = found.wrong if wrong is None else wrong | found.wrong
    return None if info is None or wrong is None else _words(wrong, info)


def _words(wrong: torch.Tensor, info: TensorInfo) -> str:
    from tlmatrix.check.patterns import recognise

    return ", ".join(_side(side) for side in recognise(wrong, info.dims).projections)


def _side(side: Projection) -> str:
    from tlmatrix.check.patterns import ranges

    if not side.segmented:
        noun = "row" if side.noun == "row" else side.dim.name.replace("_", " ")
        several = "" if len(side.indices) == 1 or noun.endswith("s") else "s"
        return f"{noun}{several} {ranges(side.indices)}"
    region = side.dim.region_name or "sequence"
    parts = [
        f"row{'' if len(at) == 1 else 's'} {ranges(at)} of {region} {number}"
        for number, at in sorted(side.regions.items())
    ]
    more = f" and {len(parts) - 4} {region}s more" if len(parts) > 4 else ""
    return "; ".join(parts[:4]) + more
