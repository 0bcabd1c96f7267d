"""The smallest loss of precision that the checks of values find, by spec, result and dtype.

    python benchmarks/precision.py [SPEC...] [--cases 30]

A result is the float64 reference with one loss, rounded to its dtype, so that it has no other
error; no kernel runs. Cases are those of the quick tier with N(0, 1) inputs and results of at
least 65 rows; a loss is found if it is found in half of them. u is the unit roundoff of the dtype.

- bits: mantissa bits that are missing, rounded to nearest without them;
- factor: 1 + x times the result, x in multiples of u;
- truncated: the share of cases in which a result rounded toward zero is found.

`rms` is what the bounds of elements and regions find alone, without those of means.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

from tlmatrix.api import cases, load
from tlmatrix.check.numeric import deviations
from tlmatrix.check.rounding import biases
from tlmatrix.check.tolerance import ReferenceBounds
from tlmatrix.problem import family_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tlmatrix.problem.model import Problem
    from tlmatrix.spec.model.spec import Spec

SPECS = Path(__file__).parents[1] / "specs"
USUAL = ("gqa_varlen", "gqa_dense", "sink_varlen", "decode", "gemm", "gemm_split_k", "rms_norm")
ROWS = 65
BITS = (1, 2, 3, 4, 5)
Losses = dict[str, tuple[bool, bool]]
"""Whether each loss is found without the bounds of means, and with them."""
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def fewer_bits(values: torch.Tensor, dtype: torch.dtype, bits: int) -> torch.Tensor:
    """Rounded to nearest without the last `bits` mantissa bits of the dtype."""
    mantissa, exponent = torch.frexp(values)
    steps = 2.0**-bits / torch.finfo(dtype).eps
    return torch.ldexp((mantissa * 2 * steps).round() / steps / 2, exponent).to(dtype)


def truncated(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded toward zero."""
    mantissa, exponent = torch.frexp(values)
    steps = 1 / torch.finfo(dtype).eps
    return torch.ldexp((mantissa * 2 * steps).trunc() / steps / 2, exponent).to(dtype)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("specs", nargs="*", default=USUAL)
    parser.add_argument("--cases", type=int, default=30, help="cases of each spec and dtype (30)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(
        *("spec", "result", "dtype", "cases", "bits"),
        *("factor: rms", "with means", "truncated: rms", "with means"),
    )
    for name in asked.specs:
        for row in rows_of(load(SPECS / f"{name}.yaml"), asked.cases):
            table.add_row(name, *row)
    Console().print(table)


def rows_of(spec: Spec, most: int) -> Iterator[tuple[str, ...]]:
    """The rows of the table: result, dtype, number of cases, and the losses found."""
    found: dict[tuple[str, torch.dtype], list[Losses]] = defaultdict(list)
    for problem in problems(spec):
        for name, info in problem.outputs.items():
            rows = math.prod(info.shape[:-1] if len(info.shape) > 1 else info.shape)
            key = name, info.dtype
            if info.dtype.is_floating_point and rows >= ROWS and len(found[key]) < most:
                found[key].append(losses(problem, name, spec))
    for (name, dtype), results in found.items():
        if results:
            yield name, str(dtype).removeprefix("torch."), str(len(results)), *described(results)


def problems(spec: Spec) -> Iterator[Problem]:
    """The problems of the quick tier, with N(0, 1) inputs."""
    family, cpu = family_for(spec), torch.device("cpu")
    for seed, case in enumerate(cases(spec)):
        if case.origin != "invalid":
            values = {**case.values, "values": "normal"}
            yield family.problem(spec, values, seed=seed, device=cpu)


def losses(problem: Problem, name: str, spec: Spec) -> Losses:
    """Which losses of one result the checks find."""
    bounds = ReferenceBounds(problem, spec.tolerance, "interpreter")
    exact, dtype = bounds.reference[name], problem.outputs[name].dtype

    def finds(result: torch.Tensor) -> tuple[bool, bool]:
        results = {name: result}
        without_means = bool(deviations(results, bounds))
        return without_means, without_means or bool(biases(results, bounds))

    roundoff = torch.finfo(dtype).eps / 2
    return {
        "none": finds(exact.to(dtype)),
        "truncated": finds(truncated(exact, dtype)),
        **{f"bits {bits}": finds(fewer_bits(exact, dtype, bits)) for bits in BITS},
        **{f"factor {x}": finds((exact * (1 + x * roundoff)).to(dtype)) for x in FACTORS},
    }


def described(results: list[Losses]) -> Iterator[str]:
    """The smallest number of bits, the smallest factors, and the shares of truncated results."""

    def share(loss: str, *, means: bool) -> float:
        return sum(each[loss][means] for each in results) / len(results)

    def smallest(kind: str, sizes: tuple[float, ...], *, means: bool) -> str:
        found = (size for size in sizes if share(f"{kind} {size}", means=means) >= 0.5)
        return next((f"{size:g}" for size in found), "none")

    assert not share("none", means=True), "a finding without a loss"
    yield smallest("bits", BITS, means=True)
    for means in (False, True):
        yield smallest("factor", FACTORS, means=means)
    for means in (False, True):
        yield f"{share('truncated', means=means):.0%}"


if __name__ == "__main__":
    main()
