"""Results of runs that never happened, for tests of reports."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.check.finding import Finding
from tlmatrix.run import CaseResult, Status
from tlmatrix.run.events import RunHeader, Summary
from tlmatrix.run.records import RecordsWriter, read_records
from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tlmatrix.run.records import RunRecords

WRONG = Finding(
    check="numeric",
    title="Y: largest error 504 times the error bound, 63 of 63 elements (everything)",
    tensor="Y",
    index={"row": 3},
    expected=-17.5,
    got=0.0,
    ratio=504.0,
    wrong=63,
    total=63,
    pattern="everything",
    where="rows 0-62",
)


def case(number: int, status: Status = Status.PASSED, **more: Any) -> CaseResult:
    """Case `number` of the spec `x`; a failed one has wrong numbers."""
    found = (WRONG,) if status is Status.FAILED else ()
    values = {"n": number, "dtype": "float16" if number % 2 else "float32"}
    base: dict[str, Any] = {
        "spec": "x",
        "path": "specs/x.yaml",
        "case": f"dtype={values['dtype']}-n={number}",
        "values": values,
        "status": status,
        "findings": found,
        "seconds": 0.25,
        "backend": "interpreter",
        "arch": "interpreter",
        "error_ratio": 504.0 if found else 0.5,
    }
    return CaseResult(**{**base, **more})


def recorded(path: Path, results: Sequence[CaseResult], **header: Any) -> RunRecords:
    """Write a results file and read it."""
    records = RecordsWriter(path)
    base: dict[str, Any] = {
        "tier": "quick",
        "backend": "auto",
        "seed": 0,
        "paths": ("specs/x.yaml",),
        "command": "tlmatrix run specs/x.yaml",
        "started": "2026-01-02T03:04:05+00:00",
        "folder": str(path.parent),
    }
    records.header(RunHeader(**{**base, **header}))
    for result in results:
        records.case(result)
    failed = any(result.failed for result in results)
    counts = {"passed": len(results)}
    records.summary(Summary(counts, sum(result.seconds for result in results), int(failed)))
    records.close()
    return read_records(path)


def pictured() -> Finding:
    """Wrong rows of a packed output, with pictures."""
    import torch

    from tlmatrix.check.patterns import pictures
    from tlmatrix.problem.model import Dim

    region = [0] * 40 + [1] * 60
    dims = (
        Dim("position", 100, region=region, starts=[0, 40], region_name="sequence", tile=16),
        Dim("head", 4),
        Dim("dim", 32),
    )
    wrong = torch.zeros(100, 4, 32, dtype=torch.bool)
    wrong[88:, 2] = True
    return replace(WRONG, tensor="out", pictures=pictures(wrong, dims, (90, 2, 5)))


def many(cases: int) -> Iterator[CaseResult]:
    """Cases of four specs over six axes; cases with one dtype and a long length fail."""
    rng = random.Random(0)
    found = pictured()
    lengths = [1, 17, 63, 64, 65, 127, 128, 129, 255, 257, 513]
    for number in range(cases):
        values = {
            "dtype": rng.choice(["float16", "bfloat16", "float8_e4m3"]),
            "causal": rng.random() < 0.5,
            "heads": rng.choice([1, 2, 4, 8]),
            "head_dim": rng.choice([32, 64, 128]),
            "seqlens": {"q": rng.choice(lengths), "k": rng.choice(lengths)},
            "window": rng.choice([None, 1, 128, 300]),
        }
        bad = values["dtype"] == "bfloat16" and values["window"] == 128 and rng.random() < 0.5
        spec = ("gqa_varlen", "gqa_dense", "decode", "sinks")[number % 4]
        ratio = math.exp(rng.gauss(-1.2, 0.5)) * (values["seqlens"]["k"] / 513) ** 0.1
        yield case(
            number,
            Status.FAILED if bad else Status.SKIPPED if rng.random() < 0.01 else Status.PASSED,
            spec=spec,
            path=f"specs/{spec}.yaml",
            case=f"{'-'.join(f'{k}={label(v)}' for k, v in values.items())}-{number}",
            values=values,
            findings=(replace(found, ratio=20 * ratio),) if bad else (),
            error_ratio=None if bad else min(ratio, 0.99),
            seconds=0.02 + 0.002 * values["seqlens"]["q"] * rng.random(),
            message="",
        )
